"""What a fast mode is worth: break-even hour and price, the turns that deserve it, and a plan of two tiers. Pure.

The fast tier decodes `factor` times as fast for its price per million output tokens; the batch tier is the run as it
was measured. Input is taken to cost the same in both, so it is in none of the differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from results.cost import require_amount
from results.derive import NS
from results.errors import UserError
from results.fast import (
    CAUSES,
    QUEUE_REASON,
    Bounds,
    Session,
    bounds_of,
    saved_s,
    speed_up,
    spread,
    summed,
    time_by_cause,
)

FACTORS = (2.0, 5.0, 10.0)
FAST_USD = (25.0, 75.0, 150.0, 300.0)
"""Decode speeds, and $ per million output tokens, that are looked at unless asked otherwise."""
_HOUR_S = 3600.0
_NO_HOUR = "the value of a saved hour is not given (--hour-usd)"
_UNCOUNTED = "the server's usage does not count the output of every turn, or there was none"


@dataclass(frozen=True, slots=True)
class Market:
    """What is assumed: decode speeds, $ per million output tokens of both tiers, $ that a saved hour is worth."""

    factors: tuple[float, ...] = FACTORS
    fast_usd: tuple[float, ...] = FAST_USD
    batch_usd: float = 0.0
    hour_usd: float | None = None

    def __post_init__(self) -> None:
        for factor in self.factors:
            if not 1 < factor < float("inf"):
                raise UserError(f"--speed-up {factor:g}", remedy="give a finite number above 1")
        require_amount("--batch-price", self.batch_usd)
        require_amount("--hour-usd", self.hour_usd)
        for usd in self.fast_usd:
            require_amount("--fast-price", usd)
            if usd < self.batch_usd:
                raise UserError(
                    f"--fast-price {usd:g} is below --batch-price {self.batch_usd:g}",
                    remedy="fast tokens cost at least as much as batch ones",
                )


def fast_report(sessions: Sequence[Session], market: Market) -> dict[str, Any]:
    """All figures of one run, JSON-ready; None where not known, and `reasons` says why."""
    reasons = {"time_share.queue": QUEUE_REASON}
    if not sessions:
        return {"sessions": 0, "reasons": {"sessions": "no session was replayed whole within the steady window"}}
    times = [time_by_cause(session) for session in sessions]
    shares = [{cause: seconds / sum(spent.values()) for cause, seconds in spent.items()} for spent in times]
    total = sum(sum(spent.values()) for spent in times)
    tokens = sum(float(session.output_tokens[session.ok].sum()) for session in sessions)
    if not np.isfinite(tokens):
        reasons["output_tokens"] = _UNCOUNTED
    ceiling = [speed_up(session, float("inf")) for session in sessions]
    if not all(np.isfinite(bounds.high) for bounds in ceiling):
        reasons["ceiling"] = "some session is nothing but decoding: no limit"
    return {
        "sessions": len(sessions),
        "overlapping_sessions": sum(len(np.unique(session.lane)) > 1 for session in sessions),
        "turns": sum(int(session.ok.sum()) for session in sessions),
        "output_tokens": tokens if np.isfinite(tokens) else None,
        "hours": total / _HOUR_S,
        "time_share": {
            **{
                cause: {"all": sum(s[cause] for s in times) / total, **spread([share[cause] for share in shares])}
                for cause in CAUSES
            },
            "queue": None,
        },
        "ceiling": bounds_of(ceiling),
        "by_factor": [_at(sessions, factor, market, reasons) for factor in market.factors],
        "assumed": asdict(market),
        "reasons": reasons,
    }


def _at(sessions: Sequence[Session], factor: float, market: Market, reasons: dict[str, str]) -> dict[str, Any]:
    hours = summed(saved_s(session, factor) for session in sessions)
    hours = Bounds(hours.low / _HOUR_S, hours.high / _HOUR_S)
    tokens = sum(float(session.output_tokens[session.ok].sum()) for session in sessions)
    counted = bool(np.isfinite(tokens) and tokens > 0)
    price = None
    if market.hour_usd is None:
        reasons["break_even_usd_per_million"] = _NO_HOUR
    elif not counted:
        reasons["break_even_usd_per_million"] = _UNCOUNTED
    else:
        low, high = (market.batch_usd + saved * market.hour_usd * 1e6 / tokens for saved in (hours.low, hours.high))
        price = {"low": low, "high": high}
    return {
        "factor": factor,
        "speed_up": bounds_of([speed_up(session, factor) for session in sessions]),
        "saved_hours": asdict(hours),
        "break_even_usd_per_million": price,
        "by_price": [_at_price(sessions, factor, usd, hours, market, reasons) for usd in market.fast_usd],
    }


def _at_price(
    sessions: Sequence[Session], factor: float, usd: float, hours: Bounds, market: Market, reasons: dict[str, str]
) -> dict[str, Any]:
    """The hour that pays for all-fast: (fast - batch price) x tokens / saved hours, and the plan at the given hour."""
    tokens = sum(float(session.output_tokens[session.ok].sum()) for session in sessions)
    extra = (usd - market.batch_usd) * tokens / 1e6
    # A saving of at least `low` hours pays at the latest from the hour value at `low` on.
    hour = {"low": _over(extra, hours.high), "high": _over(extra, hours.low)}
    if None in hour.values():
        reasons["break_even_hour_usd"] = "nothing is saved for sure" if np.isfinite(tokens) else _UNCOUNTED
    return {"usd_per_million": usd, "break_even_hour_usd": hour, "plan": _plan(sessions, factor, usd, market, reasons)}


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and np.isfinite(part) else None


def worth_it(session: Session, factor: float, usd: float, market: Market, hour_usd: float) -> np.ndarray:
    """Mask of the turns whose saved decoding is worth at least what the fast tokens cost more.

    As if the session waited for each of them; a turn whose tokens are not counted can't be priced and stays in batch.
    """
    gain = session.decode_ns * NS / _HOUR_S * (1 - 1 / factor) * hour_usd
    extra = session.output_tokens * (usd - market.batch_usd) / 1e6
    return np.asarray(session.ok & (session.decode_ns > 0) & np.isfinite(extra) & (gain >= extra))


def _plan(
    sessions: Sequence[Session], factor: float, usd: float, market: Market, reasons: dict[str, str]
) -> dict[str, Any] | None:
    """Fast for the turns worth it and batch for the rest, beside all in one tier.

    `usd` is what the output tokens cost, `total_usd` that and the sessions' hours at their value: what is to be small.
    """
    if market.hour_usd is None:
        reasons["plan"] = _NO_HOUR
        return None
    everything = [session.ok for session in sessions]
    if not all(np.isfinite(session.output_tokens[session.ok]).all() for session in sessions):
        reasons["plan"] = _UNCOUNTED
        return None
    chosen = [worth_it(session, factor, usd, market, market.hour_usd) for session in sessions]
    turns, picked = sum(int(mask.sum()) for mask in everything), sum(int(mask.sum()) for mask in chosen)
    tiers = {
        "all_batch": [np.zeros_like(mask) for mask in everything],
        "two_tiers": chosen,
        "all_fast": everything,
    }
    return {
        "turns_worth_it": picked / turns if turns else None,
        **{name: _tier(sessions, masks, factor, usd, market) for name, masks in tiers.items()},
    }


def _tier(
    sessions: Sequence[Session], masks: Sequence[np.ndarray], factor: float, usd: float, market: Market
) -> dict[str, Any]:
    fast = sum(float(s.output_tokens[mask].sum()) for s, mask in zip(sessions, masks, strict=True))
    tokens = sum(float(s.output_tokens[s.ok].sum()) for s in sessions)
    bill = (fast * usd + (tokens - fast) * market.batch_usd) / 1e6
    wall = sum(session.wall_ns for session in sessions) * NS / _HOUR_S
    saved = summed(saved_s(session, factor, mask) for session, mask in zip(sessions, masks, strict=True))
    hours = {"low": wall - saved.high / _HOUR_S, "high": wall - saved.low / _HOUR_S}
    return {
        "usd": bill,
        "fast_token_share": fast / tokens if tokens > 0 else None,
        "hours": hours,
        "total_usd": {end: bill + value * (market.hour_usd or 0.0) for end, value in hours.items()},
    }
