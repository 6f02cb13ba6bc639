"""Check a finished run directory against the public replay rules (FACTS 2, CONTRACT), knowing nothing of the replayer.

    python tests/replay/rules_checker.py RUN CORPUS.parquet

Reads `run.json`, `requests.parquet` and the corpus file only. It imports none of our packages, so that a mistake in the
scheduler, in the causes or in the prefix arithmetic can't hide in the check as well. All times are nanoseconds.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = dict[str, Any]
SLACK_NS = 1_000_000
"""Rounding of recorded seconds and of kernel stamps that were taken on another clock."""
SMALLEST_PROMPT = 32
"""A chat template's own tokens make a recorded prompt below this size longer."""


@dataclass(slots=True)
class Instance:
    """One replay of one trace: what held a slot from its first request to its last answer."""

    slot: int
    session: str
    number: int
    rows: list[Row] = field(default_factory=list)
    primers: list[Row] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"slot {self.slot}, {self.session}, pass {self.number}"

    @property
    def sent(self) -> list[Row]:
        return sorted((*self.primers, *self.rows), key=order)

    @property
    def interval(self) -> tuple[int, int]:
        """First byte sent, last answer over."""
        return min(row["sent_ns"] for row in self.sent), max(ended(row) for row in self.sent)


class Run:
    """A run directory and the corpus that it replayed."""

    def __init__(self, directory: Path, corpus: Path) -> None:
        self.record: Row = json.loads((directory / "run.json").read_bytes())
        self.rules: Row = self.record["scenario"]["rules"]
        self.requests: list[Row] = pq.read_table(directory / "requests.parquet").to_pylist()
        self.traces: dict[str, list[Row]] = defaultdict(list)
        for row in pq.read_table(corpus).to_pylist():
            self.traces[row["session_id"]].append(row)
        self.by_key = {key(row): row for rows in self.traces.values() for row in rows}
        self.recorded = {id(row): self.by_key.get(key(row)) for row in self.requests}
        self.instances = self._instances()

    def trace(self, row: Row) -> Row:
        found = self.recorded[id(row)]
        assert found is not None
        return found

    def _instances(self) -> list[Instance]:
        found: dict[tuple[int, str, int], Instance] = {}
        for row in sorted(self.requests, key=order):
            if self.recorded[id(row)] is None or row["sent_ns"] is None:
                continue
            which = (row["slot"], row["session_id"], row["pass"])
            found.setdefault(which, Instance(*which)).rows.append(row)
        for instance in found.values():
            self._set_primers_apart(instance)
        return list(found.values())

    def _set_primers_apart(self, instance: Instance) -> None:
        """A primer repeats a turn of the past: the first warm-up request of its stream, sent before all others.

        A stream's primer is turn n-1 of the turn n with which it goes on. Warm-up turns have the same shape, so only
        the first of each stream can be one, and only if the start lies after its recorded start.
        """
        if self.rules["start_max"] <= 0 or not self.rules["primers"]:
            return
        first: dict[str, Row] = {}
        for row in instance.rows:
            first.setdefault(row["lane_id"], row)
        heads = [row for row in first.values() if row["phase"] == "warmup"]
        if not heads:
            return
        # Primers are all over before the first further turn is sent; a stream of the future has none.
        others = [row for row in instance.rows if not any(row is head for head in heads)]
        bound = min((row["sent_ns"] for row in others), default=max(ended(row) for row in heads) + 1)
        instance.primers = [row for row in heads if ended(row) <= bound]
        instance.rows = [row for row in instance.rows if not any(row is primer for primer in instance.primers)]


def key(row: Row) -> tuple[str, str, int]:
    """Which recorded request; sub-agents found in a flat lane carry the lane's name before `::`."""
    return row["session_id"], row["lane_id"].split("::", 1)[0], row["turn"]


def order(row: Row) -> tuple[int, int]:
    return row["sent_ns"] or 0, int(row["request_id"].rsplit("-", 1)[1])


