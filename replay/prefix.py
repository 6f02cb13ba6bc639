"""Block prefixes: runs of consecutive ids, their common length, and what an infinite cache has seen.

Block ids have cumulative identity in the traces: equal ids at equal positions mean equal prefixes. Nothing here relies
on it blindly: an id counts as seen only at the position where it was first seen.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

Runs = Sequence[tuple[int, int]]
"""(first id, count) pairs in prefix order."""


def common_blocks(a: Runs, b: Runs, limit: int) -> int:
    """Number of leading blocks that `a` and `b` share, at most `limit`."""
    i = j = used_a = used_b = shared = 0
    while shared < limit and i < len(a) and j < len(b):
        first_a, count_a = a[i]
        first_b, count_b = b[j]
        if first_a + used_a != first_b + used_b:
            break
        step = min(count_a - used_a, count_b - used_b)
        shared += step
        used_a += step
        used_b += step
        if used_a == count_a:
            i, used_a = i + 1, 0
        if used_b == count_b:
            j, used_b = j + 1, 0
    return min(shared, limit)


def block_at(runs: Runs, position: int) -> int | None:
    """Id of the block at `position`, None beyond the end."""
    for first, count in runs:
        if position < count:
            return first + position
        position -= count
    return None


class SeenBlocks:
    """Blocks that were part of an earlier prompt: an infinite prefix cache's content, kept as intervals of ids.

    Coverage and ownership are separate: a lane's hundred turns are one interval to walk, with a hundred owners to
    look one up in.
    """

    __slots__ = ("_ends", "_owned_from", "_owners", "_positions", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._positions: list[int] = []
        self._owned_from: list[int] = []
        """Ids from which on the owner of the same index owns, as far as ids are known at all; ascending."""
        self._owners: list[int] = []

    def prefix(self, runs: Runs, limit: int) -> tuple[int, int]:
        """Leading blocks of `runs` (at most `limit`) that were seen, and who introduced the last of them (or -1)."""
        position, last = 0, -1
        for first, count in runs:
            end = first + min(count, limit - position)
            while first < end:
                k = bisect_right(self._starts, first) - 1
                if k < 0 or first >= self._ends[k] or self._positions[k] + first - self._starts[k] != position:
                    return position, self._owner(last)
                step = min(end, self._ends[k]) - first
                position += step
                first += step
                last = first - 1
            if position >= limit:
                break
        return position, self._owner(last)

    def _owner(self, block: int) -> int:
        return self._owners[bisect_right(self._owned_from, block) - 1] if block >= 0 else -1

    def add(self, runs: Runs, limit: int, owner: int) -> None:
        """Remember the first `limit` blocks of `runs`; blocks already known keep their first owner."""
        position = 0
        for first, count in runs:
            end = first + min(count, limit - position)
            while first < end:
                k = bisect_right(self._starts, first) - 1
                if k >= 0 and first < self._ends[k]:
                    step = min(end, self._ends[k]) - first
                else:
                    following = self._starts[k + 1] if k + 1 < len(self._starts) else end
                    step = min(end, following) - first
                    self._insert(k, first, first + step, position, owner)
                first += step
                position += step
            if position >= limit:
                break

    def _insert(self, k: int, start: int, end: int, position: int, owner: int) -> None:
        place = bisect_right(self._owned_from, start)
        self._owned_from.insert(place, start)
        self._owners.insert(place, owner)
        if k >= 0 and self._ends[k] == start and self._positions[k] + start - self._starts[k] == position:
            self._ends[k] = end
            return
        self._starts.insert(k + 1, start)
        self._ends.insert(k + 1, end)
        self._positions.insert(k + 1, position)
