"""Where the next point of an adaptive curve belongs. Pure.

The curve is interactivity (tokens/s/user, 1 / p90 of E2E latency per output token) against total tokens per second,
both scaled to [0, 1] over the points measured. Between two neighbouring concurrencies it is unknown by

    max(bend, length / 4)

`length` is the distance of the two points; `bend` how far either of them lies from the straight line through *its*
neighbours, that is by how much a straight line was wrong there last time. The next point halves (in ratio) the interval
that is least known; the curve is known well enough when none exceeds `tolerance` or has a whole number left inside.

A concurrency that failed has no place on the curve. Beside one, the interval up to the nearest good point is halved
while its ends are more than a factor of 1.5 apart, so that the limit of what works is found too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from harness.sweep.schema import Auto

Place = tuple[float, float]
"""Interactivity and throughput of one point."""

_NEAR_FAILURE = 1.5


def next_concurrency(auto: Auto, tried: Mapping[int, Place | None]) -> int | None:
    """The next number of live sessions, or None when the curve is known well enough.

    `tried` holds what was measured, None where the point failed.
    """
    for end in (auto.low, auto.high):
        if end not in tried:
            return end
    if len(tried) >= auto.max_points:
        return None
    score, best = max(((s, -c) for c, s in candidates(auto, tried).items()), default=(0.0, 0))
    return -best if score > auto.tolerance else None


def candidates(auto: Auto, tried: Mapping[int, Place | None]) -> dict[int, float]:
    """Every concurrency that could come next, with how little is known there."""
    good = {c: place for c, place in sorted(tried.items()) if place is not None}
    if not good:
        return {}
    scaled = _scale(good)
    bends = _bends(scaled)
    order = sorted(tried)
    found: dict[int, float] = {}
    for low, high in pairwise(order):
        middle = _middle(low, high)
        if middle is None:
            continue
        if low in scaled and high in scaled:
            length = math.dist(scaled[low], scaled[high])
            found[middle] = max(bends.get(low, 0.0), bends.get(high, 0.0), length / 4)
        elif (low in scaled or high in scaled) and high / low > _NEAR_FAILURE:
            found[middle] = 1.0
    return found


def _scale(good: Mapping[int, Place]) -> dict[int, Place]:
    def axis(index: int) -> tuple[float, float]:
        values = [place[index] for place in good.values()]
        return min(values), (max(values) - min(values)) or 1.0

    (x0, width), (y0, height) = axis(0), axis(1)
    return {c: ((x - x0) / width, (y - y0) / height) for c, (x, y) in good.items()}


def _bends(scaled: Mapping[int, Place]) -> dict[int, float]:
    order = sorted(scaled)
    return {
        here: _distance(scaled[here], scaled[before], scaled[after])
        for before, here, after in zip(order, order[1:], order[2:], strict=False)
    }


def _distance(point: Place, start: Place, end: Place) -> float:
    """Distance of a point from a line segment."""
    (px, py), (ax, ay), (bx, by) = point, start, end
    dx, dy = bx - ax, by - ay
    squared = dx * dx + dy * dy
    along = 0.0 if squared == 0 else max(0.0, min(1.0, ((px - ax) * dx + (py - ay) * dy) / squared))
    return math.hypot(px - ax - along * dx, py - ay - along * dy)


def _middle(low: int, high: int) -> int | None:
    """The whole number strictly between that is nearest to the geometric mean."""
    if high - low < 2:
        return None
    return min(max(round(math.sqrt(low * high)), low + 1), high - 1)