def ended(row: Row) -> int:
    """When the answer was over; a request without an answer ended no earlier than it was sent."""
    return int(row["done_ns"] or row["last_token_ns"] or row["sent_ns"])


def recorded_end(row: Row) -> float:
    return float(row["start_s"] + (row["api_s"] or 0.0))


def violations(directory: Path, corpus: Path) -> list[str]:
    """Every breach of the rules, one line each; empty when there is none."""
    run = Run(directory, corpus)
    checks = (known, causes, pauses, slots, phases, starts, recycling, tokens, prefixes)
    return [f"{check.__name__}: {line}" for check in checks for line in check(run)]


def known(run: Run) -> Iterator[str]:
    """There are requests; every one is one of the trace's; none is sent twice; no two share an id."""
    if not run.instances:
        yield "no request of the corpus was sent"
    ids = [row["request_id"] for row in run.requests]
    if len(set(ids)) != len(ids):
        yield f"{len(ids) - len(set(ids))} request ids are used more than once"
    for row in run.requests:
        if run.recorded[id(row)] is None:
            yield f"{row['request_id']} is no request of the corpus: {key(row)}"
    for instance in run.instances:
        turns = [key(row) for row in instance.rows]
        if len(set(turns)) != len(turns):
            yield f"{instance.name}: a turn was sent twice"


def causes(run: Run) -> Iterator[str]:
    """No request before what it waits for has ended: its stream, its spawn, its joins, and what was over before it."""
    for instance in run.instances:
        rows = [(row, run.trace(row)) for row in instance.rows]
        turns = {(trace["lane_id"], trace["turn"]): row for row, trace in rows}
        for row, trace in rows:
            for other, cause in rows:
                if other is row or ended(other) <= row["sent_ns"] + SLACK_NS:
                    continue
                stream = other["lane_id"] == row["lane_id"] and cause["turn"] < trace["turn"]
                before = cause["start_s"] < trace["start_s"] and recorded_end(cause) <= trace["start_s"]
                if stream or (before and run.rules["cross_stream_order"]):
                    yield f"{row['request_id']} was sent before its cause {other['request_id']} ended"
                elif joins(trace, cause):
                    yield f"{row['request_id']} was sent before the sub-agent {other['request_id']} that it joins"
            spawn = turns.get((trace["parent_lane_id"], trace["spawn_turn"]))
            earlier = spawn is not None and run.trace(spawn)["start_s"] < trace["start_s"]
            if spawn is not None and earlier and row["sent_ns"] + SLACK_NS < ended(spawn):
                yield f"{row['request_id']} was sent before {spawn['request_id']} that spawned it had ended"


def joins(trace: Row, cause: Row) -> bool:
    """Whether the turn `trace` waits for the sub-agent request `cause`."""
    its_own = cause["parent_lane_id"] == trace["lane_id"] and cause["join_turn"] == trace["turn"]
    return bool(its_own and cause["start_s"] < trace["start_s"])


def pauses(run: Run) -> Iterator[str]:
    """Think and tool time after the parent's live end, unless an idle cap had moved the timers up."""
    scale = run.rules["time_scale"]
    busy_all = [(row["sent_ns"], ended(row)) for instance in run.instances for row in instance.sent]
    for instance in run.instances:
        busy = [(row["sent_ns"], ended(row)) for row in instance.sent]
        streams: dict[str, list[Row]] = defaultdict(list)
        for row in instance.rows:
            streams[row["lane_id"]].append(row)
        for stream in streams.values():
            for previous, row in pairwise(sorted(stream, key=lambda row: int(row["turn"]))):
                before, now = run.trace(previous), run.trace(row)
                human = "text" in (now["input_kinds"] or ()) and "tool_result" not in now["input_kinds"]
                # Warm-up turns have no pauses; a turn after one counts from the measured part's beginning.
                if "warmup" in (previous["phase"], row["phase"]) or (human and not run.rules["human_pauses"]):
                    continue
                pause = max(0.0, now["start_s"] - recorded_end(before))
                due = ended(previous) + round(pause * scale * 1e9)
                if row["sent_ns"] + SLACK_NS >= due:
                    continue
                window = (ended(previous), row["sent_ns"])
                capped = (run.rules["tree_idle_cap_s"], busy), (run.rules["system_idle_cap_s"], busy_all)
                if not any(cap is not None and longest_idle(spans, *window) >= cap * 0.98e9 for cap, spans in capped):
                    early = (due - row["sent_ns"]) / 1e9
                    yield f"{row['request_id']} was sent {early:.3f} s before its pause was over"


