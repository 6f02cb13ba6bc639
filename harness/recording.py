"""One journal row per answer: what the plan wanted, what the transport saw, what the stream said."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from replay.exchange import Exchange
from replay.live_tree import LiveTree
from replay.scenario import Scenario
from replay.tree import Step
from results.journal import JournalWriter
from results.records import CHUNK_UNIT_NS, Flag, Phase, Status

_LAST_OFFSET = 0xFFFFFFFF
_OFFSET = np.dtype("<u4")
_NO_CHUNKS = np.zeros(0, _OFFSET)


@dataclass(frozen=True, slots=True)
class Sent:
    """What is known of a request when it is sent."""

    seq: int
    slot: int
    live: LiveTree
    step: Step
    due_ns: int
    theory: int
    input_tokens: int
    """Planned for the prompt as it was sent."""
    phase: Phase = Phase.STEADY
    primer: bool = False
    output_tokens: int = 1
    """Asked for: in the warm-up 1, else the step's."""


def judged(exchange: Exchange, scenario: Scenario) -> Status:
    """The status of an answer that is over, by the scenario's rules too."""
    status, broken = exchange.status, exchange.stream.parse_errors
    assert status is not None
    if status is Status.OK and broken and scenario.unreadable == "fail":
        exchange.status, exchange.error = Status.STREAM_ERROR, f"{broken} events could not be decoded"
        return exchange.status
    return status


def write_request(journal: JournalWriter, exchange: Exchange, sent: Sent, status: Status, t0: int) -> None:
    """Append the row of an answer that is over; `t0` is the run's zero on CLOCK_MONOTONIC."""
    stream = exchange.stream
    flags = exchange.flags | stream.flags
    if sent.live.has_shared_head(sent.step):
        flags |= Flag.SHARED_HEAD
    if sent.step.by_human:
        flags |= Flag.HUMAN_TURN
    heard = sent.live.heard(sent.step)
    if heard is not None:
        flags |= Flag.LIVE_HISTORY | (Flag.REASONING_DROPPED if heard.dropped else 0)
    elif sent.live.missed(sent.step):
        flags |= Flag.RECORDED_INSTEAD
    offsets = chunk_offsets(stream.chunk_times, exchange.sent_ns)
    if stream.last_token_ns - exchange.sent_ns > _LAST_OFFSET * CHUNK_UNIT_NS:
        flags |= Flag.SATURATED_OFFSET
    start = journal.chunks(offsets)
    sent_ns = exchange.sent_ns
    journal.request(
        seq=sent.seq,
        session=sent.live.tree.session,
        lane=sent.step.lane,
        turn=sent.step.turn,
        pass_=sent.live.number,
        slot=sent.slot,
        phase=int(sent.phase),
        status=int(status),
        finish=int(stream.finish),
        kernel_stamps=int(exchange.kernel_stamps),
        http_status=exchange.http_status,
        flags=int(flags),
        scheduled_ns=sent.due_ns,
        sent_ns=_since(sent_ns, t0),
        headers_ns=_since(exchange.headers_ns, t0),
        first_token_ns=_since(stream.first_token_ns, t0),
        first_text_ns=_since(stream.first_text_ns, t0),
        last_token_ns=_since(stream.last_token_ns, t0),
        done_ns=_since(exchange.done_ns, t0),
        planned_input_tokens=sent.input_tokens,
        planned_output_tokens=sent.output_tokens,
        input_tokens=_or_missing(stream.input_tokens),
        output_tokens=_or_missing(stream.output_tokens),
        reasoning_tokens=_or_missing(stream.reasoning_tokens),
        cached_tokens=_or_missing(stream.cached_tokens),
        theoretical_cached_tokens=sent.theory,
        output_chunks=stream.output_chunks,
        first_chunk_tokens=_or_missing(stream.first_chunk_tokens),
        parse_errors=stream.parse_errors,
        coalesced_chunks=stream.coalesced,
        connect_ns=exchange.connect_ns,
        chunk_start=start,
        chunk_count=len(offsets),
        error=exchange.error or "",
    )


def chunk_offsets(times: array[int], sent_ns: int) -> np.ndarray:
    """Arrivals since the request was sent, in units of CHUNK_UNIT_NS (uint32), held within what a row can say."""
    if not times:
        return _NO_CHUNKS
    offsets = np.frombuffer(times, dtype=np.int64) - sent_ns
    offsets //= CHUNK_UNIT_NS
    if times[-1] - sent_ns > _LAST_OFFSET * CHUNK_UNIT_NS or times[0] < sent_ns:
        np.clip(offsets, 0, _LAST_OFFSET, out=offsets)
    return offsets.astype(_OFFSET)


def _since(t_ns: int, t0: int) -> int:
    return t_ns - t0 if t_ns >= 0 else -1


def _or_missing(value: int | None) -> int:
    return -1 if value is None else value
