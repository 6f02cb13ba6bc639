"""Power readings while the run goes on, and the table they become.

Two files beside the workers' journal. `power.series` has a JSON line per series (source, device, kind, ...) and per
event (a source that failed, came back or ended; the idle window). `power.rows` has fixed-size rows that point at series
by number. Series are written before rows, so what a crash leaves can be read; a row or line cut by it is dropped.
Times are absolute CLOCK_MONOTONIC here, since readings begin before the run's clock does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from results.journal import RowFile

if TYPE_CHECKING:
    import pyarrow as pa

POWER_ROW = np.dtype(
    [("t_ns", "<i8"), ("series", "<i4"), ("watts", "<f8"), ("joules", "<f8"), ("utilisation", "<f8"), ("memory", "<i8")]
)
_PACK = struct.Struct("<qidddq")
assert _PACK.size == POWER_ROW.itemsize
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Series:
    """One number of one device from one source; kinds and scopes of collectors.power.source (kind None: no power)."""

    source: str
    scope: str
    device: str
    name: str
    kind: str | None
    field: str | None
    host: str


@dataclass(frozen=True, slots=True)
class PowerLog:
    """What was read. `rows`: `POWER_ROW` with times since the run's start (negative before it), NaN and -1 missing."""

    series: list[Series]
    rows: np.ndarray
    events: list[dict[str, Any]] = field(default_factory=list)
    torn: int = 0

    @property
    def idle(self) -> tuple[int, int] | None:
        """The window in which nothing was asked of the server, before the run."""
        return next(((e["start_ns"], e["end_ns"]) for e in reversed(self.events) if e["event"] == "idle"), None)


class PowerWriter:
    """Appends readings; safe to use from several threads. Rows wait in memory while the disk is full."""

    def __init__(self, directory: Path) -> None:
        self._lines = RowFile(directory / "power.series")
        self._rows = RowFile(directory / "power.rows")
        self._numbers: dict[Hashable, int] = {}
        self._lock = Lock()

    def row(
        self,
        t_ns: int,
        series: Series,
        *,
        watts: float | None,
        joules: float | None,
        utilisation: float | None,
        memory_bytes: int | None,
    ) -> None:
        """Append one reading, at `t_ns` of CLOCK_MONOTONIC."""
        with self._lock:
            number = self._numbers.get(series)
            if number is None:
                number = self._numbers[series] = len(self._numbers)
                self._line({"series": asdict(series)})
            self._rows.buffer += _PACK.pack(
                t_ns,
                number,
                _NAN if watts is None else watts,
                _NAN if joules is None else joules,
                _NAN if utilisation is None else utilisation,
                -1 if memory_bytes is None else memory_bytes,
            )

    def event(self, name: str, **facts: Any) -> None:
        """Append what happened; times are keys that end in `_ns`, on CLOCK_MONOTONIC."""
        with self._lock:
            self._line({"event": name, **facts})

    def flush(self) -> bool:
        """Write what waits; False when the disk took not all of it."""
        with self._lock:
            return self._lines.flush() and self._rows.flush()

    def close(self) -> bool:
        """Flush and close; False when readings were lost because the disk is full."""
        written = self.flush()
        with self._lock:
            self._lines.close()
            self._rows.close()
        return written

    def _line(self, document: dict[str, Any]) -> None:
        self._lines.buffer += json.dumps(document, allow_nan=False).encode() + b"\n"


def read_power(directory: Path, t0_ns: int) -> PowerLog | None:
    """What the journal in `directory` holds; None when no power was read. `t0_ns`: the run's start, CLOCK_MONOTONIC."""
    try:
        lines = (directory / "power.series").read_bytes().split(b"\n")
    except OSError:
        return None
    torn = int(bool(lines.pop()))
    series: list[Series] = []
    events: list[dict[str, Any]] = []
    for line in lines:
        try:
            document = json.loads(line)
            if "series" in document:
                series.append(Series(**document["series"]))
            else:
                shifted = {k: v - t0_ns if k.endswith("_ns") else v for k, v in document.items()}
                events.append({"event": "", **shifted})
        except (ValueError, TypeError):
            torn += 1
    path = directory / "power.rows"
    data = path.read_bytes() if path.exists() else b""
    whole, rest = divmod(len(data), POWER_ROW.itemsize)
    rows = np.frombuffer(data, POWER_ROW, count=whole).copy()
    known = (rows["series"] >= 0) & (rows["series"] < len(series))
    torn += bool(rest) + int((~known).sum())
    rows = rows[known]
    rows["t_ns"] -= t0_ns
    return PowerLog(series, rows[np.argsort(rows["t_ns"], kind="stable")], events, torn)


def power_table(log: PowerLog, run_id: str) -> pa.Table:
    """power.parquet: one row per number read, by time; `t_ns` is negative before the run's start."""
    import pyarrow as pa

    rows = log.rows
    index = pa.array(rows["series"].astype(np.int32))

    def of_series(name: str) -> pa.Array:
        return pa.array([getattr(s, name) for s in log.series], pa.string()).take(index)

    def floats(name: str) -> pa.Array:
        return pa.array(rows[name].astype(np.float64), mask=~np.isfinite(rows[name]))

    return pa.table(
        {
            "run_id": pa.repeat(pa.scalar(run_id, pa.string()), len(rows)),
            "t_ns": pa.array(rows["t_ns"].astype(np.int64)),
            "source": of_series("source"),
            "scope": of_series("scope"),
            "device": of_series("device"),
            "name": of_series("name"),
            "watts": floats("watts"),
            "joules_counter": floats("joules"),
            "kind": of_series("kind"),
            "field": of_series("field"),
            "utilisation": floats("utilisation"),
            "memory_bytes": pa.array(rows["memory"].astype(np.int64), mask=np.asarray(rows["memory"] < 0)),
            "host": of_series("host"),
        }
    )


def write_power(run_dir: Path, run_id: str, t0_ns: int) -> PowerLog | None:
    """Write power.parquet from the journal; the readings, or None (and no file) when no power was read.

    Raises OSError when the file can't be written.
    """
    import pyarrow.parquet as pq

    log = read_power(run_dir / "journal", t0_ns)
    if log is None:
        return None
    path = run_dir / "power.parquet"
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(power_table(log, run_id), temporary, compression="zstd")
    temporary.replace(path)
    return log
