"""The rules over whole corpora, in virtual time: every plan ends, nothing comes before its causes, nothing hangs."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import pytest

from replay.causes import TreeRules
from replay.chat_shape import ChatShape
from replay.corpus import Corpus, builtin_path
from replay.scheduler import Command, Done, Outcome, Pacing, Scheduler, Send, TreeEnded, TreeStarted, WakeAt, Warm
from replay.start import start_at, start_share
from replay.tree import compile_tree
from replay.tree_types import Tree
from results.records import Phase, TreeEnd
from tests.replay.corpora import row, write_corpus
from tests.replay.trees import make_tree

S = 1_000_000_000
RULES = TreeRules(flat_agents=True)


@dataclass
class World:
    """A server that answers after `answer_s`, and a clock that jumps from event to event."""

    scheduler: Scheduler
    answer_s: float = 2.0
    stop_s: float | None = None
    now: int = 0
    trees: dict[int, Tree] = field(default_factory=dict)
    sent: list[tuple[int, Tree, Send]] = field(default_factory=list)
    ended: dict[tuple[int, int], int] = field(default_factory=dict)
    """(tree object, step) -> end."""
    ends: list[TreeEnd] = field(default_factory=list)
    measured_from: int | None = None
    done: bool = False

    def run(self, *, limit_s: float = 1e9) -> None:
        answers: list[tuple[int, int, int, Send, Tree]] = []
        order = count()
        wake: int | None = None
        stopped = False

        def take(commands: list[Command]) -> None:
            nonlocal wake
            for command in commands:
                match command:
                    case TreeStarted(slot, tree):
                        self.trees[slot] = tree
                    case Send():
                        tree = self.trees[command.slot]
                        self.sent.append((self.now, tree, command))
                        heapq.heappush(
                            answers,
                            (self.now + round(self.answer_s * 1e9), next(order), command.slot, command, tree),
                        )
                    case TreeEnded():
                        self.ends.append(command.end)
                    case WakeAt(at):
                        wake = at
                    case Warm(first):
                        self.measured_from = self.now
                        take(self.scheduler.measure(self.now, first))
                    case Done():
                        self.done = True

        take(self.scheduler.start(0))
        stop_at = None if self.stop_s is None else round(self.stop_s * 1e9)
        while not self.done:
            times = [t for t in (answers[0][0] if answers else None, wake) if t is not None]
            if stop_at is not None and not stopped:
                times.append(stop_at)
            assert times, "nothing will ever happen again: the run hangs"
            self.now = max(self.now, min(times))
            assert self.now < limit_s * 1e9
            if stop_at is not None and not stopped and self.now >= stop_at:
                stopped = True
                take(self.scheduler.stop(self.now))
            elif answers and answers[0][0] <= self.now:
                _, _, slot, send, tree = heapq.heappop(answers)
                if not send.primer:
                    self.ended[id(tree), send.step] = self.now
                take(self.scheduler.ended(slot, send.step, Outcome.CONTINUE, self.now, primer=send.primer))
            elif wake is not None and wake <= self.now:
                wake = None
                take(self.scheduler.wake(self.now))

    def check_causes(self) -> None:
        """No request before its causes; its pause from the live end of its anchor, unless a cap cut it."""
        for at, tree, send in self.sent:
            if send.primer:
                continue
            past = tree.start.done if tree.start is not None else frozenset()
            step = tree.steps[send.step]
            assert send.due_ns <= at
            for cause in step.after:
                if cause not in past:
                    assert self.ended[id(tree), cause] <= at, (step, cause)


def trees_of(corpus: Corpus, rules: TreeRules = RULES) -> list[Tree]:
    shape = ChatShape(constant=3, system=4, user=5, assistant=6)
    bounds = corpus.session_row.tolist()
    return [compile_tree(corpus, k, range(bounds[k], bounds[k + 1]), shape, rules) for k in range(len(bounds) - 1)]


@pytest.fixture(scope="module")
def weka_trees(weka: Corpus) -> list[Tree]:
    return trees_of(weka)


def world(
    trees: list[Tree],
    slots: int,
    pacing: Pacing,
    *,
    warm_up: bool = False,
    answer_s: float = 2.0,
    stop_s: float | None = None,
) -> World:
    queue = iter(trees)
    arrivals = [(slot, 0) for slot in range(slots)]
    return World(Scheduler(arrivals, lambda slot: next(queue, None), pacing, warm_up=warm_up), answer_s, stop_s)


@pytest.mark.timeout(120)
def test_every_plan_of_the_shared_corpus_ends_and_keeps_its_order(weka_trees: list[Tree]) -> None:
    w = world(weka_trees, 64, Pacing())
    w.run()
    w.check_causes()
    assert len(w.sent) == sum(len(tree.steps) for tree in weka_trees)
    assert w.ends == [TreeEnd.COMPLETED] * len(weka_trees)


def test_every_step_waits_for_earlier_steps_only(weka_trees: list[Tree]) -> None:
    for tree in weka_trees:
        for step in tree.steps:
            assert all(cause < step.index for cause in step.after)
            assert step.anchor in (-1, *step.after)


def test_the_system_never_idles_beyond_its_cap(weka_trees: list[Tree]) -> None:
    w = world(weka_trees[:40], 2, Pacing(system_idle_cap_s=10.0), answer_s=1.0)
    w.run()
    busy_until = 0
    for at, _, _ in sorted(w.sent, key=lambda event: event[0]):
        assert at - busy_until <= 10 * S
        busy_until = max(busy_until, at + S)


def test_a_cut_off_ends_the_run_with_the_last_answer(weka_trees: list[Tree]) -> None:
    for stop_s in (0.5, 100.0, 3333.3):
        w = world(weka_trees, 200, Pacing(), stop_s=stop_s)
        w.run()
        assert w.now <= (stop_s + w.answer_s) * S
        assert all(at <= stop_s * S for at, _, _ in w.sent)


def test_mid_session_starts_warm_every_slot_and_then_follow_the_recording(weka: Corpus, weka_trees: list[Tree]) -> None:
    begun = [
        start_at(tree, start_share(42, weka.session_ids[tree.session], k, 0.25, 0.75))
        for k, tree in enumerate(weka_trees[:100])
    ]
    w = world([*begun, *weka_trees[100:]], 100, Pacing(warmup_steps=10), warm_up=True, stop_s=7200.0)
    w.run()
    w.check_causes()
    assert w.measured_from is not None
    warm = [(at, tree, send) for at, tree, send in w.sent if send.phase is Phase.WARMUP]
    assert all(at <= w.measured_from for at, _, _ in warm)
    primers = [send for _, _, send in warm if send.primer]
    assert len(primers) == sum(len(tree.start.primers) for tree in begun if tree.start is not None)
    further = [send.slot for _, _, send in warm if not send.primer]
    assert {slot: further.count(slot) for slot in set(further)} == dict.fromkeys(range(100), 10)
    measured = [at for at, _, send in w.sent if send.phase is Phase.STEADY]
    assert min(measured) == w.measured_from  # the least distance is taken from all
    for tree in begun:
        if tree.start is not None:
            own = [send for _, t, send in w.sent if t is tree and not send.primer]
            assert not {send.step for send in own} & tree.start.done


def timed_tree(starts: list[float], share: float) -> Tree:
    """A stream of turns at these times, each half a second long, begun at `share` of its recorded duration."""
    tree = make_tree([[], *([k] for k in range(len(starts) - 1))], [0.0, *(b - a - 0.5 for a, b in pairwise(starts))])
    for step, start in zip(tree.steps, starts, strict=True):
        step.start_s, step.end_s = start, start + 0.5
    return start_at(tree, share)


def steady_starts(w: World) -> dict[tuple[int, int], float]:
    """(slot, step) -> seconds from the measured part's beginning."""
    assert w.measured_from is not None
    return {(send.slot, send.step): (at - w.measured_from) / S for at, _, send in w.sent if send.phase is Phase.STEADY}


