"""The client's hot path: streaming requests over kept-alive connections, callbacks instead of tasks.

A request costs no coroutine, no JSON encoding and no copy of its prompt: the header and the caller's buffers go to the
kernel with one `sendmsg`, and every readable socket ends in `Connection.received`, which takes data and kernel
stamp with one `recvmsg` and passes body bytes to the request's stream parser.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any
from urllib.parse import urlsplit

from replay.connection import Connection, State
from replay.endpoint import Endpoint, Limits
from replay.exchange import Buffer, Exchange
from replay.reactor import Reactor
from replay.stamps import StampClock
from results.errors import EXIT_ENDPOINT, UserError
from results.records import Flag, Status

SWEEP_S = 0.25


class Transport:
    """A pool of connections to one endpoint, on the running event loop."""

    def __init__(self, endpoint: Endpoint, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.loop = loop
        self.clock = StampClock()
        self.reactor = Reactor(loop)
        self.tls_context: ssl.SSLContext | None = endpoint.ssl_context() if endpoint.tls else None
        self.tunnel_request = b""
        self.address: tuple[socket.AddressFamily, Any] | None = None
        self.connections: set[Connection] = set()
        self.connects = self.stale_retries = self.reads = self.read_bytes = self.backlog_max = 0
        self._idle: list[Connection] = []
        self._waiting: deque[Exchange] = deque()
        self._target = endpoint.path
        self._sweeper: asyncio.TimerHandle | None = None
        if endpoint.proxy:
            self._use_proxy(urlsplit(endpoint.proxy))

    def _use_proxy(self, proxy: Any) -> None:
        auth = ""
        if proxy.username:
            pair = f"{proxy.username}:{proxy.password or ''}".encode()
            auth = f"proxy-authorization: Basic {base64.b64encode(pair).decode()}\r\n"
        if self.tls_context:
            authority = f"{self.endpoint.host}:{self.endpoint.port}"
            self.tunnel_request = f"CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n{auth}\r\n".encode()
        else:
            self._target = f"http://{self.endpoint.authority}{self.endpoint.path}"
            self._proxy_auth = auth

    def request_head(self, route: str, extra: Sequence[tuple[str, str]] = ()) -> bytes:
        """The header lines that do not change from request to request, without the closing blank line."""
        lines = [
            f"POST {self._target}{route} HTTP/1.1",
            f"host: {self.endpoint.authority}",
            "content-type: application/json",
            "accept: text/event-stream",
            "accept-encoding: identity",
            "user-agent: agentx",
            *(f"{name}: {value}" for name, value in (*self.endpoint.headers, *extra)),
        ]
        if self._target.startswith("http://") and self._proxy_auth:
            lines.append(self._proxy_auth.rstrip())
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")

    # lifecycle

    async def open(self, count: int) -> None:
        """Resolve the endpoint and open `count` connections before any clock starts.

        Raises UserError (exit code 3) when not even one can be opened.
        """
        self.address = await self._find_address()
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        for _ in range(count):
            self._connect(None)
        deadline = self.loop.time() + self.limits.connect_s
        while self.loop.time() < deadline:
            if all(connection.state is not State.OPENING for connection in self.connections):
                break
            await asyncio.sleep(0.002)
        if count and not self._idle:
            raise self._unreachable("no connection could be opened")

    async def _find_address(self) -> tuple[socket.AddressFamily, Any]:
        """The first resolved address that takes a connection (a name may have a dead IPv6 address first)."""
        if self.endpoint.uds is not None:
            return socket.AF_UNIX, self.endpoint.uds
        host, port = self.endpoint.host, self.endpoint.port
        if self.endpoint.proxy:
            proxy = urlsplit(self.endpoint.proxy)
            host, port = proxy.hostname or "", proxy.port or 80
        try:
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise self._unreachable(str(error)) from error
        last: BaseException | None = None
        for family, _, _, _, address in found:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)
                try:
                    await asyncio.wait_for(self.loop.sock_connect(probe, address), self.limits.connect_s)
                except (OSError, TimeoutError) as error:
                    last = error
                    continue
                return family, address
        raise self._unreachable(str(last) or "timed out")

    def _unreachable(self, why: str) -> UserError:
        return UserError(
            f"--endpoint {self.endpoint.way} cannot be reached: {why}",
            remedy=self.endpoint.remedy,
            exit_code=EXIT_ENDPOINT,
        )

    def close(self) -> None:
        """Close every connection; exchanges still in flight end as cancelled."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.cancel_all("the run ended")
        for connection in list(self.connections):
            connection.close()
        self.reactor.close()

    # requests

    def send(
        self, head: bytes, request_id: str, parts: Sequence[Buffer], exchange: Exchange, lines: bytes = b""
    ) -> None:
        """Send `parts` (the body, in order) under `head` from `request_head`, now if a connection is free.

        `lines` are further header lines of this request, each ended.
        """
        length = sum(map(len, parts))
        exchange.head = b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            head,
            lines,
            request_id.encode(),
            length,
        )
        exchange.parts = parts
        self._dispatch(exchange)

    def _dispatch(self, exchange: Exchange) -> None:
        if self._idle:
            self._idle.pop().start(exchange)
            return
        exchange.flags |= Flag.NEW_CONNECTION
        self._waiting.append(exchange)
        self._connect(exchange)

    def resend(self, exchange: Exchange) -> None:
        """One transparent repeat on a fresh connection (no byte of an answer had come)."""
        self.stale_retries += 1
        exchange.flags |= Flag.NEW_CONNECTION
        self._waiting.appendleft(exchange)
        self._connect(exchange)

    def cancel(self, exchange: Exchange, status: Status, reason: str) -> None:
        """Give up on one exchange: its connection is closed, so that the server can stop too."""
        connection = next((each for each in self.connections if each.exchange is exchange), None)
        if connection is not None:
            connection.handle_reads()  # what has come stays visible; it may even be the end
            if connection.exchange is exchange:
                connection.close()
        elif exchange in self._waiting:
            self._waiting.remove(exchange)
        exchange.fail(status, reason, monotonic_ns())

    def cancel_all(self, reason: str, status: Status = Status.CANCELLED) -> None:
        """Cancel everything in flight or waiting, as `status`."""
        busy = [connection.exchange for connection in self.connections if connection.exchange is not None]
        for exchange in [*busy, *self._waiting]:
            self.cancel(exchange, status, reason)

    @property
    def in_flight(self) -> int:
        """Requests sent or waiting for a connection."""
        return len(self._waiting) + sum(c.exchange is not None for c in self.connections)

    # the pool

    def _connect(self, exchange: Exchange | None) -> None:
        assert self.address is not None
        family, address = self.address
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._no_connection(error)
            return
        sock.setblocking(False)
        if family is not socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connects += 1
        connection = Connection(self, sock, self.loop)
        self.connections.add(connection)
        connection.connect(address)

    def connection_opened(self, connection: Connection) -> None:
        """A connection is ready: the longest waiting request takes it."""
        if self._waiting:
            exchange = self._waiting.popleft()
            exchange.connect_ns = monotonic_ns() - connection.opened_ns
            connection.start(exchange)
        else:
            self._idle.append(connection)

    def connection_free(self, connection: Connection) -> None:
        """An answer is complete and the connection can be used again, but not by a repeat: that gets a fresh one."""
        first = next((exchange for exchange in self._waiting if not exchange.flags & Flag.STALE_CONNECTION), None)
        if first is not None:
            self._waiting.remove(first)
            connection.start(first)
        else:
            self._idle.append(connection)

    def connection_failed(self, connection: Connection, error: OSError) -> None:
        """A connection could not be opened: the longest waiting request fails with it."""
        self._no_connection(error)

    def _no_connection(self, error: OSError) -> None:
        if not self._waiting:
            return
        text = str(error)
        if error.errno == errno.EADDRNOTAVAIL:
            text = "no local port left: too many connections were opened (is keep-alive off at the server?)"
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            text = "no file descriptor left: raise `ulimit -n`"
        elif isinstance(error, ssl.SSLCertVerificationError):
            text = f"certificate not accepted: {error.verify_message} (--ca-file FILE, or --insecure)"
        self._waiting.popleft().fail(Status.CONNECT_ERROR, text, monotonic_ns())

    def connection_closed(self, connection: Connection) -> None:
        """An idle connection went away."""

    def forget(self, connection: Connection) -> None:
        """Take a closed connection out of the pool."""
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def take_counters(self) -> dict[str, int]:
        """What happened since the last call, by the names of the client's journal row."""
        counters = {
            "reads": self.reads,
            "read_bytes": self.read_bytes,
            "backlog_max_bytes": self.backlog_max,
            "sockets": len(self.connections),
            "connects": self.connects,
            "stale_retries": self.stale_retries,
        }
        self.reads = self.read_bytes = self.backlog_max = self.connects = self.stale_retries = 0
        return counters

    def _sweep(self) -> None:
        """Every quarter second: stale idle connections, time limits, the stamp clock's offset."""
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        self.clock.refresh()
        now = monotonic_ns()
        limits = self.limits
        for connection in list(self.connections):
            if connection.state is State.IDLE:
                if now - connection.idle_since_ns > limits.keep_alive_s * 1e9:
                    connection.close()
            elif connection.state is State.OPENING:
                if now - connection.opened_ns > limits.connect_s * 1e9:
                    connection.close()
                    self._no_connection(TimeoutError(f"no connection within {limits.connect_s:g} s"))
            elif connection.exchange is not None:
                connection.handle_reads()
            if connection.exchange is not None:
                self._check_limits(connection.exchange, connection.last_read_ns, now)

    def _check_limits(self, exchange: Exchange, last_read_ns: int, now: int) -> None:
        limits = self.limits
        if exchange.first_byte_ns < 0:
            if limits.first_byte_s is not None and now - exchange.sent_ns > limits.first_byte_s * 1e9:
                self.cancel(exchange, Status.TIMEOUT, f"no byte of the answer within {limits.first_byte_s:g} s")
        elif limits.between_bytes_s is not None and now - last_read_ns > limits.between_bytes_s * 1e9:
            self.cancel(exchange, Status.TIMEOUT, f"nothing came for {limits.between_bytes_s:g} s")


def add_counters(counters: Sequence[dict[str, int]]) -> dict[str, int]:
    """The counters of several transports as one: sums, but of the backlog the largest."""
    return {
        name: (max if name == "backlog_max_bytes" else sum)(each[name] for each in counters) for name in counters[0]
    }
