"""summary.json: the aggregates of one run (keys in CONTRACT.md). Pure: columns in, a dict out.

Latency is over the requests *sent* in the steady window and answered well, also where the answer ended after it.
Throughput counts tokens by their own time: prompt tokens when the first token came, output tokens evenly between first
and last token, each only as far as it lies in the window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from results.derive import Requests, as_float, busy_seconds, window_share
from results.findings import Severity, find
from results.records import MISSING, SCHEMA_VERSION, Phase, Status, TreeEnd
from results.stats import distribution, ratio, reciprocals

_LATER = "needs the server's metrics, which this version does not collect"


def summarise(requests: Requests, trees: np.ndarray, client: np.ndarray, header: dict[str, Any]) -> dict[str, Any]:
    """All aggregates of a run. `trees` and `client` are rows of `records.TREE` and `records.CLIENT`, all workers."""
    rows = requests.rows
    start = int(header.get("steady_start_ns") or 0)
    end = header.get("steady_end_ns")
    if end is None:
        end = max(int(rows["done_ns"].max(initial=start)), int(trees["ended_ns"].max(initial=start)))
    seconds = max(0.0, (end - start) * 1e-9)
    ok = requests.select(phase=Phase.STEADY, status=Status.OK)
    latency = _latency(requests, ok)
    last = int(rows["done_ns"].max(initial=0))
    summary: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "run_id": header["run_id"],
        "valid": True,
        "invalid_reasons": [],
        "warnings": [],
        "reasons": {},
        "scenario": header.get("scenario"),
        "concurrency": header.get("concurrency"),
        "duration_s": last * 1e-9,
        "steady_s": seconds,
        "requests": _counts(rows),
        "latency": latency,
        "interactivity": {
            "itl": reciprocals(latency["tpot_s"]),
            "full_response": reciprocals(latency["full_response_itl_s"]),
            "e2e_normalised": reciprocals(distribution(_e2e_per_token(requests)[ok])),
        },
        "throughput": _throughput(requests, start, end, seconds, header.get("num_gpus")),
        "tokens": {name: distribution(as_float(rows[ok], f"{name}_tokens")) for name in ("input", "output", "cached")},
        "cache": _cache(rows[ok]),
        "jobs": _jobs(requests, trees, start, end, seconds),
        "power": dict.fromkeys(("watts_mean", "joules", "joules_per_output_token", "joules_per_total_token", "source")),
        "client": _client(requests, client, start, end),
    }
    _explain_nulls(summary, header)
    for finding in find(requests, summary, header):
        key = "invalid_reasons" if finding.severity is Severity.INVALID else "warnings"
        summary[key].append(str(finding))
    summary["valid"] = not summary["invalid_reasons"]
    return summary


def _counts(rows: np.ndarray) -> dict[str, Any]:
    steady = rows[rows["phase"] == Phase.STEADY]
    status = steady["status"]
    ok = int((status == Status.OK).sum())
    cancelled = int((status == Status.CANCELLED).sum())
    failed = len(steady) - ok - cancelled
    return {
        "sent": len(steady),
        "ok": ok,
        "failed": failed,
        "cancelled": cancelled,
        "context_overflow": int((status == Status.CONTEXT_OVERFLOW).sum()),
        "error_rate": ratio(failed, ok + failed),
        "by_status": {s.name.lower(): int((status == s).sum()) for s in Status if (status == s).any()},
    }


def _e2e_per_token(requests: Requests) -> np.ndarray:
    tokens = as_float(requests.rows, "output_tokens")
    tokens[~(tokens > 0)] = np.nan
    return np.asarray(requests.e2e_s / tokens)


def _latency(requests: Requests, ok: np.ndarray) -> dict[str, dict[str, Any]]:
    return {
        "ttft_s": distribution(requests.ttft_s[ok]),
        "tpot_s": distribution(requests.tpot_s[ok]),
        "e2e_s": distribution(requests.e2e_s[ok]),
        "itl_s": distribution(requests.gaps_s[ok[requests.gap_row]]),
        "full_response_itl_s": distribution(requests.full_response_itl_s[ok]),
        "ttft_from_due_s": distribution((requests.ttft_s + _lag(requests.rows))[ok]),
    }


def _lag(rows: np.ndarray) -> np.ndarray:
    lag = (rows["sent_ns"] - rows["scheduled_ns"]) * 1e-9
    lag[rows["sent_ns"] == MISSING] = np.nan
    return np.asarray(lag)


def _throughput(requests: Requests, start: int, end: int, seconds: float, gpus: int | None) -> dict[str, Any]:
    rows = requests.rows
    good = rows["status"] == Status.OK
    first = rows["first_token_ns"]
    # A window that ends with the run's last answer includes it.
    inside = good & (first >= start) & (first <= end)
    share = np.nan_to_num(window_share(rows, start, end + 1))
    inputs, cached = as_float(rows, "input_tokens"), as_float(rows, "cached_tokens")
    outputs = as_float(rows, "output_tokens")
    known = inside & np.isfinite(inputs) & np.isfinite(cached)
    input_rate = _rate(inputs[inside], seconds)
    output_rate = _rate((outputs * share)[good & (share > 0)], seconds)
    cached_rate = _rate(cached[known], seconds) if known.any() else None
    done = good & (rows["done_ns"] >= start) & (rows["done_ns"] <= end)
    rates = {
        "input_tok_s": input_rate,
        "output_tok_s": output_rate,
        "total_tok_s": None if input_rate is None or output_rate is None else input_rate + output_rate,
        "cached_input_tok_s": cached_rate,
        "computed_input_tok_s": _rate((inputs - cached)[known], seconds) if known.any() else None,
        "requests_s": ratio(float(done.sum()), seconds),
    }
    per_gpu = {name: value / gpus if gpus and value is not None else None for name, value in rates.items()}
    return {**rates, "per_gpu": per_gpu}


def _rate(tokens: np.ndarray, seconds: float) -> float | None:
    """Tokens per second; null when no count is known."""
    if len(tokens) and not np.isfinite(tokens).any():
        return None
    return ratio(float(np.nansum(tokens)), seconds)


def _cache(ok: np.ndarray) -> dict[str, float | None]:
    """Token-weighted shares of the input: sum of hits over sum of prompt tokens."""
    inputs, cached = as_float(ok, "input_tokens"), as_float(ok, "cached_tokens")
    theory = as_float(ok, "theoretical_cached_tokens")
    both = np.isfinite(inputs) & np.isfinite(theory)
    said = np.isfinite(inputs) & np.isfinite(cached)
    unknown: dict[str, float | None] = dict.fromkeys(("device", "host", "lost_evicted", "lost_routing", "cold"))
    return {
        "theoretical": ratio(float(theory[both].sum()), float(inputs[both].sum())),
        "achieved": ratio(float(cached[said].sum()), float(inputs[said].sum())),
        **unknown,
    }


def tree_index(rows: np.ndarray, trees: np.ndarray) -> np.ndarray:
    """Which row of `trees` each request belongs to, -1 for requests whose tree has no row (shape (requests,))."""
    key = trees["session"].astype(np.int64) << 32 | trees["pass"]
    order = np.argsort(key, kind="stable")
    wanted = rows["session"].astype(np.int64) << 32 | rows["pass"]
    place = np.searchsorted(key[order], wanted)
    place = np.minimum(place, max(0, len(key) - 1))
    if not len(key):
        return np.full(len(rows), -1)
    found = order[place]
    return np.where(key[found] == wanted, found, -1)


def _jobs(requests: Requests, trees: np.ndarray, start: int, end: int, seconds: float) -> dict[str, Any]:
    """The job's view: a job is a whole session tree, and counts only when it was finished in the window."""
    done = (trees["end"] == TreeEnd.COMPLETED) & (trees["ended_ns"] >= start) & (trees["ended_ns"] <= end)
    wall = (trees["ended_ns"] - trees["started_ns"]) * 1e-9
    index = tree_index(requests.rows, trees)
    busy = busy_seconds(index, requests.rows, len(trees))
    of_done = (index >= 0) & done[np.maximum(index, 0)] if len(trees) else np.zeros(len(index), bool)
    prefill = float(np.nansum(requests.ttft_s[of_done]))
    decode = float(np.nansum((requests.e2e_s - requests.ttft_s)[of_done]))
    total, working = float(wall[done].sum()), float(busy[done].sum())
    share = ratio(working, total)
    return {
        "completed": int(done.sum()),
        "per_hour": ratio(3600.0 * float(done.sum()), seconds),
        "latency_s": distribution(wall[done]),
        "tool_time_share": None if share is None else 1 - share,
        "decode_time_share": None if share is None else _part(share, decode, prefill),
        "prefill_time_share": None if share is None else _part(share, prefill, decode),
    }