def test_after_the_warm_up_the_recording_goes_on_at_each_stream_s_distance_from_its_start_position() -> None:
    far, near = timed_tree([0, 10, 20, 50, 60, 100], 0.15), timed_tree([0, 3, 4, 20, 40], 0.05)
    assert far.start is not None
    assert near.start is not None
    assert (far.start.moment_s, far.start.primers, near.start.moment_s, near.start.primers) == (15, (1,), 2, (0,))
    pacing = Pacing(tree_idle_cap_s=None, system_idle_cap_s=None, warmup_steps=2)
    w = world([far, near], 2, pacing, warm_up=True, answer_s=1.0)
    w.run()
    sent = steady_starts(w)  # two turns of each were the warm-up's: 60 - 15 = 45 s and 20 - 2 = 18 s, less the least
    assert (sent[0, 4], sent[1, 3]) == (27, 0)
    assert sent[1, 4] == 1 + 19.5  # from then on pauses count from live ends


def test_after_the_warm_up_no_tree_is_idle_beyond_its_cap() -> None:
    trees = [timed_tree([0, 10, 20, 5000, 5001], 0.001), timed_tree([0, 3, 4, 20, 40], 0.05)]
    w = world(trees, 2, Pacing(system_idle_cap_s=None, warmup_steps=2), warm_up=True, answer_s=1.0)
    w.run()
    assert steady_starts(w)[0, 3] == 300


