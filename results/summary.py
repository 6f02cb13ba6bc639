"""summary.json: the aggregates of one run . Pure: columns in, a dict out.

Latency is over the requests *sent* in the steady window and answered well, also where the answer ended after it.
Throughput counts tokens by their own time: prompt tokens when the first token came, output tokens evenly between first
and last token, each only as far as it lies in the window. A figure that is not known is null, and `reasons` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.derive import (
    Requests,
    as_float,
    busy_seconds,
    counted_output,
    delivered_share,
    endpoint_of,
    human_seconds,
    span,
    window_share,
    with_shared_heads,
)
from results.findings import Severity, find
from results.network import summarise_network
from results.open_loop import summarise_arrivals
from results.power import summarise_power
from results.power_journal import PowerLog
from results.reasons import why_null
from results.records import CLIENT, SCHEMA_VERSION, Flag, Phase, Status, TreeEnd
from results.server_view import ServerView, summarise_server
from results.stats import distribution, ratio, reciprocals
from results.uncertainty import intervals


@dataclass(frozen=True, slots=True)
class Around:
    """What was measured beside the requests; None or nothing where it was not."""

    power: PowerLog | None = None
    network: Sequence[dict[str, Any]] = ()
    server: ServerView | None = None


def summarise(
    requests: Requests,
    trees: np.ndarray,
    clients: dict[int, np.ndarray],
    header: dict[str, Any],
    *,
    torn: int = 0,
    around: Around = Around(),
) -> dict[str, Any]:
    """All aggregates of a run.

    `trees` are rows of `records.TREE` of all workers, `clients` rows of `records.CLIENT` by worker, `torn` the number
    of rows that a crash cut.
    """
    rows = requests.rows
    last = max(int(rows["done_ns"].max(initial=0)), int(trees["ended_ns"].max(initial=0)))
    start, end = _window(header, last)
    seconds = (end - start) * 1e-9
    ok = requests.select(phase=Phase.STEADY, status=Status.OK)
    latency = _latency(requests, ok)
    summary: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "run_id": header["run_id"],
        "valid": True,
        "invalid_reasons": [],
        "warnings": [],
        "reasons": {},
        "not_submission": header.get("not_submission", []),
        "scenario": header.get("scenario"),
        "concurrency": header.get("concurrency"),
        "duration_s": last * 1e-9,
        "steady_s": seconds,
        "requests": _counts(rows),
        "latency": latency,
        "interactivity": {
            "itl": reciprocals(latency["tpot_s"]),
            "full_response": reciprocals(latency["full_response_itl_s"]),
            "e2e_normalised": reciprocals(distribution(requests.e2e_per_token_s[ok])),
        },
        "throughput": _throughput(requests, start, end, last, header.get("num_gpus")),
        "tokens": _tokens(rows[ok]) | {"delivered_share": distribution(_delivered(rows))},
        "cache": _cache(rows[ok], requests.tree_theory[ok]),
        "jobs": _jobs(requests, trees, start, end, seconds, header.get("num_gpus")),
        "stages": _stages(requests, header, start),
        "endpoints": _endpoints(requests, header, start, end),
        "arrivals": summarise_arrivals(requests, trees, header, start, end),
        "intervals": intervals(requests, ok, tree_index(rows, trees), start, end, int(header.get("seed") or 0)),
        "client": _client(requests, clients, start, end) | {"unsent": header.get("unsent", 0)},
    }
    used = summarise_power(
        around.power,
        start,
        end,
        output_tokens=_times(summary["throughput"]["output_tok_s"], seconds),
        total_tokens=_times(summary["throughput"]["total_tok_s"], seconds),
        jobs=summary["jobs"]["completed"],
    )
    way = summarise_network(list(around.network), latency["ttft_s"])
    said = summarise_server(around.server, rows)
    summary["cache"] |= said.shares
    summary["reasons"] = why_null(summary) | used.reasons | way.pop("reasons") | said.reasons
    summary |= {"power": used.figures, "network": way, "server": said.section}
    summary["warnings"] += used.warnings
    for finding in [*find(requests, summary, header, torn), *said.findings]:
        key = "invalid_reasons" if finding.severity is Severity.INVALID else "warnings"
        summary[key].append(str(finding))
    summary["valid"] = not summary["invalid_reasons"]
    return summary


def _times(rate: float | None, seconds: float) -> float | None:
    return None if rate is None else rate * seconds


def _window(header: dict[str, Any], last_ns: int) -> tuple[int, int]:
    """[start, end) of the steady window.

    It ends where the header says, or else with the planned duration, which is all that a killed run knows; never after
    the last event: a run that had nothing more to do was not idle, it was over.
    """
    begins = header.get("steady_start_ns", 0)
    if begins is None:  # the warm-up was never over: nothing was measured
        return last_ns + 1, last_ns + 1
    start = int(begins)
    end, duration = header.get("steady_end_ns"), header.get("duration_s")
    if end is None and duration is not None:
        end = start + round(duration * 1e9)
    over = last_ns + 1 if last_ns > start else start
    return start, over if end is None else max(start, min(int(end), over))


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
        "live_history": int(((steady["flags"] & Flag.LIVE_HISTORY) != 0).sum()),
        "reasoning_dropped": int(((steady["flags"] & Flag.REASONING_DROPPED) != 0).sum()),
        "recorded_instead": int(((steady["flags"] & Flag.RECORDED_INSTEAD) != 0).sum()),
        "context_overflow": int((status == Status.CONTEXT_OVERFLOW).sum()),
        "error_rate": ratio(failed, ok + failed),
        "by_status": {s.name.lower(): int((status == s).sum()) for s in Status if (status == s).any()},
    }


def _latency(requests: Requests, ok: np.ndarray) -> dict[str, dict[str, Any]]:
    return {
        "ttft_s": distribution(requests.ttft_s[ok]),
        "tpot_s": distribution(requests.tpot_s[ok]),
        "e2e_s": distribution(requests.e2e_s[ok]),
        "itl_s": distribution(requests.gaps_s[ok[requests.gap_row]]),
        "full_response_itl_s": distribution(requests.full_response_itl_s[ok]),
        "ttft_from_due_s": distribution(span(requests.rows, "scheduled_ns", "first_token_ns")[ok]),
    }


def _tokens(ok: np.ndarray) -> dict[str, dict[str, Any]]:
    out = {name: distribution(as_float(ok, f"{name}_tokens")) for name in ("input", "output", "cached", "reasoning")}
    chunks = as_float(ok, "output_chunks")
    chunks[~(chunks > 0)] = np.nan
    return {**out, "per_chunk": distribution(counted_output(ok) / chunks)}


def _delivered(rows: np.ndarray) -> np.ndarray:
    """Shares of the steady answers that ended well, and of those that failed for being too short."""
    short = (rows["flags"] & Flag.SHORT_OUTPUT) != 0
    return delivered_share(rows[(rows["phase"] == Phase.STEADY) & ((rows["status"] == Status.OK) | short)])


def _throughput(requests: Requests, start: int, end: int, last: int, gpus: int | None) -> dict[str, Any]:
    rates = _rates(requests.rows, start, end)
    per_gpu = {name: value / gpus if gpus and value is not None else None for name, value in rates.items()}
    return {**rates, "per_gpu": per_gpu, "whole_run": _rates(requests.rows, 0, last + 1 if last else 0)}


def _rates(rows: np.ndarray, start: int, end: int) -> dict[str, float | None]:
    """Tokens and requests per second within [start, end), all rates over the same answers and the same seconds."""
    seconds = (end - start) * 1e-9
    good = rows["status"] == Status.OK
    first = rows["first_token_ns"]
    inside = good & (first >= start) & (first < end)
    share = np.nan_to_num(window_share(rows, start, end))
    inputs, cached = as_float(rows, "input_tokens"), as_float(rows, "cached_tokens")
    outputs = as_float(rows, "output_tokens")
    known = inside & np.isfinite(inputs) & np.isfinite(cached)
    input_rate = _rate(inputs[inside], seconds)
    output_rate = _rate((outputs * share)[good & (share > 0)], seconds)
    cached_rate = _rate(cached[known], seconds) if known.any() else None
    done = good & (rows["done_ns"] >= start) & (rows["done_ns"] < end)
    return {
        "input_tok_s": input_rate,
        "output_tok_s": output_rate,
        "total_tok_s": None if input_rate is None or output_rate is None else input_rate + output_rate,
        "cached_input_tok_s": cached_rate,
        "computed_input_tok_s": _rate((inputs - cached)[known], seconds) if known.any() else None,
        "requests_s": ratio(float(done.sum()), seconds),
    }


def _rate(tokens: np.ndarray, seconds: float) -> float | None:
    """Tokens per second; null when no count is known."""
    if len(tokens) and not np.isfinite(tokens).any():
        return None
    return ratio(float(np.nansum(tokens)), seconds)


def _cache(ok: np.ndarray, tree_theory: np.ndarray) -> dict[str, float | None]:
    """Token-weighted shares of the input: sum of hits over sum of prompt tokens."""
    inputs, cached = as_float(ok, "input_tokens"), as_float(ok, "cached_tokens")
    theory = as_float(ok, "theoretical_cached_tokens")
    both = np.isfinite(inputs) & np.isfinite(theory)
    said = np.isfinite(inputs) & np.isfinite(cached)
    return {
        "theoretical": ratio(float(theory[both].sum()), float(inputs[both].sum())),
        "theoretical_tree": ratio(float(tree_theory[both].sum()), float(inputs[both].sum())),
        "achieved": ratio(float(cached[said].sum()), float(inputs[said].sum())),
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


def _jobs(
    requests: Requests, trees: np.ndarray, start: int, end: int, seconds: float, gpus: int | None
) -> dict[str, Any]:
    """The job's view: a job is a whole session tree, and counts only when it was finished in the window."""
    whole = (trees["end"] == TreeEnd.COMPLETED) & (trees["partial"] == 0)
    done = whole & (trees["ended_ns"] >= start) & (trees["ended_ns"] < end)
    wall = (trees["ended_ns"] - trees["started_ns"]) * 1e-9
    index = tree_index(requests.rows, trees)
    busy = busy_seconds(index, requests.rows, len(trees))
    human = human_seconds(index, requests.rows, len(trees))
    of_done = (index >= 0) & done[np.maximum(index, 0)] if len(trees) else np.zeros(len(index), bool)
    prefill = float(np.nansum(requests.ttft_s[of_done]))
    decode = float(np.nansum((requests.e2e_s - requests.ttft_s)[of_done]))
    total, working = float(wall[done].sum()), float(busy[done].sum())
    share, people = ratio(working, total), ratio(float(human[done].sum()), total)
    decoding = None if share is None else _part(share, decode, prefill)
    latency = distribution(wall[done])
    per_hour = ratio(3600.0 * float(done.sum()), seconds)
    return {
        "completed": int(done.sum()),
        "per_hour": per_hour,
        "per_hour_per_user": 3600.0 / latency["mean"] if latency["mean"] else None,
        "per_hour_per_gpu": per_hour / gpus if gpus and per_hour is not None else None,
        "latency_s": latency,
        "tool_time_share": None if share is None or people is None else max(0.0, 1 - share - people),
        "human_time_share": people,
        "decode_time_share": decoding,
        "prefill_time_share": None if share is None else _part(share, prefill, decode),
        "queue_time_share": None,
        # Amdahl: only the decoding gets faster; None: no time at all.
        "speedup_by_decode": {
            name: None if decoding is None else 1 / (1 - decoding * (1 - 1 / factor))
            for name, factor in (("2x", 2.0), ("5x", 5.0), ("10x", 10.0))
        },
    }


