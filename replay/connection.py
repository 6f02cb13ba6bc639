"""One kept-alive HTTP/1.1 connection: socket, optional TLS, response parser.

States: OPENING (TCP connect, proxy, TLS handshake) -> IDLE <-> BUSY -> CLOSED.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from enum import IntEnum
from time import monotonic_ns
from typing import TYPE_CHECKING

import httptools

from replay import stamps
from replay.exchange import Buffer, Exchange
from replay.reactor import READ_BYTES, Ancillary, Read
from replay.stamps import StampClock, stamp_ns
from results.records import Flag, Status

if TYPE_CHECKING:
    from replay.stream import AnswerStream
    from replay.transport import Transport

_IOV_MAX = 1024


_HELD_READS = 7
_CHUNK_SIZES = {form % size: size for size in range(1, 4096) for form in (b"%x", b"%X")}
"""HTTP chunk sizes as servers write them; another writing goes the parser's way."""


class State(IntEnum):
    """What the connection does next."""

    OPENING = 0
    IDLE = 1
    BUSY = 2
    CLOSED = 3


class Connection:
    """Owned by a `Transport`; every method runs on its event loop."""

    # Slots, because a read after an idle moment finds the caches cold: every object touched counts.
    __slots__ = (
        "_chunked",
        "_complete",
        "_content_type",
        "_drained_ns",
        "_encoding",
        "_feed",
        "_incoming",
        "_keep",
        "_kernel",
        "_last",
        "_outgoing",
        "_parser",
        "_pending",
        "_plain",
        "_t_ns",
        "_tls",
        "_tunnel",
        "_watched",
        "_writing",
        "clock",
        "exchange",
        "fd",
        "hold",
        "idle_since_ns",
        "last_read_ns",
        "loop",
        "opened_ns",
        "reads",
        "recvmsg",
        "requests",
        "sock",
        "state",
        "transport",
    )

    def __init__(self, transport: Transport, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.transport = transport
        self.sock = sock
        self.loop = loop
        self.fd = sock.fileno()
        self.clock: StampClock = transport.clock
        self.state = State.OPENING
        self.exchange: Exchange | None = None
        self.opened_ns = monotonic_ns()
        self.idle_since_ns = 0
        self.last_read_ns = 0
        self.requests = 0
        self._kernel = stamps.enable(sock)
        self._watched = False
        self._drained_ns = self.opened_ns
        self._t_ns = 0
        self.recvmsg = sock.recvmsg
        self.reads: list[Read] = []
        self.hold = 0
        self._feed: Callable[[bytes, int], None] = _ignore
        self._pending: list[memoryview] = []
        self._writing = False
        self._complete = self._keep = False
        self._content_type = self._encoding = self._last = b""
        self._chunked = self._plain = False
        self._parser = httptools.HttpResponseParser(self)
        self._tls: ssl.SSLObject | None = None
        self._incoming = self._outgoing = ssl.MemoryBIO() if transport.tls_context else None
        self._tunnel: bytearray | None = None

    # opening

    def connect(self, address: object) -> None:
        """Start a non-blocking connect to `address`."""
        try:
            self.sock.connect(address)  # type: ignore[arg-type]
        except BlockingIOError:
            pass
        except OSError as error:
            self._connect_failed(error)
            return
        self._writing = True
        self.loop.add_writer(self.fd, self._on_connected)

    def _on_connected(self) -> None:
        self._writing = False
        self.loop.remove_writer(self.fd)
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._connect_failed(OSError(code, os.strerror(code)))
            return
        self.transport.reactor.add(self.fd, self, stamped=self._kernel)
        self._watched = True
        if self.transport.tunnel_request:
            self._tunnel = bytearray()
            self._write([self.transport.tunnel_request])
        elif self.transport.tls_context:
            self._start_tls()
        else:
            self._opened()

    def _start_tls(self) -> None:
        context = self.transport.tls_context
        assert context is not None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=self.transport.endpoint.host)
        self._handshake()

    def _handshake(self) -> None:
        assert self._tls is not None
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush_tls()
            return
        except ssl.SSLError as error:
            self._connect_failed(error)
            return
        self._flush_tls()
        self._opened()

    def _opened(self) -> None:
        self.state = State.IDLE
        self.idle_since_ns = monotonic_ns()
        self.transport.connection_opened(self)

    def _connect_failed(self, error: OSError) -> None:
        self.close()
        self.transport.connection_failed(self, error)

    # sending

    def start(self, exchange: Exchange) -> None:
        """Send one request; the connection must be IDLE."""
        self.state = State.BUSY
        self.exchange = exchange
        self._complete = False
        exchange.reused = self.requests > 0
        self.requests += 1
        exchange.kernel_stamps = self._kernel
        now = monotonic_ns()
        self.last_read_ns = now
        if exchange.sent_ns < 0:
            exchange.sent_ns = now
        self._write([exchange.head, *exchange.parts])

    def _write(self, parts: list[Buffer]) -> None:
        if self._tls is not None:
            for part in parts:
                self._tls.write(part)
            self._flush_tls()
            return
        try:
            sent = self.sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.lost(error)
            return
        self._keep_rest(parts, sent)

    def _flush_tls(self) -> None:
        assert self._outgoing is not None
        data = self._outgoing.read()
        if not data:
            return
        if self._pending:
            self._pending.append(memoryview(data))
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.lost(error)
            return
        self._keep_rest([data], sent)

    def _keep_rest(self, parts: list[Buffer], sent: int) -> None:
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                self._pending.append(memoryview(part)[sent:])
                sent = 0
        if self._pending and not self._writing:
            self._writing = True
            self.loop.add_writer(self.fd, self._on_writable)

    def _on_writable(self) -> None:
        try:
            sent = self.sock.sendmsg(self._pending[:_IOV_MAX])
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(error)
            return
        while self._pending and sent >= len(self._pending[0]):
            sent -= len(self._pending[0])
            self._pending.pop(0).release()
        if self._pending:
            rest = self._pending[0][sent:]
            self._pending[0].release()
            self._pending[0] = rest
        else:
            self._stop_writing()

    def _stop_writing(self) -> None:
        for view in self._pending:
            view.release()
        self._pending.clear()
        if self._writing:
            self._writing = False
            self.loop.remove_writer(self.fd)

    # receiving

    def handle_reads(self) -> None:
        """Take what was read since the last call, in order."""
        reads, self.reads = self.reads, []
        for read in reads:
            if self.state is State.CLOSED:
                return
            self._received(*read)

    def _received(self, data: bytes, ancillary: Ancillary, before: int, after: int) -> None:
        # The end of the connection is no segment and carries no stamp.
        self._t_ns = self._arrival(ancillary, before, after) if data else after
        self.last_read_ns = before
        size = len(data)
        if size < READ_BYTES:
            self._drained_ns = before
        transport = self.transport
        transport.reads += 1
        transport.read_bytes += size
        if size > transport.backlog_max:
            transport.backlog_max = size
        if not data:
            self._eof()
        elif self._tls is not None:
            self._receive_tls(data)
        elif self._tunnel is not None:
            self._receive_tunnel(data)
        else:
            self._receive(data)

    def _arrival(self, ancillary: Ancillary, before: int, after: int) -> int:
        """When the last segment of a read arrived: the kernel's stamp where it has one that can be right."""
        if ancillary and self._kernel:
            stamp = stamp_ns(ancillary)
            if stamp:
                # The usual case without another look at the clock: it came after the socket was last seen empty.
                arrival = stamp - self.clock.offset_ns
                if self._drained_ns <= arrival <= before:
                    return arrival
                arrival = self.clock.to_monotonic(stamp, self._drained_ns, after)
                if arrival >= 0:
                    return arrival
        if self.exchange is not None:
            self.exchange.kernel_stamps = False
        return after

    def _receive(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self._drop_idle()  # bytes nobody asked for: a late error page or a broken server
            return
        if self.hold and self._token_alone(exchange.stream, data):
            return
        if exchange.first_byte_ns < 0:
            exchange.first_byte_ns = self._t_ns
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise _cause(error) from None
        except httptools.HttpParserError as error:
            if not self._complete:
                self.close()
                exchange.fail(Status.STREAM_ERROR, f"not HTTP/1.1: {error}", self._t_ns)
                return
            self._keep = False  # the answer is whole; what follows it is garbage
        if self._complete:
            self._finished(exchange)
        elif self._plain:
            # A chunk that goes on would end the read with its own last byte, and none ends an event with "\r\n".
            between = self._last.endswith(b"\n\n") and data.endswith(b"\n\n\r\n")
            self.hold = _HELD_READS if between else 0

    def _token_alone(self, stream: AnswerStream, data: bytes) -> bool:
        """Whether `data` is one HTTP chunk that holds one known token chunk: then it is counted, unseen by the parser.

        The parser stands between two HTTP chunks (`hold`), where whole ones can be left out.
        """
        head = data.find(b"\r\n", 1, 6)
        size = _CHUNK_SIZES.get(data[:head])
        if size is None or head + size + 4 != len(data) or not data.endswith(b"\r\n"):
            return False
        return stream.feed_token(data, head + 2, head + 2 + size, self._t_ns)

    def _receive_tls(self, data: bytes) -> None:
        assert self._tls is not None
        assert self._incoming is not None
        self._incoming.write(data)
        if self.state is State.OPENING:
            self._handshake()
        while self.state in (State.IDLE, State.BUSY):
            try:
                plain = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                self.lost(error)
                return
            if not plain:
                self._eof()
                return
            self._receive(plain)
        if self.state in (State.IDLE, State.BUSY):
            self._flush_tls()

    def _receive_tunnel(self, data: bytes) -> None:
        assert self._tunnel is not None
        self._tunnel += data
        head, blank, _ = self._tunnel.partition(b"\r\n\r\n")
        if not blank:
            return
        self._tunnel = None
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            line = head.split(b"\r\n", 1)[0].decode("latin-1")
            self._connect_failed(OSError(f"the proxy refused the tunnel: {line}"))
        else:
            self._start_tls()

    def on_message_begin(self) -> None:
        """Parser callback."""
        self._content_type = self._encoding = b""
        self._chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser callback: keep the two headers that decide how the body is read."""
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value
        elif lower == b"content-encoding":
            self._encoding = value
        elif lower == b"transfer-encoding":
            self._chunked = value.lower() == b"chunked"

    def on_headers_complete(self) -> None:
        """Parser callback."""
        status = self._parser.get_status_code()
        exchange = self.exchange
        if exchange is not None and status >= 200:
            exchange.start_answer(status, self._content_type, self._encoding, self._t_ns)
            self._feed = exchange.feed
            self._plain = self._chunked and self._feed == exchange.stream.feed
            self.hold = 0

    def on_body(self, body: bytes) -> None:
        """Parser callback, once per HTTP chunk: the hottest line of the client."""
        self._last = body
        self._feed(body, self._t_ns)

    def on_message_complete(self) -> None:
        """Parser callback; interim 1xx answers do not count."""
        self._complete = self._parser.get_status_code() >= 200
        self._keep = self._parser.should_keep_alive()

    def _finished(self, exchange: Exchange) -> None:
        keep = self._keep and not self._pending and self.state is State.BUSY
        self.exchange = None
        self._feed = _ignore
        self._plain = False
        self.hold = 0
        if keep:
            self.state = State.IDLE
            self.idle_since_ns = self.last_read_ns
            self.transport.connection_free(self)
        else:
            self.close()
        exchange.finish(self._t_ns, clean=True)

    # ending

    def _eof(self) -> None:
        exchange = self.exchange
        if exchange is None:
            if self.state is State.OPENING:
                self._connect_failed(ConnectionResetError("closed while the connection was being opened"))
            else:
                self._drop_idle()
            return
        if exchange.first_byte_ns < 0:
            self.lost(ConnectionResetError("closed before any byte of the answer"))
            return
        self.close()
        # A body without a length ends with the connection; the stream's own end marker tells if it is whole.
        exchange.finish(self._t_ns, clean=False)

    def lost(self, error: OSError) -> None:
        """The connection broke, after what was read."""
        self.handle_reads()
        if self.state is State.CLOSED:
            return
        if self.state is State.OPENING:
            self._connect_failed(error)
            return
        exchange = self.exchange
        self.close()
        if exchange is None:
            self.transport.connection_closed(self)
        elif exchange.first_byte_ns < 0 and exchange.reused and not exchange.flags & Flag.STALE_CONNECTION:
            # The server had closed it between two turns: not a failure of the request.
            exchange.flags |= Flag.STALE_CONNECTION
            exchange.sent_ns = -1
            self.transport.resend(exchange)
        else:
            status = Status.CONNECT_ERROR if exchange.first_byte_ns < 0 else Status.TRUNCATED
            exchange.fail(status, f"connection lost: {error}", monotonic_ns())

    def _drop_idle(self) -> None:
        self.close()
        self.transport.connection_closed(self)

    def close(self) -> None:
        """Close the socket; the exchange, if any, is the caller's to end."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self.exchange = None
        self._feed = _ignore
        self._plain = False
        self.hold = 0
        self._stop_writing()
        if self._watched:
            self.transport.reactor.remove(self.fd)
        self.sock.close()
        self.transport.forget(self)


def _cause(error: BaseException) -> BaseException:
    """What one of our callbacks raised inside the parser: a fault of ours, not of the server."""
    context: BaseException | None = error.__context__
    return error if context is None else context


def _ignore(body: bytes, t_ns: int) -> None:
    """Body bytes that belong to no request."""
