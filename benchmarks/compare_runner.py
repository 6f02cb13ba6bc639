"""The public AgentX runner and ours on the same traces against the same simulated endpoint, side by side.

    python -m benchmarks.compare_runner --runner ENVIRONMENT [--warmup 3] [--json]

Both run as subprocesses, one after the other, each against a fresh endpoint that logs what really arrived. The traces
are a small slice of the shared corpus in time lapse (pauses and answers shortened alike for both, inputs untouched),
so that a comparison takes about a minute. Without `--warmup` every session is replayed once, from its first request;
with it both follow the public rules: start in mid-session, primers, that many warm-up requests a lane, until the time
is up. Lateness is negative where an idle cap cut a pause short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import public_runner
from benchmarks.public_runner import Sent, beginnings, differences, lateness_s, nth
from replay.importers.sources import documents
from tests.servers.environments import cache_root

TRACES = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "weka" / "weka-traces.tar.zst"
SESSIONS = ("trace_0057", "trace_0226", "trace_0291", "trace_0358", "trace_0462", "trace_0489")
"""Two plain ones, recorded sub-agents, requests without durations, a title call first, an agent recorded flat."""
MODEL = "agentx-small"
RUNNER = cache_root() / f"agentx-harness-{public_runner.VERSION}"
"""Where the runner's environment is looked for when no other is given."""
SAMPLE_S = 0.25


@dataclass(frozen=True, slots=True)
class Trial:
    """What both replay: the traces by name, factors of their times and answers, and for how long by which rules."""

    sessions: tuple[str, ...] = SESSIONS
    times: float = 0.004
    answers: float = 0.1
    warmup: int = 0
    """0: whole sessions once each; else the public rules with so many warm-up requests a lane."""
    duration_s: float = 90.0


Row = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process and its children took; memory is the largest sum of their proportional sets seen."""

    started_ns: int
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Side:
    """One client's run: its requests, what the endpoint saw of each (by request id), and what it took."""

    sent: list[Sent]
    seen: dict[str, dict[str, Any]]
    theoretical: float | None
    cost: Cost

    def total(self, key: str, *, warmup: bool = False) -> int:
        """Sum of one of the endpoint's counts over the measured requests, or those of the warm-up."""
        return sum(
            int(self.seen[r.request_id][key]) for r in self.sent if r.warmup == warmup and r.request_id in self.seen
        )

    @property
    def first_request_s(self) -> float:
        """From the command to the first request of the replay at the endpoint."""
        first = min(int(self.seen[r.request_id]["body_ns"]) for r in self.sent if r.request_id in self.seen)
        return (first - self.cost.started_ns) / 1e9


def time_lapse(trace: dict[str, Any], times: float, answers: float) -> dict[str, Any]:
    """The trace with its times and answers shortened; inputs and blocks stay as recorded."""

    def shorten(request: dict[str, Any]) -> dict[str, Any]:
        out = dict(request)
        for key in ("t", "api_time", "think_time", "ttft"):
            if isinstance(out.get(key), int | float):
                out[key] = out[key] * times
        if isinstance(out.get("duration_ms"), int | float):
            out["duration_ms"] = round(out["duration_ms"] * times)
        if isinstance(out.get("out"), int) and out["out"] > 0:
            out["out"] = max(1, round(out["out"] * answers))
        if "requests" in out:
            out["requests"] = [shorten(inner) for inner in out["requests"]]
        return out

    return {**trace, "requests": [shorten(request) for request in trace["requests"]]}


def write_slice(source: Path, trial: Trial, folder: Path) -> dict[str, Any]:
    """Write the named traces in time lapse, one file each; returns them by id."""
    folder.mkdir()
    found = {}
    for document in documents(source):
        name = Path(document.name).stem
        if name in trial.sessions and document.problem is None:
            trace = time_lapse(json.loads(document.data), trial.times, trial.answers)
            (folder / f"{name}.json").write_text(json.dumps(trace))
            found[trace["id"]] = trace
            if len(found) == len(trial.sessions):
                break
    return found


@contextmanager
def endpoint(truth: Path) -> Iterator[int]:
    """The port of a fresh simulated endpoint that logs its requests to `truth`."""
    command = [sys.executable, "-P", "-m", "harness.mock_server", "--model", MODEL, "--truth", str(truth)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(json.loads(process.stdout.readline())["port"])
        finally:
            process.stdin.close()
            process.wait(30)


def observe(
    command: list[str], *, log: Path, environment: dict[str, str] | None = None, fine: tuple[int, ...] = (0,)
) -> Cost:
    """Run `command` to its end and add up what it took. RuntimeError with its last words if it fails."""
    started, peak = time.monotonic_ns(), 0
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, sum(map(proportional_bytes, descendants(process.pid))))
            time.sleep(SAMPLE_S)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in fine:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}")
    return Cost(started, usage.ru_utime + usage.ru_stime, peak)