def longest_idle(busy: list[tuple[int, int]], low: int, high: int) -> int:
    """The longest stretch between `low` and `high` in which nothing was in flight."""
    free, longest = low, 0
    for start, end in sorted(span for span in busy if span[1] >= low and span[0] < high):
        longest = max(longest, start - free)
        free = max(free, end)
    return max(longest, high - free)


def slots(run: Run) -> Iterator[str]:
    """One slot per tree: a slot's trees follow each other, and no more are live than the concurrency."""
    if run.rules["arrival"] != "closed" or run.rules["stages"]:
        return
    limit = run.rules["concurrency"]
    by_slot: dict[int, list[Instance]] = defaultdict(list)
    edges: list[tuple[int, int]] = []
    for instance in run.instances:
        by_slot[instance.slot].append(instance)
        first, last = instance.interval
        edges += [(first, 1), (last, -1)]
    for members in by_slot.values():
        for earlier, later in pairwise(sorted(members, key=lambda instance: instance.interval)):
            if later.interval[0] + SLACK_NS < earlier.interval[1]:
                yield f"{later.name} began before {earlier.name} had drained"
    live = most = 0
    for _, change in sorted(edges):
        live += change
        most = max(most, live)
    if most > limit or len(by_slot) > limit:
        yield f"{max(most, len(by_slot))} trees were live at concurrency {limit}"


def phases(run: Run) -> Iterator[str]:
    """The warm-up is over before the measured part begins; nothing is sent after its duration."""
    warm = [row for row in run.requests if row["phase"] == "warmup"]
    steady = [row for row in run.requests if row["phase"] != "warmup" and row["sent_ns"] is not None]
    if warm and steady and max(map(ended, warm)) > min(row["sent_ns"] for row in steady) + SLACK_NS:
        yield "a warm-up answer was not over when the measured part began"
    if warm and run.rules["start_max"] <= 0 and not run.rules["warmup_requests"]:
        yield f"{len(warm)} warm-up requests, but the rules have no warm-up"
    counts: dict[int, int] = defaultdict(int)
    for instance in run.instances:
        counts[instance.slot] += sum(row["phase"] == "warmup" for row in instance.rows)
    for slot, count in counts.items():
        if count > run.rules["warmup_requests"]:
            yield f"slot {slot}: {count} warm-up turns, the rules allow {run.rules['warmup_requests']}"
    if steady and run.rules["duration_s"] is not None:
        due = [row["scheduled_ns"] for row in steady]
        if max(due) - min(due) > run.rules["duration_s"] * 1e9 + SLACK_NS:
            yield "a request was due after the measured part had ended"


