"""The driver of a sweep: point after point, each one `agentx run` of its own, what happened noted before and after."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from harness.sweep.guarded import ROOT, Guarded, tail
from harness.sweep.load import rules_path
from harness.sweep.matrix import Curve, Point, ends_then_bisect
from harness.sweep.refine import Place, next_concurrency
from harness.sweep.reset import reset_cache
from harness.sweep.schema import Auto, Configuration, Scenario, seconds
from harness.sweep.secret import find_secrets, shown
from harness.sweep.server import Filled, Stopped, fill, kv_pool, running
from harness.sweep.state import Record, State
from harness.sweep.uploads import Uploads
from replay.scenario import load_rules
from results.errors import EXIT_INVALID, UserError
from results.redact import redact

_OPTIONS = {
    "model": "--model", "duration": "--duration", "sessions": "--sessions", "max_context": "--max-context",
    "time_scale": "--time-scale", "seed": "--seed", "workers": "--workers", "tokenizer": "--tokenizer",
    "messages": "--messages", "shared_prefix": "--shared-prefix",
    "overlong": "--overlong", "steady": "--steady", "drain": "--drain",
    "connect_timeout": "--connect-timeout", "first_byte_timeout": "--first-byte-timeout",
    "idle_timeout": "--idle-timeout",
}  # fmt: skip


@dataclass
class Driver:
    """Runs the points of a sweep that are not done yet."""

    name: str
    state: State
    beside: Path
    """Folder of the sweep file: relative corpus paths start there."""
    api_key: str | None
    retry_failed: bool
    say: Callable[[str], None]
    uploads: Uploads | None = None
    signal: int | None = None
    """The signal that stopped the sweep, if one did."""
    _under_way: Guarded | None = None
    _retried: set[str] = field(default_factory=set)

    def run(self, chosen: list[tuple[Curve, int | None]]) -> None:
        """Do everything that is left, curves taking turns; a failed point does not stop the rest."""
        self._adopt()
        with self._signals():
            waiting = list(chosen)
            while waiting and self.signal is None:
                for entry in list(waiting):
                    point = self.next_point(*entry)
                    if point is None:
                        waiting.remove(entry)
                    elif self.signal is None:
                        self._attempt(point)
            if self.uploads is not None and self.signal is None:
                self.uploads.rest()

    def _adopt(self) -> None:
        """A run that ended just before a crash, its end not noted any more, is the result of its point."""
        folder = self.state.folder
        for record in list(self.state.records.values()):
            if record.status != "running":
                continue
            attempt = folder / "attempts" / record.point / str(record.attempt)
            for path in sorted([*folder.glob("runs/*/serving.json"), *attempt.glob("*/serving.json")]):
                if whole(path.parent) and _attempt_of(path) == (record.point, record.attempt):
                    self.state.put(dataclasses.replace(record, status="done", **keep(folder, path.parent)))
                    break

    def next_point(self, curve: Curve, concurrency: int | None) -> Point | None:
        """What this curve needs next, None when it is complete."""
        if concurrency is not None:
            return self._open(curve.point(concurrency))
        if isinstance(curve.points, Auto):
            number = next_concurrency(curve.points, self.tried(curve))
            return None if number is None else curve.point(number)
        return next((p for c in ends_then_bisect(curve.points) if (p := self._open(curve.point(c)))), None)

    def tried(self, curve: Curve) -> dict[int, Place | None]:
        """Interactivity and throughput of every point of a curve that ended; None where there is none."""
        found: dict[int, Place | None] = {}
        for point_id, record in self.state.records.items():
            name, _, number = point_id.rpartition("/c")
            if name == curve.name and self._open(curve.point(int(number))) is None:
                found[int(number)] = place(self.state.folder, record)
        return found

    def _open(self, point: Point) -> Point | None:
        """The point when it is still to be done."""
        record = self.state.done(point.id, point.digest)
        if record is None:
            return point
        again = record.status == "failed" and self.retry_failed and point.id not in self._retried
        return point if again else None

    def _attempt(self, point: Point) -> None:
        number = self.state.attempt(point.id)
        self._retried.add(point.id)
        began = monotonic()
        attempt = Attempt(self, point, number)
        self.say(f"{point.id}: attempt {number}" if number > 1 else point.id)
        self.state.put(Record(point.id, point.digest, number, "running"))
        try:
            record = attempt.run()
        except Stopped:
            record = attempt.record("interrupted", reason="stopped before the run ended")
        except UserError as error:
            record = attempt.record("failed", reason=redact(str(error), attempt.secrets))
        except OSError as error:
            record = attempt.record("failed", reason=redact(f"{error.filename}: {error.strerror}", attempt.secrets))
        self.state.put(dataclasses.replace(record, seconds=round(monotonic() - began, 3)))
        self.say(f"{point.id}: {describe(self.state.folder, self.state.records[point.id])}")
        if self.uploads is not None and self.signal is None:
            self.uploads.point(self.state.records[point.id])

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """INT and TERM end the sweep; the run under way gets each of them as well (twice: stop now)."""

        def heard(number: int, _frame: object) -> None:
            self.signal = self.signal or number
            if self._under_way is not None:
                self._under_way.signal(number)
            if self.uploads is not None and self.uploads.under_way:
                raise KeyboardInterrupt

        before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Attempt:
    """One attempt at one point: server, run, and where its files go."""

    def __init__(self, driver: Driver, point: Point, number: int) -> None:
        self.driver = driver
        self.point = point
        self.number = number
        self.configuration: Configuration = point.curve.configuration
        self.folder = driver.state.folder / "attempts" / point.id / str(number)
        self.start_s: float | None = None
        self.filled: Filled | None = None
        self.secrets: list[str] = []

    def record(self, status: Any, **known: Any) -> Record:
        """This attempt's entry in the state."""
        return Record(self.point.id, self.point.digest, self.number, status, start_s=self.start_s, **known)

    def run(self) -> Record:
        """Serve, load, keep. Raises UserError with the reason when it fails, Stopped when the sweep is to end."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        configuration = self.configuration
        if configuration.server is None:
            assert configuration.endpoint is not None
            self.secrets = find_secrets((), {}, [configuration.endpoint], self.driver.api_key)
            reset = reset_cache(configuration.endpoint, configuration.reset, self.point.curve.scenario.model)
            pool = kv_pool(configuration.endpoint.rstrip("/").removesuffix("/v1"), ())
            return self._load(configuration.endpoint, {"kv_pool": pool, "cache_reset": asdict(reset)})
        self.filled = filled = fill(configuration, self.folder)
        self.secrets = find_secrets(filled.commands.values(), filled.env, (), self.driver.api_key)

        def stopped() -> bool:
            return self.driver.signal is not None

        hold = self.driver.state.hold
        with running(filled, configuration.server, self.folder, self.secrets, stopped, hold) as server:
            self.start_s = round(server.start_s, 3)
            pool = kv_pool(filled.url, [self.folder / f"{name}.log" for name in filled.commands])
            return self._load(filled.url, {"kv_pool": pool, "ready_after_s": self.start_s}, server.gone)

    def _load(self, url: str, seen: dict[str, Any], gone: Callable[[], str | None] = lambda: None) -> Record:
        if self.driver.signal is not None:
            raise Stopped
        sidecar, log = self.folder / "serving.json", self.folder / "run.log"
        write_json(sidecar, self._sidecar(seen))
        command = run_command(self.point.curve.scenario, self.point.concurrency, url, self.folder, self.driver.beside)
        command += ["--sidecar", str(sidecar.resolve())]
        hold = self.driver.state.hold
        with Guarded([sys.executable, *command], log, secrets=self.secrets, patience_s=30.0, hold=hold) as process:
            self.driver._under_way = process
            try:
                code = process.wait()
            finally:
                self.driver._under_way = None
        return self._keep(code, log, gone())

    def _keep(self, code: int | None, log: Path, gone: str | None) -> Record:
        """A finished run becomes the point's result; anything else stays with its attempt."""
        directory = next((path.parent for path in self.folder.glob("*/run.json")), None)
        if self.driver.signal is not None:
            return self.record("interrupted", reason="stopped during the run", run_id=directory and directory.name)
        if gone is not None:
            return self.record("failed", reason=gone, run_id=directory and directory.name)
        if code not in (0, EXIT_INVALID) or directory is None or not (directory / "summary.json").is_file():
            said = redact(tail(log), self.secrets)
            return self.record("failed", reason=f"agentx run ended with code {code}: {said}")
        kept = keep(self.driver.state.folder, directory)
        return self.record("done", **kept | {"reason": kept["reason"] and redact(kept["reason"], self.secrets)})

    def _sidecar(self, seen: dict[str, Any]) -> dict[str, Any]:
        """serving.json: the metadata of the run, and what was seen of its server."""
        configuration = self.configuration
        serving = json.loads(msgspec.json.encode(configuration.serving))
        commands = {} if self.filled is None else self.filled.commands
        return {
            "schema": 1,
            "sweep": self.driver.name,
            "point": self.point.id,
            "attempt": self.number,
            "digest": self.point.digest,
            "configuration": configuration.name,
            "scenario": self.point.curve.scenario.name,
            "recipe": configuration.recipe,
            "serving": {**serving, "accelerators": configuration.serving.accelerator_count},
            "commands": {name: shown(words, self.secrets) for name, words in commands.items()},
            "env_names": sorted(self.filled.env) if self.filled else [],
            **seen,
        }


