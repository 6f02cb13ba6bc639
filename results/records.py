"""The row formats of the journal, as numpy structured types.

Workers append rows of these types, little endian, to plain files; the parent turns whole files into Arrow columns
without making a Python object per row. Missing integers are -1 here and null in Parquet; times are nanoseconds since
the run's start on one monotonic clock (`-1` missing).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag

import numpy as np

SCHEMA_VERSION = 1
MISSING = -1
CHUNK_UNIT_NS = 100
"""Chunk arrival offsets are uint32 in units of 100 ns after `sent_ns`: 429 s of range, then saturating."""


class Phase(IntEnum):
    """Part of the run in which a request was sent."""

    WARMUP = 0
    STEADY = 1
    DRAIN = 2


class Status(IntEnum):
    """How a request ended; only `OK` enters latency figures."""

    OK = 0
    HTTP_ERROR = 1
    CONNECT_ERROR = 2
    TIMEOUT = 3
    STREAM_ERROR = 4
    TRUNCATED = 5
    CONTEXT_OVERFLOW = 6
    CANCELLED = 7


class Finish(IntEnum):
    """`finish_reason` as the server gave it; `OTHER` keeps unknown words apart from silence."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    TOOL_CALLS = 3
    CONTENT_FILTER = 4
    ABORT = 5
    OTHER = 6


class Flag(IntFlag):
    """What was unusual about an answer without deciding its status."""

    NO_DONE = 1
    """No end marker, although a finish reason came."""
    UNTERMINATED_TAIL = 2
    """The last event had no closing blank line."""
    PARSE_ERROR = 4
    """At least one event could not be decoded."""
    SHORT_OUTPUT = 8
    """Fewer output tokens than were forced."""
    USAGE_MISMATCH = 16
    """Usage and the number of content chunks contradict each other."""
    NO_USAGE = 32
    """The server sent no usage: token counts are null."""
    STALE_CONNECTION = 64
    """A kept-alive connection was found dead before any byte of the answer; sent again on a fresh one."""
    NEW_CONNECTION = 128
    """A connection was opened for this request."""
    COALESCED = 256
    """Some content chunks shared one read and so one arrival time."""
    COMPRESSED = 512
    """The answer was compressed although identity was asked for."""
    EMPTY = 1024
    """The stream ended well but held no content."""
    SATURATED_OFFSET = 2048
    """A chunk came later than an offset can say."""
    SHARED_HEAD = 4096
    """The prompt begins with the tools and system prompt that the trace shares between sessions."""
    HUMAN_TURN = 8192
    """A person began this turn: the pause before it is theirs, not a tool's."""
    LIVE_HISTORY = 16384
    """The newest answer in the prompt is what the server really said."""
    REASONING_DROPPED = 32768
    """The model thought before it said that answer, and the thought is not in the prompt."""
    RECORDED_INSTEAD = 65536
    """The newest answer in the prompt was to be the server's own, but could not be used: it has the recorded words."""


class TreeEnd(IntEnum):
    """How a session tree ended."""

    COMPLETED = 0
    CUT_OFF = 1
    OVERFLOW = 2
    FAILED = 3


_I8, _I4, _I2 = "<i8", "<i4", "<i2"

REQUEST = np.dtype(
    [
        ("seq", "<u4"),
        ("session", _I4),
        ("lane", _I4),
        ("turn", _I4),
        ("pass", _I4),
        ("slot", _I4),
        ("phase", "u1"),
        ("status", "u1"),
        ("finish", "u1"),
        ("kernel_stamps", "u1"),
        ("http_status", _I2),
        ("flags", "<u4"),
        ("scheduled_ns", _I8),
        ("sent_ns", _I8),
        ("headers_ns", _I8),
        ("first_token_ns", _I8),
        ("first_text_ns", _I8),
        ("last_token_ns", _I8),
        ("done_ns", _I8),
        ("planned_input_tokens", _I4),
        ("planned_output_tokens", _I4),
        ("input_tokens", _I4),
        ("output_tokens", _I4),
        ("reasoning_tokens", _I4),
        ("cached_tokens", _I4),
        ("theoretical_cached_tokens", _I4),
        ("output_chunks", _I4),
        ("first_chunk_tokens", _I4),
        ("parse_errors", _I4),
        ("coalesced_chunks", _I4),
        ("connect_ns", _I8),
        ("chunk_start", _I8),
        ("chunk_count", _I4),
        ("error", "S192"),
    ]
)
"""One row per request sent. `connect_ns` is a duration; `chunk_*` is the range in the worker's chunk file."""

TREE = np.dtype(
    [
        ("session", _I4),
        ("pass", _I4),
        ("slot", _I4),
        ("end", "u1"),
        ("partial", "u1"),
        ("planned_requests", _I4),
        ("sent_requests", _I4),
        ("started_ns", _I8),
        ("ended_ns", _I8),
    ]
)
"""One row per session tree replayed, written when it ends (or at the cut-off). `partial`: it began mid-session."""

CLIENT = np.dtype(
    [
        ("t_ns", _I8),
        ("loop_lag_p99_ns", _I8),
        ("loop_lag_max_ns", _I8),
        ("send_lag_max_ns", _I8),
        ("cpu_ns", _I8),
        ("wall_ns", _I8),
        ("rss_bytes", _I8),
        ("reads", _I8),
        ("read_bytes", _I8),
        ("backlog_max_bytes", _I8),
        ("sockets", _I4),
        ("in_flight", _I4),
        ("connects", _I4),
        ("stale_retries", _I4),
    ]
)
"""The worker measuring itself once a second: maxima and sums of the interval that ends at `t_ns`."""


def lane_name(names: Sequence[str], lane: int) -> str:
    """Name of a row's lane: the corpus' own, or `LANE:fa3` and `LANE:aux3` for agents and side calls found in it.

    Lanes that the replay found in a recorded lane are numbered beyond the corpus' names: the recorded lane's number
    plus len(names) times twice the chain's, plus one more for side calls.
    """
    base, k = lane % len(names), lane // len(names)
    return names[base] if not k else f"{names[base]}:{'aux' if k % 2 else 'fa'}{k // 2}"
