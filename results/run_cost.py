"""Cost and profit of one finished run, from its summary. Pure.

Profit needs the share of the input that came from a cache: `cache.achieved`. Where it, a rate or the price is not
known, the figure is None and `reasons` says why.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from results.cost import KINDS, cost
from results.profit import Prices, profit, revenue_per_hour


def run_cost(
    summary: dict[str, Any],
    devices: int,
    usd_per_device_hour: float | None,
    kw_per_device: float | None,
    prices: Prices | None,
    *,
    utilisation: float,
    licence_share: float,
) -> dict[str, Any]:
    """`cost` by token kind per device, and `profit` (dollars per device-hour) where `prices` are given; JSON-ready."""
    rates = {kind: summary["throughput"][f"{kind}_tok_s"] for kind in KINDS}
    each = {kind: None if rate is None else rate / devices for kind, rate in rates.items()}
    spent = asdict(cost(each, usd_per_device_hour, kw_per_device))
    out: dict[str, Any] = {"run_id": summary["run_id"], "devices": devices, **spent, "profit": None}
    if prices is None:
        return out
    hit, given, made = summary["cache"]["achieved"], each["input"], each["output"]
    if hit is None or given is None or made is None or usd_per_device_hour is None:
        lacks = {"cache hits": hit, "input": given, "output": made, "price": usd_per_device_hour}
        out["reasons"]["profit"] = f"not known: {', '.join(name for name, value in lacks.items() if value is None)}"
        return out
    full = revenue_per_hour(prices, input_tok_s=given, output_tok_s=made, hit_rate=hit)
    found = profit(full, usd_per_device_hour, utilisation=utilisation, licence_share=licence_share)
    out["profit"] = {**asdict(found), "gross_margin": found.gross_margin, "profit": found.profit}
    if prices.cached_input is None:
        out["reasons"]["cached_price"] = "not listed: 10 % of the input price"
    return out
