"""HTTP/1.1 for the simulated endpoint: one protocol object per connection, one response at a time.

Small writes go to the kernel at once, past the event loop's own buffers, so that the time noted for a token
is the time it was sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import cast

import httptools

KEEP_ALIVE_S = 5.0
"""uvicorn's default, and with it vLLM's."""

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    429: b"Too Many Requests",
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, complete; `received_ns` is when its last byte was read (CLOCK_MONOTONIC)."""

    method: str
    path: str
    request_id: str | None
    body: bytes
    received_ns: int
    last: bool
    """The client wants the connection closed after the answer."""


class Connection(asyncio.Protocol):
    """Parses requests, hands them over one by one, and writes what it is given."""

    def __init__(self, handle: Callable[[HttpRequest, Connection], None], connections: set[Connection]) -> None:
        self.on_lost: Callable[[], None] | None = None
        self._handle = handle
        self._connections = connections
        self._queue: deque[HttpRequest] = deque()
        self._busy = False
        self._closing = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._received_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Callback of the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._fd = sock.fileno()
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Callback of the event loop."""
        self._connections.discard(self)
        self._stop_idle_timer()
        self._queue.clear()
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Callback of the event loop."""
        self._received_ns = monotonic_ns()
        self._stop_idle_timer()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._busy:
                self.abort()
                return
            self._closing = self._busy = True
            self.respond(400, b"Invalid HTTP request received.", b"text/plain; charset=utf-8")
            return
        self._next()

    def on_message_begin(self) -> None:
        """Callback of the parser."""
        self._url = b""
        self._request_id: str | None = None
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        """Callback of the parser."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Callback of the parser."""
        name = name.lower()
        if name == b"x-request-id":
            self._request_id = value.decode("latin-1")
        elif name == b"expect" and value.lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Callback of the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Callback of the parser."""
        path = self._url.partition(b"?")[0].decode("latin-1")
        method = self._parser.get_method().decode()
        body, last = b"".join(self._body), not self._parser.should_keep_alive()
        self._queue.append(HttpRequest(method, path, self._request_id, body, self._received_ns, last))

    def respond(
        self, status: int, body: bytes, content_type: bytes = b"application/json", headers: bytes = b""
    ) -> None:
        """Answer the current request in one piece; `headers`: more lines of its head, each with its end."""
        head = b"HTTP/1.1 %d %b\r\nserver: agentx\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n"
        close = b"connection: close\r\n" if self._closing else b""
        self.write(head % (status, _REASONS[status], content_type, len(body), headers, close) + body)
        self._done()

    def start_stream(self, first: bytes) -> None:
        """Send the head of an event stream, then `first` (may be empty; already chunked)."""
        self.write(
            b"HTTP/1.1 200 OK\r\nserver: agentx\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n%b\r\n%b" % (b"connection: close\r\n" if self._closing else b"", first)
        )

    def end_stream(self, last: bytes) -> None:
        """Send the end of an event stream."""
        self.write(last)
        self._done()

    def write(self, data: bytes) -> None:
        """Send now; only what the kernel does not take is left to the event loop."""
        transport = self._transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() == 0:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                transport.abort()
                return
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    def _next(self) -> None:
        if self._queue and not self._busy:
            request = self._queue.popleft()
            self._busy, self._closing = True, request.last
            self._handle(request, self)

    def _done(self) -> None:
        self._busy = False
        self.on_lost = None
        if self._closing:
            self._transport.close()
        elif self._queue:
            self._next()
        else:
            self._idle_timer = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._transport.close)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
