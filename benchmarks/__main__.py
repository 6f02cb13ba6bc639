"""`make bench`: every benchmark, side by side in one run, written to benchmarks/RESULTS.md.

Client and server have a core each. Figures are medians of REPEATS runs in turn with the C client doing the same work,
so that a slow moment of the machine hits both; the ratio to that floor is what can be compared between machines.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from benchmarks import bench_dataset, product, vllm_bench, yardstick

REPEATS = 5
RESULTS = Path(__file__).with_name("RESULTS.md")
SHARED_TRACES = yardstick.SOURCE.parent.parent / "data" / "weka" / "weka-traces.tar.zst"

Row = tuple[str, str, str, str]


def median(values: list[float]) -> float:
    return statistics.median(values)


def side_by_side(ours: Callable[[], float], floor: Callable[[], float]) -> tuple[float, float]:
    """Medians of REPEATS pairs, taken in turn."""
    pairs = [(ours(), floor()) for _ in range(REPEATS)]
    return median([a for a, _ in pairs]), median([b for _, b in pairs])


def flood(binaries: Path, folder: Path) -> list[Row]:
    """64 streams as fast as the server writes."""
    corpus = folder / "flood.parquet"
    product.write_corpus(corpus, sessions=64, turns=40, context=200, grow=8, output=500, think_s=0)

    def ours() -> float:
        with yardstick.serving(binaries, ttft_ms=0, itl_ms=0) as (port, _):
            options = ("--concurrency", "64", "--duration", "4s", "--time-scale", "0")
            return product.run(port, corpus, *options).per_100k

    def floor() -> float:
        with yardstick.serving(binaries, ttft_ms=0, itl_ms=0) as (port, _):
            return yardstick.c_client(binaries, port, streams=64, requests=2048, tokens=500)["cpu_per_100k"]

    mine, least = side_by_side(ours, floor)
    with yardstick.serving(binaries, ttft_ms=0, itl_ms=0) as (port, _):
        command = yardstick.pinned(0, [sys.executable, "-m", "benchmarks.peers", str(port), "64", "192", "500"])
        naive = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["cpu_per_100k"]
    return [
        ("CPU s per 100k chunks, flood, 64 streams", f"{mine:.3f}", f"{least:.3f}", f"{mine / least:.2f}"),
        ("the same, a naive httpx client", f"{naive:.2f}", f"{least:.3f}", f"{naive / least:.2f}"),
    ]


def paced(binaries: Path, folder: Path) -> list[Row]:
    """200 streams at 20 ms."""
    corpus = folder / "paced.parquet"
    product.write_corpus(corpus, sessions=200, turns=20, context=1000, grow=300, output=200, think_s=0.3)

    def ours() -> float:
        with yardstick.serving(binaries, ttft_ms=200, itl_ms=20) as (port, _):
            return product.run(port, corpus, "--concurrency", "200", "--duration", "16s").per_100k

    def floor() -> float:
        with yardstick.serving(binaries, ttft_ms=200, itl_ms=20) as (port, _):
            return yardstick.c_client(binaries, port, streams=200, requests=400, tokens=200)["cpu_per_100k"]

    mine, least = side_by_side(ours, floor)
    name = "CPU s per 100k chunks, paced, 200 streams at 20 ms"
    return [(name, f"{mine:.2f}", f"{least:.2f}", f"{mine / least:.2f}"), *_paced_peer(binaries, least)]


def _paced_peer(binaries: Path, floor: float) -> list[Row]:
    """The lightest peer, where it is installed: start-up taken out as the difference of two runs."""
    command = vllm_bench.found()
    if command is None:
        return []
    costs, ttft = [], []
    for _ in range(2):
        runs = []
        for prompts in (200, 1000):
            with yardstick.serving(binaries, ttft_ms=200, itl_ms=20) as (port, _):
                runs.append(vllm_bench.run(command, port, prompts=prompts))
        short, long = runs
        costs.append((long.cpu_s - short.cpu_s) / (long.chunks - short.chunks) * 1e5)
        ttft.append(long.ttft_p99_ms - 200)
    cost = median(costs)
    return [
        ("the same, `vllm bench serve` (medians of 2)", f"{cost:.2f}", f"{floor:.2f}", f"{cost / floor:.2f}"),
        ("its own p99 TTFT above the true 200 ms, ms", f"{median(ttft):.0f}", "", ""),
    ]


def large_bodies(binaries: Path, folder: Path) -> list[Row]:
    """80k tokens of context in every request, eight tokens out."""
    corpus = folder / "large.parquet"
    product.write_corpus(corpus, sessions=64, turns=60, context=80_000, grow=300, output=8, think_s=0)

    def ours() -> float:
        with yardstick.serving(binaries, ttft_ms=0, itl_ms=0, burst=8) as (port, _):
            options = ("--concurrency", "64", "--duration", "4s", "--time-scale", "0")
            return product.run(port, corpus, *options).ms_per_request

    def floor() -> float:
        with yardstick.serving(binaries, ttft_ms=0, itl_ms=0, burst=8) as (port, _):
            done = yardstick.c_client(binaries, port, streams=64, requests=4096, tokens=8, body=400_000)
            return done["cpu"] / done["req"] * 1e3

    mine, least = side_by_side(ours, floor)
    return [("CPU ms per request, 400 KB body, 8 tokens", f"{mine:.3f}", f"{least:.3f}", f"{mine / least:.2f}")]


def errors(binaries: Path, folder: Path) -> list[Row]:
    """What we report against what the server did: 200 ms to the first token, then one every 20 ms."""
    out: list[Row] = []
    for streams in (200, 500, 1000):
        corpus = folder / f"errors-{streams}.parquet"
        product.write_corpus(corpus, sessions=streams, turns=20, context=1000, grow=300, output=100, think_s=0.5)
        ttft, stamp = [], []
        for _ in range(REPEATS):
            with yardstick.serving(binaries, ttft_ms=200, itl_ms=20) as (port, log):
                done = product.run(port, corpus, "--concurrency", str(streams), "--duration", "8s")
            found = done.errors_ms(yardstick.read_log(log))  # the server has flushed its log on leaving
            ttft.append(found[0])
            stamp.append(found[1])
        for name, runs in (("TTFT error", ttft), ("stamp minus the server's write", stamp)):
            p50, p99 = (median([float(np.percentile(run, q)) for run in runs]) for q in (50, 99))
            out.append((f"{name}, ms, {streams} streams: p50 / p99", f"{p50:.3f} / {p99:.3f}", "", ""))
    return out


def agents(binaries: Path, folder: Path) -> list[Row]:
    """1,000 live agents with 100k contexts at 20 ms on one core: TTFT error from the first byte that the server saw."""
    corpus = folder / "agents.parquet"
    product.write_corpus(corpus, sessions=1000, turns=20, context=100_000, grow=300, output=100, think_s=0.5)
    ttft, stamp, memory, done = [], [], [], 0
    for _ in range(REPEATS):
        with yardstick.serving(binaries, ttft_ms=200, itl_ms=20) as (port, log):
            measured = product.run(port, corpus, "--concurrency", "1000", "--duration", "15s")
        found = measured.errors_ms(yardstick.read_log(log), from_first_byte=True)
        ttft.append(float(np.percentile(found[0], 99)))
        stamp.append(float(np.percentile(found[1], 99)))
        memory.append(measured.rss_bytes / 1e9)
        done += sum(row["status"] != "ok" for row in measured.requests)
    return [
        ("1,000 agents, 100k contexts, 20 ms: TTFT error p99, ms", f"{median(ttft):.3f}", "", ""),
        ("the same: stamp minus the server's write p99, ms", f"{median(stamp):.3f}", "", ""),
        ("the same: worker memory, GB / requests not ok", f"{median(memory):.2f} / {done}", "", ""),
    ]


def start_up(binaries: Path, folder: Path) -> list[Row]:
    """From the command to the first request, with the whole shared corpus where it is there."""
    corpus = folder / "all.parquet"
    if not SHARED_TRACES.is_file():
        return []
    command = [
        sys.executable,
        "-P",
        "-m",
        "agentx",
        "traces",
        "import",
        str(SHARED_TRACES),
        "-o",
        str(corpus),
        "--quiet",
    ]
    subprocess.run(command, check=True, capture_output=True)
    seconds, memory = [], []
    for _ in range(REPEATS):
        with yardstick.serving(binaries, ttft_ms=1, itl_ms=0) as (port, _):
            done = product.run(port, corpus, "--concurrency", "8", "--duration", "1s", "--drain", "0s")
        seconds.append(done.first_request_s)
        memory.append(max(done.parent_rss_bytes, done.rss_bytes) / 1e6)
    return [
        ("first request with 44,901 recorded requests, s", f"{median(seconds):.2f}", "", ""),
        *_cold_start(binaries, folder, corpus),
        ("peak memory of one process of that start, MB", f"{median(memory):.0f}", "", ""),
    ]


def _cold_start(binaries: Path, folder: Path, corpus: Path) -> list[Row]:
    """The same with nothing in memory and nothing compiled: page cache dropped, no .pyc files, no cache of words."""
    drop = Path("/proc/sys/vm/drop_caches")
    if not os.access(drop, os.W_OK):
        return []
    seconds = []
    for repeat in range(REPEATS):
        empty = {"PYTHONPYCACHEPREFIX": str(folder / f"pyc{repeat}"), "XDG_CACHE_HOME": str(folder / f"cache{repeat}")}
        with yardstick.serving(binaries, ttft_ms=1, itl_ms=0) as (port, _):
            os.sync()
            drop.write_text("3")
            options = ("--concurrency", "8", "--duration", "1s", "--drain", "0s")
            seconds.append(product.run(port, corpus, *options, environment=empty).first_request_s)
    return [("the same, cold, s", f"{median(seconds):.2f}", "", "")]


def memory(binaries: Path, folder: Path) -> list[Row]:
    """Resident memory of the worker for every live agent with a 100k-token context."""
    sizes = {}
    for agents in (20, 220):
        corpus = folder / f"memory-{agents}.parquet"
        product.write_corpus(corpus, sessions=agents, turns=20, context=100_000, grow=300, output=50, think_s=0.5)
        with yardstick.serving(binaries, ttft_ms=20, itl_ms=5) as (port, _):
            sizes[agents] = product.run(port, corpus, "--concurrency", str(agents), "--duration", "4s").rss_bytes
    each = (sizes[220] - sizes[20]) / 200 / 1e6
    return [("worker memory per live agent, 100k-token context, MB", f"{each:.2f}", "", "")]


def many_runs(_: Path, folder: Path) -> list[Row]:
    """10,000 run directories listed, filtered, and their frontier."""
    return bench_dataset.measure(folder / "many")


def main() -> None:
    """Run all and write the table."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            binaries = yardstick.build(folder)
        except yardstick.Missing as error:
            sys.exit(f"benchmarks need the yardstick: {error}")
        chosen = sys.argv[1:]
        for benchmark in (start_up, flood, paced, large_bodies, errors, agents, memory, many_runs):
            if chosen and benchmark.__name__ not in chosen:
                continue
            print(f"{benchmark.__name__} …", file=sys.stderr, flush=True)
            found = benchmark(binaries, folder)
            for row in found:
                print("  " + "  ".join(row), file=sys.stderr, flush=True)
            rows += found
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("agentx-live", "httptools", "httpx", "numpy", "uvloop"))
    text = [
        "# Benchmarks",
        "",
        f"`make bench` on {datetime.now(UTC):%Y-%m-%d}: {platform.machine()}, {platform.system()},",
        f"Python {platform.python_version()}, {versions}.",
        f"Client and server have a core each; medians of {REPEATS} runs in turn with the yardstick's C client doing",
        "the same work (the floor). Ours is the whole product path.",
        "",
        "| figure | ours | floor (C) | ratio |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    if chosen:
        return  # a part of the table is printed, not kept
    RESULTS.write_text("\n".join(text))
    print(f"written to {RESULTS}", file=sys.stderr)


if __name__ == "__main__":
    main()
