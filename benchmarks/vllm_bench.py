"""`vllm bench serve` against the yardstick, where vLLM is installed in the environment of our real-server suite.

Its CPU is that of the whole process; start-up is taken out as the difference of a long and a short run.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.yardstick import CLIENT_CPU, pinned
from tests.servers.environments import cache_root

STREAMS = 200


@dataclass(frozen=True)
class PeerRun:
    """CPU seconds of the process, chunks by its own count of output tokens, and its own p99 TTFT."""

    cpu_s: float
    chunks: int
    ttft_p99_ms: float


def found() -> Path | None:
    """The command, None where vLLM is not installed."""
    commands = sorted(cache_root().glob("vllm-*/bin/vllm"))
    return commands[-1] if commands and tokenizer() is not None else None


def tokenizer() -> Path | None:
    """A tokenizer folder of the test suite's."""
    folders = [path.parent for path in cache_root().glob("tiny-*/**/tokenizer.json")]
    return folders[0] if folders else None


def run(command: Path, port: int, *, prompts: int, tokens: int = 200) -> PeerRun:
    """One run at STREAMS streams with prompts of 1000 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        options = [
            "bench", "serve", "--backend", "openai-chat", "--base-url", f"http://127.0.0.1:{port}",
            "--endpoint", "/v1/chat/completions", "--model", "mock", "--tokenizer", str(tokenizer()),
            "--dataset-name", "random", "--random-input-len", "1000", "--random-output-len", str(tokens),
            "--num-prompts", str(prompts), "--max-concurrency", str(STREAMS), "--ignore-eos", "--disable-tqdm",
            "--percentile-metrics", "ttft", "--metric-percentiles", "99", "--save-result", "--result-dir", folder,
            "--result-filename", "result.json", "--ready-check-timeout-sec", "0",
        ]  # fmt: skip
        with subprocess.Popen(
            pinned(CLIENT_CPU, [str(command), *options]), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            said = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(said[-500:])
        result = json.loads((Path(folder) / "result.json").read_bytes())
    return PeerRun(usage.ru_utime + usage.ru_stime, int(result["total_output_tokens"]), float(result["p99_ttft_ms"]))
