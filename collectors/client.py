"""The client measuring itself: is the event loop late, how much CPU and memory does this process use."""

from __future__ import annotations

import asyncio
import os
import resource
from time import monotonic_ns, process_time_ns

PERIOD_S = 0.02
"""A timer this often costs about 0.05 % of a core and sees every stall longer than itself."""

_PAGE = os.sysconf("SC_PAGE_SIZE")


class LoopWatch:
    """Measures by how much a periodic timer is late: the time in which the loop could not react."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lags: list[int] = []
        self._due = 0
        self._timer: asyncio.TimerHandle | None = None
        self._cpu = process_time_ns()
        self._wall = monotonic_ns()

    def start(self) -> None:
        """Begin measuring; what was used before does not count."""
        self._cpu, self._wall = process_time_ns(), monotonic_ns()
        self._arm()

    def stop(self) -> None:
        """End measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._due = monotonic_ns() + round(PERIOD_S * 1e9)
        self._timer = self._loop.call_later(PERIOD_S, self._fire)

    def _fire(self) -> None:
        self._lags.append(max(0, monotonic_ns() - self._due))
        self._arm()

    def take(self) -> tuple[int, int]:
        """(p99, max) lag in ns since the last call; (-1, -1) without a measurement."""
        lags = sorted(self._lags)
        self._lags.clear()
        if not lags:
            return -1, -1
        return lags[min(len(lags) - 1, round(0.99 * (len(lags) - 1)))], lags[-1]

    def usage(self) -> dict[str, int]:
        """CPU and wall nanoseconds since the last call, resident bytes now."""
        cpu, wall = process_time_ns(), monotonic_ns()
        used = {"cpu_ns": cpu - self._cpu, "wall_ns": wall - self._wall, "rss_bytes": resident_bytes()}
        self._cpu, self._wall = cpu, wall
        return used


def resident_bytes() -> int:
    """Resident memory of this process; the peak where the present value can't be read."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
