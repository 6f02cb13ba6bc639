"""Reads in batches: one look at all sockets every two milliseconds instead of one wake-up per segment.

With kernel receive stamps nothing is gained by reading at once, and much is lost: a wake-up costs as much as the read.
So sockets whose segments are stamped are looked at together, every two milliseconds. Two segments of one socket within
that time share the later one's stamp; how many chunks did is counted row by row (`coalesced_chunks`). Sockets without
stamps (unix sockets, other systems) are read the moment they are ready.

Small reads that end a token's event are held, a few of a socket and a quarter second at most, and handled together: the
kernel has stamped them, so nobody waits for them, and a parser costs most where its objects are no longer in the
processor's caches. All else (the end of an answer above all) is handled as soon as the ready sockets have been read.

Measured at 200 streams and 20 ms, CPU seconds per 100k chunks: a wake-up per segment 2.6, every millisecond 1.7, every
two 1.45, every four 1.6 (`python -m benchmarks`, paced; docs/decisions/0001).
"""

from __future__ import annotations

import asyncio
import select
from time import monotonic_ns
from typing import Protocol

from replay.stamps import ANCILLARY_BYTES

TICK_S = 0.002
READ_BYTES = 65_536
_BATCH = 1024
_SLICE = 64
"""Sockets read between two looks at the clock and the handling of what can't be held."""
_HELD_BYTES = 2048
_TOKEN_END = b"}\n\n\r\n"
"""An HTTP chunk that ends an event of JSON: no answer ends with it, since a last chunk of no bytes must follow."""

Ancillary = list[tuple[int, int, bytes]]
Read = tuple[bytes, Ancillary, int, int]
"""Data, ancillary data, and the times (CLOCK_MONOTONIC, ns) shortly before and after the read."""


class Readable(Protocol):
    """What a reactor reads for: a connection."""

    reads: list[Read]
    """Read and not yet handled."""
    hold: int
    """How many stamped reads that end a token's event may wait."""

    def recvmsg(self, size: int, ancillary: int, /) -> tuple[bytes, Ancillary, int, object]:
        """Its socket's `recvmsg`."""

    def handle_reads(self) -> None:
        """Take all `reads`, in order."""

    def lost(self, error: OSError) -> None:
        """Take it that the connection broke, after the `reads`."""


class Reactor:
    """Read readiness for the connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._readers: dict[int, Readable] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, fd: int, reader: Readable, *, stamped: bool) -> None:
        """Read `fd` for `reader`, within two milliseconds of data if its segments are `stamped`, else at once."""
        if stamped and self._epoll is not None:
            self._epoll.register(fd, select.EPOLLIN)
            self._readers[fd] = reader
            if self._timer is None:
                self._timer = self._loop.call_later(TICK_S, self._tick)
        else:
            self._loop.add_reader(fd, _read_one, reader)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`, which must still be open."""
        if self._epoll is not None and self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
        else:
            self._loop.remove_reader(fd)

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick) if self._readers else None
        if self._epoll is None:
            return
        ready = self._epoll.poll(0, _BATCH)
        for first in range(0, len(ready), _SLICE):
            self._read_slice(ready[first : first + _SLICE])

    def _read_slice(self, ready: list[tuple[int, int]]) -> None:
        readers, now = self._readers, []
        before = monotonic_ns()
        for fd, _ in ready:
            reader = readers.get(fd)  # what was handled before may have closed it
            if reader is None:
                continue
            try:
                data, ancillary, _, _ = reader.recvmsg(READ_BYTES, ANCILLARY_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                reader.lost(error)
                continue
            after = monotonic_ns()
            reads = reader.reads
            reads.append((data, ancillary, before, after))
            before = after
            if len(reads) > reader.hold or not (ancillary and data.endswith(_TOKEN_END) and len(data) < _HELD_BYTES):
                now.append(reader)
        for reader in now:
            reader.handle_reads()


def _read_one(reader: Readable) -> None:
    before = monotonic_ns()
    try:
        data, ancillary, _, _ = reader.recvmsg(READ_BYTES, ANCILLARY_BYTES)
    except BlockingIOError:
        return
    except OSError as error:
        reader.lost(error)
    else:
        reader.reads.append((data, ancillary, before, monotonic_ns()))
        reader.handle_reads()
