"""Statistics of raw values: linear interpolation, missing values dropped and counted, never NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

QUANTILES = (50, 75, 90, 95, 99)


def percentile(values: Sequence[float] | np.ndarray, q: float) -> float:
    """The q-th percentile (0..100) by linear interpolation between closest ranks (Hyndman and Fan's type 7).

    Raises ValueError on no values.
    """
    if not len(values):
        raise ValueError("a percentile of no values")
    return float(np.percentile(np.asarray(values, dtype=np.float64), q))


def distribution(values: np.ndarray) -> dict[str, float | int | None]:
    """mean, p50 to p99, std (population) and n of the finite `values`; nulls when there are none."""
    data = np.asarray(values, dtype=np.float64)
    data = data[np.isfinite(data)]
    out: dict[str, float | int | None] = {
        "mean": None,
        **{f"p{q}": None for q in QUANTILES},
        "std": None,
        "n": len(data),
    }
    if len(data):
        out["mean"] = float(data.mean())
        out["std"] = float(data.std())
        for q, value in zip(QUANTILES, np.percentile(data, QUANTILES), strict=True):
            out[f"p{q}"] = float(value)
    return out


def reciprocals(latency: dict[str, Any], scale: float = 1.0) -> dict[str, float | None]:
    """scale / percentile of a latency: the rate that so many percent reach or beat. Never a percentile of rates."""
    out: dict[str, float | None] = {}
    for q in QUANTILES:
        value = latency[f"p{q}"]
        out[f"p{q}"] = scale / value if value else None
    return out


def ratio(part: float | None, whole: float) -> float | None:
    """part / whole, null when there is no whole or the part is not known."""
    return part / whole if part is not None and whole > 0 and math.isfinite(part) else None
