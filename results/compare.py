"""Two runs, or two folders of runs, against each other: what changed, and what of it is noise.

Latencies: both runs' session trees are drawn anew (the cluster bootstrap of `results.uncertainty`); the interval is
that of the relative change over the draws. Rates and shares have the intervals that each run's own summary gives; a
change is told from noise when those do not overlap. Without an interval the question stays open (`significant`: None).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from results.dataset import RunFiles
from results.errors import UserError
from results.places import parquet_source
from results.uncertainty import DRAWS, LEAST_TREES, LEVEL, draw_counts, drawn_quantiles

_LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
_QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
_OTHERS = {
    "input_tok_s": ("throughput", "input_tok_s", "higher"),
    "output_tok_s": ("throughput", "output_tok_s", "higher"),
    "total_tok_s": ("throughput", "total_tok_s", "higher"),
    "requests_s": ("throughput", "requests_s", "higher"),
    "cache_achieved": ("cache", "achieved", "higher"),
    "error_rate": ("requests", "error_rate", "lower"),
    "jobs_per_hour": ("jobs", "per_hour", "higher"),
    "joules_per_output_token": ("power", "joules_per_output_token", "lower"),
}
BETTER = {f"{name.removesuffix('_s')}_{q}": "lower" for name in _LATENCIES for q in _QUANTILES} | {
    name: better for name, (_, _, better) in _OTHERS.items()
}
"""Every figure that can be compared, and which direction is better."""
_NEVER_ZERO = {name for name, better in BETTER.items() if better == "lower"} - {"error_rate"}
"""Figures whose best value would be a zero that no working run has (P138)."""
_GATE = re.compile(r"(\w+)\s+worse\s+(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class Change:
    """One figure: before, after, relative change with its interval, and whether it is more than noise."""

    metric: str
    before: float | None
    after: float | None
    relative: float | None
    interval: tuple[float, float] | None
    significant: bool | None

    @property
    def worse(self) -> float | None:
        """Relative change in the bad direction (negative: better); None where unknown."""
        if self.relative is None:
            return None
        return self.relative if BETTER[self.metric] == "lower" else -self.relative


@dataclass(frozen=True, slots=True)
class Gate:
    """`METRIC worse N%`."""

    metric: str
    percent: float

    def broken_by(self, change: Change) -> str | None:
        """Why the gate fails, None when it holds. A figure that is missing holds no gate."""
        if change.worse is None:
            return f"{self.metric} is not known on both sides"
        if self.metric in _NEVER_ZERO and (measured := min(change.before or 0.0, change.after or 0.0)) <= 0:
            return f"{self.metric} is {measured:g} on one side: no measurement"
        if 100 * change.worse <= self.percent or change.significant is False:
            return None
        doubt = "" if change.significant else " (no interval: too few sessions)"
        return f"{self.metric} is {100 * change.worse:.1f} % worse, more than {self.percent:g} %{doubt}"


def parse_gate(text: str) -> Gate:
    """UserError on anything but `METRIC worse N%` with a metric of `BETTER`."""
    match = _GATE.fullmatch(text.strip())
    if match is None or match[1] not in BETTER:
        remedy = f'write "ttft_p90 worse 5%"; figures: {", ".join(BETTER)}'
        raise UserError(f"--fail-if {text!r}", remedy=remedy)
    return Gate(match[1], float(match[2]))


def pair(a: Iterable[RunFiles], b: Iterable[RunFiles], *, curves: bool = False) -> list[tuple[RunFiles, RunFiles]]:
    """Runs of both sides by point, or by scenario and load; one run on each side is a pair as it is.

    UserError when nothing pairs (two `curves` may have no load in common), or one side has two runs that can't be told
    apart.
    """
    left, right = list(a), list(b)
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    by_key: list[dict[tuple[str, ...], RunFiles]] = []
    for side in (left, right):
        keyed = {run.key: run for run in side}
        if len(keyed) < len(side):
            raise UserError(
                f"{side[0].folder.parent}: several runs of one point", remedy="compare two runs, or folders of a sweep"
            )
        by_key.append(keyed)
    pairs = [(run, by_key[1][key]) for key, run in by_key[0].items() if key in by_key[1]]
    if not pairs and not curves:
        raise UserError("no run of one side has the point, or scenario and load, of one of the other")
    return pairs


def compare(a: RunFiles, b: RunFiles, seed: int = 0) -> list[Change]:
    """Every figure of `BETTER`, from `a` to `b`."""
    changes: list[Change] = []
    sides = [_steady(run) for run in (a, b)]
    for name in _LATENCIES:
        changes += _of_latency(name, sides, seed)
    for metric, (group, key, _) in _OTHERS.items():
        before, after = (run.summary.get(group, {}).get(key) for run in (a, b))
        bounds = [run.summary.get("intervals", {}).get(f"{group}.{key}") for run in (a, b)]
        apart = None if None in bounds else bounds[0][1] < bounds[1][0] or bounds[1][1] < bounds[0][0]
        changes.append(Change(metric, before, after, _relative(before, after), None, apart))
    return changes


def _steady(run: RunFiles) -> dict[str, np.ndarray]:
    columns = ["phase", "status", "session_id", "pass", *_LATENCIES]
    table = pq.ParquetFile(parquet_source(run.folder / "requests.parquet")).read(columns=columns).to_pydict()
    keep = [p == "steady" and s == "ok" for p, s in zip(table["phase"], table["status"], strict=True)]
    trees = [f"{s}/{p}" for s, p in zip(table["session_id"], table["pass"], strict=True)]
    out = {"tree": np.array(trees, dtype=object)[keep] if trees else np.zeros(0, object)}
    for name in _LATENCIES:
        out[name] = np.array(table[name], dtype=np.float64)[keep] if trees else np.zeros(0)
    return out


def _of_latency(name: str, sides: list[dict[str, np.ndarray]], seed: int) -> list[Change]:
    label = name.removesuffix("_s")
    points: list[dict[str, float | None]] = []
    draws: list[dict[str, np.ndarray] | None] = []
    for number, side in enumerate(sides):
        known = np.isfinite(side[name])
        values = side[name][known]
        points.append(
            {q: float(np.percentile(values, 100 * p)) if len(values) else None for q, p in _QUANTILES.items()}
        )
        trees, cluster = np.unique(side["tree"][known].astype(str), return_inverse=True)
        enough = len(trees) >= LEAST_TREES
        counts = draw_counts(len(trees), seed + number) if enough else np.zeros((0, 0), np.int64)
        draws.append(drawn_quantiles(values, cluster, counts, _QUANTILES) if enough else None)
    out = []
    for q in _QUANTILES:
        before, after = points[0][q], points[1][q]
        interval = None
        if draws[0] is not None and draws[1] is not None and len(draws[0][q]) == len(draws[1][q]) == DRAWS:
            low, high = np.percentile(draws[1][q] / draws[0][q] - 1, [50 * (1 - LEVEL), 100 - 50 * (1 - LEVEL)])
            interval = (float(low), float(high))
        significant = None if interval is None else not interval[0] <= 0 <= interval[1]
        out.append(Change(f"{label}_{q}", before, after, _relative(before, after), interval, significant))
    return out


def _relative(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    if before == after:
        return 0.0
    return (after - before) / before if before else None