def _part(share: float, part: float, other: float) -> float | None:
    """The busy share of a job split by the sums of prefill and decode time (sub-agents overlap)."""
    split = ratio(part, part + other)
    return None if split is None else share * split


def _client(requests: Requests, client: np.ndarray, start: int, end: int) -> dict[str, Any]:
    window = client[(client["t_ns"] > start) & (client["t_ns"] <= end)] if len(client) else client
    lag = window["loop_lag_p99_ns"].astype(np.float64)
    lag[lag < 0] = np.nan
    top = window["loop_lag_max_ns"]
    wall, cpu = float(window["wall_ns"].sum()), float(window["cpu_ns"].sum())
    return {
        "send_lag_s": distribution(_lag(requests.rows)),
        "loop_lag_s": {
            "p99_of_interval_max": float(np.nanmax(lag) * 1e-9) if np.isfinite(lag).any() else None,
            "max": float(top.max() * 1e-9) if len(top) and top.max() >= 0 else None,
        },
        "cpu_util": ratio(cpu, wall),
        "rss_bytes_max": int(window["rss_bytes"].max()) if len(window) else None,
        "saturated": False,
    }


def _explain_nulls(summary: dict[str, Any], header: dict[str, Any]) -> None:
    """`reasons`: why a figure is null."""
    reasons = summary["reasons"]
    for name in ("device", "host", "lost_evicted", "lost_routing", "cold"):
        reasons[f"cache.{name}"] = _LATER
    if summary["cache"]["achieved"] is None:
        reasons["cache.achieved"] = "the server's usage does not say cached tokens"
    if not header.get("num_gpus"):
        reasons["throughput.per_gpu"] = "the number of accelerators is not known"
    reasons["power"] = "no power source is read by this version"
    for name, stats in summary["latency"].items():
        if not stats["n"]:
            reasons[f"latency.{name}"] = "no request has this figure"
