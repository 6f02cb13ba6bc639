"""Where the run's monotonic clock stands in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from time import CLOCK_REALTIME, clock_gettime_ns, monotonic_ns


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """The same moment on both clocks (ns); `utc` is the wall clock's as ISO 8601."""

    monotonic_ns: int
    realtime_ns: int
    utc: str

    @classmethod
    def now(cls) -> ClockAnchor:
        """Read both clocks, the wall clock between two readings of the other."""
        before = monotonic_ns()
        wall = clock_gettime_ns(CLOCK_REALTIME)
        after = monotonic_ns()
        utc = datetime.fromtimestamp(wall / 1e9, UTC).isoformat(timespec="microseconds")
        return cls((before + after) // 2, wall, utc)
