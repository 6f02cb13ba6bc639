"""Who sends what when, free of sockets and clocks.

Events go in with the present time, commands come out. The same scheduler drives a live run and a run in virtual time.
All times are integer nanoseconds on one clock.

A slot holds one live tree. A step is *waiting* until all its causes have ended, then *due* (its recorded delay after
the live end of its anchor, and not before its other causes ended), then *in flight*, then *ended*. A tree is over when
all its steps have ended; only then does its slot take the next tree. After `stop` nothing is sent any more: waiting and
due steps are dropped at once, whatever they wait for, and each tree ends with its last answer.

Phases. With a warm-up every slot first sends the primers of its tree, then a number of further steps without pauses,
and then holds. When all slots hold, the scheduler says `Warm`; the run goes on with `measure`, which sets every held
step due at its recorded distance from the moment at which its tree began, less the shortest of all. Without a warm-up
the measured part begins with `start`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from replay.tree_types import Start, Step, Tree
from results.records import Phase, TreeEnd


class Outcome(Enum):
    """How an answer bears on what follows."""

    CONTINUE = "continue"
    OVERFLOW = "overflow"
    """The prompt does not fit the model: no later turn can."""
    REFUSED = "refused"
    """The server will refuse the same conversation again (4xx): the tree ends."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send step `step` of the tree in `slot`; it was due at `due_ns`."""

    slot: int
    step: int
    due_ns: int
    phase: Phase = Phase.STEADY
    primer: bool = False
    """A step of the past, sent once more for one token."""


@dataclass(frozen=True, slots=True)
class TreeStarted:
    """`slot` now holds a new tree."""

    slot: int
    tree: Tree
    at_ns: int


@dataclass(frozen=True, slots=True)
class TreeEnded:
    """The tree in `slot` is over."""

    slot: int
    end: TreeEnd
    started_ns: int
    at_ns: int
    sent: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `wake` no later than `at_ns`; replaces any earlier wake-up."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Warm:
    """Every slot has been warmed; `first_ns` is the shortest distance of a held step from its tree's beginning."""

    first_ns: int


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is live and nothing will be."""


Command = Send | TreeStarted | TreeEnded | WakeAt | Warm | Done


@dataclass(frozen=True, slots=True)
class Pacing:
    """How recorded pauses are replayed. `None` caps nothing."""

    time_scale: float = 1.0
    tree_idle_cap_s: float | None = 300.0
    """Longest pause of a tree of which nothing is in flight; its timers are moved up together."""
    system_idle_cap_s: float | None = 10.0
    """Longest time in which nothing at all is in flight; every timer is moved up together."""
    warmup_steps: int = 0
    """Steps per slot after the primers and before the measured part."""
    recorded_clock: bool = False
    """Steps are due when the recording says, counted from the tree's start, and not before their causes ended."""


@dataclass(slots=True)
class _Live:
    tree: Tree
    started_ns: int
    waiting_for: list[int]
    left: int
    epoch: int
    """Timers of another epoch were moved or dropped."""
    zero_ns: int = 0
    """Where the recording's time zero lies: moved with the timers."""
    in_flight: int = 0
    sent: int = 0
    timers: dict[int, int] = field(default_factory=dict)
    """Due steps: step -> due_ns."""
    ready: dict[int, int] = field(default_factory=dict)
    """Steps that still wait: step -> earliest due_ns by the causes that have ended."""
    held: dict[int, int] = field(default_factory=dict)
    """Steps that only wait for the measured part: step -> recorded distance from the tree's beginning."""
    primers: int = 0
    """Primers not yet ended."""
    end: TreeEnd | None = None


def _from_the_past(tree: Tree, step: Step) -> bool:
    """Whether what the step's pause counts from lies before the tree's start."""
    return tree.start is not None and (step.anchor < 0 or step.anchor in tree.start.done)


def closed_loop(slots: Iterable[int], ramp_ns: int, concurrency: int) -> Iterator[tuple[int, int]]:
    """(slot, start) of a closed loop's first trees: spread evenly over the ramp."""
    for slot in slots:
        yield slot, ramp_ns * slot // max(1, concurrency)


