from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.scheduler import Command, Done, Outcome, Pacing, Scheduler, Send, TreeEnded, TreeStarted, WakeAt
from replay.tree import Tree
from results.records import TreeEnd
from tests.replay.trees import make_tree

S = 1_000_000_000
NO_CAPS = Pacing(tree_idle_cap_s=None, system_idle_cap_s=None)


def scheduler(trees: list[Tree], slots: int = 1, pacing: Pacing = NO_CAPS) -> Scheduler:
    queue = iter(trees)
    return Scheduler([(slot, 0) for slot in range(slots)], lambda slot: next(queue, None), pacing)


def sends(commands: list[Command]) -> list[tuple[int, int, int]]:
    return [(c.slot, c.step, c.due_ns) for c in commands if isinstance(c, Send)]


def only(commands: list[Command], kind: type[Command]) -> list[Command]:
    return [c for c in commands if isinstance(c, kind)]


def test_a_chain_waits_for_the_live_end_of_the_previous_turn() -> None:
    s = scheduler([make_tree([[], [0]], [0, 2.0])])
    assert sends(s.start(0)) == [(0, 0, 0)]
    out = s.ended(0, 0, Outcome.CONTINUE, 5 * S)
    assert sends(out) == []
    assert only(out, WakeAt) == [WakeAt(7 * S)]
    assert sends(s.wake(7 * S)) == [(0, 1, 7 * S)]


def test_a_wake_that_comes_early_asks_again() -> None:
    s = scheduler([make_tree([[]], [0]), make_tree([[], [0]], [0, 2.0])])
    s.start(0)
    s.ended(0, 0, Outcome.CONTINUE, 0)
    s.ended(0, 0, Outcome.CONTINUE, 0)
    assert only(s.wake(2 * S - 1), WakeAt) == [WakeAt(2 * S)]


def test_fan_out_and_join() -> None:
    # turn 0 spawns steps 1 and 2; step 3 joins both
    s = scheduler([make_tree([[], [0], [0], [0, 1, 2]])])
    s.start(0)
    assert sends(s.ended(0, 0, Outcome.CONTINUE, S)) == [(0, 1, S), (0, 2, S)]
    assert sends(s.ended(0, 2, Outcome.CONTINUE, 2 * S)) == []
    assert sends(s.ended(0, 1, Outcome.CONTINUE, 3 * S)) == [(0, 3, 3 * S)]


def test_all_slots_start_at_once_and_a_drained_tree_is_replaced() -> None:
    s = scheduler([make_tree([[]]) for _ in range(4)], slots=3)
    started = s.start(0)
    assert sends(started) == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]
    out = s.ended(1, 0, Outcome.CONTINUE, S)
    assert [type(c) for c in out] == [TreeEnded, TreeStarted, Send]
    assert sends(out) == [(1, 0, S)]
    assert not only(out, Done)


def test_a_slot_is_kept_until_the_whole_tree_has_drained() -> None:
    # a background sub-agent (step 2) outlives the main lane
    s = scheduler([make_tree([[], [0], [0]]), make_tree([[]])])
    s.start(0)
    s.ended(0, 0, Outcome.CONTINUE, S)
    assert not only(s.ended(0, 1, Outcome.CONTINUE, 2 * S), TreeStarted)
    assert only(s.ended(0, 2, Outcome.CONTINUE, 9 * S), TreeStarted)


def test_stop_releases_waiting_children_and_joins_at_once() -> None:
    s = scheduler([make_tree([[], [0], [0, 1]], [0, 1000.0, 0]), make_tree([[]])])
    s.start(0)
    s.ended(0, 0, Outcome.CONTINUE, S)
    out = s.stop(2 * S)
    assert [type(c) for c in out] == [TreeEnded, Done]
    assert out[0] == TreeEnded(0, TreeEnd.CUT_OFF, 0, 2 * S, 1)


