"""Requests and answers on the real transport: connections, limits, broken and odd answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic_ns, sleep

import pytest

from replay.endpoint import Limits
from replay.stream import ChatStream
from results.records import Flag, Status
from tests.raw_server import (
    Request,
    Writer,
    delta,
    finish,
    normal_answer,
    raw_server,
    usage,
)
from tests.replay.transport_client import Client, client, ms, run


def test_a_normal_answer_is_timed_by_the_kernel() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.head()
        await writer.event(delta(role="assistant", content=""))
        await writer.at(40)
        await writer.event(delta(content=" a"))
        wrote.append(writer.written[-1][0])
        await writer.at(60)
        await writer.event(delta(content=" b"))
        wrote.append(writer.written[-1][0])
        await writer.event(finish())
        await writer.event(usage(7, 2, 5))
        await writer.event("[DONE]")
        await writer.end()

    wrote: list[int] = []

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            stream = exchange.stream
            assert isinstance(stream, ChatStream)
            assert exchange.status is Status.OK
            assert exchange.kernel_stamps
            assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (7, 2, 5)
            # Against the server's own writes, which a busy machine may make late.
            assert ms(wrote[0], stream.first_token_ns) == pytest.approx(0, abs=5.0)
            assert ms(wrote[1], stream.last_token_ns) == pytest.approx(0, abs=5.0)
            assert exchange.sent_ns <= exchange.headers_ns <= stream.first_token_ns <= exchange.done_ns
            request = server.requests[0]
            assert request.headers["x-request-id"] == "r-1"
            assert request.headers["accept-encoding"] == "identity"

    run(main())


def test_a_busy_loop_does_not_inflate_arrival_times() -> None:
    async def main() -> None:
        async with client_of_blocking_server() as (c, written):
            waiting = c.start()
            await asyncio.sleep(0.02)
            sleep(0.15)  # the client's loop is stuck while the token arrives
            exchange = await waiting
            assert isinstance(exchange.stream, ChatStream)
            assert ms(written[0], exchange.stream.first_token_ns) == pytest.approx(0, abs=2.0)

    run(main())


@asynccontextmanager
async def client_of_blocking_server() -> AsyncIterator[tuple[Client, list[int]]]:
    """A server in its own thread, so that a stuck client loop does not stop it too."""
    import threading

    written: list[int] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:  # the address probe connects and leaves
            peer, _ = listener.accept()
            with peer:
                if not peer.recv(65536):
                    continue
                sleep(0.06)
                body = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
                written.append(monotonic_ns())
                peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + body)
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        async with client(f"http://127.0.0.1:{listener.getsockname()[1]}") as c:
            yield c, written
    finally:
        thread.join()
        listener.close()


def test_a_prompt_of_half_a_megabyte_arrives_whole() -> None:
    async def main() -> None:
        async with raw_server(normal_answer) as server, client(server.url) as c:
            conversation = bytearray(b"w" * 500_000)
            exchange = await c.ask((b'{"messages":"', memoryview(conversation), b'"}'))
            assert exchange.status is Status.OK
            assert server.requests[0].json() == {"messages": "w" * 500_000}
            conversation += b"grows"  # no view of it is left

    run(main())


def test_connections_are_kept_and_reused() -> None:
    async def main() -> None:
        async with raw_server(normal_answer) as server, client(server.url, connections=1) as c:
            for _ in range(5):
                assert (await c.ask()).status is Status.OK
            assert {request.connection for request in server.requests} == {2}  # 1 was the address probe

    run(main())


def test_p55_connections_closed_between_turns_are_no_failures() -> None:
    async def main() -> None:
        async with raw_server(normal_answer, idle_s=0.05) as server, client(server.url) as c:
            for pause in (0.03, 0.049, 0.05, 0.051, 0.1) * 4:
                assert (await c.ask()).status is Status.OK
                await asyncio.sleep(pause)
            assert len(server.requests) == 20

    run(main())


def test_p55_a_dead_kept_connection_gets_one_fresh_one() -> None:
    """The server closes right when the next request goes out: the reset meets a request without an answer."""
    seen: list[int] = []

    async def script(request: Request, writer: Writer) -> None:
        seen.append(request.connection)
        if len(seen) == 2:
            writer.reset()
            return
        await normal_answer(request, writer)

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            first = await c.ask()
            second = await c.ask()
            assert (first.status, second.status) == (Status.OK, Status.OK)
            assert second.flags & Flag.STALE_CONNECTION
            assert second.flags & Flag.NEW_CONNECTION
            assert second.connect_ns > 0
            assert c.transport.stale_retries == 1
            assert len(server.requests) == 3

    run(main())


def test_a_fresh_connection_that_dies_unanswered_is_a_failure() -> None:
    async def script(request: Request, writer: Writer) -> None:
        writer.reset()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert exchange.status is Status.CONNECT_ERROR
            assert len(server.requests) == 1

    run(main())


@pytest.mark.parametrize("reset", [False, True])
def test_c11_p37_a_stream_that_breaks_off_is_truncated(reset: bool) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.head()
        for _ in range(5):
            await writer.event(delta(content=" t"))
        await asyncio.sleep(0.01)
        if reset:
            writer.reset()
        else:
            writer.close()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert exchange.status is Status.TRUNCATED
            assert exchange.stream.output_chunks == 5

    run(main())


def test_answers_delimited_by_close_are_complete_when_their_end_marker_came() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for payload in (
            b'{"choices":[{"delta":{"content":"x"}}]}',
            b'{"choices":[{"delta":{},"finish_reason":"stop"}]}',
        ):
            await writer.raw(b"data: " + payload + b"\n\n")
        await writer.raw(b"data: [DONE]\n\n")
        writer.close()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            assert (await c.ask()).status is Status.OK
            assert (await c.ask()).status is Status.OK

    run(main())


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", Status.HTTP_ERROR, "503"),
        (b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", Status.HTTP_ERROR, "302"),
        (
            b"HTTP/1.1 502 Bad\r\ncontent-type: text/html\r\ncontent-length: 26\r\n\r\n<html><h1>Bad Gateway</h1>",
            Status.HTTP_ERROR,
            "502",
        ),
        (
            b"HTTP/1.1 400 Bad\r\ncontent-type: application/json\r\ncontent-length: 72\r\n\r\n"
            b'{"error":{"message":"This model\'s maximum context length is 10 tokens"}}',
            Status.CONTEXT_OVERFLOW,
            "maximum context",
        ),
        (b"HTTP/1.0 nonsense\r\n\r\n", Status.STREAM_ERROR, "HTTP"),
        (b"\x16\x03\x01garbage", Status.STREAM_ERROR, "HTTP"),
    ],
)
def test_c15_error_answers_are_errors_with_a_first_line(answer: bytes, status: Status, words: str) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(answer)
        await asyncio.sleep(0.02)
        writer.close()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert exchange.status is status
            assert exchange.error is not None
            assert words in exchange.error
            assert "\n" not in exchange.error

    run(main())


@pytest.mark.parametrize("code", [200, 201, 202])
def test_c15_any_2xx_stream_is_an_answer(code: int) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(
            b"HTTP/1.1 %d Fine\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" % code
        )
        await writer.event(delta(content="x"))
        await writer.event(finish())
        await writer.event("[DONE]")
        await writer.end()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert (exchange.status, exchange.http_status) == (Status.OK, code)

    run(main())


def test_interim_answers_are_not_the_answer() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await asyncio.sleep(0.01)
        await normal_answer(request, writer)

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert (exchange.status, exchange.http_status) == (Status.OK, 200)
            assert (await c.ask()).status is Status.OK

    run(main())


def test_p69_a_compressed_stream_is_read_and_flagged() -> None:
    import zlib

    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        packer = zlib.compressobj(wbits=31)
        for payload in (
            '{"choices":[{"delta":{"content":"x"}}]}',
            '{"choices":[{"delta":{},"finish_reason":"stop"}]}',
            "[DONE]",
        ):
            data = packer.compress(f"data: {payload}\n\n".encode()) + packer.flush(zlib.Z_SYNC_FLUSH)
            await writer.chunk(data)
        await writer.end()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            exchange = await c.ask()
            assert exchange.status is Status.OK
            assert exchange.flags & Flag.COMPRESSED

    run(main())


def test_p56_no_limit_by_default_and_an_expired_limit_says_which() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.at(700)
        await writer.head()
        await writer.event(delta(content="x"))
        await writer.at(1500)
        await writer.event(finish())
        await writer.event("[DONE]")
        await writer.end()

    async def main() -> None:
        async with raw_server(script) as server:
            async with client(server.url) as c:
                assert (await c.ask()).status is Status.OK
            async with client(server.url, Limits(first_byte_s=0.2)) as c:
                exchange = await c.ask()
                assert exchange.status is Status.TIMEOUT
                assert "no byte of the answer within 0.2 s" in str(exchange.error)
            async with client(server.url, Limits(between_bytes_s=0.3)) as c:
                exchange = await c.ask()
                assert exchange.status is Status.TIMEOUT
                assert "nothing came for 0.3 s" in str(exchange.error)

    run(main())


def test_comments_reset_the_idle_limit() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.head()
        for k in range(1, 8):
            await writer.at(100 * k)
            await writer.chunk(b": ping\n\n")
        await normal_tail(writer)

    async def normal_tail(writer: Writer) -> None:
        await writer.event(delta(content="x"))
        await writer.event(finish())
        await writer.event("[DONE]")
        await writer.end()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url, Limits(between_bytes_s=0.4)) as c:
            assert (await c.ask()).status is Status.OK

    run(main())


def test_c17_all_requests_are_in_flight_together() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.at(400)
        await normal_answer(request, writer)

    async def main() -> None:
        async with raw_server(script) as server, client(server.url, connections=500) as c:
            exchanges = await asyncio.gather(*(c.ask() for _ in range(500)))
            assert server.in_flight_peak == 500
            assert all(exchange.status is Status.OK for exchange in exchanges)

    run(main())


def test_p60_a_server_without_keep_alive_costs_connections_not_failures() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        await writer.raw(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
        writer.close()

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            for _ in range(30):
                exchange = await c.ask()
                assert exchange.status is Status.OK
                assert exchange.flags & Flag.NEW_CONNECTION
            assert c.transport.connects == 30

    run(main())


def test_cancel_at_every_stage_leaves_an_empty_pool() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.at(30)
        await writer.head()
        await writer.event(delta(content="x"))
        await asyncio.sleep(5)

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            for pause in (0.0, 0.001, 0.02, 0.06):
                waiting = c.start((b"x" * 400_000,))
                await asyncio.sleep(pause)
                c.transport.cancel_all("test")
                exchange = await waiting
                assert exchange.status is Status.CANCELLED
                assert c.transport.in_flight == 0
            c.transport.close()
            assert not c.transport.connections

    run(main())


def test_bytes_nobody_asked_for_close_the_idle_connection() -> None:
    async def script(request: Request, writer: Writer) -> None:
        await normal_answer(request, writer)
        if request.connection == 2:
            await asyncio.sleep(0.01)
            await writer.raw(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")

    async def main() -> None:
        async with raw_server(script) as server, client(server.url) as c:
            assert (await c.ask()).status is Status.OK
            await asyncio.sleep(0.05)
            assert (await c.ask()).status is Status.OK
            assert server.requests[1].connection == 3

    run(main())


def test_p68_small_writes_are_not_held_back() -> None:
    async def main() -> None:
        async with raw_server(normal_answer) as server, client(server.url, connections=1) as c:
            (connection,) = c.transport.connections
            assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(main())


def test_p63_large_bodies_do_not_delay_each_other_s_times() -> None:
    """64 bodies of 400 KB at once: what the client reports is what the server did, not its own queue."""

    async def script(request: Request, writer: Writer) -> None:
        await writer.head()
        await writer.event(delta(content="x"))
        wrote[request.headers["x-request-id"]] = writer.written[-1][0]
        await writer.event(finish())
        await writer.event("[DONE]")
        await writer.end()

    wrote: dict[str, int] = {}

    async def main() -> None:
        async with raw_server(script) as server, client(server.url, connections=64) as c:
            waiting = [c.start((b"x" * 400_000,)) for _ in range(64)]
            for number, future in enumerate(waiting, start=1):
                exchange = await future
                assert exchange.status is Status.OK
                assert isinstance(exchange.stream, ChatStream)
                late = exchange.stream.first_token_ns - wrote[f"r-{number}"]
                assert -1_000_000 < late < 20_000_000

    run(main())
