"""The weka trace format: one JSON object per session, block hashes instead of text (FACTS section 1.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

MAX_TOKENS = 1 << 40
"""More tokens than this in one request is a broken number."""


class WekaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request entry; times in seconds, absent is None."""

    t: float
    type: str
    in_: int = msgspec.field(name="in")
    out: int
    hash_ids: list[int]
    model: str | None = None
    input_types: list[str] | None = None
    output_types: list[str] | None = None
    stop: str | None = None
    api_time: float | None = None
    think_time: float | None = None
    ttft: float | None = None


class WekaSubagent(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-agent entry with its own requests."""

    t: float
    requests: list[WekaRequest]
    agent_id: str | None = None
    duration_ms: float | None = None
    tool_tokens: int | None = None
    system_tokens: int | None = None


class WekaTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A session; its entries are told apart by their `type`."""

    block_size: int
    requests: list[msgspec.Raw]
    id: str | None = None
    hash_id_scope: str = "local"
    tool_tokens: int | None = None
    system_tokens: int | None = None


class _Kind(msgspec.Struct, frozen=True):
    type: str


Row = dict[str, Any]


class Malformed(ValueError):
    """A trace that can't be used; the text says where and why."""


class Decoded(NamedTuple):
    """One trace: rows (CONTRACT: "Corpus file") ordered by lane and turn, and the fields nobody knows, counted."""

    session: str
    rows: list[Row]
    unknown: Counter[str]


_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_USED = {f.encode_name for t in (WekaTrace, WekaRequest, WekaSubagent) for f in msgspec.structs.fields(t)}
_KNOWN = _USED | {"models", "totals", "subagent_type", "total_tokens", "tool_use_count", "status"}
"""The documented fields, also those that a replay does not need."""
_trace = msgspec.json.Decoder(WekaTrace).decode
_kind = msgspec.json.Decoder(_Kind).decode
_request = msgspec.json.Decoder(WekaRequest).decode
_subagent = msgspec.json.Decoder(WekaSubagent).decode


def decode(data: bytes, fallback_id: str) -> Decoded:
    """Read one trace; `fallback_id` names it where it has no id. Raises Malformed."""
    try:
        trace = _trace(data)
        entries = [_entry(raw) for raw in trace.requests]
        unknown = _unknown(data, trace)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
    if trace.hash_id_scope != "local":
        raise Malformed(f"hash_id_scope is {trace.hash_id_scope!r}: ids must be local to the trace")
    if not 1 <= trace.block_size <= 65_536:
        raise Malformed(f"block_size {trace.block_size}")
    session = trace.id or fallback_id
    main = [(number, entry) for number, entry in enumerate(entries) if isinstance(entry, WekaRequest)]
    if not main:
        raise Malformed("no requests")
    rows = _lane(session, "main", [(f"requests[{n}]", r, r.t) for n, r in main], trace, trace)
    _check_order(rows)
    names: Counter[str] = Counter({"main": 1})
    for number, entry in enumerate(entries):
        if isinstance(entry, WekaSubagent) and entry.requests:
            rows += _child(session, number, entry, trace, rows[: len(main)], names)
    return Decoded(session, rows, unknown)


def _unknown(data: bytes, trace: WekaTrace) -> Counter[str]:
    """Names of top-level and entry fields that this reader does not know."""
    names = Counter(name for raw in (data, *trace.requests) for name in _keys(raw))
    return Counter({name: count for name, count in names.items() if name not in _KNOWN})


def _entry(raw: msgspec.Raw) -> WekaRequest | WekaSubagent:
    return _subagent(raw) if _kind(raw).type == "subagent" else _request(raw)


def _check_order(rows: list[Row]) -> None:
    """Turns are the file's order; a start that runs backwards would make causes follow their effects."""
    for earlier, later in pairwise(rows):
        if later["start_s"] < earlier["start_s"]:
            raise Malformed(f"requests[{later['turn']}] starts before the one ahead of it")


def _child(
    session: str, number: int, entry: WekaSubagent, trace: WekaTrace, main: list[Row], names: Counter[str]
) -> list[Row]:
    spawned = _time(entry.t, f"requests[{number}].t")
    # Two conventions: relative to the spawn, or absolute in session time. One child earlier than the spawn settles it.
    shift = spawned if min(r.t for r in entry.requests) < spawned else 0.0
    base = entry.agent_id or f"agent-{number}"
    lane = base if not names[base] else f"{base}#{names[base] + 1}"
    names[base] += 1
    requests = sorted(enumerate(entry.requests), key=lambda pair: pair[1].t)
    named = [(f"requests[{number}].requests[{k}]", r, r.t + shift) for k, r in requests]
    rows = _lane(session, lane, named, trace, entry)
    end = max(row["start_s"] + (row["api_s"] or 0.0) for row in rows)
    if entry.duration_ms is not None and math.isfinite(entry.duration_ms):
        end = max(end, spawned + entry.duration_ms / 1e3)
    spawn = max((row["turn"] for row in main if row["start_s"] <= rows[0]["start_s"]), default=0)
    join = min((row["turn"] for row in main if row["start_s"] >= end and row["turn"] > spawn), default=None)
    for row in rows:
        row.update(parent_lane_id="main", spawn_turn=spawn, join_turn=join)
    return rows


def _lane(
    session: str,
    lane: str,
    requests: list[tuple[str, WekaRequest, float]],
    trace: WekaTrace,
    sizes: WekaTrace | WekaSubagent,
) -> list[Row]:
    return [
        {
            "session_id": session,
            "lane_id": lane,
            "parent_lane_id": None,
            "spawn_turn": None,
            "join_turn": None,
            "turn": turn,
            "start_s": _time(start, f"{where}.t"),
            "think_s": _optional_time(r.think_time, f"{where}.think_time"),
            "api_s": _optional_time(r.api_time, f"{where}.api_time"),
            "ttft_s": _optional_time(r.ttft, f"{where}.ttft"),
            "input_tokens": _tokens(r.in_, f"{where}.in"),
            "output_tokens": _tokens(r.out, f"{where}.out"),
            "block_size": trace.block_size,
            "blocks": _runs(r, trace.block_size, where),
            "system_tokens": _optional_tokens(sizes.system_tokens, "system_tokens"),
            "tool_tokens": _optional_tokens(sizes.tool_tokens, "tool_tokens"),
            "model": r.model,
            "stop": r.stop,
            "streamed": {"s": True, "n": False}.get(r.type),
            "input_kinds": r.input_types,
            "output_kinds": r.output_types,
        }
        for turn, (where, r, start) in enumerate(requests)
    ]


def _runs(request: WekaRequest, block_size: int, where: str) -> list[tuple[int, int]]:
    ids = request.hash_ids
    whole = request.in_ // block_size
    if len(ids) != whole and len(ids) != -(-request.in_ // block_size):
        raise Malformed(f"{where}: {len(ids)} hash_ids for {request.in_} tokens, expected {whole}")
    return list(_pack(ids))


def _pack(ids: list[int]) -> Iterator[tuple[int, int]]:
    if not ids:
        return
    if max(ids) >= 1 << 62 or min(ids) <= -(1 << 62):
        raise Malformed("a hash id beyond 62 bits")
    first, count = ids[0], 1
    for block in ids[1:]:
        if block == first + count:
            count += 1
        else:
            yield first, count
            first, count = block, 1
    yield first, count


def _time(value: float, where: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise Malformed(f"{where} is {value}")
    return value


def _optional_time(value: float | None, where: str) -> float | None:
    return None if value is None else _time(value, where)


def _tokens(value: int, where: str) -> int:
    if not 0 <= value < MAX_TOKENS:
        raise Malformed(f"{where} is {value}")
    return value


def _optional_tokens(value: int | None, where: str) -> int | None:
    return None if value is None else _tokens(value, where)
