"""What a run is on the axes of a frontier. Pure: summary.json in, numbers out.

x is a latency percentile or its reciprocal; y is tokens per second and accelerator, or what follows from it. Every y is
dominance-tested and interpolated as a rate (more is better); reciprocal figures ($/M, J/token) are derived from the
interpolated rate, because a spline through reciprocals is another curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from results.cost import cost, require_amount
from results.errors import UserError
from results.frontier import Better

PERCENTILES = ("p50", "p75", "p90", "p95", "p99")
TOKENS = ("total", "output", "input", "computed_input", "cached_input")

Interval = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class XAxis:
    """One choice of x."""

    label: str
    unit: str
    better: Better
    path: tuple[str, ...]
    """Keys of summary.json down to the distribution."""
    interval: str | None
    """Key of summary.json `intervals` without the percentile."""
    inverted: bool = False
    """The interval is one of the latency whose reciprocal x is."""


_FAST = "tok/s/user"
X_AXES = {
    "interactivity": XAxis(
        "E2E-normalised interactivity", _FAST, Better.HIGHER, ("interactivity", "e2e_normalised"),
        "interactivity.e2e_normalised",
    ),
    "interactivity-itl": XAxis(
        "interactivity (1 / TPOT)", _FAST, Better.HIGHER, ("interactivity", "itl"), "latency.tpot_s", inverted=True
    ),
    "interactivity-full": XAxis(
        "interactivity (1 / full-response ITL)", _FAST, Better.HIGHER, ("interactivity", "full_response"),
        "latency.full_response_itl_s", inverted=True,
    ),
    "ttft": XAxis("TTFT", "s", Better.LOWER, ("latency", "ttft_s"), "latency.ttft_s"),
    "e2e": XAxis("E2E latency", "s", Better.LOWER, ("latency", "e2e_s"), "latency.e2e_s"),
    "job": XAxis("job latency", "s", Better.LOWER, ("jobs", "latency_s"), None),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class YAxis:
    """One choice of what tokens are counted against. `rate` is of one accelerator."""

    label: str
    unit: str
    better: Better
    figure: str | None
    """The figure of `results.cost` that it is; None is the rate itself."""
    measured: bool = False
    """The rate is tokens per joule by the run's own power readings (`power.source` of its summary)."""


Y_AXES = {
    "gpu": YAxis("per accelerator", "tok/s", Better.HIGHER, None),
    "mw": YAxis("per MW", "tok/s/MW", Better.HIGHER, "tokens_per_s_per_mw"),
    "usd": YAxis("per dollar", "tok/$", Better.HIGHER, "tokens_per_usd"),
    "million": YAxis("$ per million", "$/M", Better.LOWER, "usd_per_million"),
    "joule": YAxis("energy, all-in kW", "J/token", Better.LOWER, "joules_per_token"),
    "joule-measured": YAxis("energy, measured", "J/token", Better.LOWER, None, measured=True),
}


@dataclass(frozen=True, slots=True)
class Money:
    """What an accelerator of a curve costs and draws; None where not known."""

    usd_per_device_hour: float | None = None
    kw_per_device: float | None = None


def x_of(summary: Mapping[str, Any], axis: XAxis, percentile: str) -> tuple[float | None, Interval]:
    """x of a run and its 95 % interval, None where not known."""
    node: Any = summary
    for name in (*axis.path, percentile):
        node = node.get(name) if isinstance(node, Mapping) else None
    value = _number(node)
    ends = _interval(summary, f"{axis.interval}.{percentile}") if axis.interval else None
    if ends is not None and axis.inverted:
        ends = (1 / ends[1], 1 / ends[0]) if ends[0] > 0 else None
    return value, ends


def rate_of(summary: Mapping[str, Any], tokens: str, devices: int | None) -> tuple[float | None, Interval, str | None]:
    """Tokens/s of one accelerator with interval, and why it is not known.

    `devices` None: of the whole server. UserError for a negative rate.
    """
    throughput = summary.get("throughput")
    value = _number(throughput.get(f"{tokens}_tok_s")) if isinstance(throughput, Mapping) else None
    require_amount(f"run {summary.get('run_id')}: throughput.{tokens}_tok_s", value)
    if value is None:
        return None, None, f"{tokens} tokens/s are not known"
    each = devices or 1
    ends = _interval(summary, f"throughput.{tokens}_tok_s")
    return value / each, None if ends is None else (ends[0] / each, ends[1] / each), None


def tokens_per_joule(summary: Mapping[str, Any], tokens: str) -> tuple[float | None, str | None]:
    """By the run's own power readings, and why it is not known. UserError for a negative figure."""
    power = summary.get("power")
    joules = _number(power.get(f"joules_per_{tokens}_token")) if isinstance(power, Mapping) else None
    require_amount(f"run {summary.get('run_id')}: power.joules_per_{tokens}_token", joules)
    return (1 / joules, None) if joules else (None, f"no power was measured for {tokens} tokens")


def shown(rate: float, axis: YAxis, tokens: str, money: Money) -> float | None:
    """What `rate` (tokens/s of one accelerator) is on the y axis; None where it has no finite value there."""
    if axis.measured:
        return 1 / rate if rate else None
    if axis.figure is None:
        return rate
    figures = cost({tokens: rate}, money.usd_per_device_hour, money.kw_per_device)
    by_kind: dict[str, float | None] = getattr(figures, axis.figure)
    return by_kind[tokens]


def need(axis_name: str, money: Money, curve: str) -> None:
    """UserError with the remedy when an axis needs a price or a power that a curve does not have."""
    if axis_name in ("usd", "million") and money.usd_per_device_hour is None:
        raise UserError(f"--per {axis_name}: no price per accelerator-hour of {curve}", remedy="--price or --hardware")
    if axis_name in ("mw", "joule") and money.kw_per_device is None:
        raise UserError(f"--per {axis_name}: no kW per accelerator of {curve}", remedy="--kw-per-gpu or --hardware")


def _interval(summary: Mapping[str, Any], key: str) -> Interval:
    intervals = summary.get("intervals")
    ends = intervals.get(key) if isinstance(intervals, Mapping) else None
    if not isinstance(ends, list) or len(ends) != 2:
        return None
    low, high = map(_number, ends)
    return None if low is None or high is None else (low, high)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
