"""run.json and the journal's header: what was run, kept current from the first moment to the last."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from harness.load import duration_s, warms_up
from replay.chat_shape import ChatShape
from replay.corpus import Corpus
from replay.endpoint import Endpoint
from replay.plan import Plan, shorter
from replay.scenario import Scenario
from results.clock import ClockAnchor
from results.dataset import SIDECAR
from results.errors import UserError
from results.journal import write_header
from results.records import SCHEMA_VERSION
from results.redact import redact

if TYPE_CHECKING:
    from harness.probe import Probed
    from harness.run import RunOptions

_PACKAGES = ("agentx-live", "httptools", "httpx", "msgspec", "numpy", "pyarrow", "uvloop")


class RunRecord:
    """The run directory's identity. `header` is what the result files are made from, also after a crash."""

    def __init__(
        self, directory: Path, run_id: str, salt: str, manifest: dict[str, Any], header: dict[str, Any]
    ) -> None:
        self.directory = directory
        self.run_id = run_id
        self.salt = salt
        self.manifest = manifest
        self.header = header

    @classmethod
    def create(
        cls,
        options: RunOptions,
        corpus: Corpus,
        plan: Plan,
        endpoints: Sequence[Endpoint],
        probed: Sequence[Probed],
        command: list[str],
        *,
        salt: str,
    ) -> RunRecord:
        """Make the directory and write both files; UserError when the folder can't be written."""
        from harness.run import new_run_id

        run_id, scenario = new_run_id(), options.scenario
        sidecar = options.sidecar and read_sidecar(options.sidecar)
        endpoint, found = endpoints[0], probed[0]
        directory = options.out / run_id
        try:
            (directory / "journal").mkdir(parents=True)
        except OSError as error:
            raise UserError(f"--out {options.out}: {error.strerror}", remedy="choose a folder you can write") from error
        header: dict[str, Any] = {
            "run_id": run_id,
            "schema": SCHEMA_VERSION,
            "session_ids": corpus.session_ids,
            "lane_names": corpus.lane_names,
            "heads": _heads(corpus, scenario.shared_prefix),
            "cache_block": found.server_block,
            "scenario": scenario.name,
            "endpoints": [one.base for one in endpoints],
            "concurrency": scenario.concurrency if scenario.arrival == "closed" else None,
            "arrival": scenario.arrival,
            "rate_per_min": scenario.rate_per_min,
            "reasoning": scenario.reasoning,
            "rate_limits": limits_of(scenario),
            "seed": scenario.seed,
            "stages": msgspec.to_builtins(scenario.stages),
            "duration_s": duration_s(scenario),
            "steady": scenario.steady,
            "steady_start_ns": None if warms_up(scenario) else 0,
            "steady_end_ns": None,
            "keep_chunks": options.keep_chunks,
            "num_gpus": None,
            "raised": raised(corpus, plan, found.shape),
            "error_rate_limit": scenario.failed_limit,
            "overflow_limit": scenario.overflow_limit,
            "coverage": scenario.coverage,
            "not_submission": options.rules.why_not_submission(),
            "interrupted": False,
            "invalid_reasons": [],
        }
        manifest = {
            "schema": SCHEMA_VERSION,
            "run_id": run_id,
            "status": "running",
            "command": [redact(argument) for argument in command],
            "packages": _versions(),
            "python": platform.python_version(),
            "seed": scenario.seed,
            "salt": salt,
            "corpus": {
                "digest": corpus.digest,
                "path": str(options.corpus) if options.corpus else "builtin" if scenario.fixed is None else None,
                **corpus.meta,
            },
            "plan": {
                "digest": plan.digest,
                "requests": plan.requests,
                "input_tokens": plan.input_tokens,
                "output_tokens": plan.output_tokens,
                "dropped": plan.dropped,
                "selection": asdict(plan.selection),
            },
            "scenario": {
                "name": scenario.name,
                "source": options.rules.source,
                "rules": msgspec.to_builtins(scenario),
                "overrides": {rule: {"was": was, "is": now} for rule, (was, now) in options.rules.overrides.items()},
                "limits": asdict(options.limits),
            },
            "endpoint": {"url": endpoint.base, "insecure": endpoint.insecure, **found.fingerprint()},
            "endpoints": [
                {"url": one.base, "server_version": said.server_version, "probe": said.fingerprint()["probe"]}
                for one, said in zip(endpoints, probed, strict=True)
            ],
            "host": _host(),
        }
        record = cls(directory, run_id, salt, manifest, header)
        if sidecar:  # before run.json: no moment at which it is a run without its metadata
            (directory / SIDECAR).write_bytes(sidecar)
        record._write()
        return record

    def begin(self, t0_ns: int, workers: int) -> None:
        """The clock starts."""
        self.header["t0_monotonic_ns"] = t0_ns
        self.manifest["workers"] = workers
        self.manifest["clock"] = {"t0_monotonic_ns": t0_ns, "start": asdict(ClockAnchor.now())}
        self._write()

    @property
    def t0_ns(self) -> int:
        """The run's zero on CLOCK_MONOTONIC."""
        return int(self.header["t0_monotonic_ns"])

    def measure(self, at_ns: int) -> None:
        """The warm-up is over: the measured part begins `at_ns` after the run's zero."""
        self.header["steady_start_ns"] = at_ns
        self._write()

    def end(self, *, interrupted: bool, stopped_ns: int | None, duration_s: float | None, address: str) -> None:
        """Nothing is in flight any more; fixes the steady window."""
        t0, start = self.header["t0_monotonic_ns"], self.header["steady_start_ns"]
        end = None if duration_s is None or start is None else start + round(duration_s * 1e9)
        if stopped_ns is not None:
            end = stopped_ns - t0 if end is None else min(end, stopped_ns - t0)
        self.header["steady_end_ns"] = end
        self.header["interrupted"] = interrupted
        self.manifest["endpoint"]["address"] = address
        self.manifest["clock"]["end"] = asdict(ClockAnchor.now())
        self._write()

    def unsent(self, count: int) -> None:
        """So many requests were due and still held back by a rate limit when the run ended."""
        self.header["unsent"] = count
        self._write()

    def invalid(self, reason: str) -> None:
        """The run can't be used, and why."""
        self.header["invalid_reasons"].append(reason)
        self._write()

    def discard(self) -> None:
        """The run could not start: nothing was sent, and the folder would only look like a run."""
        rows = (self.directory / "journal").glob("w*.requests")
        if not any(path.stat().st_size for path in rows):
            shutil.rmtree(self.directory, ignore_errors=True)

    def finish(self, summary: dict[str, Any]) -> None:
        """The result files are complete."""
        self.manifest["status"] = "interrupted" if self.header["interrupted"] else "finished"
        self.manifest["valid"] = summary["valid"]
        self._write_manifest()

    def _write(self) -> None:
        write_header(self.directory / "journal", self.header)
        self._write_manifest()

    def _write_manifest(self) -> None:
        path = self.directory / "run.json"
        temporary = path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(self.manifest, indent=2, allow_nan=False, default=str) + "\n")
        temporary.replace(path)


