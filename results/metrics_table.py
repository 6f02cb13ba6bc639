"""Server series of a run: appended to the journal while it goes on, metrics.parquet at its end or by `recover`.

Two files in journal/. `metrics.jsonl`: one line per series when it is first seen, and one per baseline. `metrics.rows`:
fixed-size rows of time, series and value, written after the series they point at; a row or line cut by a crash is
dropped. A value is stored when it differs from the last stored one of its series, and always at a baseline: the value
between two rows is that of the earlier one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW = np.dtype([("t_ns", "<i8"), ("series", "<u4"), ("edge", "<i4"), ("value", "<f8")])
"""`edge`: index of the baseline this row belongs to, -1 for none. NaN: the page held no finite value."""

SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("t_ns", pa.int64()),
        ("target", pa.string()),
        ("role", pa.string()),
        ("name", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("value", pa.float64()),
        ("kind", pa.string()),
        ("canonical", pa.string()),
        ("scale", pa.float64()),
        ("phase", pa.string()),
        ("edge", pa.string()),
    ]
)
_INDEX, _ROWS = "metrics.jsonl", "metrics.rows"
_SLICE = 1 << 18
_FLUSH_BYTES = 1 << 16
_ABOUT = {
    "rows": "a row where a value differs from the series' row before; every series at a baseline (edge)",
    "t_ns": "when the request for the page began; `scrape_duration_seconds` says how long it took",
    "value": "as the page says it, null where it was not finite; times `scale` it is in the unit of `canonical`",
    "canonical": "the series of collectors/dialects/canonical.toml that it feeds; null: raw only",
    "phase": "after an edge `X_start` it is X, until the next edge; null outside",
}


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """What is known of a series, once."""

    target: str
    role: str
    name: str
    labels: tuple[tuple[str, str], ...]
    kind: str
    canonical: str | None
    scale: float | None


class MetricsJournal:
    """Appends to the journal; what the disk does not take waits in memory and is tried again."""

    def __init__(self, directory: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._index_fd = os.open(directory / _INDEX, flags, 0o644)
        self._rows_fd = os.open(directory / _ROWS, flags, 0o644)
        self._index, self._rows = bytearray(), bytearray()
        self._count = self._edges = 0
        self._last = np.zeros(0)

    def series(self, row: SeriesRow) -> int:
        """Number of a new series."""
        labels = dict(row.labels)
        record = [row.target, row.role, row.name, labels, row.kind, row.canonical, row.scale]
        self._index += json.dumps({"series": record}).encode() + b"\n"
        self._count += 1
        if self._count > len(self._last):
            grown = np.full(max(1024, 2 * self._count), np.inf)  # no page has it: non-finite values come as NaN
            grown[: len(self._last)] = self._last
            self._last = grown
        return self._count - 1

    def edge(self, name: str, t_ns: int) -> int:
        """Number of a baseline that begins now."""
        self._index += json.dumps({"edge": [name, t_ns]}).encode() + b"\n"
        self._edges += 1
        return self._edges - 1

    def add(self, t_ns: int, series: np.ndarray, values: np.ndarray, *, edge: int = -1) -> None:
        """One page: numbers of its series and their values (NaN where not finite)."""
        if edge < 0:
            last = self._last[series]
            changed = (last != values) & ~(np.isnan(last) & np.isnan(values))
            series, values = series[changed], values[changed]
        self._last[series] = values
        rows = np.empty(len(series), ROW)
        rows["t_ns"], rows["series"], rows["edge"], rows["value"] = t_ns, series, edge, values
        self._rows += rows.tobytes()
        if len(self._rows) > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> bool:
        """Write what waits, series before rows; False when the disk took not all of it."""
        return _write_all(self._index_fd, self._index) and _write_all(self._rows_fd, self._rows)

    def close(self) -> bool:
        """Flush and close; False when rows were lost."""
        written = self.flush()
        os.close(self._index_fd)
        os.close(self._rows_fd)
        return written


def _write_all(fd: int, buffer: bytearray) -> bool:
    while buffer:
        try:
            written = os.write(fd, buffer)
        except OSError:
            return False
        del buffer[:written]
    return True


def write_metrics(run_dir: Path, run_id: str) -> int | None:
    """Write metrics.parquet from the journal; returns its rows, None when nothing was collected. Raises OSError.

    Call before the journal is removed (`results.store.finalize` does that), at the end of a run and in `recover`.
    """
    journal = run_dir / "journal"
    if not (journal / _INDEX).exists():
        return None
    series, edges = _read_index(journal / _INDEX)
    path = journal / _ROWS
    count = path.stat().st_size // ROW.itemsize if path.exists() else 0
    rows = np.memmap(path, ROW, "r", shape=(count,)) if count else np.zeros(0, ROW)
    final = run_dir / "metrics.parquet"
    temporary = final.with_name(final.name + ".tmp")
    schema = SCHEMA.with_metadata({"agentx.metrics": json.dumps({**_ABOUT, "changed_only": True})})
    written = 0
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for low in range(0, count, _SLICE):
            part = np.array(rows[low : low + _SLICE])
            part = part[part["series"] < len(series)]
            writer.write_table(_table(part, series, edges, run_id))
            written += len(part)
    temporary.replace(final)
    return written


def _read_index(path: Path) -> tuple[list[list[Any]], list[tuple[str, int]]]:
    series: list[list[Any]] = []
    edges: list[tuple[str, int]] = []
    for line in _lines(path):
        try:
            record = json.loads(line)
        except ValueError:
            break  # cut by a crash; nothing points behind it
        if "series" in record:
            series.append(record["series"])
        else:
            edges.append((record["edge"][0], record["edge"][1]))
    return series, edges


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _table(rows: np.ndarray, series: Sequence[Sequence[Any]], edges: list[tuple[str, int]], run_id: str) -> pa.Table:
    used, index = np.unique(rows["series"], return_inverse=True)
    known = [series[number] for number in used.tolist()]
    taken = pa.array(index)

    def column(place: int, kind: pa.DataType) -> pa.Array:
        values = [list(s[place].items()) if place == 3 else s[place] for s in known]
        return pa.array(values, kind).take(taken)

    names = pa.array([name for name, _ in edges], pa.string())
    edge = rows["edge"].astype(np.int64)
    return pa.table(
        {
            "run_id": pa.repeat(pa.scalar(run_id, pa.string()), len(rows)),
            "t_ns": pa.array(rows["t_ns"]),
            "target": column(0, pa.string()),
            "role": column(1, pa.string()),
            "name": column(2, pa.string()),
            "labels": column(3, SCHEMA.field("labels").type),
            "value": pa.array(rows["value"], mask=np.isnan(rows["value"])),
            "kind": column(4, pa.string()),
            "canonical": column(5, pa.string()),
            "scale": column(6, pa.float64()),
            "phase": _phases(rows["t_ns"], edges),
            "edge": names.take(pa.array(edge, mask=(edge < 0) | (edge >= len(edges)))),
        },
        schema=SCHEMA,
    )


def _phases(times: np.ndarray, edges: list[tuple[str, int]]) -> pa.Array:
    marks = sorted(edges, key=lambda edge: edge[1])
    after = [None, *(name.removesuffix("_start") if name.endswith("_start") else None for name, _ in marks)]
    position = np.searchsorted(np.array([t for _, t in marks], np.int64), times, side="right")
    return pa.array(after, pa.string()).take(pa.array(position))
