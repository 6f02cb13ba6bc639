"""Replays against real servers, through the command line as a user would, and what every one of them must show."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

MIN_CONTEXT = 16_000


def agentx(*arguments: str, ok: tuple[int, ...] = (0,)) -> str:
    """Run the command line; standard output."""
    command = [sys.executable, "-P", "-m", "agentx", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in ok, f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def import_shared_corpus(source: Path, output: Path) -> Path:
    agentx("traces", "import", "--format", "weka", str(source), "-o", str(output), "--quiet")
    return output


@dataclass(frozen=True)
class Replay:
    """One finished run."""

    directory: Path
    manifest: dict[str, Any]
    summary: dict[str, Any]
    requests: list[dict[str, Any]]

    def sum(self, column: str) -> int:
        return sum(row[column] for row in self.requests)


def replay(url: str, corpus: Path, out: Path, *options: str) -> Replay:
    agentx("run", "--endpoint", url, "--corpus", str(corpus), "--out", str(out), "--quiet", *options)
    (directory,) = out.iterdir()
    return Replay(
        directory,
        json.loads((directory / "run.json").read_bytes()),
        json.loads((directory / "summary.json").read_bytes()),
        pq.read_table(directory / "requests.parquet").to_pylist(),
    )


def check_exact(run: Replay, *, forced: bool = True) -> None:
    """Every request ok, prompts as planned, contexts long enough to mean something; answers too where `forced`."""
    assert {row["status"] for row in run.requests} == {"ok"}, [row["error"] for row in run.requests if row["error"]]
    off = [abs(row["input_tokens"] - row["planned_input_tokens"]) for row in run.requests]
    assert max(off) <= 4
    assert sum(not difference for difference in off) >= 0.99 * len(off)
    assert max(row["input_tokens"] for row in run.requests) >= MIN_CONTEXT
    assert {row["timestamps"] for row in run.requests} == {"kernel"}
    if forced:
        assert all(row["output_tokens"] == row["planned_output_tokens"] for row in run.requests)
    times = ("scheduled_ns", "sent_ns", "headers_ns", "first_token_ns", "last_token_ns", "done_ns")
    for row in run.requests:
        stamps = [row[name] for name in times if row[name] is not None]
        assert stamps == sorted(stamps), row
    assert not (run.directory / "journal").exists()
    assert run.summary["valid"], run.summary["invalid_reasons"]


def check_hits(run: Replay) -> None:
    """Achieved within two points of theory (one live session, a cache that fits)."""
    cache = run.summary["cache"]
    assert cache["theoretical"] > 0.3
    assert abs(cache["achieved"] - cache["theoretical"]) <= 0.02, cache
