"""Confidence intervals that respect how a run's figures hang together.

The turns of a session share its prompt, its lane and its moment, so that they are no independent draws. Latencies and
shares are resampled by whole session trees (the cluster bootstrap of Field and Welsh, JRSS-B 69:3, 2007). Rates are
sums over time; theirs come from the means of ten equal batches of the window (Schmeiser, Operations Research 30:3,
1982) with Student's t.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from results.derive import Requests, as_float, counted_output, window_share
from results.records import Status

LEVEL = 0.95
DRAWS = 400
LEAST_TREES = 8
BATCHES = 10
LEAST_BATCH_S = 2.0
_T_9 = 2.262157
"""Student's t, 97.5 %, nine degrees of freedom."""

Interval = list[float] | None


def intervals(
    requests: Requests, ok: np.ndarray, tree: np.ndarray, start_ns: int, end_ns: int, seed: int
) -> dict[str, Any]:
    """95 % intervals of the headline figures by their key in summary.json; null where there is too little to tell.

    `ok` masks the rows whose latencies count, `tree` (rows,) tells their session tree.
    """
    out: dict[str, Any] = {"level": LEVEL, "method": "cluster bootstrap by session tree; batch means for rates"}
    names, cluster = np.unique(tree[ok], return_inverse=True)
    if len(names) < LEAST_TREES:
        out["reason"] = f"latencies: {len(names)} session trees, fewer than {LEAST_TREES}"
    else:
        counts = draw_counts(len(names), seed)
        for key, values in (
            ("ttft_s", requests.ttft_s),
            ("tpot_s", requests.tpot_s),
            ("e2e_s", requests.e2e_s),
            ("full_response_itl_s", requests.full_response_itl_s),
        ):
            out |= _of_latency(f"latency.{key}", values[ok], cluster, counts)
        out |= _of_interactivity(requests.e2e_per_token_s[ok], cluster, counts)
        rows = requests.rows[ok]
        for key, part in (("achieved", "cached_tokens"), ("theoretical", "theoretical_cached_tokens")):
            out[f"cache.{key}"] = _of_share(as_float(rows, part), as_float(rows, "input_tokens"), cluster, counts)
    out |= _of_rates(requests, start_ns, end_ns)
    return out


def draw_counts(trees: int, seed: int) -> np.ndarray:
    """How often each tree is in each draw, shape (DRAWS, trees)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.multinomial(trees, np.full(trees, 1 / trees), size=DRAWS)


def _of_latency(key: str, values: np.ndarray, cluster: np.ndarray, counts: np.ndarray) -> dict[str, Interval]:
    known = np.isfinite(values)
    order = np.argsort(values[known], kind="stable")
    data, owner = values[known][order], cluster[known][order]
    quantiles = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
    if not len(data):
        return {f"{key}.{name}": None for name in ("mean", *quantiles)}
    weights = [(data * count[owner]).sum() / total for count in counts if (total := count[owner].sum())]
    out: dict[str, Interval] = {f"{key}.mean": _middle([float(w) for w in weights])}
    for name, draws in drawn_quantiles(data, owner, counts, quantiles).items():
        out[f"{key}.{name}"] = _middle(draws.tolist())
    return out


def _of_interactivity(values: np.ndarray, cluster: np.ndarray, counts: np.ndarray) -> dict[str, Interval]:
    """Of 1 / percentile of E2E per token, never of a percentile of rates: the ends change places."""
    out: dict[str, Interval] = {}
    for key, ends in _of_latency("interactivity.e2e_normalised", values, cluster, counts).items():
        if not key.endswith("mean"):
            out[key] = None if ends is None or ends[0] <= 0 else [1 / ends[1], 1 / ends[0]]
    return out


def drawn_quantiles(
    values: np.ndarray, cluster: np.ndarray, counts: np.ndarray, quantiles: dict[str, float]
) -> dict[str, np.ndarray]:
    """Quantiles of `values` (finite) in every draw, in which the values of cluster c stand counts[draw, c] times.

    Draws that hold no value are left out.
    """
    order = np.argsort(values, kind="stable")
    data, owner = values[order], cluster[order]
    drawn: dict[str, list[float]] = {name: [] for name in quantiles}
    for count in counts:
        weight = np.cumsum(count[owner])
        if len(weight) and weight[-1]:
            for name, q in quantiles.items():
                drawn[name].append(float(data[np.searchsorted(weight, q * (weight[-1] - 1) + 1)]))
    return {name: np.array(found) for name, found in drawn.items()}


def _of_share(part: np.ndarray, whole: np.ndarray, cluster: np.ndarray, counts: np.ndarray) -> Interval:
    known = np.isfinite(part) & np.isfinite(whole)
    trees = counts.shape[1]
    parts = np.bincount(cluster[known], weights=part[known], minlength=trees)
    wholes = np.bincount(cluster[known], weights=whole[known], minlength=trees)
    total = counts @ wholes
    if not (total > 0).any():
        return None
    return _middle(((counts @ parts)[total > 0] / total[total > 0]).tolist())


def _middle(draws: list[float]) -> Interval:
    if not draws:
        return None
    low, high = np.percentile(draws, [50 * (1 - LEVEL), 100 - 50 * (1 - LEVEL)])
    return [float(low), float(high)]


def _of_rates(requests: Requests, start_ns: int, end_ns: int) -> dict[str, Any]:
    names = ("input_tok_s", "output_tok_s", "total_tok_s", "requests_s")
    length = (end_ns - start_ns) / BATCHES
    if length < LEAST_BATCH_S * 1e9:
        return {f"throughput.{name}": None for name in names}
    edges = start_ns + length * np.arange(BATCHES + 1)
    rows = requests.rows[requests.rows["status"] == Status.OK]
    first, done = rows["first_token_ns"], rows["done_ns"]
    inputs, outputs = np.nan_to_num(as_float(rows, "input_tokens")), np.nan_to_num(counted_output(rows))
    series: dict[str, list[float]] = {name: [] for name in names}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        seconds = (high - low) * 1e-9
        share = np.nan_to_num(window_share(rows, int(low), int(high)))
        a = float(inputs[(first >= low) & (first < high)].sum()) / seconds
        b = float((outputs * share).sum()) / seconds
        series["input_tok_s"].append(a)
        series["output_tok_s"].append(b)
        series["total_tok_s"].append(a + b)
        series["requests_s"].append(float(((done >= low) & (done < high)).sum()) / seconds)
    out: dict[str, Any] = {}
    for name, values in series.items():
        mean, half = float(np.mean(values)), _T_9 * float(np.std(values, ddof=1)) / BATCHES**0.5
        out[f"throughput.{name}"] = [max(0.0, mean - half), mean + half]
    return out
