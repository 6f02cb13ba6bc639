"""The whole product against the yardstick: plan, prompt, send, parse, record; figures from its own run directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.yardstick import CLIENT_CPU, Truth, pinned
from replay.corpus import COLUMNS, CorpusWriter


@dataclass(frozen=True)
class Measured:
    """One run of the product."""

    cpu_s: float
    chunks: int
    requests: list[dict[str, Any]]
    t0_ns: int
    rss_bytes: int
    """Of the worker, at its largest."""
    first_request_s: float
    """From the command to the first measured request."""
    parent_rss_bytes: int

    @property
    def per_100k(self) -> float:
        """CPU seconds per 100,000 content chunks."""
        return self.cpu_s / self.chunks * 1e5

    @property
    def ms_per_request(self) -> float:
        """CPU milliseconds per request."""
        return self.cpu_s / len(self.requests) * 1e3

    def errors_ms(self, truth: dict[str, Truth], *, from_first_byte: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """After the first turn: TTFT minus (first write - body complete), and first stamp minus that write.

        `from_first_byte` of the request instead: sending half a megabyte is then part of the truth, as it is of TTFT.
        """
        ttft, stamp = [], []
        for row in self.requests:
            seen = truth.get(row["request_id"])
            if seen is not None and row["status"] == "ok" and row["turn"] > 0:
                ttft.append(
                    row["ttft_s"] * 1e3
                    - (seen.writes_ns[0] - (seen.first_byte_ns if from_first_byte else seen.body_ns)) / 1e6
                )
                stamp.append((row["first_token_ns"] + self.t0_ns - seen.writes_ns[0]) / 1e6)
        return np.array(ttft), np.array(stamp)


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


def run(port: int, corpus: Path, *options: str, environment: dict[str, str] | None = None) -> Measured:
    """Run `agentx run` on its own core and read what it recorded."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-P", "-m", "agentx", "run", "--endpoint", f"http://127.0.0.1:{port}", "--quiet"]
        command += ["--corpus", str(corpus), "--out", out, *options]
        started = monotonic_ns()
        with subprocess.Popen(
            pinned(CLIENT_CPU, command),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        ) as process:
            assert process.stderr is not None
            said = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            raise RuntimeError(said)
        (directory,) = Path(out).iterdir()
        client = pq.read_table(directory / "client.parquet").to_pydict()
        columns = ["request_id", "turn", "status", "ttft_s", "first_token_ns", "sent_ns", "output_chunks"]
        rows = pq.read_table(directory / "requests.parquet", columns=columns).to_pylist()
        t0 = json.loads((directory / "run.json").read_bytes())["clock"]["t0_monotonic_ns"]
    return Measured(
        cpu_s=sum(client["cpu_ns"]) / 1e9,
        chunks=sum(row["output_chunks"] for row in rows),
        requests=rows,
        t0_ns=t0,
        rss_bytes=max(client["rss_bytes"]),
        first_request_s=(t0 + min(row["sent_ns"] for row in rows if row["sent_ns"] is not None) - started) / 1e9,
        parent_rss_bytes=usage.ru_maxrss * 1024,
    )
