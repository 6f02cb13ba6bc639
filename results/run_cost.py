"""Cost and profit of one finished run, from its summary. Pure.

Profit needs the share of the input that came from a cache: `cache.achieved`. Where it, a rate or the price is not
known, the figure is None and `reasons` says why.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from results.cost import KINDS, cost, require_amount
from results.errors import UserError
from results.profit import HOURS_PER_YEAR, Point, Prices, device_hours_per_year
from results.tco import Tco


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a run does not say of itself."""

    devices: int
    """Accelerators that served it."""
    usd_per_device_hour: float | None = None
    kw_per_device: float | None = None
    """All-in."""
    prices: Prices | None = None
    utilisation: float = 0.6
    """Share of hours sold."""
    licence_share: float = 0.0
    rack_devices: int | None = None
    tco: Tco | None = None


def run_cost(summary: dict[str, Any], assumed: Assumptions) -> dict[str, Any]:
    """`cost` by token kind per device, and `profit` where there are list prices; JSON-ready.

    UserError naming run and key for a figure that can't be: negative, not finite, more cached than there was input.
    """
    each = _rates_of_a_device(summary, assumed.devices)
    spent = asdict(cost(each, assumed.usd_per_device_hour, assumed.kw_per_device))
    out: dict[str, Any] = {"run_id": summary["run_id"], "devices": assumed.devices, **spent, "profit": None}
    if assumed.prices is None:
        return out
    point = point_of(summary, assumed)
    if isinstance(point, str):
        out["reasons"]["profit"] = point
        return out
    out["profit"] = _profit_of(point, assumed, out["reasons"])
    if assumed.prices.cached_input is None:
        out["reasons"]["cached_price"] = "not listed: 10 % of the input price is assumed"
    return out


def point_of(summary: dict[str, Any], assumed: Assumptions) -> Point | str:
    """The run as a point of one device, or why that is not known. UserError as `run_cost`."""
    each, hit = _rates_of_a_device(summary, assumed.devices), _hit_rate(summary)
    given, made, usd, prices = each["input"], each["output"], assumed.usd_per_device_hour, assumed.prices
    if hit is None or given is None or made is None or usd is None or prices is None:
        needed = {
            "cache hits (the server's usage does not say cached tokens)": hit,
            "input tokens/s": given,
            "output tokens/s": made,
            "price per device-hour": usd,
            "list prices": prices,
        }
        return f"not known: {', '.join(name for name, value in needed.items() if value is None)}"
    return Point(
        input_tok_s=given,
        output_tok_s=made,
        hit_rate=hit,
        usd_per_device_hour=usd,
        prices=prices,
        utilisation=assumed.utilisation,
        licence_share=assumed.licence_share,
        kw_per_device=assumed.kw_per_device,
    )


def _profit_of(point: Point, assumed: Assumptions, reasons: dict[str, str]) -> dict[str, Any]:
    """Dollars per device-hour, and the same amounts `per_rack_year` and `per_mw_year`; why a figure is None goes to
    `reasons`.
    """
    found = point.profit()
    amounts = {
        "revenue": found.revenue,
        "cost": found.cost,
        "licence": found.licence,
        "gross_margin": found.gross_margin,
        "profit": found.profit,
    }
    rack, kw, tco = assumed.rack_devices, assumed.kw_per_device, assumed.tco
    out: dict[str, Any] = {
        **amounts,
        "gross_margin_share": found.margin,
        "break_even_utilisation": found.break_even_utilisation,
        "break_even_price": found.break_even_price,
        "months_to_pay_back": found.months_to_pay_back(tco.capital_usd, tco.capital_usd_per_hour) if tco else None,
        "hit_rate": point.hit_rate,
        "per_rack_year": _times(amounts, rack * HOURS_PER_YEAR) if rack else None,
        "per_mw_year": _times(amounts, device_hours_per_year(1, kw)) if kw else None,
    }
    for name, why in (
        ("gross_margin_share", "there is no revenue"),
        ("break_even_utilisation", "there is no revenue"),
        ("break_even_price", "there is no revenue"),
        ("per_rack_year", "the accelerators of a rack are not known (--rack)"),
        ("per_mw_year", "no kW per device"),
        ("months_to_pay_back", "it never pays back" if tco else "payback needs the capital (--tco)"),
    ):
        if out[name] is None:
            reasons[f"profit.{name}"] = why
    return out


def _times(amounts: dict[str, float], hours: float) -> dict[str, float]:
    return {name: usd * hours for name, usd in amounts.items()}


def _rates_of_a_device(summary: dict[str, Any], devices: int) -> dict[str, float | None]:
    throughput = summary.get("throughput") or {}
    rates: dict[str, float | None] = {kind: throughput.get(f"{kind}_tok_s") for kind in KINDS}
    for kind, rate in rates.items():
        require_amount(f"run {summary['run_id']}: throughput.{kind}_tok_s", rate)
    given, cached = rates["input"], rates["cached_input"]
    if given is not None and cached is not None and cached > given * (1 + 1e-9):
        raise UserError(
            f"run {summary['run_id']}: more cached input ({cached:g} tok/s) than input ({given:g} tok/s)",
            remedy="does that server count cached tokens beside the prompt?",
        )
    return {kind: None if rate is None else rate / devices for kind, rate in rates.items()}


def _hit_rate(summary: dict[str, Any]) -> float | None:
    hit: float | None = (summary.get("cache") or {}).get("achieved")
    if hit is not None and not 0 <= hit <= 1:
        raise UserError(f"run {summary['run_id']}: cache.achieved {hit}", remedy="a share is from 0 to 1")
    return hit