def test_flat_agents_run_beside_the_main_lane_and_keep_the_recorded_order(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, api_s=2, input_tokens=192, output_tokens=900, ids=[1, 2, 3], model="m"),
                row(turn=1, start_s=3, api_s=4, input_tokens=192, output_tokens=900, ids=[1, 2, 9], model="m"),
                row(turn=2, start_s=4, api_s=1, input_tokens=256, output_tokens=900, ids=[1, 2, 3, 4], model="m"),
                row(turn=3, start_s=8, api_s=1, input_tokens=256, output_tokens=900, ids=[1, 2, 9, 10], model="m"),
                row(turn=4, start_s=20, api_s=1, input_tokens=320, output_tokens=9, ids=[1, 2, 3, 4, 5], model="m"),
            ]
        ],
    )
    (tree,) = trees_of(corpus)
    steps = tree.steps
    assert [step.lane for step in steps] == [0, 2, 0, 2, 0]
    assert [step.anchor for step in steps] == [-1, 0, 0, 1, 2]
    assert [step.delay_s for step in steps] == [0, 1, 2, 1, 15]
    assert steps[3].after == (1, 2)  # what had ended on the other stream
    assert steps[4].after == (2, 3)
    (flat,) = trees_of(corpus, TreeRules(flat_agents=False))
    assert [step.after for step in flat.steps] == [(), (0,), (1,), (2,), (3,)]


def test_human_pauses_can_be_dropped_and_tool_times_stay(tmp_path: Path) -> None:
    def turn(k: int, start: float, kinds: list[str]) -> dict[str, object]:
        return row(turn=k, start_s=start, api_s=1, input_tokens=64, output_tokens=1, ids=[1], input_kinds=kinds)

    corpus = write_corpus(
        tmp_path / "c.parquet", [[turn(0, 0, ["text"]), turn(1, 11, ["tool_result"]), turn(2, 100, ["text"])]]
    )
    (kept,) = trees_of(corpus)
    (dropped,) = trees_of(corpus, TreeRules(human_pauses=False))
    assert [step.delay_s for step in kept.steps] == [0, 10, 88]
    assert [step.delay_s for step in dropped.steps] == [0, 10, 0]


def test_start_positions_are_even_within_their_bounds_and_stable() -> None:
    shares = [start_share(42, f"s{k}", 0, 0.25, 0.75) for k in range(2000)]
    assert all(0.25 <= share < 0.75 for share in shares)
    assert math.isclose(sum(shares) / len(shares), 0.5, abs_tol=0.01)
    assert start_share(42, "s1", 3, 0.25, 0.75) == start_share(42, "s1", 3, 0.25, 0.75)
    assert start_share(42, "s1", 3, 0.25, 0.75) != start_share(42, "s1", 4, 0.25, 0.75)


def test_start_positions_are_those_of_the_public_runner() -> None:
    # What its 1.0.12 drew for two sessions of the public corpus with seed 42, in ms of their 5418 s and 2074 s.
    assert start_share(42, "trace_0001", 0, 0.25, 0.75) * 5_418_000 == pytest.approx(2939089.797402172, abs=1e-6)
    assert start_share(42, "trace_0002", 1, 0.25, 0.75) * 2_074_000 == pytest.approx(651270.8653586673, abs=1e-6)


def test_a_start_leaves_at_least_the_last_request() -> None:
    corpus = Corpus.load(builtin_path())
    for tree in trees_of(corpus):
        for share in (0.0, 0.3, 0.999):
            begun = start_at(tree, share)
            left = [s for s in tree.steps if begun.start is None or s.index not in begun.start.done]
            assert left
