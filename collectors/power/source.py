"""What every source of power readings has in common: devices, samples, and failures that are reasons."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

PLAUSIBLE_W = (3.0, 100_000.0)
"""A powered accelerator draws more than this idle (tools that print 0 to 2 W read a sensor that is not there),
and no device draws as much as the upper bound (exporters print huge numbers for blank)."""

TIMEOUT_S = 5.0
"""Limit on one read of a source that waits for somebody else (HTTP, gRPC, a command)."""


class Scope(StrEnum):
    """What a reading covers; readings of different scopes are never added."""

    ACCELERATOR = "accelerator"
    GIVEN = "given"
    """Whatever the user's own command or URL says it measures."""
    NODE = "node"
    CPU = "cpu"


class Kind(StrEnum):
    """What a number means; numbers of different kinds are never blended."""

    COUNTER = "counter"
    """Joules since some moment in the past, in `joules_counter`."""
    AVERAGE = "average"
    """Watts averaged by the device over its own window (about 1 s)."""
    INSTANT = "instant"
    """Watts at the moment of reading."""
    ASSUMED = "assumed"
    """Watts somebody stated; nothing was measured."""


class SourceError(Exception):
    """A source can't be read, and why, in one line."""


@dataclass(frozen=True, slots=True)
class Device:
    """`id` is the same from every source that can see the device (the UUID where it has one)."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of one device.

    `watts`, `joules` (counter) None: asked for and not given. `kind` None: the device has no power reading of its own
    (a MIG instance, the second die of a package), so nothing is missing. `utilisation` is 0..1.
    """

    device: Device
    kind: Kind | None
    field: str | None
    """The name of the number at its source."""
    watts: float | None = None
    joules: float | None = None
    utilisation: float | None = None
    memory_bytes: int | None = None
    host: str | None = None
    """None: this machine."""
    t_ns: int | None = None
    """On this machine's monotonic clock; None: when `sample` was called."""
    scope: Scope | None = None
    """None: the source's own."""
    source: str | None = None
    """None: the source's own name."""


class Source(Protocol):
    """One way to read power. Calls may block; each source is read from a thread of its own."""

    name: str
    scope: Scope
    problems: Counter[str]
    """What could not be read although the source as a whole works: reason → times."""

    def devices(self) -> list[Device]:
        """Open the source, or open it again; SourceError when there is nothing to read."""
        ...

    def sample(self) -> list[Sample]:
        """Read everything once; SourceError when the source is gone."""
        ...

    def close(self) -> None:
        """Let go; never raises."""
        ...


_NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*([a-zA-Zµ%]*)")
_SCALE = {
    "": 1.0, "w": 1.0, "mw": 1e-3, "uw": 1e-6, "µw": 1e-6, "kw": 1e3, "watts": 1.0, "watt": 1.0,
    "j": 1.0, "mj": 1e-3, "uj": 1e-6, "µj": 1e-6, "kj": 1e3, "wh": 3600.0, "kwh": 3.6e6,
    "%": 1.0, "b": 1.0, "kb": 1e3, "mb": 2.0**20, "gb": 2.0**30, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30,
}  # fmt: skip


def number(cell: Any) -> float | None:
    """A finite number from a cell as tools print it, in base units (W, J, B, %); None for everything else.

    Takes `450.2 W`, `"1 MB"`, `{"value": 450, "unit": "W"}`; `[N/A]`, `[Not Supported]`, `ERR!` and blank are None.
    Graphics tools write MB for 2^20 bytes.
    """
    if isinstance(cell, dict):
        value, unit = number(cell.get("value")), str(cell.get("unit") or "").strip().lower()
        return None if value is None or unit not in _SCALE else value * _SCALE[unit]
    if isinstance(cell, bool) or cell is None:
        return None
    if isinstance(cell, int | float):
        return float(cell) if math.isfinite(cell) else None
    match = _NUMBER.fullmatch(str(cell).strip())
    if match is None or match[2].lower() not in _SCALE:
        return None
    value = float(match[1]) * _SCALE[match[2].lower()]
    return value if math.isfinite(value) else None


def plausible(watts: float | None, problems: Counter[str], what: str) -> float | None:
    """The watts of an accelerator; None, and a problem counted, when no accelerator can draw that."""
    if watts is None or PLAUSIBLE_W[0] <= watts < PLAUSIBLE_W[1]:
        return watts
    problems[f"{what}: implausible power reading, left out"] += 1
    return None


def percent(value: float | None) -> float | None:
    """0..100 as 0..1; None outside."""
    return value / 100 if value is not None and 0 <= value <= 100 else None