def limits_of(scenario: Scenario) -> dict[str, float]:
    """The limits on what is sent, by option."""
    given = {
        "--max-request-rate": scenario.max_requests_per_s,
        "--max-input-rate": scenario.max_input_tokens_per_min,
    }
    return {option: limit for option, limit in given.items() if limit is not None}


def raised(corpus: Corpus, plan: Plan, shape: ChatShape) -> dict[str, int]:
    """Requests that ask for fewer tokens than the chat template makes of a single word, and what they get."""
    return {
        "requests": shorter(corpus, plan, shape.shortest),
        "of": plan.requests,
        "to": shape.shortest,
        "template": shape.shortest - 1,
    }


def read_sidecar(path: Path) -> bytes:
    """The content of a JSON file that goes beside the run's own; UserError when it is no JSON object."""
    try:
        content = path.read_bytes()
        document = json.loads(content)
    except (OSError, ValueError) as error:
        raise UserError(f"--sidecar {path}: {error}", remedy="give a JSON file") from error
    if not isinstance(document, dict):
        raise UserError(f"--sidecar {path}: not a JSON object", remedy="give a JSON file that holds one")
    return content


def _heads(corpus: Corpus, shared: str) -> dict[str, list[int]] | None:
    """Per session: which head (by equal tool and system sizes, or one for all), and its tokens in whole blocks."""
    if shared == "none":
        return None
    first = corpus.session_row[:-1]
    tools, system = np.maximum(corpus.tool_tokens[first], 0), np.maximum(corpus.system_tokens[first], 0)
    _, key = np.unique(np.stack([tools, system], axis=1), axis=0, return_inverse=True)
    sizes = corpus.block_size[first]
    key = key.reshape(-1) if shared == "trace" else np.zeros(len(first), np.int64)
    return {"key": key.tolist(), "tokens": ((tools + system) // sizes * sizes).tolist()}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _host() -> dict[str, Any]:
    return {
        "name": platform.node(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "executable": sys.executable,
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
