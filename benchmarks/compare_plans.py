"""The public runner's loader and ours over a whole corpus: streams, pauses, order, starts. Nothing is sent.

python -m benchmarks.compare_plans --runner ENVIRONMENT [--traces FOLDER_OR_ARCHIVE]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.compare_runner import RUNNER, TRACES
from benchmarks.public_runner import find_runner, missing
from replay.causes import TreeRules
from replay.chat_shape import ChatShape
from replay.corpus import Corpus
from replay.importers.sources import documents
from replay.prefix import SeenBlocks
from replay.start import start_at, start_share
from replay.tree import Step, Tree, compile_tree

RULES = TreeRules(tools=False, flat_agents=True)
SHAPE = ChatShape(0, 0, 0, 0)
Stream = list[dict[str, Any]]


def their_plans(environment: Path, source: Path, concurrency: int, work: Path) -> Iterator[dict[str, Any]]:
    """Lines of `runner_plans`. RuntimeError with its last words if it fails."""
    script = Path(__file__).with_name("runner_plans.py")
    plans, log = work / "plans.jsonl", work / "plans.log"
    command = [str(environment / "bin" / "python"), "-P", str(script), str(concurrency)]
    with (
        plans.open("wb") as out,
        log.open("wb") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=errors) as process,
    ):
        assert process.stdin is not None
        try:
            for document in documents(source):
                if document.problem is None:
                    process.stdin.write(json.dumps(json.loads(document.data)).encode() + b"\n")
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended, and said why
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}")
    with plans.open() as lines:
        yield from map(json.loads, lines)


def content(starts: list[float], outputs: list[int]) -> tuple[tuple[float, int], ...]:
    """What tells a stream from the others of its session."""
    return tuple((round(start, 4), output) for start, output in zip(starts, outputs, strict=True))


def matched(tree: Tree, theirs: list[Stream]) -> dict[tuple[int, int], Step] | None:
    """(their stream, turn) -> our step; None where the two part a session's requests differently."""
    ours: dict[int, list[Step]] = defaultdict(list)
    for step in tree.steps:
        ours[step.lane].append(step)
    by_content: dict[Any, list[list[Step]]] = defaultdict(list)
    for steps in ours.values():
        by_content[content([s.start_s for s in steps], [s.output_tokens for s in steps])].append(steps)
    found: dict[tuple[int, int], Step] = {}
    for k, turns in enumerate(theirs):
        same = by_content[content([turn["t"] for turn in turns], [turn["out"] for turn in turns])]
        if turns and not same:
            return None
        found |= {(k, n): step for n, step in enumerate(same.pop() if turns else [])}
    return found if len(found) == len(tree.steps) else None


def all_before(after: dict[int, set[int]]) -> dict[int, set[int]]:
    """Everything that must have ended before a request: its causes, theirs, and so on."""
    found: dict[int, set[int]] = {}
    pending = list(after)
    while pending:
        index = pending[-1]
        missing_first = [cause for cause in after[index] if cause not in found]
        if missing_first:
            pending += missing_first
            continue
        found[index] = set().union(after[index], *(found[cause] for cause in after[index]))
        pending.pop()
    return found


def count_session(counts: Counter[str], tree: Tree, theirs: list[Stream]) -> dict[tuple[int, int], Step] | None:
    """Add a session to `counts`; returns the match of its requests."""
    counts["sessions"] += 1
    counts["streams"] += sum(bool(turns) for turns in theirs)
    counts["requests"] += sum(map(len, theirs))
    counts["blocks"] += sum(turn["blocks"] for turns in theirs for turn in turns)
    counts["hit blocks"] += sum(turn["hit_blocks"] for turns in theirs for turn in turns)
    seen = SeenBlocks()
    for step in tree.steps:
        counts["whole blocks here"] += step.whole_blocks
        counts["hit blocks here"] += seen.prefix(step.runs, step.whole_blocks)[0]
        seen.add(step.runs, step.whole_blocks, step.index)
    steps = matched(tree, theirs)
    if steps is None:
        return None
    counts["sessions with the same streams"] += 1
    after: dict[int, set[int]] = {}
    for (k, n), step in steps.items():
        turn = theirs[k][n]
        after[step.index] = {steps[stream, place].index for stream, place in turn["after"]}
        if turn["pause"] is not None:
            counts["pauses"] += 1
            counts["equal pauses"] += abs(turn["pause"] - step.delay_s) < 1e-3
    mine = all_before({step.index: set(step.after) for step in tree.steps})
    other = all_before(after)
    counts["waits for more here"] += sum(bool(mine[k] - other[k]) for k in mine)
    counts["waits for less here"] += sum(bool(other[k] - mine[k]) for k in mine)
    return steps


def compare(environment: Path, source: Path, concurrency: int) -> Counter[str]:
    """All counts over the corpus."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        command = [sys.executable, "-P", "-m", "agentx", "traces", "import", str(source), "--quiet"]
        subprocess.run([*command, "-o", str(work / "c.parquet")], check=True, stdout=subprocess.DEVNULL)
        corpus = Corpus.load(work / "c.parquet")
        place = {name: k for k, name in enumerate(corpus.session_ids)}
        known: dict[str, tuple[Tree, dict[tuple[str, int], int]]] = {}
        for line in their_plans(environment, source, concurrency, work):
            if "streams" in line:
                k = place[line["session"]]
                tree = compile_tree(corpus, k, range(*corpus.session_row[k : k + 2].tolist()), SHAPE, RULES)
                steps = count_session(counts, tree, [stream["turns"] for stream in line["streams"]])
                names = [stream["name"] for stream in line["streams"]]
                if steps is not None:
                    known[line["session"]] = tree, {(names[k], n): step.index for (k, n), step in steps.items()}
                continue
            counts["lanes"] += 1
            counts["primers"] += len(line["primers"])
            if line["session"] in known:
                tree, index = known[line["session"]]
                start = start_at(tree, start_share(42, line["session"], line["lane"], 0.25, 0.75)).start
                counts["lanes with the same start"] += (
                    start is not None and abs(start.moment_s - line["moment_s"]) < 1e-4
                )
                primers = sorted(index[name, turn] for name, turn in line["primers"])
                counts["lanes with the same primers"] += primers == sorted(start.primers if start is not None else ())
    return counts


def main() -> None:
    """Print the counts; say why there are none."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_plans", description=__doc__)
    parser.add_argument("--runner", type=Path, default=RUNNER, help="virtual environment of the public runner")
    parser.add_argument("--traces", type=Path, default=TRACES, help="weka traces: folder or archive")
    parser.add_argument("--concurrency", type=int, default=700, help="lanes whose starts are compared")
    options = parser.parse_args()
    if find_runner(options.runner) is None or not options.traces.exists():
        reason = f"no traces at {options.traces}" if options.traces.exists() is False else missing(options.runner)
        print(f"skipped: {reason}", file=sys.stderr)
        return
    counts = compare(options.runner, options.traces, options.concurrency)
    print("| compared | count |\n| --- | --- |")
    print("\n".join(f"| {name} | {count:,} |" for name, count in counts.items()))


if __name__ == "__main__":
    main()
