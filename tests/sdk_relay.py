"""What official client libraries read, recorded at the socket, and a server that says what it is told."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httptools


class Relay(socketserver.ThreadingTCPServer):
    """Passes bytes between its clients and a server on this machine, and keeps what the server sent."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), _Pump)
        self.upstream = upstream
        self.sent: list[bytearray] = []
        """By connection."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def bodies(self) -> list[bytes]:
        """The body of every answer so far, connection after connection."""
        return [bytes(body) for sent in self.sent for body in _Bodies(bytes(sent)).found]


class _Pump(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        sent = bytearray()
        self.server.sent.append(sent)
        with socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream:
            other = {self.request: upstream, upstream: self.request}
            while True:
                for ready in select.select(list(other), [], [])[0]:
                    try:
                        data = ready.recv(65536)
                        if not data:
                            return
                        # Before it is passed on: who has read an answer finds it here.
                        if ready is upstream:
                            sent += data
                        other[ready].sendall(data)
                    except OSError:
                        return


class _Bodies:
    """Callbacks of the HTTP parser."""

    def __init__(self, data: bytes) -> None:
        self.found: list[bytearray] = []
        httptools.HttpResponseParser(self).feed_data(data)

    def on_message_begin(self) -> None:
        self.found.append(bytearray())

    def on_body(self, body: bytes) -> None:
        self.found[-1] += body


@contextmanager
def relaying(upstream: int) -> Iterator[Relay]:
    """A relay before a server's port."""
    with Relay(upstream) as relay, _running(relay):
        yield relay


class Script(ThreadingHTTPServer):
    """Answers every POST with `body`, an event stream."""

    daemon_threads = True
    body = b""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Answer(BaseHTTPRequestHandler):
    server: Script
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = self.server.body
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silence."""


@contextmanager
def scripted() -> Iterator[Script]:
    """A server that says what its `body` is set to."""
    with Script(("127.0.0.1", 0), _Answer) as server, _running(server):
        yield server


@contextmanager
def _running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(10)
