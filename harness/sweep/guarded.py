"""Processes under a guard (`guard.py`), seen from the sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType

from results.errors import UserError

ROOT = Path(__file__).resolve().parent.parent.parent
"""The folder that holds `agentx.py` and the packages: a checkout, or site-packages."""


class Guarded:
    """One child process, its output in a log without secrets; it never outlives this process."""

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        secrets: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        patience_s: float = 10.0,
        hold: int | None = None,
    ) -> None:
        """Start it. UserError when the program can't be started.

        `hold`: a file whose lock the guard shares, so that it outlasts this process until the child has ended.
        """
        self.log = log
        self._patience_s = patience_s
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.sweep.guard"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=() if hold is None else (hold,),
        )
        order = {
            "argv": list(argv),
            "cwd": os.getcwd(),
            "env": dict(env or {}),
            "log": str(log.resolve()),
            "secrets": list(secrets),
            "patience_s": patience_s,
        }
        self._tell(json.dumps(order))
        assert self._process.stdout is not None
        answer = json.loads(self._process.stdout.readline() or b'{"error": "its guard ended at once"}')
        if "error" in answer:
            self.close()
            raise UserError(f"can't start {answer['error']}", remedy="is it installed and on PATH?")
        self.pid: int = answer["pid"]

    def signal(self, number: int) -> None:
        """Send the child a signal."""
        self._tell(str(number))

    def poll(self) -> int | None:
        """The exit code (128 + n for signal n), or None while it lives."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, or None when it still lives after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End the whole process tree: TERM, and KILL after the patience it was started with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        until = monotonic() + self._patience_s + 15
        while self._process.poll() is None and monotonic() < until:
            self.wait(0.5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Guarded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it has ended already


def tail(log: Path, lines: int = 1) -> str:
    """The last lines of a log that say something, on one line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])
