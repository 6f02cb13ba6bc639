"""Energy of one device in a window, from a counter of joules or from samples of watts. Pure.

Counter: difference of the values at the window's edges, interpolated between readings. Watts: trapezoids between
samples, the value at an edge interpolated. Both keep to [start, end) exactly, so that what came before costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MIN_COVERAGE = 0.9
"""Below this share of the window with readings there is no figure, only the reason."""

GAP_INTERVALS = 5.0
"""Two samples of watts this many usual intervals apart say nothing about the time between."""

MISMATCH = 0.05
"""A counter and the integral of watts that differ by more are reported (zeus #45: by a lot, at times)."""

WRONG_UNIT = 1.5
"""A counter off by more than this factor counts in another unit than it says (P114)."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules within the window.

    `coverage`: share of the window between readings; `joules` extends the mean power of that share to the whole
    window, and is None below `MIN_COVERAGE`, with the `reason`.
    """

    joules: float | None
    coverage: float
    resets: int = 0
    gaps: int = 0
    reason: str | None = None


def from_counter(t_ns: np.ndarray, joules: np.ndarray, start_ns: int, end_ns: int) -> Energy:
    """Energy by a rising counter of joules; NaN readings are skipped.

    A counter that falls was reset (driver reloaded, exporter restarted): the interval with the reset counts as not
    covered, since what was used in it is not known. A gap without reset loses nothing.
    """
    t, values = _clean(t_ns, joules)
    if len(t) < 2:
        return _nothing("fewer than two counter readings")
    t, values = _changes(t, values)
    if len(t) < 2:
        return _nothing("the counter did not move")
    lengths = np.diff(t) * 1e-9
    rates = np.diff(values) / lengths
    known = rates >= 0
    seconds = _within(t, start_ns, end_ns)
    energy = float((rates * seconds)[known].sum())
    covered = float(seconds[known].sum())
    # Before the first and after the last reading power is taken to go on as beside it, for one usual interval.
    for outside_ns, rate, is_known in ((t[0] - start_ns, rates[0], known[0]), (end_ns - t[-1], rates[-1], known[-1])):
        held = _held(float(outside_ns), float(np.median(lengths))) if is_known else 0.0
        energy += float(rate) * held
        covered += held
    return _over_window(energy, covered, start_ns, end_ns, resets=int((~known & (seconds > 0)).sum()))


def from_watts(t_ns: np.ndarray, watts: np.ndarray, start_ns: int, end_ns: int) -> Energy:
    """Energy by trapezoids over samples of watts; NaN samples are skipped, long gaps are not bridged."""
    t, values = _clean(t_ns, watts)
    if len(t) < 2:
        return _nothing("fewer than two power samples")
    usual = float(np.median(np.diff(np.unique(t_ns)))) * 1e-9
    known = np.diff(t) * 1e-9 <= GAP_INTERVALS * usual
    seconds = _within(t, start_ns, end_ns)
    at_low, at_high = (np.interp(np.clip(edges, start_ns, end_ns), t, values) for edges in (t[:-1], t[1:]))
    energy = float(((at_low + at_high) / 2 * seconds)[known].sum())
    covered = float(seconds[known].sum())
    for outside_ns, value in ((t[0] - start_ns, values[0]), (end_ns - t[-1], values[-1])):
        held = _held(float(outside_ns), usual)
        energy += float(value) * held
        covered += held
    return _over_window(energy, covered, start_ns, end_ns, gaps=int((~known & (seconds > 0)).sum()))


def _clean(t_ns: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finite readings in order of time, one per moment."""
    finite = np.isfinite(values)
    t, kept = t_ns[finite].astype(np.int64), values[finite].astype(np.float64)
    t, first = np.unique(t, return_index=True)
    return t, kept[first]


def _changes(t: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The readings with a new value: exporters renew theirs every 30 s, however often they are asked.

    When the first value was new is not known where values repeat, so that it is left out.
    """
    new = np.concatenate([[True], np.diff(values) != 0])
    if not new.all() and new.sum() > 2:
        new[0] = False
    return t[new], values[new]


def _within(t: np.ndarray, start_ns: int, end_ns: int) -> np.ndarray:
    """Seconds of each interval between readings that lie in the window."""
    return np.asarray(np.maximum(0, np.minimum(t[1:], end_ns) - np.maximum(t[:-1], start_ns)) * 1e-9)


def _held(outside_ns: float, usual_s: float) -> float:
    """Seconds of the window beyond the outermost reading for which that reading stands."""
    return max(0.0, min(outside_ns * 1e-9, usual_s))


def _over_window(
    energy: float, covered: float, start_ns: int, end_ns: int, *, resets: int = 0, gaps: int = 0
) -> Energy:
    window = (end_ns - start_ns) * 1e-9
    if window <= 0:
        return _nothing("an empty window")
    coverage = min(1.0, covered / window)
    if coverage < MIN_COVERAGE:
        reason = f"readings cover {100 * coverage:.0f} % of the window, {100 * MIN_COVERAGE:.0f} % are needed"
        return Energy(None, coverage, resets, gaps, reason)
    return Energy(energy / coverage, coverage, resets, gaps)


def _nothing(reason: str) -> Energy:
    return Energy(None, 0.0, reason=reason)