def _stages(requests: Requests, header: dict[str, Any], start: int) -> list[dict[str, Any]]:
    """Latencies and rates of each stage, over the requests sent in it."""
    out, begins = [], start
    for stage in header.get("stages") or ():
        ends = begins + round(stage["duration_s"] * 1e9)
        sent = requests.rows["sent_ns"]
        ok = requests.select(phase=Phase.STEADY, status=Status.OK) & (sent >= begins) & (sent < ends)
        latency = _latency(requests, ok)
        out.append(
            {
                "concurrency": stage["concurrency"],
                "start_ns": begins,
                "end_ns": ends,
                "requests_ok": int(ok.sum()),
                "latency": {name: latency[name] for name in ("ttft_s", "tpot_s", "e2e_s")},
                "throughput": _rates(requests.rows, begins, ends),
            }
        )
        begins = ends
    return out


def _endpoints(requests: Requests, header: dict[str, Any], start: int, end: int) -> list[dict[str, Any]]:
    """Each endpoint by itself; the rest of the summary pools the requests of all.

    `cache.theoretical` here is one infinite cache per endpoint, which knows only what that endpoint was sent.
    """
    out, which = [], endpoint_of(requests.rows, header)
    well = requests.select(phase=Phase.STEADY, status=Status.OK)
    for number, url in enumerate(header.get("endpoints") or ()):
        mine = which == number
        ok = well & mine
        rows = requests.rows[mine].copy()
        rows["theoretical_cached_tokens"] = requests.tree_theory[mine]
        rows = with_shared_heads(rows, header)
        latency = _latency(requests, ok)
        out.append(
            {
                "endpoint": number,
                "url": url,
                "requests": _counts(rows),
                "latency": {name: latency[name] for name in ("ttft_s", "tpot_s", "e2e_s")},
                "throughput": _rates(rows, start, end),
                "cache": _cache(rows[ok[mine]], requests.tree_theory[ok]),
            }
        )
    return out


