"""Ways to an endpoint: names, TLS, unix sockets, proxies."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from replay.endpoint import parse_endpoint
from results.errors import UserError
from results.records import Status
from tests.raw_server import (
    Request,
    Writer,
    normal_answer,
    raw_server,
    self_signed,
)
from tests.replay.transport_client import client, run


def test_p61_localhost_finds_the_address_that_answers() -> None:
    async def main() -> None:
        async with raw_server(normal_answer) as server, client(f"http://localhost:{server.port}/v1") as c:
            assert (await c.ask()).status is Status.OK
            assert c.transport.address is not None
            assert c.transport.address[1][0] == "127.0.0.1"

    run(main())


def test_an_endpoint_that_is_not_there_is_one_clear_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

        async def main() -> None:
            with pytest.raises(UserError, match=f"127.0.0.1:{port} cannot be reached") as caught:
                async with client(f"http://127.0.0.1:{port}"):
                    pass
            assert caught.value.exit_code == 3

        run(main())


def test_p58_tls_is_verified_unless_told_otherwise() -> None:
    context, certificate = self_signed()

    async def main() -> None:
        async with raw_server(normal_answer, tls=context) as server:
            url = f"https://127.0.0.1:{server.port}"
            async with client(url) as c:
                exchange = await c.ask()
                assert exchange.status is Status.CONNECT_ERROR
                assert "certificate not accepted" in str(exchange.error)
            for endpoint in (parse_endpoint(url, ca_file=certificate), parse_endpoint(url, insecure=True)):
                async with client(endpoint) as c:
                    conversation = bytearray(b"w" * 300_000)
                    exchange = await c.ask((b'{"m":"', memoryview(conversation), b'"}'))
                    assert exchange.status is Status.OK
                    assert exchange.kernel_stamps
                    assert (await c.ask()).status is Status.OK
            assert len(server.requests[0].body) == 300_008

    run(main())


def test_unix_sockets(tmp_path: Path) -> None:
    async def main() -> None:
        path = str(tmp_path / "s")
        async with raw_server(normal_answer, uds=path), client(f"unix:{path}") as c:
            exchange = await c.ask()
            assert exchange.status is Status.OK
            assert not exchange.kernel_stamps

    run(main())


def test_proxy_for_plain_http_gets_the_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with raw_server(normal_answer) as proxy:
            monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{proxy.port}")
            async with client("http://inference.example:8000/prefix/v1") as c:
                assert (await c.ask()).status is Status.OK
            request = proxy.requests[0]
            assert request.target == "http://inference.example:8000/prefix/v1/chat/completions"
            assert request.headers["host"] == "inference.example:8000"
            assert request.headers["proxy-authorization"].startswith("Basic ")

    run(main())


def test_https_goes_through_a_tunnel_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = self_signed()
    asked: list[bytes] = []

    async def main() -> None:
        async with raw_server(normal_answer, tls=context) as server:

            async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
                asked.append(head)
                upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

                async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                    while data := await source.read(65536):
                        sink.write(data)
                    sink.close()

                await asyncio.gather(pipe(reader, upstream), pipe(upstream_reader, writer))

            async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                try:
                    await tunnel(reader, writer)
                except (asyncio.IncompleteReadError, ConnectionError):
                    pass
                finally:
                    writer.close()

            proxy = await asyncio.start_server(quietly, "127.0.0.1", 0)
            port = proxy.sockets[0].getsockname()[1]
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
            endpoint = parse_endpoint("https://inference.example:8443", insecure=True, ca_file=certificate)
            async with client(endpoint) as c:
                assert (await c.ask()).status is Status.OK
            proxy.close()
            assert asked[-1].startswith(b"CONNECT inference.example:8443 HTTP/1.1\r\n")

    run(main())


def test_a_proxy_that_refuses_the_tunnel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")

    async def main() -> None:
        async with raw_server(script) as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
            async with client(parse_endpoint("https://inference.example", insecure=True)) as c:
                exchange = await c.ask()
                assert exchange.status is Status.CONNECT_ERROR
                assert "407" in str(exchange.error)

    run(main())
