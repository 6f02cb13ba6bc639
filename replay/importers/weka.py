"""The weka trace format: one JSON object per session, block hashes instead of text (FACTS section 1.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from replay.importers.decoded import Decoded, Malformed, Row, distinct

MAX_TOKENS = 1 << 31
"""More tokens than this in one request is a broken number."""
MAX_ID = 200
"""Characters of an id; it is repeated in every row."""
ROUNDING_S = 0.01
"""Recorded times are rounded: this much before its spawn a child is still "at" it."""


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
    requests: list[msgspec.Raw]
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


T = TypeVar("T")


class _Group(NamedTuple):
    """A sub-agent as written: its rows' times are not yet the session's."""

    spawned_s: float
    duration_s: float
    rows: list[Row]


_USED = {f.encode_name for t in (WekaTrace, WekaRequest, WekaSubagent) for f in msgspec.structs.fields(t)}
_KNOWN = _USED | {"models", "totals", "subagent_type", "total_tokens", "tool_use_count", "status"}
"""The documented fields, also those that a replay does not need."""
_keys = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_trace = msgspec.json.Decoder(WekaTrace).decode
_kind = msgspec.json.Decoder(_Kind).decode
_request = msgspec.json.Decoder(WekaRequest).decode
_subagent = msgspec.json.Decoder(WekaSubagent).decode


def decode(data: bytes, fallback_id: str) -> Decoded:
    """Read one trace; `fallback_id` names it where it has no id. Raises Malformed.

    A request's block ids are packed before the next request is read: memory holds one request's list, not a trace's.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    trace = _typed(_trace, data, "")
    if trace.hash_id_scope != "local":
        raise Malformed(f"hash_id_scope is {trace.hash_id_scope[:MAX_ID]!r}: ids must be local to the trace")
    if not 1 <= trace.block_size <= 65_536:
        raise Malformed(f"block_size is {trace.block_size}")
    session = _name(trace.id, "id") or fallback_id
    unknown = _unknown(data)
    main: list[Row] = []
    groups: list[_Group] = []
    lanes = {"main": 1}
    for number, raw in enumerate(trace.requests):
        where = f"requests[{number}]"
        unknown += _unknown(raw)
        if _typed(_kind, raw, where).type == "subagent":
            entry = _typed(_subagent, raw, where)
            for inner in entry.requests:
                unknown += _unknown(inner)
            if entry.requests:
                lane = distinct(_name(entry.agent_id, f"{where}.agent_id") or f"agent-{number}", lanes)
                groups.append(_group(session, lane, where, entry, trace))
        else:
            main.append(_row(session, "main", len(main), raw, where, trace, trace))
            if main[-1]["start_s"] < main[-2:][0]["start_s"]:
                # Turns are the file's order: a start that runs backwards would make causes follow their effects.
                raise Malformed(f"{where} starts before the one ahead of it")
    if not main:
        raise Malformed("no requests")
    _place(groups, main)
    return Decoded(session, main + [row for group in groups for row in group.rows], unknown)


def _typed(decoder: Callable[[Any], T], data: bytes | msgspec.Raw, where: str) -> T:
    try:
        return decoder(data)
    except RecursionError as error:
        raise Malformed(f"{where}: nested too deeply".removeprefix(": ")) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error).replace("`$", f"`{where}").replace("`.", "`")
        raise Malformed(reason if f"`{where}" in reason or not where else f"{where}: {reason}") from error


def _unknown(raw: bytes | msgspec.Raw) -> Counter[str]:
    """Names of an object's fields that this reader does not know."""
    return Counter(name[:MAX_ID] for name in _typed(_keys, raw, "") if name not in _KNOWN)


def _name(value: str | None, where: str) -> str | None:
    if value is not None and len(value) > MAX_ID:
        raise Malformed(f"{where} has {len(value):,} characters, at most {MAX_ID} make sense")
    return value


def _group(session: str, lane: str, where: str, entry: WekaSubagent, trace: WekaTrace) -> _Group:
    rows = [_row(session, lane, 0, raw, f"{where}.requests[{k}]", trace, entry) for k, raw in enumerate(entry.requests)]
    rows.sort(key=lambda row: row["start_s"])
    duration = _optional_time(entry.duration_ms, f"{where}.duration_ms") or 0.0
    return _Group(_time(entry.t, f"{where}.t"), duration / 1e3, rows)


def _place(groups: list[_Group], main: list[Row]) -> None:
    """Put children into session time and between the parent's turns.

    Two conventions exist, and a trace follows one of them: nested times relative to the spawn, or absolute. A child
    earlier than its spawn says relative; where a trace's groups disagree, the reading that leaves children closer to
    their spawns.
    """
    firsts = [(g.rows[0]["start_s"], g.spawned_s) for g in groups]
    early = [first < spawned - ROUNDING_S for first, spawned in firsts]
    nearer = sum(first for first, _ in firsts) < sum(abs(first - spawned) for first, spawned in firsts)
    relative = all(early) or (any(early) and nearer)
    for spawned, duration, rows in groups:
        for turn, row in enumerate(rows):
            row["turn"] = turn
            row["start_s"] += spawned if relative else 0.0
        end = max(spawned + duration, *(row["start_s"] + (row["api_s"] or 0.0) for row in rows))
        spawn = max((row["turn"] for row in main if row["start_s"] <= rows[0]["start_s"]), default=0)
        join = min((row["turn"] for row in main if row["start_s"] >= end and row["turn"] > spawn), default=None)
        for row in rows:
            row.update(parent_lane_id="main", spawn_turn=spawn, join_turn=join)


def _row(
    session: str,
    lane: str,
    turn: int,
    raw: msgspec.Raw,
    where: str,
    trace: WekaTrace,
    sizes: WekaTrace | WekaSubagent,
) -> Row:
    r = _typed(_request, raw, where)
    return {
        "session_id": session,
        "lane_id": lane,
        "parent_lane_id": None,
        "spawn_turn": None,
        "join_turn": None,
        "turn": turn,
        "start_s": _time(r.t, f"{where}.t"),
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


def _runs(request: WekaRequest, block_size: int, where: str) -> list[tuple[int, int]]:
    ids = request.hash_ids
    whole, begun = request.in_ // block_size, -(-request.in_ // block_size)
    if len(ids) not in (whole, begun):
        expected = f"{whole}" if whole == begun else f"{whole} or {begun}"
        raise Malformed(f"{where}: {len(ids)} hash_ids for {request.in_} tokens, expected {expected}")
    if ids and (max(ids) >= 1 << 62 or min(ids) <= -(1 << 62)):
        raise Malformed(f"{where}: a hash id beyond 62 bits")
    return list(_pack(ids))


def _pack(ids: list[int]) -> Iterator[tuple[int, int]]:
    if not ids:
        return
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
