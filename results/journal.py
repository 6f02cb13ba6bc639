"""The journal: fixed-size rows appended while the run goes on. All that a `kill -9` leaves, and all that the end reads.

Per worker there are four plain files of rows (`results.records`): requests, trees, client samples, and chunk arrival
offsets that request rows point into. Chunks are written before the requests that point at them; a row cut by a crash is
dropped when reading. A writer holds a shared lock on its requests file, which ends with its process however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from results.errors import UserError
from results.records import CLIENT, REQUEST, TREE
from results.redact import beginning, cut, redact

ERROR_BYTES = REQUEST["error"].itemsize
_HEADER = "header.json"
_CODES = {"u1": "B", "i2": "h", "i4": "i", "u4": "I", "i8": "q"}


def _packer(dtype: np.dtype[Any]) -> struct.Struct:
    """The struct that packs one row of `dtype`: packing is several times cheaper than assigning a numpy row."""
    codes = [
        f"{t.itemsize}s" if t.kind == "S" else _CODES[f"{t.kind}{t.itemsize}"]
        for t, *_ in (dtype.fields or {}).values()
    ]
    packer = struct.Struct("<" + "".join(codes))
    assert packer.size == dtype.itemsize
    return packer


def _names(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Field names in row order; `pass` is a keyword, so callers say `pass_`."""
    return tuple("pass_" if name == "pass" else name for name in dtype.names or ())


class RowFile:
    """One append-only file; rows wait in memory until `flush`, and stay there when the disk is full."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.buffer = bytearray()

    def lock(self) -> None:
        """Show other processes that the file is being written, where the file system can."""
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def flush(self) -> bool:
        """Write what waits; False when the disk took not all of it (the rest is kept and tried again)."""
        while self.buffer:
            try:
                written = os.write(self._fd, self.buffer)
            except OSError:
                return False
            del self.buffer[:written]
        return True

    def close(self) -> None:
        """Close without writing what waits."""
        os.close(self._fd)


class JournalWriter:
    """One worker's part of the journal. `secrets` are blotted out of error texts, wherever they stand."""

    def __init__(self, directory: Path, worker: int, *, secrets: Sequence[str] = ()) -> None:
        self._files = {
            kind: RowFile(directory / f"w{worker}.{kind}") for kind in ("chunks", "requests", "trees", "client")
        }
        self._files["requests"].lock()
        self._secrets = secrets
        self._chunks = self._files["chunks"].buffer
        self._requests = self._files["requests"].buffer
        self._trees = self._files["trees"].buffer
        self._client = self._files["client"].buffer
        self._pack_request, self._request_names = _packer(REQUEST).pack, _names(REQUEST)
        self._pack_tree, self._tree_names = _packer(TREE).pack, _names(TREE)
        self._pack_client, self._client_names = _packer(CLIENT).pack, _names(CLIENT)
        self._chunk_count = 0

    def chunks(self, offsets: np.ndarray) -> int:
        """Append arrival offsets (uint32, units of 100 ns since the request was sent); returns their start index."""
        start = self._chunk_count
        self._chunk_count += len(offsets)
        self._chunks += offsets.tobytes()
        return start

    def request(self, *, error: str, **row: int) -> None:
        """Append a request; the fields of `records.REQUEST` by name, `error` as text (redacted and cut here)."""
        row["error"] = cut(redact(beginning(error), self._secrets), ERROR_BYTES) if error else b""  # type: ignore[assignment]
        self._requests += self._pack_request(*[row[name] for name in self._request_names])

    def tree(self, **row: int) -> None:
        """Append a session tree that ended; the fields of `records.TREE` by name."""
        self._trees += self._pack_tree(*[row[name] for name in self._tree_names])

    def client(self, **row: int) -> None:
        """Append a sample of the client itself; the fields of `records.CLIENT` by name."""
        self._client += self._pack_client(*[row[name] for name in self._client_names])

    def flush(self) -> bool:
        """Write everything that waits; False when the disk is full (nothing is lost yet).

        Stops at the first file that could not be written: rows must not point at chunks that are not there.
        """
        return all(file.flush() for file in self._files.values())

    def close(self) -> bool:
        """Flush and close; False when rows were lost because the disk is full."""
        written = self.flush()
        for file in self._files.values():
            file.close()
        return written


def write_header(directory: Path, header: dict[str, Any]) -> None:
    """Replace the header, which holds what the rows do not: names, run id, window."""
    temporary = directory / (_HEADER + ".tmp")
    temporary.write_text(json.dumps(header, allow_nan=False))
    temporary.replace(directory / _HEADER)


def read_header(directory: Path) -> dict[str, Any]:
    """The header; UserError when it is missing or unreadable."""
    try:
        header: dict[str, Any] = json.loads((directory / _HEADER).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{directory / _HEADER}: {error}", remedy="is this a run directory?") from error
    return header


@dataclass(frozen=True, slots=True)
class WorkerJournal:
    """One worker's rows, mapped. `torn` counts rows cut by a crash, and requests that lost chunks."""

    worker: int
    requests: np.ndarray
    trees: np.ndarray
    client: np.ndarray
    chunks: np.ndarray
    torn: int


def is_written(directory: Path) -> bool:
    """Whether a process still writes this journal."""
    for path in directory.glob("w*.requests"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # a file system without locks
                continue
    return False


def read_journal(directory: Path) -> list[WorkerJournal]:
    """Every worker's part, in order of worker number."""
    workers = sorted(int(path.stem[1:]) for path in directory.glob("w*.requests") if path.stem[1:].isdigit())
    return [_read_worker(directory, worker) for worker in workers]


def _read_worker(directory: Path, worker: int) -> WorkerJournal:
    torn = 0
    arrays: dict[str, Any] = {}
    for kind, dtype in (("requests", REQUEST), ("trees", TREE), ("client", CLIENT), ("chunks", np.dtype("<u4"))):
        path = directory / f"w{worker}.{kind}"
        size = path.stat().st_size if path.exists() else 0
        rows, rest = divmod(size, dtype.itemsize)
        torn += bool(rest)
        arrays[kind] = np.memmap(path, dtype=dtype, mode="r", shape=(rows,)) if rows else np.zeros(0, dtype)
    requests = arrays["requests"]
    reach = requests["chunk_start"] + requests["chunk_count"]
    if len(requests) and int(reach.max()) > len(arrays["chunks"]):
        # Chunks are written first, so this file was damaged. What is there stays.
        there = np.clip(len(arrays["chunks"]) - requests["chunk_start"], 0, requests["chunk_count"])
        torn += int((there < requests["chunk_count"]).sum())
        requests = requests.copy()
        requests["chunk_count"] = there
    return WorkerJournal(worker, requests, arrays["trees"], arrays["client"], arrays["chunks"], torn)
