"""Which session tree starts next, over all workers: whoever has a free slot takes it, and none hoards."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_BYTES = 8


class Starts:
    """The next start's number, shared by processes through a file. Taking one costs a few microseconds."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR)

    @classmethod
    def create(cls, path: Path, first: int) -> None:
        """Make the file; `first` is the first number to be taken."""
        path.write_bytes(first.to_bytes(_BYTES, "little"))

    def peek(self) -> int:
        """The number that would be taken now."""
        return int.from_bytes(os.pread(self._fd, _BYTES, 0), "little")

    def take(self) -> int:
        """A number that nobody else gets. A process that is killed in here leaves no lock behind."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            number = self.peek()
            os.pwrite(self._fd, (number + 1).to_bytes(_BYTES, "little"), 0)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return number

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
