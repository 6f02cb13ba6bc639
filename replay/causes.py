"""What each request of a tree waits for: its stream's previous turn, its spawn, its joins, and the recorded order.

**Anchor and delay.** A turn is due its recorded end-to-start pause after the live end of its *anchor*: the stream's
previous turn, or the turn that spawned the stream. Steps without an anchor are due their recorded distance from the
start of the tree.

**Barriers.** A turn also waits, without any pause, for the sub-agents that it joins and (if asked) for the last request
of every other stream of the tree that had ended before it began in the recording. Requests that overlapped in the
recording have no order. A step waits for earlier steps only (by recorded start), so no two can wait for each other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from replay.chains import Recorded, find_chains
from replay.corpus import Corpus
from replay.tree_types import Step


@dataclass(frozen=True, slots=True)
class TreeRules:
    """The rules of a scenario that shape a tree."""

    tools: bool = True
    """Tool results as tool messages, where the template takes them."""
    flat_agents: bool = False
    cross_stream_order: bool = True
    human_pauses: bool = True


def link(corpus: Corpus, steps: list[Step], rules: TreeRules) -> None:
    """Set lane, anchor, causes and delay of every step; `steps` are in the order of their recorded starts."""
    spawns = _split_flat_lanes(corpus, steps) if rules.flat_agents else {}
    streams: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        streams[step.lane].append(step)
    causes: dict[int, set[int]] = defaultdict(set)
    turns = {(step.recorded_lane, step.turn): step for step in steps}
    for lane, stream in streams.items():
        first, last = stream[0], stream[-1]
        for earlier, later in pairwise(stream):
            later.anchor = earlier.index
        if lane in spawns:
            first.anchor = _last_ended(streams[spawns[lane]], first)
        elif (parent := int(corpus.parent_lane[first.row])) >= 0:
            spawn = turns.get((parent, int(corpus.spawn_turn[first.row])))
            join = turns.get((parent, int(corpus.join_turn[first.row])))
            if spawn is not None and spawn.index < first.index:
                first.anchor = spawn.index
            if join is not None and last.index < join.index:
                causes[join.index].add(last.index)
    if rules.cross_stream_order and len(streams) > 1:
        _add_recorded_order(steps, causes)
    origin = steps[0].start_s
    for step in steps:
        if step.anchor >= 0:
            causes[step.index].add(step.anchor)
        step.after = tuple(sorted(causes[step.index]))
        step.delay_s = _delay(step, steps, origin, rules)


def _split_flat_lanes(corpus: Corpus, steps: list[Step]) -> dict[int, int]:
    """Give chains that hide in one recorded lane lanes of their own; returns new lane -> lane it forked off."""
    by_lane: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        by_lane[step.lane].append(step)
    names = len(corpus.lane_names)
    spawns: dict[int, int] = {}
    for lane, members in by_lane.items():
        if len(members) < 2:
            continue
        chains = find_chains([_recorded(corpus, step) for step in members])
        lanes = [lane + names * (2 * k + chain.auxiliary) for k, chain in enumerate(chains)]
        lanes[0] = lane
        for k, chain in enumerate(chains[1:], 1):
            spawns[lanes[k]] = lanes[max(0, chain.parent)]
            for index in chain.requests:
                members[index].lane = lanes[k]
    return spawns


def _recorded(corpus: Corpus, step: Step) -> Recorded:
    blocks = sum(count for _, count in step.runs)
    model = int(corpus.model[step.row])
    return Recorded(step.start_s, step.end_s, model, step.runs, blocks, step.recorded_input, step.output_tokens)


def _last_ended(parent: list[Step], first: Step) -> int:
    """The parent stream's last request that had ended when `first` began, -1 when none had."""
    ended = [step for step in parent if step.end_s <= first.start_s and step.start_s < first.start_s]
    return max(ended, key=lambda step: (step.end_s, step.start_s, step.index)).index if ended else -1


def _add_recorded_order(steps: list[Step], causes: dict[int, set[int]]) -> None:
    """For every step the latest request of each other stream that had ended before it began.

    Left out are those that another of them already followed, and those that the stream's previous turn waited for.
    """
    running = [(step.end_s, step.start_s, step.index) for step in steps]
    heapq.heapify(running)
    latest: dict[int, Step] = {}
    waited: dict[int, dict[int, int]] = defaultdict(dict)
    aside: list[tuple[float, float, int]] = []
    for step in steps:
        for entry in aside:
            heapq.heappush(running, entry)
        aside.clear()
        while running and running[0][0] <= step.start_s:
            entry = heapq.heappop(running)
            if entry[1] >= step.start_s:  # began with this step: requests of no length have no order
                aside.append(entry)
            else:
                latest[steps[entry[2]].lane] = steps[entry[2]]
        known = waited[step.lane]
        frontier = [other for lane, other in latest.items() if lane != step.lane]
        for other in frontier:
            followed = any(other.start_s < x.start_s and other.end_s <= x.start_s for x in frontier if x is not other)
            if not followed and known.get(other.lane) != other.index:
                causes[step.index].add(other.index)
            known[other.lane] = other.index


def _delay(step: Step, steps: list[Step], origin: float, rules: TreeRules) -> float:
    if step.anchor < 0:
        return max(0.0, step.start_s - origin)
    if not rules.human_pauses and step.by_human:
        return 0.0
    # Recorded think times count from the last end of any stream; after a request of unknown duration they are longer
    # than the whole distance between the two turns in the public corpus. The public rule takes such a request as 0 s.
    return max(0.0, step.start_s - steps[step.anchor].end_s)
