"""How far profit moves with what is assumed: one assumption at a time (tornado), and all at once (Monte Carlo). Pure.

Ranges are drawn independently of each other. Hit rate and throughput move what is billed; the engine is not modelled
anew, so that a lower hit rate does not also cost throughput here. The all-in kW moves the profit per MW only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from hardware.toml_file import KeyPath, convert, parse_tables, refusal
from results.errors import UserError
from results.profit import Point

PARAMETERS = {
    "price_factor": "factor on all list prices",
    "utilisation": "share of hours sold",
    "hit_rate": "share of the input from a cache",
    "throughput_factor": "factor on input and output tokens/s",
    "usd_per_device_hour": "price of an accelerator-hour, $",
    "kw_per_device": "all-in kW of an accelerator",
    "licence_share": "share of revenue for the model's owner",
}
"""What can vary, and what it is."""
_SHARES = ("utilisation", "hit_rate", "licence_share")
_Amount = Annotated[float, msgspec.Meta(ge=0, lt=1e30)]
_QUANTILES = {"p5": 5, "p50": 50, "p95": 95}


class Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of a ranges file; the mode is the point's own value unless it is given."""

    low: _Amount
    high: _Amount
    mode: _Amount | None = None
    distribution: Literal["triangular", "uniform"] = "triangular"


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`; a triangular one is likeliest at `mode`. `why` says where it comes from."""

    low: float
    high: float
    mode: float
    distribution: str
    why: str

    def draw(self, rng: np.random.Generator, draws: int) -> np.ndarray:
        """Independent values, shape (draws,)."""
        if self.low == self.high:
            return np.full(draws, self.low)
        if self.distribution == "uniform":
            return rng.uniform(self.low, self.high, draws)
        return rng.triangular(self.low, self.mode, self.high, draws)


@dataclass(frozen=True, slots=True)
class Bar:
    """Profit with one assumption at either end and the others as they are."""

    parameter: str
    low: float
    high: float
    profit_at_low: float
    """$ per device-hour, as `profit_at_high`."""
    profit_at_high: float
    mw_year_at_low: float | None
    """$ per MW and year, as `mw_year_at_high`."""
    mw_year_at_high: float | None

    @property
    def swing(self) -> float:
        """How much profit per device-hour the assumption moves, $."""
        return abs(self.profit_at_high - self.profit_at_low)


def ranges_for(
    point: Point,
    summary: dict[str, Any],
    *,
    published_usd: Sequence[float] = (),
    published_kw: Sequence[float] = (),
    given: dict[str, Given] | None = None,
) -> dict[str, Range]:
    """Every assumption's range by name: the file's where it has one, else the default of `docs/cost.md`.

    A default always holds the point's own value. `published_*` are the registry's values of the accelerator.
    """
    intervals, total = summary.get("intervals") or {}, (summary.get("throughput") or {}).get("total_tok_s")
    hit, rate = intervals.get("cache.achieved"), intervals.get("throughput.total_tok_s")
    usd, kw, sold, hits = point.usd_per_device_hour, point.kw_per_device, point.utilisation, point.hit_rate
    found = {
        "price_factor": _around(1.0, (0.8, 1.2), "20 % either way"),
        "utilisation": _around(sold, (sold - 0.2, sold + 0.2), "0.2 either way"),
        "hit_rate": _around(hits, hit, "the run's 95 % interval")
        if hit
        else _around(hits, (hits - 0.05, hits + 0.05), "0.05 either way: the run has no interval"),
        "throughput_factor": _around(1.0, [end / total for end in rate], "the run's 95 % interval")
        if rate and total
        else _around(1.0, (0.9, 1.1), "10 % either way: the run has no interval"),
        "usd_per_device_hour": _around(usd, published_usd, "the registry's tiers", "uniform")
        if published_usd
        else _around(usd, (0.8 * usd, 1.2 * usd), "20 % either way"),
    }
    if kw is not None:
        found["kw_per_device"] = (
            _around(kw, published_kw, "the registry's published values", "uniform")
            if published_kw
            else _around(kw, (0.9 * kw, 1.1 * kw), "10 % either way")
        )
    for name in _SHARES:
        if name in found:
            found[name] = replace(found[name], low=max(0.0, found[name].low), high=min(1.0, found[name].high))
    for name, table in (given or {}).items():
        if kw is None and name == "kw_per_device":
            raise UserError("--ranges: kw_per_device varies, but no kW is known", remedy="give --kw-per-gpu")
        middle = table.mode if table.mode is not None else min(max(getattr(point, name), table.low), table.high)
        found[name] = Range(table.low, table.high, middle, table.distribution, "the ranges file")
    return found


def tornado(point: Point, ranges: dict[str, Range]) -> list[Bar]:
    """One bar per assumption, the largest swing first."""
    bars = []
    for name, span in ranges.items():
        low, high = (_with(point, {name: value}) for value in (span.low, span.high))
        mw = [None if end.kw_per_device is None else end.profit().per_mw_year(end.kw_per_device) for end in (low, high)]
        bars.append(Bar(name, span.low, span.high, low.profit().profit, high.profit().profit, *mw))
    return sorted(bars, key=lambda bar: -bar.swing)


def monte_carlo(point: Point, ranges: dict[str, Range], draws: int, seed: int) -> dict[str, Any]:
    """p5, p50 and p95 of profit over `draws` of all ranges at once, and the share of draws with a loss; JSON-ready.

    Each assumption has a stream of random numbers of its own, so that its draws do not depend on which others vary.
    """
    values = {
        name: ranges[name]
        .draw(np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(number,)))), draws)
        .tolist()
        for number, name in enumerate(PARAMETERS)
        if name in ranges
    }
    hourly, yearly = [], []
    for draw in range(draws):
        case = _with(point, {name: column[draw] for name, column in values.items()})
        found = case.profit()
        hourly.append(found.profit)
        if case.kw_per_device is not None:
            yearly.append(found.per_mw_year(case.kw_per_device))
    return {
        "draws": draws,
        "seed": seed,
        "profit_per_device_hour": _quantiles(hourly),
        "profit_per_mw_year": _quantiles(yearly) if yearly else None,
        "loss_share": sum(profit < 0 for profit in hourly) / draws,
    }


def parse(text: str, origin: str) -> dict[str, Given]:
    """A ranges file's text: a table per name of `PARAMETERS`. UserError naming `origin`, line and key."""
    found = {}
    for name, table in parse_tables(text, origin).items():
        if name not in PARAMETERS:
            raise refusal(text, origin, (name,), "no such assumption", f"known: {', '.join(PARAMETERS)}")
        span = convert(table, Given, text, origin, (name,), _known_keys)
        mode = span.low if span.mode is None else span.mode
        if not span.low <= mode <= span.high:
            raise refusal(text, origin, (name,), "low <= mode <= high does not hold")
        if name in _SHARES and span.high > 1:
            raise refusal(text, origin, (name, "high"), "a share is from 0 to 1")
        if name == "kw_per_device" and span.low == 0:
            raise refusal(text, origin, (name, "low"), "kW is positive")
        found[name] = span
    return found


def _around(value: float, ends: Sequence[float], why: str, distribution: str = "triangular") -> Range:
    """From the least to the greatest of `ends`, widened where `value` lies outside."""
    return Range(min(*ends, value), max(*ends, value), value, distribution, why)


def _with(point: Point, values: dict[str, float]) -> Point:
    changed: dict[str, Any] = dict(values)
    return replace(point, **changed)


def _quantiles(values: list[float]) -> dict[str, float]:
    return {name: float(np.percentile(values, q)) for name, q in _QUANTILES.items()}


def _known_keys(_: KeyPath) -> tuple[str, ...]:
    return Given.__struct_encode_fields__
