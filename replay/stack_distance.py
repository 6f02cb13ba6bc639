"""Hit rate against cache size under LRU, exactly and in one pass: reuse (stack) distances of blocks.

A block that is asked for again hits a cache of N blocks when fewer than N blocks were used more recently. All blocks of
a prompt are used at one time, and of these the head counts as more recent than the tail: serving engines release a
prompt's blocks from its end, so that the tail is evicted first. Prefix caches add one rule: a prompt hits only as far
as its blocks are hits from the first on, so a block counts with the largest distance of the blocks before it.

The distances come from the usual tree over time stamps (Mattson et al. 1970; Bennett and Kruskal 1975), but over runs
of blocks: a prompt is a few runs, and a run that was used together is moved together, so that the pass takes the number
of runs times a logarithm instead of the number of blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from replay.corpus import Corpus


@dataclass(frozen=True, slots=True)
class HitCurve:
    """`hit_tokens[k]` tokens hit a cache of `blocks[k]` blocks (ascending); `tokens` were asked for in whole blocks."""

    blocks: np.ndarray
    hit_tokens: np.ndarray
    tokens: int

    def hit_rate(self, cache_blocks: int) -> float | None:
        """Share of the tokens that a cache of so many blocks would have served."""
        if not self.tokens:
            return None
        k = int(np.searchsorted(self.blocks, cache_blocks, side="right")) - 1
        return float(self.hit_tokens[k]) / self.tokens if k >= 0 else 0.0


class LruDistances:
    """Reuse distances of runs of blocks.

    The blocks of a prompt that were last used together lie next to each other in the order of use; a *segment* is such
    a run of ids with one time of use. `_sizes` is a Fenwick tree over times: how many blocks were last used then.
    """

    def __init__(self, uses: int) -> None:
        """`uses`: how many prompts there will be, at most."""
        self._sizes = [0] * (uses + 1)
        self._time = 0
        self._total = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._last: list[int] = []
        """Segments by first id: [start, end) and the time of their last use."""
        self._of_time: list[list[tuple[int, int]]] = [[]]
        """Per time: (first id, end) of the segments used then, in prompt order."""

    def use(self, runs: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
        """Use the first `limit` blocks of a prompt; (distance, count) of its leading known blocks, in prompt order.

        Of such a run the first block has `distance` more recently used blocks before it, the next one more, and so on.
        """
        found: list[tuple[int, int]] = []
        spans: list[tuple[int, int]] = []
        position, known = 0, True
        for first, count in runs:
            end = first + min(count, limit - position)
            position += max(0, end - first)
            if end > first:
                spans.append((first, end))
            while known and first < end:
                k = bisect_right(self._starts, first) - 1
                if k < 0 or first >= self._ends[k]:
                    known = False
                else:
                    stop = min(end, self._ends[k])
                    found.append((self._distance(first, self._last[k]), stop - first))
                    first = stop
            if position >= limit:
                break
        self._touch(spans)
        return found

    def _distance(self, block: int, time: int) -> int:
        """Blocks more recent than `block`: all used later, and those before it in the prompt that used it last."""
        later = self._total - self._count(time)
        for start, end in self._of_time[time]:
            if start <= block < end:
                return later + block - start
            later += end - start
        raise AssertionError("a block's last use does not hold it")

    def _count(self, time: int) -> int:
        """Blocks whose last use was at `time` or before."""
        total = 0
        while time > 0:
            total += self._sizes[time]
            time -= time & -time
        return total

    def _add(self, time: int, blocks: int) -> None:
        while time < len(self._sizes):
            self._sizes[time] += blocks
            time += time & -time

    def _touch(self, spans: list[tuple[int, int]]) -> None:
        self._time += 1
        self._of_time.append(spans)
        blocks = sum(end - start for start, end in spans)
        for start, end in spans:
            self._cut_out(start, end)
        for start, end in spans:
            k = bisect_right(self._starts, start)
            self._starts.insert(k, start)
            self._ends.insert(k, end)
            self._last.insert(k, self._time)
        self._add(self._time, blocks)
        self._total += blocks

    def _cut_out(self, start: int, end: int) -> None:
        """Take [start, end) out of what was last used earlier."""
        k = max(0, bisect_right(self._starts, start) - 1)
        while k < len(self._starts) and self._starts[k] < end:
            a, b, time = self._starts[k], self._ends[k], self._last[k]
            low, high = max(a, start), min(b, end)
            if low >= high:
                k += 1
                continue
            del self._starts[k], self._ends[k], self._last[k]
            pieces = [(x, y) for x, y in ((a, low), (high, b)) if x < y]
            for offset, (x, y) in enumerate(pieces):
                self._starts.insert(k + offset, x)
                self._ends.insert(k + offset, y)
                self._last.insert(k + offset, time)
            self._replace(time, a, b, pieces)
            self._add(time, low - high)
            self._total -= high - low
            k += len(pieces)

    def _replace(self, time: int, start: int, end: int, pieces: list[tuple[int, int]]) -> None:
        of_time = self._of_time[time]
        at = of_time.index((start, end))
        of_time[at : at + 1] = pieces


def hit_curve(corpus: Corpus, concurrency: int = 1) -> HitCurve:
    """The whole corpus against an LRU prefix cache of every size.

    Sessions in file order by a closed loop of `concurrency` live ones at their recorded times (1: one after the other),
    requests in the order of their starts. Sessions share no blocks.
    """
    order = request_order(corpus, concurrency)
    distances = LruDistances(len(order))
    bases = _id_bases(corpus)
    offsets, firsts, counts = corpus.run_offset.tolist(), corpus.run_first.tolist(), corpus.run_count.tolist()
    whole = (corpus.input_tokens // corpus.block_size).tolist()
    sizes = corpus.block_size.tolist()
    points: dict[int, int] = {}
    slopes: dict[int, int] = {}
    tokens = 0
    for row, session in order:
        base, low, high = bases[session], offsets[row], offsets[row + 1]
        runs = [(base + first, count) for first, count in zip(firsts[low:high], counts[low:high], strict=True)]
        limit = min(whole[row], sum(counts[low:high]))
        tokens += limit * sizes[row]
        worst = -1
        for distance, count in distances.use(runs, limit):
            below = min(count, max(0, worst + 1 - distance))  # these wait for a block before them
            if below:
                points[worst] = points.get(worst, 0) + below * sizes[row]
            if below < count:
                start, worst = distance + below, distance + count - 1
                slopes[start] = slopes.get(start, 0) + sizes[row]
                slopes[worst + 1] = slopes.get(worst + 1, 0) - sizes[row]
    return _curve(points, slopes, tokens)


def _curve(points: dict[int, int], slopes: dict[int, int], tokens: int) -> HitCurve:
    top = max([0, *points, *slopes]) + 2
    at = np.zeros(top, dtype=np.int64)
    change = np.zeros(top, dtype=np.int64)
    at[list(points)] = list(points.values())
    change[list(slopes)] = list(slopes.values())
    hits = np.cumsum(np.cumsum(change) + at)  # hits[d]: tokens whose distance is at most d, a cache of d + 1 blocks
    return HitCurve(np.arange(1, top + 1), hits, tokens)


def request_order(corpus: Corpus, concurrency: int) -> list[tuple[int, int]]:
    """(row, session) of every request in the order of its start."""
    bounds = corpus.session_row.tolist()
    free = [0.0] * max(1, concurrency)
    starts: list[tuple[float, int, int]] = []
    ends = corpus.start_s + np.nan_to_num(corpus.api_s)
    for session, (low, high) in enumerate(pairwise(bounds)):
        slot = free.index(min(free))
        origin = free[slot] - float(corpus.start_s[low:high].min())
        starts += [(origin + at, row, session) for row, at in enumerate(corpus.start_s[low:high].tolist(), low)]
        free[slot] = origin + float(ends[low:high].max())
    starts.sort()
    return [(row, session) for _, row, session in starts]


def _id_bases(corpus: Corpus) -> list[int]:
    """A number to add to each session's block ids so that no two sessions have one in common."""
    ends = corpus.run_first + corpus.run_count
    bounds = corpus.run_offset[corpus.session_row].tolist()
    bases, base = [], 0
    for low, high in pairwise(bounds):
        lowest = int(corpus.run_first[low:high].min()) if high > low else 0
        bases.append(base - lowest)
        base += (int(ends[low:high].max()) - lowest) if high > low else 0
    return bases
