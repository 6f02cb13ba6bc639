"""Public failures of load generators, on the real transport."""

from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import zlib

import numpy as np
import pytest

from replay.endpoint import Limits
from replay.exchange import Exchange
from results.records import Flag, Status
from tests.raw_server import Request, Script, Writer, normal_answer, raw_server
from tests.replay.paced_server import paced_server
from tests.replay.transport_client import client, ms, run

STREAMS, TTFT_MS, ITL_MS, TOKENS = 200, 200.0, 20.0, 20


def measure_200_streams() -> tuple[np.ndarray, np.ndarray]:
    """|error| in ms of every TTFT and every gap against what the server wrote, of 200 streams at once."""
    exchanges: list[Exchange] = []

    async def main(url: str) -> None:
        async with client(url, connections=STREAMS) as c:
            exchanges.extend(await asyncio.gather(*(c.start() for _ in range(STREAMS))))

    with paced_server(TTFT_MS, ITL_MS, TOKENS) as server:
        run(main(server.url))
    first, gap = [], []
    for number, exchange in enumerate(exchanges, 1):
        truth, stream = server.written[f"r-{number}"], exchange.stream
        assert exchange.status is Status.OK
        assert exchange.kernel_stamps
        assert len(truth) == stream.output_chunks == TOKENS
        first.append(ms(truth[0], stream.first_token_ns))
        gap.append((ms(stream.first_token_ns, stream.last_token_ns) - ms(truth[0], truth[-1])) / (TOKENS - 1))
    return np.abs(first), np.abs(gap)


def test_c16_at_200_streams_ttft_and_itl_are_the_servers_own() -> None:
    """A peer is 133 ms off here. Of three attempts the best, since others use the machine too: what is measured is
    the error against the server's own writes, and a client that queues errs every time."""
    attempts = [measure_200_streams() for _ in range(3)]
    assert min(float(np.percentile(first, 99)) for first, _ in attempts) < 1.0
    assert min(float(np.percentile(gap, 99)) for _, gap in attempts) < 0.1


@pytest.mark.parametrize("keep_alive_s", [4.0, 60.0], ids=["ours-is-shorter", "the-servers-is-shorter"])
def test_c20_a_server_that_closes_idle_connections_costs_no_request(keep_alive_s: float) -> None:
    """Its keep-alive is 5 s, the pause 6 s, here a tenth. Also where we would have kept the connection for longer."""

    async def main() -> None:
        limits = Limits(keep_alive_s=keep_alive_s / 10)
        async with raw_server(normal_answer, idle_s=0.5) as server, client(server.url, limits) as c:
            for _ in range(4):
                assert (await c.ask()).status is Status.OK
                await asyncio.sleep(0.6)
            assert len(server.requests) == 4  # none was sent twice

    run(main())


def test_c20_a_reset_after_a_byte_of_the_answer_is_not_sent_again() -> None:
    """The server has begun to work on it: a repeat would be a second, hidden load."""

    async def script(request: Request, writer: Writer) -> None:
        if len(heads) == 1:
            heads.append(request.head)
            await writer.raw(b"HTTP/1.1 200 OK\r\ncontent-")
            await asyncio.sleep(0.02)
            writer.reset()
            return
        heads.append(request.head)
        await normal_answer(request, writer)

    heads: list[bytes] = []

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            assert (await c.ask()).status is Status.OK
            broken = await c.ask()
            assert broken.reused
            assert broken.status is Status.TRUNCATED
            assert not broken.flags & Flag.STALE_CONNECTION
            assert len(server.requests) == 2
            assert c.transport.stale_retries == 0

    run(main())


def test_c20_a_second_death_of_the_connection_is_a_failure() -> None:
    """One transparent repeat, not a loop against a server that dies of the request."""

    async def script(request: Request, writer: Writer) -> None:
        if len(server_saw) == 0:
            server_saw.append(0)
            await normal_answer(request, writer)
        else:
            server_saw.append(1)
            writer.reset()

    server_saw: list[int] = []

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            assert (await c.ask()).status is Status.OK
            dead = await c.ask()
            assert dead.status is Status.CONNECT_ERROR
            assert dead.flags & Flag.STALE_CONNECTION
            assert len(server.requests) == 3

    run(main())