class Scheduler:
    """Deterministic: the same events give the same commands."""

    def __init__(
        self,
        arrivals: Iterable[tuple[int, int]],
        next_tree: Callable[[int], Tree | None],
        pacing: Pacing,
        *,
        refill: Callable[[int, int], bool] = lambda slot, now: True,
        warm_up: bool = False,
    ) -> None:
        """`arrivals` are (slot, ns after the start) by time; `next_tree(slot)` gives a tree, None when there is none.

        `refill(slot, now)` says whether a slot whose tree is over takes another.
        """
        self._arrivals = iter(arrivals)
        self._arrival: tuple[int, int] | None = None
        self._next_tree = next_tree
        self._pacing = pacing
        self._refill = refill
        self._phase = Phase.WARMUP if warm_up else Phase.STEADY
        self._live: dict[int, _Live] = {}
        self._heap: list[tuple[int, int, int, int]] = []
        self._budget: dict[int, int] = {}
        self._stopped = False
        self._in_flight = 0
        self._epoch = 0
        self._origin = 0
        self._woken_for = -1
        self._done = self._said_warm = False

    @property
    def live(self) -> int:
        """Trees that are not over."""
        return len(self._live)

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return self._in_flight

    @property
    def waits_for_time(self) -> bool:
        """Whether a pause, an arrival or the beginning of the measured part comes next, whatever is answered."""
        held = self._said_warm and self._phase is Phase.WARMUP
        return held or self._arrival is not None or self._next_due() is not None

    def start(self, now: int) -> list[Command]:
        """Fill the slots, each at its time; in a warm-up all at once."""
        self._origin = now
        self._arrival = next(self._arrivals, None)
        out: list[Command] = []
        if self._phase is Phase.WARMUP:
            self._take_arrivals(now, out)
            self._prime(now)
        return self._settle(now, out)

    def wake(self, now: int) -> list[Command]:
        """Time has passed."""
        self._woken_for = -1
        return self._settle(now, [])

    def measure(self, now: int, first_ns: int) -> list[Command]:
        """The measured part begins: held steps are due at their distance less `first_ns`, the least of all."""
        self._phase = Phase.STEADY
        for slot, live in self._live.items():
            for step, distance in live.held.items():
                self._arm(slot, live, step, now + max(0, distance - first_ns))
            live.held.clear()
            for step, ready in live.ready.items():
                live.ready[step] = now + max(0, ready - first_ns)  # kept as distances during the warm-up
            if not live.in_flight:
                self._cap_tree(slot, live, now)
        return self._settle(now, [])

    def ended(self, slot: int, step: int, outcome: Outcome, now: int, *, primer: bool = False) -> list[Command]:
        """The answer to `step` is over (well or badly)."""
        out: list[Command] = []
        live = self._live[slot]
        live.in_flight -= 1
        self._in_flight -= 1
        if primer:
            live.primers -= 1
        else:
            live.left -= 1
        if outcome is not Outcome.CONTINUE:
            live.end = TreeEnd.OVERFLOW if outcome is Outcome.OVERFLOW else TreeEnd.FAILED
            self._drop_timers(live)
        elif not primer and live.end is None and not self._stopped:
            self._release(slot, live, step, now)
        if live.in_flight == 0 and (live.left == 0 or live.end is not None or self._stopped):
            self._close(slot, live, now, out)
        elif live.in_flight == 0 and self._phase is Phase.STEADY:
            self._cap_tree(slot, live, now)
        return self._settle(now, out)

    def stop(self, now: int) -> list[Command]:
        """Send nothing more; trees of which nothing is in flight end at once."""
        self._stopped = True
        self._arrival = None
        out: list[Command] = []
        for slot, live in list(self._live.items()):
            self._drop_timers(live)
            if live.in_flight == 0:
                self._close(slot, live, now, out)
        return self._settle(now, out)

    # trees

    def _fill(self, slot: int, now: int, out: list[Command]) -> None:
        tree = None if self._stopped else self._next_tree(slot)
        if tree is None:
            return
        self._epoch += 1
        live = _Live(tree, now, [len(step.after) for step in tree.steps], len(tree.steps), self._epoch)
        live.zero_ns = now - self._scaled(tree.steps[0].start_s - tree.steps[0].delay_s)
        self._live[slot] = live
        out.append(TreeStarted(slot, tree, now))
        if tree.start is not None:
            self._skip_past(live, tree.start)
        for step in tree.steps:
            if tree.start is not None and step.index in tree.start.done:
                continue
            past = _from_the_past(tree, step)
            if not live.waiting_for[step.index]:
                delay = self._distance(live, step) if past else self._scaled(step.delay_s)
                self._make_due(slot, live, step.index, now, delay)
            elif past:  # its anchor is over already, a barrier is not
                base = now if self._phase is Phase.STEADY else 0
                live.ready[step.index] = base + self._distance(live, step)
        if self._phase is Phase.STEADY:
            self._cap_tree(slot, live, now)

    def _distance(self, live: _Live, step: Step) -> int:
        """Recorded time from the moment at which the tree began to `step`."""
        start = live.tree.start
        origin_s = live.tree.steps[0].start_s if start is None else start.moment_s
        return self._scaled(max(0.0, step.start_s - origin_s))

    def _skip_past(self, live: _Live, start: Start) -> None:
        live.left -= len(start.done)
        for index in start.done:
            for dependent in live.tree.dependents[index]:
                live.waiting_for[dependent] -= 1

    def _prime(self, now: int) -> None:
        """Send each stream's last past step so that the moments of all trees meet at one time."""
        cap = self._pacing.system_idle_cap_s
        leads: list[tuple[float, int, _Live, int]] = []
        for slot, live in self._live.items():
            start = live.tree.start
            for index in start.primers if start is not None else ():
                assert start is not None
                lead = start.moment_s - live.tree.steps[index].start_s
                leads.append((lead if cap is None else min(cap, lead), slot, live, index))
        longest = max((lead for lead, *_ in leads), default=0.0)
        for lead, slot, live, index in leads:
            live.primers += 1
            self._arm(slot, live, ~index, now + round((longest - lead) * 1e9))

    def _release(self, slot: int, live: _Live, step: int, now: int) -> None:
        """A step has ended: its dependents wait for one thing less."""
        measured = self._phase is Phase.STEADY
        for index in live.tree.dependents[step]:
            live.waiting_for[index] -= 1
            dependent = live.tree.steps[index]
            if measured:
                delay = self._scaled(dependent.delay_s) if dependent.anchor == step else 0
                due = max(live.ready.pop(index, 0), now + delay)
                if self._pacing.recorded_clock:
                    due = max(now, live.zero_ns + self._scaled(dependent.start_s))
            else:  # not slept: where the measured part takes the tree up again, the recording's clock goes on
                due = self._distance(live, dependent)
            if live.waiting_for[index]:
                live.ready[index] = due
            elif measured:
                self._arm(slot, live, index, due)
            else:
                live.ready.pop(index, None)
                live.held[index] = due

    def _make_due(self, slot: int, live: _Live, step: int, now: int, delay_ns: int) -> None:
        if self._phase is Phase.STEADY:
            self._arm(slot, live, step, now + delay_ns)
        else:
            live.held[step] = delay_ns

    def _scaled(self, seconds: float) -> int:
        return round(seconds * self._pacing.time_scale * 1e9)

    def _close(self, slot: int, live: _Live, now: int, out: list[Command]) -> None:
        del self._live[slot]
        end = live.end
        if end is None:
            end = TreeEnd.COMPLETED if live.left == 0 else TreeEnd.CUT_OFF
        out.append(TreeEnded(slot, end, live.started_ns, now, live.sent))
        if self._refill(slot, now):
            self._fill(slot, now, out)

    # timers

    def _arm(self, slot: int, live: _Live, step: int, due_ns: int) -> None:
        live.timers[step] = due_ns
        heapq.heappush(self._heap, (due_ns, slot, step, live.epoch))

    def _drop_timers(self, live: _Live) -> None:
        live.timers.clear()
        live.held.clear()
        self._epoch += 1
        live.epoch = self._epoch

    def _settle(self, now: int, out: list[Command]) -> list[Command]:
        """Start what arrives, send what is due, apply the idle caps, ask for the next wake-up."""
        self._take_arrivals(now, out)
        self._send_due(now, out)
        if self._phase is Phase.WARMUP:
            self._warm(now, out)
        elif self._cap_system(now):
            self._send_due(now, out)
        if not self._live and self._arrival is None:
            if not self._done:
                self._done = True
                out.append(Done())
            return out
        due = self._next_due()
        if self._arrival is not None:
            at = self._origin + self._arrival[1]
            due = at if due is None else min(due, at)
        if due is not None and due != self._woken_for:
            self._woken_for = due
            out.append(WakeAt(due))
        return out

    def _take_arrivals(self, now: int, out: list[Command]) -> None:
        while self._arrival is not None:
            slot, after = self._arrival
            if self._phase is not Phase.WARMUP and self._origin + after > now:
                return
            self._arrival = next(self._arrivals, None)
            if slot not in self._live:  # a stage that grows again may find the slot's old tree still there
                self._fill(slot, now if self._phase is Phase.WARMUP else self._origin + after, out)

    def _send_due(self, now: int, out: list[Command]) -> None:
        while (due := self._next_due()) is not None and due <= now:
            _, slot, step, _ = heapq.heappop(self._heap)
            live = self._live[slot]
            del live.timers[step]
            self._send(slot, live, step, due, out)

    def _send(self, slot: int, live: _Live, step: int, due: int, out: list[Command]) -> None:
        live.in_flight += 1
        live.sent += 1
        self._in_flight += 1
        primer = step < 0
        out.append(Send(slot, ~step if primer else step, due, self._phase, primer))

    def _warm(self, now: int, out: list[Command]) -> None:
        """Send what the slots' budgets allow, without pauses; say so when every slot is warm."""
        for slot, live in self._live.items():
            budget = self._budget.setdefault(slot, self._pacing.warmup_steps)
            if live.primers or live.end is not None or self._stopped:
                continue
            for step in sorted(live.held, key=lambda step: (live.held[step], step))[:budget]:
                del live.held[step]
                budget -= 1
                self._send(slot, live, step, now, out)
            self._budget[slot] = budget
        if self._in_flight or self._said_warm or self._stopped or any(live.timers for live in self._live.values()):
            return
        if self._live:
            self._said_warm = True
            out.append(Warm(min((d for live in self._live.values() for d in live.held.values()), default=0)))

    def _next_due(self) -> int | None:
        while self._heap:
            due, slot, step, epoch = self._heap[0]
            live = self._live.get(slot)
            if live is not None and live.epoch == epoch and live.timers.get(step) == due:
                return due
            heapq.heappop(self._heap)
        return None

    # idle caps

    def _cap_tree(self, slot: int, live: _Live, now: int) -> None:
        """A tree has just gone idle: bound how long it stays so."""
        cap = self._pacing.tree_idle_cap_s
        if cap is not None and live.timers:
            shift = min(live.timers.values()) - now - round(cap * 1e9)
            if shift > 0:
                self._move(slot, live, shift)

    def _cap_system(self, now: int) -> bool:
        """Nothing is in flight anywhere: bound how long that lasts. True when something was moved."""
        cap = self._pacing.system_idle_cap_s
        due = self._next_due()
        if cap is None or due is None or self._in_flight:
            return False
        shift = due - now - round(cap * 1e9)
        if shift <= 0 or (self._arrival is not None and self._origin + self._arrival[1] < due - shift):
            return False
        for slot, live in self._live.items():
            self._move(slot, live, shift)
        return True

    def _move(self, slot: int, live: _Live, shift: int) -> None:
        """Move a tree's timers up together, so that their order and distances stay."""
        self._epoch += 1
        live.epoch = self._epoch
        live.zero_ns -= shift
        for step, due in live.timers.items():
            live.timers[step] = due - shift
            heapq.heappush(self._heap, (due - shift, slot, step, live.epoch))
        for step, ready in live.ready.items():
            live.ready[step] = ready - shift