def test_after_stop_an_answer_starts_nothing_and_the_run_ends_with_the_last() -> None:
    s = scheduler([make_tree([[], [0]]), make_tree([[]])])
    s.start(0)
    assert s.stop(S) == []
    out = s.ended(0, 0, Outcome.CONTINUE, 2 * S)
    assert [type(c) for c in out] == [TreeEnded, Done]


@pytest.mark.parametrize(("outcome", "end"), [(Outcome.OVERFLOW, TreeEnd.OVERFLOW), (Outcome.REFUSED, TreeEnd.FAILED)])
def test_a_conversation_the_server_refuses_ends_its_tree_only(outcome: Outcome, end: TreeEnd) -> None:
    s = scheduler([make_tree([[], [0]]), make_tree([[]])])
    s.start(0)
    out = s.ended(0, 0, outcome, S)
    assert out[0] == TreeEnded(0, end, 0, S, 1)
    assert sends(out) == [(0, 0, S)]


def test_a_failed_predecessor_opens_the_barrier() -> None:
    s = scheduler([make_tree([[], [0], [0, 1]])])
    s.start(0)
    s.ended(0, 0, Outcome.CONTINUE, S)
    assert sends(s.ended(0, 1, Outcome.CONTINUE, 2 * S)) == [(0, 2, 2 * S)]


def test_a_tree_that_idles_too_long_is_moved_up_and_keeps_its_order() -> None:
    pacing = Pacing(tree_idle_cap_s=300.0, system_idle_cap_s=None)
    s = scheduler([make_tree([[], [0], [0]], [0, 1000.0, 1010.0])], pacing=pacing)
    s.start(0)
    s.ended(0, 0, Outcome.CONTINUE, 0)
    assert sends(s.wake(300 * S)) == [(0, 1, 300 * S)]
    assert sends(s.wake(310 * S)) == [(0, 2, 310 * S)]


def test_the_system_never_idles_longer_than_its_cap() -> None:
    pacing = Pacing(tree_idle_cap_s=None, system_idle_cap_s=10.0)
    s = scheduler([make_tree([[], [0]], [0, 100.0]), make_tree([[], [0]], [0, 130.0])], slots=2, pacing=pacing)
    s.start(0)
    s.ended(0, 0, Outcome.CONTINUE, 0)
    out = s.ended(1, 0, Outcome.CONTINUE, 0)
    assert only(out, WakeAt) == [WakeAt(10 * S)]
    assert sends(s.wake(10 * S)) == [(0, 1, 10 * S)]
    s.ended(0, 1, Outcome.CONTINUE, 11 * S)
    # 30 s behind the first in the recording; the cap counts from the moment nothing was in flight
    assert sends(s.wake(21 * S)) == [(1, 1, 21 * S)]


def test_time_scale_multiplies_delays() -> None:
    s = scheduler([make_tree([[], [0]], [0, 8.0])], pacing=Pacing(0.5, None, None))
    s.start(0)
    assert only(s.ended(0, 0, Outcome.CONTINUE, 0), WakeAt) == [WakeAt(4 * S)]


def recorded_session() -> Tree:
    """Three turns of one second each, 2 s between an end and the next start: recorded at 0, 3 and 6 s."""
    tree = make_tree([[], [0], [1]], [0, 2.0, 2.0])
    for step in tree.steps:
        step.start_s, step.end_s = 3.0 * step.index, 3.0 * step.index + 1.0
    return tree