@pytest.mark.parametrize("kind", [b"application/json", b"text/html", b"text/event-stream"])
def test_c15_a_compressed_error_is_read(kind: bytes) -> None:
    """A gateway compresses its error page although nobody asked for it: the reason is still a line of text."""
    text = b'{"error":{"message":"the queue is full"}}' if kind == b"application/json" else b"the queue is full"
    body = gzip.compress(text)

    async def script(request: Request, writer: Writer) -> None:
        head = b"HTTP/1.1 503 Busy\r\ncontent-type: %b\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
        await writer.raw(head % (kind, len(body)))
        for k in range(len(body)):
            await writer.raw(body[k : k + 1])

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert (exchange.status, exchange.http_status) == (Status.HTTP_ERROR, 503)
            assert "the queue is full" in str(exchange.error)
            assert exchange.flags & Flag.COMPRESSED

    run(main())


def test_c15_a_compressed_error_that_is_none_keeps_its_status() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 502 Bad\r\ncontent-encoding: gzip\r\ncontent-length: 9\r\n\r\nnot gzip!")

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert (exchange.status, exchange.http_status) == (Status.HTTP_ERROR, 502)
            assert "502" in str(exchange.error)

    run(main())


def compressed(*, flush_each: bool, step_ms: float) -> Script:
    """A gzip stream of five tokens, each given to the compressor `step_ms` after the other."""

    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        packer = zlib.compressobj(wbits=31)
        token = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
        end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        for k in range(5):
            await writer.at(step_ms * (k + 1))
            data = packer.compress(token) + (packer.flush(zlib.Z_SYNC_FLUSH) if flush_each else b"")
            if data:
                await writer.chunk(data)
        await writer.chunk(packer.compress(end) + packer.flush(zlib.Z_FINISH))
        await writer.end()

    return script


@pytest.mark.parametrize("flush_each", [True, False], ids=["flushed-per-event", "held-to-the-end"])
def test_p69_a_compressed_stream_is_decoded_as_it_comes_and_what_was_held_back_shows(flush_each: bool) -> None:
    async def main() -> None:
        async with raw_server(compressed(flush_each=flush_each, step_ms=30)) as server, client(server.url) as c:
            exchange = await c.ask()
            stream = exchange.stream
            assert server.requests[0].headers["accept-encoding"] == "identity"
            assert exchange.status is Status.OK
            assert exchange.flags & Flag.COMPRESSED
            assert stream.output_chunks == 5
            decoding = ms(stream.first_token_ns, stream.last_token_ns)
            if flush_each:
                assert decoding == pytest.approx(120, abs=30)
                assert not stream.flags & Flag.COALESCED
            else:
                assert decoding == 0
                assert stream.flags & Flag.COALESCED
                assert ms(exchange.sent_ns, stream.first_token_ns) >= 149

    run(main())


def test_p60_used_up_ports_have_an_error_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace with few ports is not to be had everywhere: the kernel's answer is given in its place."""

    class Exhausted(socket.socket):
        def connect(self, address: object) -> None:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    async def main() -> None:
        async with raw_server(normal_answer) as server, client(server.url) as c:
            monkeypatch.setattr(socket, "socket", Exhausted)
            exchange = await c.ask()
            assert exchange.status is Status.CONNECT_ERROR
            assert "no local port left" in str(exchange.error)
            assert "keep-alive" in str(exchange.error)
            monkeypatch.undo()
            assert (await c.ask()).status is Status.OK  # the pool is whole again
            assert c.transport.in_flight == 0

    run(main())


def test_p55_500_turns_with_pauses_around_the_servers_keep_alive_lose_none() -> None:
    """Twenty-five conversations; the server closes what idles for 0.2 s, the pauses are just below, at, above and far
    above it, and we would keep connections for longer."""
    pauses = (0.18, 0.2, 0.22, 0.6)

    async def main() -> None:
        limits = Limits(keep_alive_s=60)
        async with raw_server(normal_answer, idle_s=0.2) as server, client(server.url, limits) as c:

            async def conversation(number: int) -> list[Exchange]:
                out = []
                for turn in range(20):
                    out.append(await c.ask())
                    await asyncio.sleep(pauses[(number + turn) % len(pauses)])
                return out

            everything = await asyncio.gather(*(conversation(k) for k in range(25)))
            exchanges = [exchange for one in everything for exchange in one]
            assert len(exchanges) == 500
            assert {exchange.status for exchange in exchanges} == {Status.OK}
            assert len(server.requests) == 500  # none reached the server twice
            again = [exchange for exchange in exchanges if exchange.flags & Flag.STALE_CONNECTION]
            assert len(again) == c.transport.stale_retries
            assert all(exchange.connect_ns > 0 for exchange in again)

    run(main())
