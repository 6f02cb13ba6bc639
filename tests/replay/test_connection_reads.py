"""However the bytes of an answer come in reads, held or not: the same times, counts and end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.connection import Connection, State
from replay.endpoint import Limits, parse_endpoint
from replay.exchange import Exchange
from replay.stream import ChatStream
from replay.transport import Transport
from results.records import Status

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def token(text: str) -> bytes:
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode()


def http_chunk(body: bytes, form: bytes = b"%x\r\n") -> bytes:
    return form % len(body) + body + b"\r\n"


CLOSING = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n',
    b"data: [DONE]\n\n",
)


class Reader:
    """A connection whose socket is read by hand."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.transport = Transport(parse_endpoint("http://127.0.0.1:1"), Limits(), loop)
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.connection = Connection(self.transport, ours, loop)
        self.connection.state = State.IDLE
        self.transport.connections.add(self.connection)
        self.done: list[Exchange] = []
        self.exchange = Exchange(ChatStream(), self.done.append)
        self.connection.start(self.exchange)
        self.now = self.began = self.connection.last_read_ns

    def read(self, data: bytes, *, handle: bool = True) -> int:
        """When `data` was read, a millisecond after the last."""
        self.now += 1_000_000
        self.connection.reads.append((data, [], self.now - 1000, self.now))
        if handle:
            self.connection.handle_reads()
        return self.now


async def with_reader(reads: Sequence[bytes], holds: Sequence[bool]) -> tuple[object, ...]:
    reader = Reader(asyncio.get_running_loop())
    for data, hold in zip(reads, holds, strict=True):
        reader.read(data, handle=not hold)
    reader.connection.handle_reads()
    stream, exchange = reader.exchange.stream, reader.exchange
    reader.transport.close()
    reader.peer.close()
    return (
        exchange.status, exchange.error, stream.finish, stream.output_tokens, stream.output_chunks, stream.parse_errors,
        stream.done_marker, exchange.flags | stream.flags, [time - reader.began for time in stream.chunk_times],
    )  # fmt: skip


TEXTS = st.text(st.sampled_from('ab é}\\n"'), min_size=1, max_size=6).map(
    lambda text: text.replace("\\", "\\\\").replace('"', '\\"')
)
FORMS = st.sampled_from([b"%x\r\n", b"%X\r\n", b"00%x\r\n", b"%x;note=1\r\n"])


@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=2), FORMS), max_size=12), st.data())
def test_reads_cut_anywhere_are_the_same_answer(chunks: list[tuple[list[str], bytes]], data: st.DataObject) -> None:
    count = sum(len(texts) for texts, _ in chunks)
    parts = [HEAD, *(http_chunk(b"".join(map(token, texts)), form) for texts, form in chunks)]
    parts += [http_chunk(event % count if b"%d" in event else event) for event in CLOSING] + [END]
    whole = b"".join(parts)
    # Cuts at some chunk edges, where reads may be held, and at some other places.
    edges = [sum(map(len, parts[:place])) for place in range(1, len(parts))]
    cuts = data.draw(st.sets(st.sampled_from(edges))) | data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=4))
    reads = [whole[low:high] for low, high in pairwise([0, *sorted(cuts), len(whole)])]
    holds = data.draw(st.lists(st.booleans(), min_size=len(reads), max_size=len(reads)))
    found = asyncio.run(with_reader(reads, holds))
    assert found[:7] == asyncio.run(with_reader([whole], [False]))[:7]
    assert found == asyncio.run(with_reader(reads, [False] * len(reads)))
    assert found[0] is (Status.OK if count else Status.STREAM_ERROR)


@pytest.mark.parametrize(
    "odd",
    [
        http_chunk(token("a"))[:-2] + b"xy",  # no line end after the chunk
        http_chunk(token("a"), b"%x0\r\n"),  # a size that is not the size
        b"-" + http_chunk(token("a")),
        b" " + http_chunk(token("a")),
    ],
)
def test_bytes_that_are_no_chunk_are_the_parser_s_to_judge(odd: bytes) -> None:
    async def run() -> tuple[Exchange, Exchange]:
        ends = []
        for first in (HEAD + b"".join(http_chunk(token(text)) for text in "ab"), HEAD):
            reader = Reader(asyncio.get_running_loop())
            reader.read(first)
            assert reader.connection.hold or first == HEAD
            reader.read(odd)
            reader.read(http_chunk(CLOSING[2]) + END)
            reader.read(b"")
            ends.append(reader.exchange)
            reader.transport.close()
            reader.peer.close()
        return ends[0], ends[1]

    known, fresh = asyncio.run(run())
    assert known.status is fresh.status
    assert (known.error or "").split(" after")[0] == (fresh.error or "").split(" after")[0]
    assert known.stream.output_chunks == fresh.stream.output_chunks + 2


@pytest.mark.parametrize("how", ["cancelled", "end of file", "connection reset"])
def test_what_was_held_counts_however_the_answer_ends(how: str) -> None:
    async def run() -> tuple[Exchange, int]:
        reader = Reader(asyncio.get_running_loop())
        reader.read(HEAD)
        for text in "abcd":
            last = reader.read(http_chunk(token(text)), handle=text == "a")
        assert reader.connection.hold, "nothing could be held: the test shows nothing"
        assert reader.exchange.stream.output_chunks == 1
        if how == "cancelled":
            reader.transport.cancel(reader.exchange, Status.CANCELLED, "the run ended")
        elif how == "end of file":
            reader.read(b"")
        else:
            reader.connection.lost(ConnectionResetError("reset"))
        assert reader.done == [reader.exchange]
        reader.transport.close()
        reader.peer.close()
        return reader.exchange, last

    exchange, last = asyncio.run(run())
    assert exchange.status in (Status.CANCELLED, Status.TRUNCATED)
    assert exchange.stream.output_chunks == 4
    assert exchange.stream.last_token_ns == last


def test_an_answer_whose_end_was_held_when_it_was_cancelled_is_whole() -> None:
    async def run() -> Exchange:
        reader = Reader(asyncio.get_running_loop())
        reader.read(HEAD + http_chunk(token("a")))
        closing = [http_chunk(event % 1 if b"%d" in event else event) for event in CLOSING]
        reader.read(b"".join(closing) + END, handle=False)
        reader.transport.cancel(reader.exchange, Status.CANCELLED, "the run ended")
        assert reader.done == [reader.exchange]
        assert reader.connection.state is State.IDLE
        reader.transport.close()
        reader.peer.close()
        return reader.exchange

    assert asyncio.run(run()).status is Status.OK
