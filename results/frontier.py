"""Dominance: which points no other point beats. Pure.

A point dominates another when it is no worse on both axes and better on one. The frontier is what nothing dominates: a
staircase, never a convex hull, which would promise mixtures of configurations that nobody measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Better(Enum):
    """Which direction of an axis is the good one."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Spot:
    """A measured point: who it is, and where. Unknown or not finite coordinates are allowed, and listed."""

    name: str
    x: float | None
    y: float | None


@dataclass(frozen=True, slots=True)
class Corner:
    """A place on the frontier and every point that is there: equal points are one corner with all their names."""

    x: float
    y: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frontier:
    """The corners by rising x, the names of dominated points, and of those that have no place (NaN, unknown)."""

    corners: tuple[Corner, ...]
    dominated: tuple[str, ...]
    excluded: tuple[str, ...]


def frontier(spots: Iterable[Spot], x_better: Better, y_better: Better) -> Frontier:
    """The frontier of `spots`: sort by x from its good end, keep what raises the best y so far; O(n log n)."""
    x_sign = 1.0 if x_better is Better.HIGHER else -1.0
    y_sign = 1.0 if y_better is Better.HIGHER else -1.0
    at: dict[tuple[float, float], list[str]] = {}
    excluded = []
    for spot in spots:
        if spot.x is None or spot.y is None or not (math.isfinite(spot.x) and math.isfinite(spot.y)):
            excluded.append(spot.name)
        else:
            at.setdefault((spot.x, spot.y), []).append(spot.name)
    corners, dominated = [], []
    best = -math.inf
    for (x, y), names in sorted(at.items(), key=lambda item: (-x_sign * item[0][0], -y_sign * item[0][1])):
        if y_sign * y > best:
            best = y_sign * y
            corners.append(Corner(x, y, tuple(names)))
        else:
            dominated += names
    return Frontier(tuple(sorted(corners, key=lambda corner: corner.x)), tuple(dominated), tuple(excluded))
