"""The whole product against the yardstick: plan, prompt, send, parse, record; figures from its own run directory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.yardstick import CLIENT_CPU, pinned, read_log
from replay.corpus import COLUMNS, CorpusWriter


@dataclass(frozen=True)
class Measured:
    """One run of the product."""

    cpu_s: float
    chunks: int
    requests: int
    rss_bytes: int
    ttft_error_ms: np.ndarray
    """TTFT minus the server's (first write - body complete), turns after the first."""
    stamp_error_ms: np.ndarray
    """First token's stamp minus the server's write, turns after the first."""
    first_request_s: float
    """From the command to the first measured request at the server."""
    parent_rss_bytes: int

    @property
    def per_100k(self) -> float:
        """CPU seconds per 100,000 content chunks."""
        return self.cpu_s / self.chunks * 1e5

    @property
    def ms_per_request(self) -> float:
        """CPU milliseconds per request."""
        return self.cpu_s / self.requests * 1e3


def write_corpus(
    path: Path, *, sessions: int, turns: int, context: int, grow: int, output: int, think_s: float
) -> None:
    """Sessions of one growing prompt; every turn's answer has `output` tokens, give or take a fifth."""
    rng = np.random.default_rng(3)
    with CorpusWriter(path, {"name": path.stem}) as writer:
        for session in range(sessions):
            clock, rows = 0.0, []
            for turn in range(turns):
                tokens = context + turn * grow
                row: dict[str, Any] = dict.fromkeys(COLUMNS)
                row |= {"session_id": f"s{session}", "lane_id": "main", "turn": turn, "start_s": clock, "api_s": 0.5}
                row |= {
                    "input_tokens": tokens,
                    "block_size": 64,
                    "blocks": [(0, tokens // 64)],
                    "input_kinds": ["text"],
                }
                row["output_tokens"] = output if output < 10 else int(output * rng.uniform(0.8, 1.2))
                rows.append(row)
                clock += 0.5 + think_s * rng.exponential()
            writer.add_session(rows)


def run(port: int, log: Path, corpus: Path, *options: str) -> Measured:
    """Run `agentx run` on its own core and read its records and the server's log."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-P", "-m", "agentx", "run", "--endpoint", f"http://127.0.0.1:{port}", "--quiet"]
        command += ["--corpus", str(corpus), "--out", out, *options]
        started = monotonic_ns()
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        done = subprocess.run(pinned(CLIENT_CPU, command), capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr)
        (directory,) = Path(out).iterdir()
        return _read(
            directory, log, started, max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024
        )


def _read(directory: Path, log: Path, started: int, parent_rss: int) -> Measured:
    client = pq.read_table(directory / "client.parquet").to_pydict()
    rows = pq.read_table(directory / "requests.parquet")
    t0 = json.loads((directory / "run.json").read_bytes())["clock"]["t0_monotonic_ns"]
    ttft_error, stamp_error = [], []
    os.sync()
    truth = read_log(log) if log.stat().st_size else {}
    columns = ("request_id", "turn", "status", "ttft_s", "first_token_ns", "sent_ns")
    for name, turn, status, ttft, first, _ in zip(*(rows[c].to_pylist() for c in columns), strict=True):
        if status == "ok" and turn > 0 and name in truth and len(truth[name].writes_ns):
            seen = truth[name]
            ttft_error.append(ttft * 1e3 - (seen.writes_ns[0] - seen.body_ns) / 1e6)
            stamp_error.append((first + t0 - seen.writes_ns[0]) / 1e6)
    return Measured(
        cpu_s=sum(client["cpu_ns"]) / 1e9,
        chunks=sum(rows["output_chunks"].to_pylist()),
        requests=rows.num_rows,
        rss_bytes=max(client["rss_bytes"]),
        ttft_error_ms=np.array(ttft_error),
        stamp_error_ms=np.array(stamp_error),
        first_request_s=(t0 + min(rows["sent_ns"].to_pylist()) - started) / 1e9,
        parent_rss_bytes=parent_rss,
    )