def _part(share: float, part: float, other: float) -> float | None:
    """The busy share of a job split by the sums of prefill and decode time (sub-agents overlap)."""
    split = ratio(part, part + other)
    return None if split is None else share * split


def _client(requests: Requests, clients: dict[int, np.ndarray], start: int, end: int) -> dict[str, Any]:
    steady = {w: rows[(rows["t_ns"] > start) & (rows["t_ns"] <= end)] for w, rows in clients.items()}
    every = np.concatenate([np.zeros(0, CLIENT), *steady.values()])
    shares = [ratio(float(rows["cpu_ns"].sum()), float(rows["wall_ns"].sum())) for rows in steady.values()]
    used = [share for share in shares if share is not None]
    rows = requests.rows[requests.rows["phase"] == Phase.STEADY]
    return {
        "send_lag_s": distribution(span(rows, "scheduled_ns", "sent_ns")),
        # The highest p99 of any sample is an upper bound of the window's p99.
        "loop_lag_s": {"p99": _top(every["loop_lag_p99_ns"], 1e-9), "max": _top(every["loop_lag_max_ns"], 1e-9)},
        "cpu_util": {"mean": sum(used) / len(used) if used else None, "max": max(used, default=None)},
        "rss_bytes_max": _top(every["rss_bytes"], 1),
        "saturated": False,
        "limited": False,
    }


def _top(values: np.ndarray, scale: float) -> float | None:
    """The largest known value; null when none is known."""
    known = values[values >= 0]
    return known.max().item() * scale if len(known) else None
