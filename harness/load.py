"""The load over time: when session trees start, and how many are live. Free of I/O; times are ns from the start."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np

from replay.scenario import Scenario, Stage
from replay.scheduler import closed_loop

RAMP_EACH_S = 0.005
"""A tree's first send costs the client up to half a millisecond (half a megabyte to the kernel): ten times that."""


def ramp_s(scenario: Scenario) -> float:
    """The time over which the first trees start."""
    return RAMP_EACH_S * scenario.concurrency if scenario.ramp_s is None else scenario.ramp_s


def warms_up(scenario: Scenario) -> bool:
    """Whether something is sent before the measured part."""
    return scenario.warmup_requests > 0 or (scenario.start_max > 0 and scenario.primers)


def duration_s(scenario: Scenario) -> float | None:
    """Length of the measured part, None when it is not limited."""
    return sum(stage.duration_s for stage in scenario.stages) if scenario.stages else scenario.duration_s


def arrivals(
    scenario: Scenario, worker: int, workers: int, recorded_s: Sequence[float] = ()
) -> Iterable[tuple[int, int]]:
    """(slot, start) of the trees that this worker starts of itself, by time; `recorded_s`: when the trace says."""
    if scenario.arrival == "recorded":
        starts = [round(at * scenario.time_scale * 1e9) for at in recorded_s]
        return [(slot, at) for slot, at in enumerate(starts) if slot % workers == worker]
    if scenario.arrival == "poisson":
        return _poisson(scenario, worker, workers)
    if scenario.stages:
        return [(slot, at) for slot, at in _staged(scenario.stages) if slot % workers == worker]
    slots = range(worker, scenario.concurrency, workers)
    return closed_loop(slots, round(ramp_s(scenario) * 1e9), scenario.concurrency)


def _poisson(scenario: Scenario, worker: int, workers: int) -> Iterator[tuple[int, int]]:
    """Every worker draws the whole sequence and takes its share: the arrivals do not depend on their number."""
    assert scenario.rate_per_min is not None
    rng = np.random.Generator(np.random.PCG64(scenario.seed))
    at, slot = 0.0, 0
    while True:
        at += float(rng.exponential(60.0 / scenario.rate_per_min))
        if slot % workers == worker:
            yield slot, round(at * 1e9)
        slot += 1


def _staged(stages: tuple[Stage, ...]) -> Iterator[tuple[int, int]]:
    """Slots that a stage adds to the one before start with it, one after the other."""
    before, begins = 0, 0.0
    for stage in stages:
        for slot in range(before, stage.concurrency):
            yield slot, round((begins + RAMP_EACH_S * (slot - before)) * 1e9)
        before, begins = stage.concurrency, begins + stage.duration_s


def refill(scenario: Scenario) -> Callable[[int, int], bool]:
    """Whether a slot whose tree is over takes another, `now` ns after the start."""
    if scenario.arrival != "closed":
        return lambda slot, now: False
    if not scenario.stages:
        return lambda slot, now: True
    ends = [round(end * 1e9) for end in accumulate(stage.duration_s for stage in scenario.stages)]
    sizes = [stage.concurrency for stage in scenario.stages]
    return lambda slot, now: slot < sizes[min(bisect_right(ends, now), len(sizes) - 1)]
