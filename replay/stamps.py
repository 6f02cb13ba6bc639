"""Kernel receive stamps: when a segment reached this machine, however late our loop reads it.

Linux stamps a received segment in software (`SO_TIMESTAMPING`) and hands the stamp over with `recvmsg`. The stamp is of
CLOCK_REALTIME, everything else here is CLOCK_MONOTONIC. Both clocks are slewed together, so their difference is
constant except when somebody *sets* the wall clock; `StampClock` measures it again regularly and notices a step
because a stamp
converted with a stale difference falls outside the window in which the segment can have arrived.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable
from time import CLOCK_REALTIME, clock_gettime_ns, monotonic_ns

# asm-generic/socket.h and linux/net_tstamp.h; the names are missing from Python's socket module.
SO_TIMESTAMPING = 37
SOF_TIMESTAMPING_RX_SOFTWARE = 1 << 3
SOF_TIMESTAMPING_SOFTWARE = 1 << 4

ANCILLARY_BYTES = socket.CMSG_SPACE(3 * 16)
"""Room for one SCM_TIMESTAMPING message: three timespecs of two 64-bit words."""

_SOL_SOCKET = socket.SOL_SOCKET
_TIMESPEC = struct.Struct("@qq")
_unpack_timespec = _TIMESPEC.unpack_from
_SLACK_NS = 50_000
"""Conversion error that is not a step: the bracket around two clock reads, and one timer interrupt."""


def enable(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what `sock` receives; False where it can't (not Linux, unix sockets)."""
    if not sys.platform.startswith("linux") or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE)
    except OSError:
        return False
    return True


def stamp_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """CLOCK_REALTIME nanoseconds of the software stamp in `ancillary`, 0 when there is none."""
    for level, kind, data in ancillary:
        if kind == SO_TIMESTAMPING and level == _SOL_SOCKET and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _unpack_timespec(data)
            stamp: int = seconds * 1_000_000_000 + nanoseconds
            return stamp
    return 0


def _realtime_ns() -> int:
    return clock_gettime_ns(CLOCK_REALTIME)


class StampClock:
    """Converts CLOCK_REALTIME stamps to CLOCK_MONOTONIC, both in nanoseconds."""

    __slots__ = ("_monotonic", "_previous", "_realtime", "offset_ns", "rejected", "steps")

    def __init__(self, monotonic: Callable[[], int] = monotonic_ns, realtime: Callable[[], int] = _realtime_ns) -> None:
        self._monotonic = monotonic
        self._realtime = realtime
        self.steps = 0
        """How often the wall clock was seen to step."""
        self.rejected = 0
        """Stamps that fitted no known offset: user-space time was used instead."""
        self.offset_ns = self._previous = self._measure()

    def _measure(self) -> int:
        """Realtime minus monotonic, from the tightest of five brackets."""
        best = offset = 0
        for attempt in range(5):
            before = self._monotonic()
            wall = self._realtime()
            after = self._monotonic()
            if attempt == 0 or after - before < best:
                best = after - before
                offset = wall - (before + after) // 2
        return offset

    def refresh(self) -> None:
        """Measure the offset again; to be called a few times a second."""
        offset = self._measure()
        if abs(offset - self.offset_ns) > _SLACK_NS:
            self.steps += 1
            self._previous = self.offset_ns
        self.offset_ns = offset

    def to_monotonic(self, stamp: int, earliest_ns: int, now_ns: int) -> int:
        """Monotonic time of `stamp`, which must lie in [earliest_ns, now_ns]; -1 when no offset makes it so.

        `earliest_ns` is the last moment at which the socket was known to be empty (or the request unsent).
        """
        arrival = stamp - self.offset_ns
        if earliest_ns - _SLACK_NS <= arrival <= now_ns + _SLACK_NS:
            return arrival if arrival <= now_ns else now_ns
        return self._after_step(stamp, earliest_ns, now_ns)

    def _after_step(self, stamp: int, earliest_ns: int, now_ns: int) -> int:
        self.refresh()
        for offset in (self.offset_ns, self._previous):
            arrival = stamp - offset
            if earliest_ns - _SLACK_NS <= arrival <= now_ns + _SLACK_NS:
                return min(arrival, now_ns)
        self.rejected += 1
        return -1
