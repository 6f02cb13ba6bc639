"""Curves from runs: one for each stack, each with its frontier; and two curves against each other. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results.axes import Interval, Money, XAxis, YAxis, rate_of, shown, tokens_per_joule, x_of
from results.comparable import SWEEP_KEYS, stack_of
from results.dataset import RunFiles
from results.frontier import Better, Frontier, Spot, frontier
from results.interpolate import Curve


@dataclass(frozen=True, slots=True)
class View:
    """Which axes are drawn."""

    x: XAxis
    percentile: str
    y: YAxis
    tokens: str


@dataclass(frozen=True, slots=True)
class RunPoint:
    """One run on the axes; coordinates that are not known are None with `reason`."""

    run_id: str
    folder: str
    concurrency: int | None
    offload: str | None
    """Kind of the cache tier behind the accelerator (`dram`, `nvme`, `remote`); None without one."""
    x: float | None
    x_interval: Interval
    rate: float | None
    """Tokens/s of one accelerator; tokens per joule on the axis of measured energy."""
    rate_interval: Interval
    reason: str | None = None


class StackCurve:
    """The runs of one stack: points, which of them are on the frontier, and the curve through those."""

    def __init__(self, name: str, points: Sequence[RunPoint], view: View, money: Money) -> None:
        self.name = name
        self.view = view
        self.money = money
        self.points = list(points)
        self.frontier: Frontier = frontier([Spot(p.folder, p.x, p.rate) for p in points], view.x.better, Better.HIGHER)
        self.on_frontier = frozenset(name for corner in self.frontier.corners for name in corner.names)
        corners = self.frontier.corners
        self._curve = Curve([c.x for c in corners], [c.y for c in corners]) if corners else None

    @property
    def span(self) -> tuple[float, float] | None:
        """The x that was measured on the frontier; None without a point."""
        corners = self.frontier.corners
        return (corners[0].x, corners[-1].x) if corners else None

    def y(self, rate: float | None) -> float | None:
        """A rate of one accelerator on the y axis."""
        return None if rate is None else shown(rate, self.view.y, self.view.tokens, self.money)

    def at(self, x: float) -> tuple[float | None, bool]:
        """y at `x`, and whether x is outside what was measured; (None, True) without a point."""
        rate, clamped = self.rate_at(x)
        return self.y(rate), clamped

    def rate_at(self, x: float) -> tuple[float | None, bool]:
        """Tokens/s of one accelerator at `x`, and whether x is outside what was measured."""
        return (None, True) if self._curve is None else self._curve.at(x)

    @property
    def best(self) -> tuple[float, float] | None:
        """x and rate of the highest throughput."""
        corner = max(self.frontier.corners, key=lambda c: c.y, default=None)
        return None if corner is None else (corner.x, corner.y)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better `curve` is than `base`, where both were measured.

    Ratios are of y, turned so that more than 1 is better for `curve`; None where either has no value there.
    """

    base: str
    curve: str
    common: tuple[float, float] | None
    """The x that both measured; None when there is none."""
    at: tuple[tuple[float, float | None], ...]
    """(x, ratio), by rising x: the ends, both curves' own points and the x that were asked for."""
    at_best: float | None
    """Ratio of the best y of each, whatever its x: at maximum throughput."""


def compare_curves(base: StackCurve, curve: StackCurve, wanted: Sequence[float] = ()) -> Ratio:
    """Both must be of one view."""
    best = None
    if base.best is not None and curve.best is not None:
        best = _times(base, base.best[1], curve, curve.best[1])
    if base.span is None or curve.span is None:
        return Ratio(base.name, curve.name, None, (), best)
    low, high = max(base.span[0], curve.span[0]), min(base.span[1], curve.span[1])
    if low > high:
        return Ratio(base.name, curve.name, None, (), best)
    own = [corner.x for side in (base, curve) for corner in side.frontier.corners]
    places = sorted({low, high, *(x for x in (*own, *wanted) if low <= x <= high)})
    found = tuple((x, _times(base, base.rate_at(x)[0], curve, curve.rate_at(x)[0])) for x in places)
    return Ratio(base.name, curve.name, (low, high), found, best)


def _times(base: StackCurve, base_rate: float | None, curve: StackCurve, rate: float | None) -> float | None:
    ours, theirs = curve.y(rate), base.y(base_rate)
    if ours is None or theirs is None:
        return None
    above, below = (ours, theirs) if base.view.y.better is Better.HIGHER else (theirs, ours)
    return above / below if below else None


def by_stack(runs: Sequence[RunFiles]) -> dict[str, list[RunFiles]]:
    """Runs by what served them, named by it; in the order of their first runs."""
    groups: dict[tuple[tuple[str, Any], ...], list[RunFiles]] = {}
    for run in runs:
        groups.setdefault(tuple((key, str(value)) for key, value in stack_of(run.manifest)), []).append(run)
    if len(groups) == 1:
        (members,) = groups.values()
        return {_name(members[0], differing=None): members}
    common = set.intersection(*(set(stack) for stack in groups))
    out: dict[str, list[RunFiles]] = {}
    for number, (stack, members) in enumerate(groups.items(), 1):
        own = [str(value) for key, value in stack if (key, value) not in common]
        name = " ".join(dict.fromkeys(own)) or _name(members[0], differing=number)
        out[name if name not in out else f"{name} ({number})"] = members
    return out


def _name(run: RunFiles, differing: int | None) -> str:
    known = dict(stack_of(run.manifest))
    parts = [str(known[key]) for key in (f"configured {k}" for k in SWEEP_KEYS) if key in known]
    parts = parts or [str(known[key]) for key in ("serving engine", "serving version", "serving gpu") if key in known]
    return " ".join(parts) or ("all runs" if differing is None else f"stack {differing}")


def devices_of(run: RunFiles, given: int | None) -> int | None:
    """Accelerators that served a run: as given, else what its sweep says; None where that is not known or none."""
    told = _serving(run.manifest).get("accelerators")
    return given or (told if isinstance(told, int) and told > 0 else None)


def hardware_of(run: RunFiles) -> str | None:
    """The accelerator that the run's sweep names, else the one that was found in its machine."""
    named = _serving(run.manifest).get("hardware")
    serving = run.manifest.get("serving")
    seen = serving.get("gpu") if isinstance(serving, Mapping) else None
    name = named or (seen.get("value") if isinstance(seen, Mapping) else None)
    return str(name) if name else None


def point_of(run: RunFiles, view: View, devices: int | None) -> RunPoint:
    """The run on the axes of `view`. UserError for a negative rate."""
    x, x_interval = x_of(run.summary, view.x, view.percentile)
    rate, rate_interval, reason = rate_of(run.summary, view.tokens, devices)
    if view.y.measured:
        rate_interval = None
        rate, reason = tokens_per_joule(run.summary, view.tokens)
    if x is None:
        reason = f"{view.percentile} {view.x.label} is not known"
    offload = _serving(run.manifest).get("kv_offload")
    kind = offload.get("kind") if isinstance(offload, Mapping) else None
    concurrency = run.summary.get("concurrency")
    return RunPoint(
        run.run_id,
        str(run.folder),
        concurrency if isinstance(concurrency, int) else None,
        None if kind in (None, "none") else str(kind),
        x,
        x_interval,
        rate,
        rate_interval,
        reason,
    )


def _serving(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    sweep = manifest.get("sweep")
    serving = sweep.get("serving") if isinstance(sweep, Mapping) else None
    return serving if isinstance(serving, Mapping) else {}