@pytest.mark.parametrize(
    ("recorded_clock", "service_s", "sent_s"),
    [
        (False, 5, [0, 7, 14]),  # the answer, then the pause
        (False, 1, [0, 3, 6]),
        (True, 5, [0, 5, 10]),  # behind the recording: at once, never before the answer
        (True, 1, [0, 3, 6]),
        (True, 4, [0, 4, 8]),
    ],
)
def test_p94_the_next_turn_waits_for_the_answer_by_either_clock(
    recorded_clock: bool, service_s: int, sent_s: list[int]
) -> None:
    s = scheduler([recorded_session()], pacing=Pacing(1.0, None, None, recorded_clock=recorded_clock))
    trace = run_in_virtual_time(s, repeat(service_s * S), repeat(Outcome.CONTINUE), None)
    assert [now // S for now, c in trace if isinstance(c, Send)] == sent_s
    assert [c.due_ns // S for _, c in trace if isinstance(c, Send)] == sent_s


def test_p94_an_idle_cap_moves_the_recorded_clock_with_the_timers() -> None:
    """What a cap cuts out of one pause is not waited for in the next."""
    s = scheduler([recorded_session()], pacing=Pacing(1.0, 0.5, None, recorded_clock=True))
    trace = run_in_virtual_time(s, repeat(S), repeat(Outcome.CONTINUE), None)
    assert [now / S for now, c in trace if isinstance(c, Send)] == [0, 1.5, 3.0]


def test_nothing_to_send_is_done_at_once() -> None:
    assert scheduler([]).start(0) == [Done()]


@st.composite
def forests(draw: st.DrawFn) -> list[Tree]:
    trees = []
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 7))
        causes = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(size)]
        delays = [draw(st.sampled_from([0.0, 0.5, 20.0, 5000.0])) for _ in range(size)]
        trees.append(make_tree(causes, delays))
    return trees


def run_in_virtual_time(
    s: Scheduler, service: Iterator[int], outcomes: Iterator[Outcome], stop_at: int | None
) -> list[tuple[int, Command]]:
    """Answer every Send after a drawn service time; fails if the run stalls."""
    trace: list[tuple[int, Command]] = []
    events: list[tuple[int, int, str, tuple[int, int]]] = []
    count = 0

    def take(now: int, commands: list[Command]) -> None:
        nonlocal count
        for command in commands:
            trace.append((now, command))
            count += 1
            if isinstance(command, Send):
                heapq.heappush(events, (now + next(service), count, "ended", (command.slot, command.step)))
            elif isinstance(command, WakeAt):
                heapq.heappush(events, (command.at_ns, count, "wake", (0, 0)))

    take(0, s.start(0))
    if stop_at is not None:
        heapq.heappush(events, (stop_at, -1, "stop", (0, 0)))
    while events:
        now, _, kind, (slot, step) = heapq.heappop(events)
        if kind == "ended":
            take(now, s.ended(slot, step, next(outcomes), now))
        else:
            take(now, s.wake(now) if kind == "wake" else s.stop(now))
    return trace


@settings(max_examples=300)
@given(
    forests(),
    st.integers(1, 4),
    st.lists(st.integers(0, 30 * S), min_size=40, max_size=40),
    st.lists(st.sampled_from([*[Outcome.CONTINUE] * 9, Outcome.OVERFLOW]), min_size=40, max_size=40),
    st.one_of(st.none(), st.integers(0, 100 * S)),
)
def test_every_run_ends_and_nothing_is_sent_before_its_causes(
    trees: list[Tree], slots: int, service: list[int], outcomes: list[Outcome], stop_at: int | None
) -> None:
    s = scheduler(trees, slots, Pacing())
    trace = run_in_virtual_time(s, iter(service), iter(outcomes), stop_at)
    assert trace[-1][1] == Done() or any(isinstance(c, Done) for _, c in trace)
    assert s.live == 0
    assert s.in_flight == 0
    started = [c for _, c in trace if isinstance(c, TreeStarted)]
    assert len(started) == len([c for _, c in trace if isinstance(c, TreeEnded)])
    if stop_at is None:
        assert len(started) == len(trees)
    else:
        assert not [c for now, c in trace if isinstance(c, Send) and now > stop_at]
    live: dict[int, Tree] = {}
    sent: set[tuple[int, int]] = set()
    for _, command in trace:
        if isinstance(command, TreeStarted):
            live[command.slot] = command.tree
            sent = {(slot, step) for slot, step in sent if slot != command.slot}
        elif isinstance(command, Send):
            assert (command.slot, command.step) not in sent
            assert all((command.slot, cause) in sent for cause in live[command.slot].steps[command.step].after)
            sent.add((command.slot, command.step))
