"""Where a run becomes steady, found from its own figures: MSER-5.

White, "An effective truncation heuristic for bias reduction in simulation output" (Simulation 69:6, 1997), in the
batched form of White, Cobb and Spratt (2000): of all truncation points take the one after which the standard error of
the mean of batches of five is least. A point beyond half of the series says that it never became steady.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from results.derive import Requests, counted_output
from results.records import Phase, Status

BATCH = 5
BIN_S = 1.0
_LEAST_BATCHES = 8


def mser5(series: np.ndarray) -> int | None:
    """How many leading values of `series` to drop (a multiple of five); None when it is too short or never steady."""
    batches = len(series) // BATCH
    if batches < _LEAST_BATCHES:
        return None
    means = np.asarray(series[: batches * BATCH], dtype=np.float64).reshape(batches, BATCH).mean(axis=1)
    left = np.arange(batches, 0, -1)
    tail_sum, tail_squares = np.cumsum(means[::-1])[::-1], np.cumsum(means[::-1] ** 2)[::-1]
    error = (tail_squares - tail_sum**2 / left) / left**2
    best = int(np.argmin(error[: batches - _LEAST_BATCHES // 2]))
    return None if best > batches // 2 else best * BATCH


def find_window(requests: Requests, header: dict[str, Any]) -> tuple[Requests, dict[str, Any]]:
    """With `steady: auto`, move the window's start to where output per second is steady and mark what came before.

    Requests sent before are warm-up then. Nothing changes (but `steady_found`) when no such point is found.
    """
    if header.get("steady") != "auto" or header.get("steady_start_ns") is None:
        return requests, header
    start = int(header["steady_start_ns"])
    rows = requests.rows
    seconds = _output_per_second(requests, start, header)
    drop = mser5(seconds)
    if not drop:
        return requests, {**header, "steady_found": None if drop is None else 0.0}
    moved = start + round(drop * BIN_S * 1e9)
    rows = rows.copy()
    rows["phase"][(rows["phase"] == Phase.STEADY) & (rows["sent_ns"] < moved)] = Phase.WARMUP
    return replace(requests, rows=rows), {**header, "steady_start_ns": moved, "steady_found": drop * BIN_S}


def _output_per_second(requests: Requests, start: int, header: dict[str, Any]) -> np.ndarray:
    """Output tokens by second from `start` to the window's end: each answer's, evenly over its decoding."""
    rows = requests.rows
    end = header.get("steady_end_ns") or int(rows["done_ns"].max(initial=start))
    bins = int((end - start) * 1e-9 / BIN_S)
    out = np.zeros(max(0, bins) + 1)
    good = (rows["status"] == Status.OK) & (rows["first_token_ns"] >= 0)
    tokens = np.nan_to_num(counted_output(rows))
    first = (rows["first_token_ns"] - start) * 1e-9 / BIN_S
    last = np.maximum((rows["last_token_ns"] - start) * 1e-9 / BIN_S, first + 1e-6)
    for low, high, count in zip(first[good], last[good], tokens[good], strict=True):
        edges = np.arange(max(0, int(low)), min(bins, int(high) + 1))
        inside = np.minimum(edges + 1, high) - np.maximum(edges, low)
        out[edges] += count * np.clip(inside, 0, None) / (high - low)
    return out[: max(0, bins)]
