"""A raw-socket HTTP server that places every write boundary exactly, for tests of the real transport.

A script decides per request what is written when. Times are relative to the moment at which the whole request was read.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Request:
    """One request as the server read it."""

    connection: int
    head: bytes
    body: bytes
    first_byte_ns: int
    read_ns: int

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}

    @property
    def target(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Writer:
    """What a script may do with its connection."""

    def __init__(self, writer: asyncio.StreamWriter, start_ns: int) -> None:
        self._writer = writer
        self._start_ns = start_ns
        self.written: list[tuple[int, bytes]] = []

    async def at(self, ms: float) -> None:
        """Wait until `ms` after the request was read."""
        left = self._start_ns / 1e9 + ms / 1e3 - monotonic_ns() / 1e9
        if left > 0:
            await asyncio.sleep(left)

    async def raw(self, data: bytes) -> None:
        """One flushed write."""
        self.written.append((monotonic_ns(), data))
        self._writer.write(data)
        await self._writer.drain()

    async def head(self) -> None:
        await self.raw(OK_HEAD)

    async def chunk(self, data: bytes) -> None:
        """One HTTP chunk in one write."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, payload: Any) -> None:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        await self.chunk(b"data: " + text.encode() + b"\n\n")

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Close with a TCP reset."""
        self._writer.transport.abort()


Script = Callable[[Request, Writer], Awaitable[None]]


@dataclass
class RawServer:
    """What a test sees of the running server."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open_now: int = 0
    open_peak: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def raw_server(
    script: Script, *, idle_s: float | None = None, tls: ssl.SSLContext | None = None, uds: str | None = None
) -> AsyncIterator[RawServer]:
    """Serve `script`; with `idle_s` the server closes connections that idle longer, as uvicorn does after 5 s."""
    server = RawServer()
    tasks: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        server.open_now += 1
        server.open_peak = max(server.open_peak, server.open_now)
        number = server.connections
        try:
            while (request := await _read(reader, number, idle_s)) is not None:
                server.requests.append(request)
                server.in_flight += 1
                server.in_flight_peak = max(server.in_flight_peak, server.in_flight)
                try:
                    await script(request, Writer(writer, request.read_ns))
                finally:
                    server.in_flight -= 1
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            server.open_now -= 1
            writer.close()
            tasks.discard(task)

    if uds is not None:
        listener = await asyncio.start_unix_server(connection, uds, limit=2**24)
    else:
        listener = await asyncio.start_server(connection, "127.0.0.1", 0, limit=2**24, ssl=tls, backlog=2048)
        server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, connection: int, idle_s: float | None) -> Request | None:
    try:
        async with asyncio.timeout(idle_s):
            first = await reader.readexactly(1)
    except (asyncio.IncompleteReadError, TimeoutError, ConnectionError):
        return None
    first_ns = monotonic_ns()
    head = first + await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    body = await reader.readexactly(length)
    return Request(connection, head, body, first_ns, monotonic_ns())


def delta(**fields: Any) -> dict[str, Any]:
    """A chat chunk with this delta."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def finish(reason: str = "length") -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"choices": [], "usage": counts}


async def normal_answer(request: Request, writer: Writer, tokens: int = 3, step_ms: float = 2.0) -> None:
    """A well-formed stream of `tokens` one-token chunks."""
    await writer.head()
    await writer.event(delta(role="assistant", content=""))
    for k in range(tokens):
        await writer.at((k + 1) * step_ms)
        await writer.event(delta(content=" tok"))
    await writer.event(finish())
    await writer.event(usage(10, tokens, 0))
    await writer.event("[DONE]")
    await writer.end()


def self_signed() -> tuple[ssl.SSLContext, str]:
    """A server context for 127.0.0.1 and the path of its certificate (PEM), made with the openssl command."""
    import subprocess

    folder = Path(tempfile.mkdtemp())
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, str(cert)
