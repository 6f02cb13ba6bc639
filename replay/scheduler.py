"""Who sends what when: a closed loop over N live session trees, free of sockets and clocks.

Events go in with the present time, commands come out. The same scheduler drives a live run and a run in virtual time.
All times are integer nanoseconds on one clock.

A slot holds one live tree. A step is *waiting* until all its causes have ended, then *due* after its recorded delay
(counted from the live end of the last cause), then *in flight*, then *ended*. A tree is over when all its steps have
ended; only then does its slot take the next tree. After `stop` nothing is sent any more: waiting and due steps are
dropped at once, whatever they wait for, and each tree ends with its last answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from replay.tree import Tree
from results.records import TreeEnd


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
class Done:
    """Nothing is live and nothing will be."""


Command = Send | TreeStarted | TreeEnded | WakeAt | Done


@dataclass(frozen=True, slots=True)
class Pacing:
    """How recorded pauses are replayed. `None` caps nothing."""

    time_scale: float = 1.0
    tree_idle_cap_s: float | None = 300.0
    """Longest pause of a tree of which nothing is in flight; its timers are moved up together."""
    system_idle_cap_s: float | None = 10.0
    """Longest time in which nothing at all is in flight; every timer is moved up together."""


@dataclass(slots=True)
class _Live:
    tree: Tree
    started_ns: int
    waiting_for: list[int]
    left: int
    epoch: int
    """Timers of another epoch were moved or dropped."""
    in_flight: int = 0
    sent: int = 0
    timers: dict[int, int] = field(default_factory=dict)
    """Due steps: step -> due_ns."""
    end: TreeEnd | None = None


class Scheduler:
    """Deterministic: the same events give the same commands."""

    def __init__(self, slots: list[int], next_tree: Callable[[int], Tree | None], pacing: Pacing) -> None:
        """`slots` are the slot numbers to fill; `next_tree(slot)` gives the next tree or None when there is none."""
        self._slots = slots
        self._next_tree = next_tree
        self._pacing = pacing
        self._live: dict[int, _Live] = {}
        self._heap: list[tuple[int, int, int, int]] = []
        self._stopped = False
        self._in_flight = 0
        self._epoch = 0
        self._woken_for = -1
        self._done = False

    @property
    def live(self) -> int:
        """Trees that are not over."""
        return len(self._live)

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return self._in_flight

    def start(self, now: int) -> list[Command]:
        """Fill every slot."""
        out: list[Command] = []
        for slot in self._slots:
            self._fill(slot, now, out)
        return self._settle(now, out)

    def wake(self, now: int) -> list[Command]:
        """Time has passed."""
        self._woken_for = -1
        return self._settle(now, [])

    def ended(self, slot: int, step: int, outcome: Outcome, now: int) -> list[Command]:
        """The answer to `step` is over (well or badly)."""
        out: list[Command] = []
        live = self._live[slot]
        live.in_flight -= 1
        live.left -= 1
        self._in_flight -= 1
        if outcome is not Outcome.CONTINUE:
            live.end = TreeEnd.OVERFLOW if outcome is Outcome.OVERFLOW else TreeEnd.FAILED
            self._drop_timers(live)
        elif live.end is None and not self._stopped:
            for index in live.tree.dependents[step]:
                live.waiting_for[index] -= 1
                if live.waiting_for[index] == 0:
                    delay = live.tree.steps[index].delay_s * self._pacing.time_scale
                    self._arm(slot, live, index, now + round(delay * 1e9))
        if live.in_flight == 0 and (live.left == 0 or live.end is not None or self._stopped):
            self._close(slot, live, now, out)
        elif live.in_flight == 0:
            self._cap_tree(slot, live, now)
        return self._settle(now, out)

    def stop(self, now: int) -> list[Command]:
        """Send nothing more; trees of which nothing is in flight end at once."""
        self._stopped = True
        out: list[Command] = []
        for slot, live in list(self._live.items()):
            self._drop_timers(live)
            if live.in_flight == 0:
                self._close(slot, live, now, out)
        return self._settle(now, out)

    def _fill(self, slot: int, now: int, out: list[Command]) -> None:
        tree = None if self._stopped else self._next_tree(slot)
        if tree is None:
            return
        self._epoch += 1
        waiting_for = [len(step.after) for step in tree.steps]
        live = _Live(tree, now, waiting_for, len(tree.steps), self._epoch)
        self._live[slot] = live
        out.append(TreeStarted(slot, tree, now))
        for step in tree.steps:
            if not step.after:
                self._arm(slot, live, step.index, now)

    def _arm(self, slot: int, live: _Live, step: int, due_ns: int) -> None:
        live.timers[step] = due_ns
        heapq.heappush(self._heap, (due_ns, slot, step, live.epoch))

    def _drop_timers(self, live: _Live) -> None:
        live.timers.clear()
        self._renew(live)

    def _renew(self, live: _Live) -> None:
        self._epoch += 1
        live.epoch = self._epoch

    def _close(self, slot: int, live: _Live, now: int, out: list[Command]) -> None:
        del self._live[slot]
        end = live.end
        if end is None:
            end = TreeEnd.COMPLETED if live.left == 0 else TreeEnd.CUT_OFF
        out.append(TreeEnded(slot, end, live.started_ns, now, live.sent))
        self._fill(slot, now, out)

    def _settle(self, now: int, out: list[Command]) -> list[Command]:
        """Send what is due, apply the idle caps, ask for the next wake-up."""
        self._send_due(now, out)
        if self._cap_system(now):
            self._send_due(now, out)
        if not self._live:
            if not self._done:
                self._done = True
                out.append(Done())
            return out
        due = self._next_due()
        if due is not None and due != self._woken_for:
            self._woken_for = due
            out.append(WakeAt(due))
        return out

    def _send_due(self, now: int, out: list[Command]) -> None:
        while (due := self._next_due()) is not None and due <= now:
            _, slot, step, _ = heapq.heappop(self._heap)
            live = self._live[slot]
            del live.timers[step]
            live.in_flight += 1
            live.sent += 1
            self._in_flight += 1
            out.append(Send(slot, step, due))

    def _next_due(self) -> int | None:
        while self._heap:
            due, slot, step, epoch = self._heap[0]
            live = self._live.get(slot)
            if live is not None and live.epoch == epoch and live.timers.get(step) == due:
                return due
            heapq.heappop(self._heap)
        return None

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
        if shift <= 0:
            return False
        for slot, live in self._live.items():
            self._move(slot, live, shift)
        return True

    def _move(self, slot: int, live: _Live, shift: int) -> None:
        """Move a tree's timers up together, so that their order and distances stay."""
        self._renew(live)
        for step, due in live.timers.items():
            live.timers[step] = due - shift
            heapq.heappush(self._heap, (due - shift, slot, step, live.epoch))
