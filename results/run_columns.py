"""One row for each run, for tables of many: the keys of summary.json and run.json as typed columns. Pure.

A figure's column is its key in summary.json with `_` for `.`: `latency.ttft_s.p90` is `latency_ttft_s_p90`; the ends
of its interval are `latency_ttft_s_p90_low` and `_high`. All columns are always there, whatever the runs know: a key
that is missing, of another type or not finite is null.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from operator import itemgetter
from typing import Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from results.dataset import RunFiles, Unread
from results.places import printable

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_TEXTS = pa.list_(pa.string())

_QUANTILES = ("p50", "p75", "p90", "p95", "p99")
_DISTRIBUTION = dict.fromkeys(("mean", *_QUANTILES, "std"), _FLOAT) | {"n": _INT}
_RATES = ("input_tok_s", "output_tok_s", "total_tok_s", "cached_input_tok_s", "computed_input_tok_s", "requests_s")
_LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "itl_s", "full_response_itl_s", "ttft_from_due_s")
_WITH_INTERVAL = ("ttft_s", "tpot_s", "e2e_s", "full_response_itl_s")
_SHARES = (
    "theoretical", "theoretical_tree", "achieved", "device", "host", "external", "cold", "lost", "lost_evicted",
    "lost_routing", "lost_mismatch",
)  # fmt: skip


def _floats(*names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names, _FLOAT)


_TOKENS = ("input", "output", "cached", "reasoning", "per_chunk")
FIGURES: dict[tuple[str, ...], dict[str, pa.DataType]] = {
    ("requests",): dict.fromkeys(("sent", "ok", "failed", "cancelled", "context_overflow"), _INT)
    | dict.fromkeys(("live_history", "reasoning_dropped", "recorded_instead"), _INT)
    | {"error_rate": _FLOAT},
    **{("latency", name): _DISTRIBUTION for name in _LATENCIES},
    **{("interactivity", name): _floats(*_QUANTILES) for name in ("itl", "full_response", "e2e_normalised")},
    ("throughput",): _floats(*_RATES),
    ("throughput", "per_gpu"): _floats(*_RATES),
    ("throughput", "whole_run"): _floats(*_RATES),
    **{("tokens", name): _DISTRIBUTION for name in (*_TOKENS, "delivered_share")},
    ("cache",): _floats(*_SHARES),
    ("jobs",): {"completed": _INT}
    | _floats("per_hour", "per_hour_per_user", "per_hour_per_gpu")
    | _floats(*(f"{part}_time_share" for part in ("tool", "human", "decode", "prefill", "queue"))),
    ("jobs", "latency_s"): _DISTRIBUTION,
    ("jobs", "speedup_by_decode"): _floats("2x", "5x", "10x"),
    ("power",): _floats(
        "watts_mean", "joules", "joules_per_output_token", "joules_per_total_token", "joules_per_job", "idle_watts"
    )
    | {"source": _TEXT},
    ("client",): {"rss_bytes_max": _INT, "saturated": _BOOL, "limited": _BOOL, "unsent": _INT},
    ("client", "send_lag_s"): _DISTRIBUTION,
    ("client", "loop_lag_s"): _floats("p99", "max"),
    ("client", "cpu_util"): _floats("mean", "max"),
    ("network", "rtt_s"): _floats("min", "p50", "p99", "max"),
    ("network", "ttft_less_rtt_s"): _floats("mean", *_QUANTILES),
    ("network", "clock_offset_s"): _floats("estimate", "low", "high"),
}
"""Groups of summary.json and the figures in them."""
_GROUPS = [(group, itemgetter(*names)) for group, names in FIGURES.items()]

INTERVALS = (
    *(f"latency.{name}.{q}" for name in _WITH_INTERVAL for q in ("mean", "p50", "p90", "p99")),
    *(f"interactivity.e2e_normalised.{q}" for q in ("p50", "p90", "p99")),
    "cache.achieved",
    "cache.theoretical",
    *(f"throughput.{name}" for name in ("input_tok_s", "output_tok_s", "total_tok_s", "requests_s")),
)
"""Keys of summary.json `intervals`."""

_IDENTITY: dict[str, pa.DataType] = {
    "run_id": _TEXT,
    "folder": _TEXT,
    "status": _TEXT,
    "valid": _BOOL,
    "problem": _TEXT,
    "scenario": _TEXT,
    "concurrency": _INT,
    "duration_s": _FLOAT,
    "steady_s": _FLOAT,
    "started_utc": pa.timestamp("us"),
    "model": _TEXT,
    "engine": _TEXT,
    "engine_version": _TEXT,
    "endpoint": _TEXT,
    "corpus": _TEXT,
    "corpus_digest": _TEXT,
    "plan_digest": _TEXT,
    "seed": _INT,
    "sweep": _TEXT,
    "point": _TEXT,
    "configuration": _TEXT,
    "host": _TEXT,
    "agentx_version": _TEXT,
    "schema_version": _INT,
    "invalid_reasons": _TEXTS,
    "warnings": _TEXTS,
    "not_submission": _TEXTS,
    "rules": _TEXT,
    "serving": _TEXT,
    "reasons": _TEXT,
}

COLUMNS: dict[str, pa.DataType] = {
    **_IDENTITY,
    **{"_".join((*group, name)): kind for group, names in FIGURES.items() for name, kind in names.items()},
    **{f"{key.replace('.', '_')}_{end}": _FLOAT for key in INTERVALS for end in ("low", "high")},
}
"""Every column of the table of runs and its Arrow type."""
_WHOLE = {int, type(None)}
SCHEMA = pa.schema(list(COLUMNS.items()))

_BATCH = 512
"""Rows held as Python objects at a time: more of them are slower, for the garbage collector goes through them all."""


def _wanted() -> Any:
    """A type for `scan`: the keys of summary.json that are columns, and no others."""
    keys: dict[str, Any] = dict.fromkeys((*_IDENTITY, "schema", "intervals"), Any)
    for group, names in FIGURES.items():
        node = keys
        for name in group:
            node = node.setdefault(name, {})
        node |= dict.fromkeys(names, Any)
    return _typed("Summary", keys)


def _typed(name: str, keys: dict[str, Any]) -> Any:
    nested = {key: _typed(f"{name}_{key}", kind) if isinstance(kind, dict) else kind for key, kind in keys.items()}
    return TypedDict(name, nested, total=False)  # type: ignore[operator]


WANTED = _wanted()


def runs_table(runs: Iterable[RunFiles | Unread]) -> pa.Table:
    """One row for each run, also for those that can't be used (`problem` says why, their figures are null).

    `runs` is gone through once; of each, only its row is kept.
    """
    each = iter(runs)
    batches = []
    while rows := [_row(run) for run in islice(each, _BATCH)]:
        columns = zip(zip(*rows, strict=True), COLUMNS.values(), strict=True)
        batches.append(pa.record_batch([_array(values, kind) for values, kind in columns], schema=SCHEMA))
    table = pa.Table.from_batches(batches, SCHEMA)
    return pa.table([_finite(column) for column in table.columns], schema=SCHEMA)


def _row(run: RunFiles | Unread) -> list[Any]:
    summary = run.summary if isinstance(run, RunFiles) else {}
    row = [*_identity(run, summary)]
    for group, values_of in _GROUPS:
        figures: Any = summary
        try:
            for name in group:
                figures = figures[name]
            row += values_of(figures)
        except (LookupError, TypeError):  # not all are there
            known = _section(summary, *group)
            row += [known.get(name) for name in FIGURES[group]]
    intervals = _section(summary, "intervals")
    for key in INTERVALS:
        ends = intervals.get(key)
        row += ends if type(ends) is list and len(ends) == 2 else (None, None)
    return row


def _identity(run: RunFiles | Unread, summary: dict[str, Any]) -> tuple[Any, ...]:
    """Values of `_IDENTITY`, in its order."""
    m, unread = run.manifest, run if isinstance(run, Unread) else None
    scenario, serving = _section(m, "scenario"), _section(m, "serving")
    corpus, endpoint, host, sweep = (_section(m, name) for name in ("corpus", "endpoint", "host", "sweep"))
    stack = {key: entry.get("value") for key, entry in serving.items() if type(entry) is dict}
    return (
        run.run_id,
        printable(run.folder),
        m.get("status") if unread is None else unread.status,
        summary.get("valid"),
        None if unread is None else unread.reason,
        summary.get("scenario") or scenario.get("name"),
        summary.get("concurrency") if unread is None else _section(scenario, "rules").get("concurrency"),
        summary.get("duration_s"),
        summary.get("steady_s"),
        _utc(_section(m, "clock", "start").get("utc") or host.get("started")),
        endpoint.get("model"),
        stack.get("engine"),
        stack.get("version") or endpoint.get("server_version"),
        endpoint.get("url"),
        corpus.get("name"),
        corpus.get("digest"),
        _section(m, "plan").get("digest"),
        m.get("seed"),
        sweep.get("sweep"),
        m.get("point"),
        sweep.get("configuration"),
        host.get("name"),
        _section(m, "packages").get("agentx-live"),
        (summary or m).get("schema"),
        _texts(summary.get("invalid_reasons")),
        _texts(summary.get("warnings")),
        _texts(summary.get("not_submission")),
        _json(scenario.get("rules")),
        _json(stack),
        _json(summary.get("reasons")),
    )


def _section(document: Any, *path: str) -> dict[str, Any]:
    """The object at a path; empty where there is none."""
    for name in path:
        document = document.get(name) if type(document) is dict else None
    return document if type(document) is dict else {}


def _json(document: Any) -> str | None:
    return msgspec.json.encode(document).decode() if document and type(document) is dict else None


def _texts(value: Any) -> list[str] | None:
    return [str(text) for text in value] if type(value) is list else None


def _utc(text: Any) -> datetime | None:
    try:
        stamp = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return stamp.astimezone(UTC).replace(tzinfo=None) if stamp.tzinfo else stamp


def _array(values: tuple[Any, ...], kind: pa.DataType) -> pa.Array:
    """A column; what does not fit its type is null."""
    try:
        if kind != _INT or {type(value) for value in values} <= _WHOLE:  # Arrow would take 2.5 for 2
            return pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        pass
    return pa.array([value if _fits(value, kind) else None for value in values], kind)


def _finite(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_finite(column), column, None) if column.type == _FLOAT else column


def _fits(value: Any, kind: pa.DataType) -> bool:
    if kind == _INT and type(value) not in _WHOLE:
        return False
    try:
        pa.array((value,), kind)
    except (pa.ArrowException, OverflowError):
        return False
    return True