def _attempt_of(sidecar: Path) -> tuple[str, int]:
    said = json.loads(sidecar.read_bytes())
    return said["point"], said["attempt"]


def whole(directory: Path) -> bool:
    """Whether a run came to its end by itself: all its files are written, and nothing interrupted it."""
    try:
        status = json.loads((directory / "run.json").read_bytes())["status"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(status == "finished") and (directory / "summary.json").is_file()


def keep(sweep: Path, directory: Path) -> dict[str, Any]:
    """Move a finished run to the sweep's results; its id, verdict and reason, as a record has them."""
    target = sweep / "runs" / directory.name
    if directory != target:
        target.parent.mkdir(exist_ok=True)
        os.replace(directory, target)
    summary = json.loads((target / "summary.json").read_bytes())
    reason = "; ".join(summary["invalid_reasons"]) or None
    return {"run_id": target.name, "valid": summary["valid"], "reason": reason}


def run_command(scenario: Scenario, concurrency: int, url: str, out: Path, beside: Path) -> list[str]:
    """Arguments of the interpreter for one run."""
    command = [str(ROOT / "agentx.py"), "run", "--endpoint", url, "--concurrency", str(concurrency)]
    for name, option in _OPTIONS.items():
        if (value := getattr(scenario, name)) is not None:
            command += [option, str(value)]
    if scenario.rules is not None:
        command += ["--scenario", rules_path(scenario.rules, beside)]
    if scenario.corpus is not None:
        command += ["--corpus", str((beside / scenario.corpus).resolve())]
    if scenario.chunks:
        command.append("--chunks")
    return [*command, "--out", str(out.resolve())]


def load_time(scenario: Scenario, beside: Path) -> tuple[float | None, float]:
    """Seconds of load by the rules, and the most that warm-up and drain add to them.

    None: only a number of sessions limits the load.
    """
    rules = load_rules(rules_path(scenario.rules or "closed-loop", beside), {}).scenario
    length = seconds(scenario.duration) if scenario.duration else None if scenario.sessions else rules.duration_s
    drain = seconds(scenario.drain) if scenario.drain else rules.drain_s
    warm_up = rules.warmup_grace_s if rules.warmup_requests else 0.0
    return length, drain + warm_up


def place(folder: Path, record: Record) -> Place | None:
    """Where a point lies: (1 / p90 of E2E latency per output token, total tokens/s); None when it failed."""
    if record.status != "done" or not record.valid or record.run_id is None:
        return None
    summary = read_summary(folder, record)
    if summary is None:
        return None
    x = summary["interactivity"]["e2e_normalised"]["p90"]
    y = summary["throughput"]["total_tok_s"]
    return None if x is None or y is None else (float(x), float(y))


def read_summary(folder: Path, record: Record) -> dict[str, Any] | None:
    """summary.json of a point's run; None when it is not there any more."""
    try:
        loaded: dict[str, Any] = json.loads((folder / "runs" / str(record.run_id) / "summary.json").read_bytes())
    except (OSError, ValueError):
        return None
    return loaded


def describe(folder: Path, record: Record) -> str:
    """One line on how a point ended."""
    if record.status != "done":
        return f"{record.status}: {record.reason}"
    where = place(folder, record)
    figures = f"{where[0]:.1f} tok/s/user, {where[1]:,.0f} tok/s" if where else f"not valid: {record.reason}"
    return f"{figures} ({record.run_id})"


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)
