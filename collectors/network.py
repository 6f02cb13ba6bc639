"""The network between client and endpoint, measured while the run goes on: round-trip time and clock offset.

The round trip is the time a TCP connection takes to open: the server's kernel answers it, however busy the server is.
The wall clocks are compared by the `Date` of an answer, which has whole seconds: each exchange bounds the offset to
an interval, and all of them together to what those intervals share (`results.network`). Where `agentx collect` runs,
its clock is known to half a round trip (`OffsetEstimator`).
"""

from __future__ import annotations

import json
import socket
import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import Event, Thread
from time import CLOCK_REALTIME, clock_gettime_ns, monotonic_ns

from results.journal import RowFile

_TIMEOUT_S = 5.0
_DATE_EVERY = 5
"""An HTTP exchange leaves a line in the server's log; a TCP connection does not."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer: sent and received on the own clock, `remote_ns` on the other (ns)."""

    sent_ns: int
    remote_ns: int
    received_ns: int

    @property
    def rtt_ns(self) -> int:
        """Time from question to answer."""
        return self.received_ns - self.sent_ns


class OffsetEstimator:
    """Offset of another clock (other - own) by the exchange with the least round trip of the last `window`.

    The other clock was read somewhere between sending and receiving, so the error is at most half the round trip
    (RFC 5905, section 8); the fastest exchange waited the least anywhere. The window forgets, and so follows drift.
    """

    def __init__(self, window: int = 64) -> None:
        self._exchanges: deque[Exchange] = deque(maxlen=window)

    def add(self, exchange: Exchange) -> None:
        """Take an exchange into account; one that ended before it began (a clock was set) is left out."""
        if exchange.rtt_ns >= 0:
            self._exchanges.append(exchange)

    def clear(self) -> None:
        """Forget everything: the other clock is another one now."""
        self._exchanges.clear()

    @property
    def offset_ns(self) -> int | None:
        """Other clock minus own, None before the first exchange."""
        best = self._best()
        return None if best is None else best.remote_ns - (best.sent_ns + best.received_ns) // 2

    @property
    def error_ns(self) -> int | None:
        """How far off the offset can be at most."""
        best = self._best()
        return None if best is None else (best.rtt_ns + 1) // 2

    def _best(self) -> Exchange | None:
        return min(self._exchanges, key=lambda exchange: exchange.rtt_ns, default=None)


class NetworkProbe:
    """Measures the way to `host`:`port` every `interval_s` from a thread, into `network.rows` of the journal.

    `tls`: the context for an https endpoint. There is nothing to measure where requests go through a Unix socket or a
    proxy: a run then has no probe, and `results.network` says that nothing was measured.

    Each row is a JSON line: `t_ns` (CLOCK_MONOTONIC), `rtt_ns`, at times `date_sent_ns`, `date_received_ns` (own wall
    clock), `date_s` (the other's), or `error`.
    """

    def __init__(
        self,
        journal: Path,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        interval_s: float = 2.0,
    ) -> None:
        self._file = RowFile(journal / "network.rows")
        self._host = host
        self._port = port
        self._tls = tls
        self._interval_s = interval_s
        self._address: tuple[int, tuple[str, int]] | None = None
        self._connection: socket.socket | None = None
        self._stop = Event()
        self._thread = Thread(target=self._run, name="network probe", daemon=True)

    def start(self) -> None:
        """Begin measuring."""
        self._thread.start()

    def stop(self) -> None:
        """End measuring."""
        self._stop.set()
        connection = self._connection
        if connection is not None:  # wake a read that waits for a server that says nothing
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * _TIMEOUT_S)
        if not self._thread.is_alive():
            self._file.flush()
            self._file.close()

    def __enter__(self) -> NetworkProbe:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            try:
                row = self._measure(with_date=count % _DATE_EVERY == 0)
            except (OSError, ValueError, TypeError) as error:
                row = {"t_ns": monotonic_ns(), "error": str(error) or type(error).__name__}
                self._address = None
            self._file.buffer += json.dumps(row).encode() + b"\n"
            self._file.flush()
            count += 1
            self._stop.wait(self._interval_s)

    def _measure(self, *, with_date: bool) -> dict[str, int | float | str]:
        if self._address is None:  # names are resolved apart, not within the round trip
            family, _, _, _, address = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
            self._address = int(family), (str(address[0]), int(address[1]))
        family_number, target = self._address
        with socket.socket(family_number, socket.SOCK_STREAM) as connection:
            self._connection = connection
            connection.settimeout(_TIMEOUT_S)
            before = monotonic_ns()
            connection.connect(target)
            after = monotonic_ns()
            row: dict[str, int | float | str] = {"t_ns": after, "rtt_ns": after - before}
            if with_date:
                row |= self._date(connection)
        return row

    def _date(self, connection: socket.socket) -> dict[str, int | float | str]:
        """The wall clock of whoever answers; nothing when the answer has no date."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        request = f"HEAD / HTTP/1.1\r\nHost: {host}:{self._port}\r\nConnection: close\r\n\r\n"
        with self._tls.wrap_socket(connection, server_hostname=self._host) if self._tls else connection as stream:
            self._connection = stream
            sent = clock_gettime_ns(CLOCK_REALTIME)
            stream.sendall(request.encode())
            head = b""
            while b"\r\n\r\n" not in head and len(head) < 65536 and (part := stream.recv(4096)):
                head += part
            received = clock_gettime_ns(CLOCK_REALTIME)
        for line in head.decode("latin-1").split("\r\n"):
            name, _, value = line.partition(":")
            if name.lower() == "date":
                seconds = round(parsedate_to_datetime(value.strip()).timestamp())
                return {"date_sent_ns": sent, "date_received_ns": received, "date_s": seconds}
        return {}
