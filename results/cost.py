"""What tokens cost: dollars per million, tokens per dollar and per MW, joules per token. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from results.errors import UserError

KINDS = ("input", "output", "cached_input", "computed_input", "total")


@dataclass(frozen=True, slots=True)
class Cost:
    """Figures by token kind (`KINDS`); None where not known, and `reasons` says why, by `figure.kind`.

    Each kind is charged the whole price of the devices: $/M input and $/M output do not add up to $/M total.
    """

    usd_per_million: dict[str, float | None]
    tokens_per_usd: dict[str, float | None]
    tokens_per_s_per_mw: dict[str, float | None]
    joules_per_token: dict[str, float | None]
    reasons: dict[str, str] = field(default_factory=dict)


def require_amount(name: str, value: float | None, *, positive: bool = False) -> None:
    """UserError when a known amount is negative, not finite, or zero where it must be positive."""
    if value is not None and (not math.isfinite(value) or value < 0 or (positive and value == 0)):
        least = "positive" if positive else "0 or more"
        raise UserError(f"{name} {value}", remedy=f"give a finite number, {least}")


def cost(tokens_s: dict[str, float | None], usd_per_device_hour: float | None, kw_per_device: float | None) -> Cost:
    """Cost of each token kind from tokens/s per device.

    $/M = $/device-hour / (tok/s x 3600 / 1e6); tokens per $ = 3600 x tok/s / $; tok/s/MW = tok/s x 1000 / kW;
    J/token = W / (tok/s), with kW all-in (InferenceX app, docs/tco-calculator.md). UserError for negative arguments.
    """
    require_amount("price", usd_per_device_hour)
    require_amount("kW per device", kw_per_device, positive=True)
    out = Cost({}, {}, {}, {})
    for kind in KINDS:
        rate = tokens_s.get(kind)
        require_amount(f"{kind} tokens/s", rate)
        idle = "throughput is not known" if rate is None else "throughput is zero" if rate == 0 else None
        no_price = "no price per device-hour" if usd_per_device_hour is None else None
        no_power = "no kW per device" if kw_per_device is None else None
        usd, kw, speed = usd_per_device_hour or 0.0, kw_per_device or 0.0, rate or 0.0
        free = "the price is zero" if usd == 0 else None
        for name, reason, over, under in (
            ("usd_per_million", idle or no_price, usd * 1e6, speed * 3600),
            ("tokens_per_usd", idle or no_price or free, speed * 3600, usd),
            ("tokens_per_s_per_mw", idle or no_power, speed * 1000, kw),
            ("joules_per_token", idle or no_power, kw * 1000, speed),
        ):
            getattr(out, name)[kind] = None if reason else over / under
            if reason:
                out.reasons[f"{name}.{kind}"] = reason
    return out
