"""The `network` part of summary.json: round trip, clock offset, and time to first token without the way there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from results.stats import QUANTILES

_S = 1e-9
_DATE_AGE_S = 1
"""Servers write the date once a second and send it until the next (uvicorn does), so it can be this old."""


def read_network(journal: Path, t0_ns: int) -> list[dict[str, Any]]:
    """Rows of the network probe, `t_ns` since the run's start; [] if nothing was measured. Torn lines are left out."""
    try:
        lines = (journal / "network.rows").read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
            rows.append({**row, "t_ns": row["t_ns"] - t0_ns})
        except (ValueError, TypeError, KeyError):
            continue
    return rows


def summarise_network(rows: list[dict[str, Any]], ttft_s: dict[str, Any]) -> dict[str, Any]:
    """`rtt_s`, `clock_offset_s` and `ttft_less_rtt_s`; `reasons` for what is null.

    `ttft_s`: the distribution in summary.json. On a kept connection a request and its first byte cross the network
    once each way, so the time to first token holds one round trip; the least one measured is taken off, which is the
    way itself without queues. Percentiles stay exact: a constant is subtracted.
    """
    trips = np.array([row["rtt_ns"] for row in rows if "rtt_ns" in row], dtype=np.float64) * _S
    errors = [str(row["error"]) for row in rows if "error" in row]
    reasons: dict[str, str] = {}
    rtt: dict[str, Any] = {"min": None, "p50": None, "p99": None, "max": None, "n": len(trips), "failed": len(errors)}
    if len(trips):
        rtt |= {"min": float(trips.min()), "max": float(trips.max())}
        rtt |= {f"p{q}": float(np.percentile(trips, q)) for q in (50, 99)}
    else:
        reasons["network.rtt_s"] = errors[-1] if errors else "the way to the endpoint was not measured"
        reasons["network.ttft_less_rtt_s"] = reasons["network.rtt_s"]
    names = ("mean", *(f"p{q}" for q in QUANTILES))
    less: dict[str, float | None] = dict.fromkeys(names)
    if rtt["min"] is not None:
        less = {name: None if ttft_s.get(name) is None else ttft_s[name] - rtt["min"] for name in names}
    offset, why = clock_offset(rows)
    if why:
        reasons["network.clock_offset_s"] = why
    return {"rtt_s": rtt, "clock_offset_s": offset, "ttft_less_rtt_s": less, "reasons": reasons}


def clock_offset(rows: list[dict[str, Any]]) -> tuple[dict[str, float | None], str | None]:
    """The endpoint's wall clock minus ours, between `low` and `high` seconds, and why not where it is not known.

    A `Date` of D seconds was sent at D to D + 1 s of the other clock, or up to `_DATE_AGE_S` later, and between sending
    and receiving on ours, so D - received < offset < D + 1 + age - sent: every exchange bounds it, and all bounds hold
    together. Clocks that were set or machines that take turns behind one address leave no common interval.
    """
    unknown: dict[str, float | None] = dict.fromkeys(("estimate", "low", "high"))
    dated = [row for row in rows if "date_s" in row]
    if not dated:
        return unknown, "the endpoint's answers carry no date"
    low = max(row["date_s"] * 10**9 - row["date_received_ns"] for row in dated) * _S
    high = min((row["date_s"] + 1 + _DATE_AGE_S) * 10**9 - row["date_sent_ns"] for row in dated) * _S
    if low > high:
        return unknown, "no single offset fits all answers: a clock was set, or several machines answer"
    return {"estimate": (low + high) / 2, "low": low, "high": high}, None
