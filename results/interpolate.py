"""A curve between measured points that never leaves the range of its neighbours. Pure.

Steffen's monotone cubic Hermite interpolation (Astronomy and Astrophysics 239, 443, 1990), with the one-sided slopes
that D3's curveMonotoneX has at the two ends, so that the curve is the one the public charts draw.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Read(NamedTuple):
    """A value read off a curve; `clamped`: x is outside what was measured, the value is that of the nearest end."""

    y: float
    clamped: bool


class Curve:
    """Through points of rising x. With one point a constant, with two a straight line."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """ValueError unless there is a point, all are finite and x rises strictly."""
        if not xs or len(xs) != len(ys):
            raise ValueError("a curve needs points, and a y for each x")
        if not all(map(math.isfinite, (*xs, *ys))) or any(a >= b for a, b in pairwise(xs)):
            raise ValueError("a curve needs finite points of strictly rising x")
        self.xs, self.ys = list(xs), list(ys)
        self.slopes = _slopes(self.xs, self.ys)

    def at(self, x: float) -> Read:
        """The curve's value at `x`; never beyond the y of the two points around it. ValueError when x is NaN."""
        if math.isnan(x):
            raise ValueError("no place on a curve: NaN")
        xs, ys = self.xs, self.ys
        if x <= xs[0] or x >= xs[-1]:
            end = 0 if x <= xs[0] else -1
            return Read(ys[end], x != xs[end])
        k = bisect_right(xs, x) - 1
        h = xs[k + 1] - xs[k]
        t = (x - xs[k]) / h
        y = (
            (1 + 2 * t) * (1 - t) ** 2 * ys[k]
            + t * (1 - t) ** 2 * h * self.slopes[k]
            + t * t * (3 - 2 * t) * ys[k + 1]
            + t * t * (t - 1) * h * self.slopes[k + 1]
        )
        # Monotone by construction; rounding must not say otherwise.
        low, high = sorted((ys[k], ys[k + 1]))
        return Read(min(max(y, low), high), clamped=False)


def _slopes(xs: list[float], ys: list[float]) -> list[float]:
    if len(xs) == 1:
        return [0.0]
    h = [b - a for a, b in pairwise(xs)]
    s = [(b - a) / width for (a, b), width in zip(pairwise(ys), h, strict=True)]
    if len(xs) == 2:
        return [s[0], s[0]]
    inner = [_inner(s[k - 1], s[k], h[k - 1], h[k]) for k in range(1, len(s))]
    return [(3 * s[0] - inner[0]) / 2, *inner, (3 * s[-1] - inner[-1]) / 2]


def _inner(s0: float, s1: float, h0: float, h1: float) -> float:
    """Steffen's equation 11: the parabola's slope, no more than twice the flatter side, zero at an extremum."""
    if s0 * s1 <= 0:
        return 0.0
    p = (s0 * h1 + s1 * h0) / (h0 + h1)
    return math.copysign(2, s0) * min(abs(s0), abs(s1), abs(p) / 2)
