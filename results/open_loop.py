"""Open loops: what was offered, what was served, and whether the server fell behind. Pure.

Above capacity requests pile up for as long as the run lasts: latency then measures the run's length, and no mean of it
means anything. Piling up is seen where both the requests in flight and the time to first token (from when a request was
due) keep rising over the second half of the window, when sessions begin as often as others end. Rising: Kendall's rank
correlation with time (M. G. Kendall, Biometrika 30, 1938) over batch means, and growth that is worth the name.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from results.derive import Requests, span
from results.records import Phase, Status

BATCHES = 8
"""In the second half of the window."""
LEAST_REQUESTS = 5 * BATCHES
TAU = 0.7
"""28 pairs of 8 batches: by chance in 1 of 100 series, and two series must rise."""
GROWTH = 0.25
"""From the first to the last quarter of the batches, as a share of their mean."""


def summarise_arrivals(
    requests: Requests, trees: np.ndarray, header: dict[str, Any], start: int, end: int
) -> dict[str, Any] | None:
    """Rates in session trees per minute and the verdict; None in a closed loop.

    `over_saturated` is None, with `reason`, where too few requests were sent to say.
    """
    if header.get("arrival", "closed") == "closed" or end <= start:
        return None
    minutes = (end - start) * 1e-9 / 60
    started, ended = trees["started_ns"], trees["ended_ns"]
    out: dict[str, Any] = {
        "offered_per_min": header.get("rate_per_min"),
        "started_per_min": int(((started >= start) & (started < end)).sum()) / minutes,
        "ended_per_min": int(((ended >= start) & (ended < end)).sum()) / minutes,
        "in_flight": [round(value, 3) for value in in_flight(requests.rows, start, end, 2 * BATCHES).tolist()],
        "over_saturated": None,
        "reason": None,
    }
    if header.get("unsent"):
        out["reason"] = "the client's own rate limit held requests back: what piled up says nothing of the server"
        return out
    middle = start + (end - start) // 2
    rows = requests.rows
    late = (rows["phase"] == Phase.STEADY) & (rows["scheduled_ns"] >= middle) & (rows["scheduled_ns"] < end)
    if int(late.sum()) < LEAST_REQUESTS:
        out["reason"] = f"{int(late.sum())} requests in the second half, fewer than {LEAST_REQUESTS}"
        return out
    waits = span(rows, "scheduled_ns", "first_token_ns")
    waits[np.isnan(waits) & (rows["status"] == Status.CANCELLED)] = np.inf  # cut off: longer than any that was seen
    batch = (rows["scheduled_ns"] - middle) * BATCHES // (end - middle)
    medians = [_median(waits[late & (batch == k)]) for k in range(BATCHES)]
    slower = rises(np.array(medians)) or bool(np.isposinf(medians[-BATCHES // 4 :]).all())
    out["over_saturated"] = slower and rises(in_flight(rows, middle, end, BATCHES))
    return out


def in_flight(rows: np.ndarray, start: int, end: int, batches: int) -> np.ndarray:
    """Mean number of requests due and not over, by equal parts of [start, end) (float64, shape (batches,))."""
    edges = np.linspace(start, end, batches + 1)
    over = np.where(rows["done_ns"] < 0, end, rows["done_ns"])
    spans = [
        (np.clip(over, low, high) - np.clip(rows["scheduled_ns"], low, high)).sum() / (high - low)
        for low, high in pairwise(edges.tolist())
    ]
    return np.asarray(np.maximum(0.0, np.array(spans)))


def rises(series: np.ndarray) -> bool:
    """Whether a series of batch means keeps growing (NaN: a batch of which nothing is known)."""
    known = series[np.isfinite(series)]
    if len(known) < BATCHES - 2:
        return False
    pairs = np.sign(known[None, :] - known[:, None])[np.triu_indices(len(known), 1)]
    quarter = max(1, len(known) // 4)
    growth = known[-quarter:].mean() - known[:quarter].mean()
    return bool(pairs.mean() >= TAU and growth > GROWTH * known.mean())


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")