def starts(run: Run) -> Iterator[str]:
    """A slot's first tree starts within the start shares of its trace; a primer is the last turn before that."""
    low, high = run.rules["start_min"], run.rules["start_max"]
    first: dict[int, Instance] = {}
    for instance in sorted(run.instances, key=lambda instance: instance.interval):
        first.setdefault(instance.slot, instance)
    for instance in run.instances if high > 0 else ():
        trace = replayed(run, instance.session)
        begin, last = min(row["start_s"] for row in trace), max(row["start_s"] for row in trace)
        if first[instance.slot] is not instance or last == begin:
            continue
        share = [(run.trace(row)["start_s"] - begin) / (last - begin) for row in instance.rows]
        if share and min(share) < low - 1e-9:
            yield f"{instance.name}: started at {min(share):.3f} of the trace, the rules begin at {low}"
        for primer in instance.primers:
            at = (run.trace(primer)["start_s"] - begin) / (last - begin)
            later = [row["turn"] for row in instance.rows if row["lane_id"] == primer["lane_id"]]
            if at > high + 1e-9:
                yield f"{instance.name}: primed with a turn at {at:.3f}, the rules end at {high}"
            flat = "::" in primer["lane_id"] or run.rules["flat_agents"]
            if later and not flat and min(later) != primer["turn"] + 1:
                yield f"{instance.name}: {primer['request_id']} is not the turn before the first one sent"


def replayed(run: Run, session: str) -> list[Row]:
    """The requests of a session that the context limit leaves: up to the first that exceeds it, in every lane."""
    limit, end = run.record["plan"]["selection"]["max_context"], run.rules["overlong"] == "end"
    lanes: dict[str, list[Row]] = defaultdict(list)
    for row in run.traces[session]:
        lanes[row["lane_id"]].append(row)
    kept: dict[tuple[str, int], Row] = {}
    for lane in lanes.values():
        for row in sorted(lane, key=lambda row: int(row["turn"])):
            if limit is None or row["input_tokens"] + max(1, row["output_tokens"]) <= limit:
                kept[row["lane_id"], row["turn"]] = row
            elif end:
                break
    spawns = {(row["parent_lane_id"], row["spawn_turn"]) for row in kept.values() if row["parent_lane_id"]}
    lost = {spawn for spawn in spawns if spawn not in kept}
    return [row for row in kept.values() if (row["parent_lane_id"], row["spawn_turn"]) not in lost]


def recycling(run: Run) -> Iterator[str]:
    """A slot takes another tree only when all of the last was sent; later trees start at their first request."""
    by_slot: dict[int, list[Instance]] = defaultdict(list)
    for instance in sorted(run.instances, key=lambda instance: instance.interval):
        by_slot[instance.slot].append(instance)
    whole = not any(run.record["plan"]["dropped"].values())
    for members in by_slot.values():
        for place, instance in enumerate(members):
            trace = sorted(run.traces[instance.session], key=lambda row: float(row["start_s"]))
            reached = min(run.trace(row)["start_s"] for row in instance.sent)
            if (place or run.rules["start_max"] <= 0) and whole and reached > trace[0]["start_s"]:
                yield f"{instance.name}: does not begin with its first request"
            good = all(row["status"] == "ok" for row in instance.sent)
            if place + 1 == len(members) or not whole or not good or instance.primers:
                continue
            if len(instance.rows) != len(trace) and not any(row["phase"] == "warmup" for row in instance.rows):
                yield f"{instance.name}: replaced after {len(instance.rows)} of {len(trace)} requests"


def tokens(run: Run) -> Iterator[str]:
    """Planned and served token counts are the trace's; warm-up requests ask for one token."""
    for row in run.requests:
        trace = run.recorded[id(row)]
        if trace is None:
            continue
        output = 1 if row["phase"] == "warmup" else max(1, trace["output_tokens"])
        if row["planned_input_tokens"] != trace["input_tokens"] and trace["input_tokens"] >= SMALLEST_PROMPT:
            yield f"{row['request_id']}: {row['planned_input_tokens']} planned, {trace['input_tokens']} recorded"
        if row["planned_output_tokens"] != output:
            yield f"{row['request_id']}: {row['planned_output_tokens']} output tokens planned, {output} by the rules"
        for name in ("input_tokens", "output_tokens"):
            if row["status"] == "ok" and row[name] not in (None, row[f"planned_{name}"]):
                yield f"{row['request_id']}: {name} {row[name]}, planned {row[f'planned_{name}']}"


