"""What a sweep has done: one synced JSON line per event, so that a crash loses at most the point under way."""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal

from results.errors import UserError

SCHEMA = 1
Status = Literal["running", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Record:
    """The latest that is known of a point."""

    point: str
    digest: str
    attempt: int
    status: Status
    run_id: str | None = None
    valid: bool | None = None
    reason: str | None = None
    seconds: float | None = None
    """Wall time of the attempt, server start included."""
    start_s: float | None = None
    """Seconds until the server was ready."""


class State:
    """The journal of a sweep folder, held by one process at a time."""

    def __init__(self, folder: Path, *, write: bool = True, say: Callable[[str], None] = lambda line: None) -> None:
        """Open or create it; only look at it unless `write`.

        The processes of a sweep that was killed are waited for (`say` tells): they end by themselves, and until then
        they have the accelerators. UserError when the folder can't be written or another sweep holds it.
        """
        self.folder = folder
        self.path = folder / "state.jsonl"
        self.records: dict[str, Record] = {}
        self.hold: int | None = None
        """Descriptor of the file that the guards of this sweep's processes keep locked."""
        self._file: IO[bytes] = io.BytesIO()
        self._lock: IO[bytes] = io.BytesIO()
        if not write:
            if self.path.is_file():
                self._read(self.path.read_bytes())
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            raise UserError(f"--out {folder}: {error.strerror}", remedy="choose a folder you can write") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UserError(f"{folder}: another sweep is running there", remedy="wait for it, or use --out") from error
        self._lock = (folder / "processes.lock").open("ab")
        self.hold = self._lock.fileno()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"{folder}: waiting for the processes of the sweep before this one to end")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._file.seek(0)
        whole = self._read(self._file.read())
        self._file.truncate(whole)  # the line that a crash cut

    def attempt(self, point: str) -> int:
        """Number of the next attempt at a point, from 1."""
        known = self.records.get(point)
        return 1 if known is None else known.attempt + 1

    def done(self, point: str, digest: str) -> Record | None:
        """The record of a point that ended, well or not, as it is defined now."""
        known = self.records.get(point)
        if known is None or known.digest != digest or known.status not in ("done", "failed"):
            return None
        return known

    def put(self, record: Record) -> None:
        """Append and sync."""
        self.records[record.point] = record
        line = {"schema": SCHEMA, "at": datetime.now(UTC).isoformat(timespec="seconds"), **_plain(record)}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.close()
        self._file.close()

    def __enter__(self) -> State:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, data: bytes) -> int:
        """Take in the complete lines; their size in bytes."""
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                fields = json.loads(line)
                if fields.pop("schema") != SCHEMA:
                    raise ValueError("another schema version")
                fields.pop("at")
                record = Record(**fields)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    f"{self.path}:{number}: not a line of a sweep's state: {error}", remedy="move the folder away"
                ) from error
            self.records[record.point] = record
        return len(whole)


def _plain(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in Record.__slots__}
