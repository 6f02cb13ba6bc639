"""10,000 run directories: listed, filtered, and their frontier found, each as one command from a cold interpreter.

usage: python -m benchmarks.bench_dataset [RUNS]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

RUNS = 10_000
REPEATS = 3
_SQL = {
    "list": "SELECT run_id, started_utc, concurrency, throughput_output_tok_s, valid FROM runs ORDER BY run_id",
    "filter": "SELECT run_id FROM runs WHERE valid AND concurrency = 8 AND latency_ttft_s_p90 < 1.0",
}


def make_runs(folder: Path, count: int) -> None:
    """`count` directories with the JSON files of a real run, whose load and figures vary."""
    command = [sys.executable, "-P", "-m", "agentx", "run", "--mock", "--concurrency", "8", "--duration", "3s"]
    command += ["--time-scale", "0.1", "--drain", "2s", "--quiet", "--out", str(folder / "template")]
    subprocess.run(command, check=False, capture_output=True)
    (template,) = (folder / "template").iterdir()
    summary: dict[str, Any] = json.loads((template / "summary.json").read_bytes())
    manifest: dict[str, Any] = json.loads((template / "run.json").read_bytes())
    rng = np.random.default_rng(1)
    for k, (speed, noise) in enumerate(rng.uniform(0.5, 1.0, (count, 2)).tolist()):
        directory = folder / "runs" / f"{k // 100:03}" / f"run-{k:05}"
        directory.mkdir(parents=True)
        load = 1 + k % 64
        summary |= {"run_id": directory.name, "concurrency": load, "valid": k % 10 > 0}
        summary["latency"]["ttft_s"]["p90"] = load / 16 / speed
        summary["interactivity"]["e2e_normalised"]["p90"] = 100 * speed / load**0.5
        summary["throughput"]["output_tok_s"] = 50 * load**0.7 * noise
        manifest |= {"run_id": directory.name}
        manifest["scenario"]["rules"]["concurrency"] = load
        for name, document in (("summary", summary), ("run", manifest)):
            (directory / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))


def timed(runs: Path, sql: str) -> tuple[float, int]:
    """Seconds of the whole command, and rows of its answer."""
    seconds, answer = _command("query", sql, str(runs), "--json")
    return seconds, len(json.loads(answer))


def drawn(runs: Path) -> tuple[float, int]:
    """Seconds until the frontier is found and its chart written, and points on it."""
    chart = runs.parent / "frontier.png"
    seconds, answer = _command("pareto", str(runs), "--tokens", "output", "--json", "--out", str(chart))
    (curve,) = json.loads(answer)["curves"]
    return seconds, sum(point["on_frontier"] for point in curve["points"])


def _command(*arguments: str) -> tuple[float, bytes]:
    start = perf_counter()
    done = subprocess.run([sys.executable, "-P", "-m", "agentx", *arguments], check=True, capture_output=True)
    return perf_counter() - start, done.stdout


def measure(folder: Path, count: int = RUNS) -> list[tuple[str, str, str, str]]:
    """Rows of the table of benchmarks; medians of REPEATS."""
    make_runs(folder, count)
    runs, out = folder / "runs", []
    for name, sql in _SQL.items():
        found = [timed(runs, sql) for _ in range(REPEATS)]
        seconds = statistics.median(taken for taken, _ in found)
        out.append((f"{count:,} runs: {name}, s ({found[0][1]:,} rows)", f"{seconds:.2f}", "", ""))
    found = [drawn(runs) for _ in range(REPEATS)]
    seconds = statistics.median(taken for taken, _ in found)
    out.append((f"{count:,} runs: frontier drawn, s ({found[0][1]:,} points on it)", f"{seconds:.2f}", "", ""))
    drop = Path("/proc/sys/vm/drop_caches")
    if os.access(drop, os.W_OK):
        os.sync()
        drop.write_text("3")
        out.append(("the same frontier, files not in memory, s", f"{drawn(runs)[0]:.2f}", "", ""))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    return [*out, ("peak memory of those commands, MB", f"{peak:.0f}", "", "")]


def main() -> None:
    """Print the rows."""
    with tempfile.TemporaryDirectory() as name:
        for row in measure(Path(name), int(sys.argv[1]) if len(sys.argv) > 1 else RUNS):
            print("  ".join(row))


if __name__ == "__main__":
    main()