def hit_tokens(run: Run, scope: str) -> dict[str, tuple[int, int]]:
    """request_id -> (cached tokens in whole trace blocks, block size) of an infinite cache.

    `scope` is `tree` (a cache per replayed tree) or `run` (one cache, in which trees share what the rules let them).
    Prefixes are kept as a trie of (parent, block): nothing is assumed about what equal ids mean.
    """
    nodes: dict[Any, int] = {}
    found: dict[str, tuple[int, int]] = {}
    sent = [(row, instance) for instance in run.instances for row in instance.sent]
    for row, instance in sorted(sent, key=lambda pair: order(pair[0])):
        trace = run.trace(row)
        node, hits, fresh = 0, 0, False
        for block in prompt_blocks(run, instance, trace, scope):
            step = (node, block)
            fresh = fresh or step not in nodes
            node = nodes.setdefault(step, len(nodes) + 1)
            hits += not fresh
        size = trace["block_size"]
        found[row["request_id"]] = min(hits * size, (trace["input_tokens"] - 1) // size * size), size
    return found


def prompt_blocks(run: Run, instance: Instance, trace: Row, scope: str) -> Iterator[Any]:
    """Whole blocks of a prompt, each with what salts it: its tree, or the head that sessions share by the rules."""
    mode, size = run.rules["shared_prefix"], trace["block_size"]
    opening = min(run.traces[instance.session], key=lambda row: float(row["start_s"]))
    sizes = (opening["tool_tokens"] or 0, opening["system_tokens"] or 0)
    head = 0 if scope == "tree" or mode == "none" else sum(sizes) // size
    heads = list(block_ids(opening, head))
    salt = (instance.session, instance.number)
    if scope == "tree":
        salt = (instance.name, instance.number)
    for place, block in enumerate(block_ids(trace, trace["input_tokens"] // size)):
        shared = place < len(heads) and heads[place] == block
        yield ("head", sizes if mode == "trace" else (), place) if shared else (salt, block)


def block_ids(trace: Row, limit: int) -> Iterator[int]:
    left = limit
    for run in trace["blocks"]:
        take = min(left, run["count"])
        yield from range(run["first"], run["first"] + take)
        left -= take


def prefixes(run: Run) -> Iterator[str]:
    """The recorded theoretical hits are what an infinite cache has, up to the server's finer blocks."""
    if run.rules["assistant"] != "recorded":
        return
    grain = run.record["endpoint"]["block_size"]
    columns = (("tree", "theoretical_tree_cached_tokens"), ("run", "theoretical_cached_tokens"))
    for scope, column in columns:
        mine = hit_tokens(run, scope)
        for row in run.requests:
            if row["request_id"] not in mine or row[column] is None:
                continue
            hits, size = mine[row["request_id"]]
            above = 0 if grain is None or grain == size else size  # tokens of a partial block, in finer ones
            below = 0 if grain is None or size % grain == 0 else grain
            if not hits - below <= row[column] <= hits + above:
                yield f"{row['request_id']}: {column} {row[column]}, recomputed {hits}"


def hit_rates(directory: Path, corpus: Path) -> dict[str, float]:
    """Token-weighted theoretical hit rate of all answered requests of the measured part, by scope."""
    run = Run(directory, corpus)
    rates = {}
    for scope in ("tree", "run"):
        hits = hit_tokens(run, scope)
        rows = [row for row in run.requests if row["phase"] == "steady" and row["status"] == "ok"]
        total = sum(row["input_tokens"] or 0 for row in rows)
        rates[scope] = sum(hits[row["request_id"]][0] for row in rows) / total if total else 0.0
    return rates


if __name__ == "__main__":
    breaches = violations(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(breaches) or "no violation", *hit_rates(Path(sys.argv[1]), Path(sys.argv[2])).items())
    sys.exit(bool(breaches))