def descendants(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it has just ended
    return found


def proportional_bytes(pid: int) -> int:
    """Memory of a process, pages that it shares counted by their share; 0 when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def read_truth(path: Path) -> dict[str, dict[str, Any]]:
    """What the endpoint saw, by request id."""
    with path.open() as lines:
        return {row["request_id"]: row for row in map(json.loads, lines)}


def run_theirs(environment: Path, runner: Path, traces: Path, by_id: dict[str, Any], work: Path, trial: Trial) -> Side:
    """The public runner on the slice."""
    tokenizer, out, home = work / "tokenizer", work / "theirs", work / "home"
    public_runner.write_tokenizer(environment, tokenizer)
    home.mkdir()
    with endpoint(work / "theirs.jsonl") as port:
        command = public_runner.command_line(
            runner,
            port=port,
            model=MODEL,
            traces=traces,
            tokenizer=tokenizer,
            out=out,
            concurrency=len(by_id),
            warmup=trial.warmup,
            duration_s=trial.duration_s,
        )
        cost = observe(command, log=work / "theirs.log", environment=public_runner.surroundings(home))
    sent = public_runner.read_sent(out, by_id)
    return Side(sent, read_truth(work / "theirs.jsonl"), public_runner.theoretical_hit_rate(out), cost)


def run_ours(traces: Path, work: Path, trial: Trial) -> Side:
    """Ours on the same: import and run, both counted."""
    corpus, out, rules = work / "slice.parquet", work / "ours", work / "rules.yaml"
    choice = {"warmup_requests": trial.warmup, "drain_s": 60.0, "duration_s": trial.duration_s}
    sessions = len(trial.sessions)
    if not trial.warmup:
        choice |= {"start_min": 0.0, "start_max": 0.0, "sessions": sessions}
    rules.write_text("".join(f"{key}: {value}\n" for key, value in {"base": "agentx", **choice}.items()))
    ours = [sys.executable, "-P", "-m", "agentx"]
    imported = observe([*ours, "traces", "import", str(traces), "-o", str(corpus), "--quiet"], log=work / "import.log")
    with endpoint(work / "ours.jsonl") as port:
        command = [*ours, "run", "--endpoint", f"http://127.0.0.1:{port}", "--corpus", str(corpus), "--quiet"]
        command += ["--scenario", str(rules), "--concurrency", str(sessions), "--out", str(out), "--idle", "0s"]
        ran = observe(command, log=work / "ours.log", fine=(0, 1))
    (directory,) = out.iterdir()
    summary = json.loads((directory / "summary.json").read_bytes())
    peak = max(imported.peak_bytes, ran.peak_bytes)
    cost = Cost(imported.started_ns, imported.cpu_s + ran.cpu_s, peak)
    return Side(read_ours(directory, corpus), read_truth(work / "ours.jsonl"), summary["cache"]["theoretical"], cost)


def read_ours(directory: Path, corpus: Path) -> list[Sent]:
    """Our requests in the order sent, with the times that the corpus has."""
    recorded = {
        (row["session_id"], row["lane_id"], row["turn"]): (row["start_s"], row["start_s"] + (row["api_s"] or 0.0))
        for row in pq.read_table(corpus, columns=["session_id", "lane_id", "turn", "start_s", "api_s"]).to_pylist()
    }
    columns = ["request_id", "session_id", "lane_id", "turn", "pass", "phase", "sent_ns"]
    rows = pq.read_table(
        directory / "requests.parquet", columns=[*columns, "planned_input_tokens", "planned_output_tokens"]
    ).to_pylist()
    return [
        Sent(
            row["request_id"], nth(row["session_id"], row["pass"]), row["lane_id"], row["phase"] == "warmup",
            row["planned_input_tokens"], row["planned_output_tokens"], row["sent_ns"],
            # An agent found in a flat lane is named after it: `main:fa1`.
            *recorded[row["session_id"], row["lane_id"].split(":")[0], row["turn"]],
        )
        for row in sorted((row for row in rows if row["sent_ns"] is not None), key=lambda row: int(row["sent_ns"]))
    ]  # fmt: skip


def table(ours: Side, theirs: Side) -> list[Row]:
    """(figure, ours, theirs, ours / theirs)."""

    def row(name: str, mine: float | None, other: float | None, form: str = "{:,.0f}") -> Row:
        ratio = f"{mine / other:.3f}" if mine is not None and other else ""
        return name, *("unknown" if value is None else form.format(value) for value in (mine, other)), ratio

    def both(key: str, *, warmup: bool = False) -> tuple[int, int]:
        return ours.total(key, warmup=warmup), theirs.total(key, warmup=warmup)

    def requests(side: Side, *, warmup: bool) -> list[Sent]:
        return [request for request in side.sent if request.warmup == warmup]

    timed = any(request.warmup for request in ours.sent)  # ended by time, not by the last request
    rows = [row("requests", len(requests(ours, warmup=False)), len(requests(theirs, warmup=False)))]
    for warmup in (False, True) if timed else (False,):
        found = differences(ours.sent, theirs.sent, warmup=warmup, cut_off=timed and not warmup)
        equal = sum(where is None for where in found.values())
        where = next((f"{name}: {said}" for name, said in found.items() if said), "no difference")
        name = f"{'warm-up: ' if warmup else ''}sessions with equal streams of equal requests"
        rows.append(
            (f"{name}{', as far as both came' if timed and not warmup else ''}", f"{equal} of {len(found)}", where, "")
        )
    recorded = [sum(r.recorded_input for r in requests(side, warmup=False)) for side in (ours, theirs)]
    cached, counted = both("cached_tokens"), both("prompt_tokens")
    if timed:
        rows.append(row("warm-up requests", *(len(requests(side, warmup=True)) for side in (ours, theirs))))
        rows.append(row("warm-up output tokens", *both("output_tokens", warmup=True)))
        mine, other = beginnings(ours.sent), beginnings(theirs.sent)
        apart = [abs(mine[name] - other[name]) * 1e3 for name in mine.keys() & other.keys()]
        name = "first measured requests of the sessions, p50 / most apart, ms"
        rows.append((name, f"{np.median(apart):.1f} / {max(apart):.1f}" if apart else "unknown", "", ""))
    lags = [lateness_s(side.sent, side.seen) for side in (ours, theirs)]
    late = {q: [float(np.percentile(lag, q)) * 1e3 if lag else None for lag in lags] for q in (50, 90)}
    return [
        *rows,
        row("input tokens by the traces", *recorded),
        row("input tokens counted by the server", *counted),
        row("output tokens", *both("output_tokens")),
        row("theoretical hit rate, its own figure", ours.theoretical, theirs.theoretical, "{:.4f}"),
        row(
            "achieved hit rate at the server",
            *(c / n if n else None for c, n in zip(cached, counted, strict=True)),
            "{:.4f}",
        ),
        *(row(f"a turn after its pause, p{q}, ms late", *late[q], "{:.1f}") for q in sorted(late)),
        row("CPU seconds", ours.cost.cpu_s, theirs.cost.cpu_s, "{:.1f}"),
        row("peak memory, MB", ours.cost.peak_bytes / 1e6, theirs.cost.peak_bytes / 1e6),
        row("seconds from the command to the first request", ours.first_request_s, theirs.first_request_s, "{:.2f}"),
    ]


def compare(environment: Path, source: Path, trial: Trial) -> list[Row] | str:
    """The table, or why there is none."""
    runner = public_runner.find_runner(environment)
    if runner is None:
        return public_runner.missing(environment)
    if not source.exists():
        return f"no traces at {source}: give --traces"
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        by_id = write_slice(source, trial, work / "traces")
        if len(by_id) < len(trial.sessions):
            return f"{source} lacks {', '.join(sorted(set(trial.sessions) - set(by_id)))}: give --sessions"
        theirs = run_theirs(environment, runner, work / "traces", by_id, work, trial)
        return table(run_ours(work / "traces", work, trial), theirs)


def main() -> None:
    """Print the table; say why there is none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_runner", description=__doc__)
    parser.add_argument("--runner", type=Path, default=RUNNER, help="virtual environment of the public runner")
    parser.add_argument("--traces", type=Path, default=TRACES, help="weka traces: folder or archive")
    parser.add_argument("--sessions", default=",".join(SESSIONS), help="names of the traces, comma-separated")
    parser.add_argument("--warmup", type=int, default=0, help="follow the public rules with this many warm-up requests")
    parser.add_argument("--times", type=float, default=Trial().times, help="factor of all recorded times")
    parser.add_argument("--answers", type=float, default=Trial().answers, help="factor of the answers' lengths")
    parser.add_argument("--duration", type=float, help="seconds, default 25 with --warmup, else at most 90")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    duration_s = options.duration or (25.0 if options.warmup else 90.0)
    names = tuple(options.sessions.split(","))
    trial = Trial(names, options.times, options.answers, options.warmup, duration_s)
    found = compare(options.runner, options.traces, trial)
    if isinstance(found, str):
        print(f"skipped: {found}", file=sys.stderr)
        return
    if options.json:
        print(
            json.dumps([dict(zip(("figure", "ours", "theirs", "ratio"), row, strict=True)) for row in found], indent=1)
        )
        return
    print(f"public runner {public_runner.installed_version(options.runner)}")
    print("| figure | ours | theirs | ratio |\n| --- | --- | --- | --- |")
    print("\n".join(f"| {' | '.join(row)} |" for row in found))


if __name__ == "__main__":
    main()
