"""Keeps one child process: its log without secrets, signals on request, and its whole process tree ended with us.

Run as `python -m harness.sweep.guard`. The first line of standard input is a JSON object
`{"argv", "cwd", "env", "log", "secrets", "patience_s"}` (`env`: variables to add); later lines are signal numbers for
the child. At the end of standard input, which is also what a killed parent looks like, the child's process group gets
TERM and, `patience_s` later, KILL; so does whatever left the group. One JSON line on standard output says
`{"pid": …}` or `{"error": …}`; the guard's exit code is the child's, 128 + n for signal n.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

_PR_SET_CHILD_SUBREAPER = 36
_LINE_LIMIT = 65_536


def main() -> int:
    """Start the child, follow orders until it or the parent ends, leave nothing behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the child would inherit
    order = json.loads(sys.stdin.buffer.readline())
    _adopt_orphans()
    with Path(order["log"]).open("ab") as log:
        try:
            child = subprocess.Popen(
                order["argv"],
                cwd=order["cwd"],
                env={**os.environ, **order["env"]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            _say({"error": f"{order['argv'][0]}: {error.strerror or error}"})
            return 127
        _say({"pid": child.pid})
        return _keep(child, order, log)


def _keep(child: subprocess.Popen[bytes], order: dict[str, Any], log: IO[bytes]) -> int:
    assert child.stdout is not None
    pump = threading.Thread(target=_pump, args=(child.stdout, log, order["secrets"]), daemon=True)
    pump.start()
    closed = threading.Event()
    threading.Thread(target=_obey, args=(child, closed), daemon=True).start()
    while child.poll() is None and not closed.is_set():
        closed.wait(0.05)
    code = _end(child, order["patience_s"])
    pump.join(5.0)
    return 128 - code if code < 0 else code


def _obey(child: subprocess.Popen[bytes], closed: threading.Event) -> None:
    for line in sys.stdin.buffer:
        if line.strip().isdigit() and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(int(line))
    closed.set()


def _end(child: subprocess.Popen[bytes], patience_s: float) -> int:
    """End the group and every orphan we adopted; the child's own exit code."""
    deadline = monotonic() + patience_s
    _signal_group(child.pid, signal.SIGTERM)
    while monotonic() < deadline and (child.poll() is None or _group_lives(child.pid)):
        _reap(child.pid)
        sleep(0.05)
    _signal_group(child.pid, signal.SIGKILL)
    code = child.wait()
    for number, wait_s in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0)):
        until = monotonic() + wait_s
        while (left := _children()) and monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            _reap(child.pid)
            sleep(0.05)
    return code


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _adopt_orphans() -> None:
    """Descendants that leave the session become our children when their parent ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split()]
    return found


def _reap(child: int) -> None:
    """Collect adopted orphans that ended; the child itself is Popen's to collect."""
    for pid in _children():
        if pid != child and _state(pid) == "Z":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _pump(source: IO[bytes], log: IO[bytes], secrets: list[str]) -> None:
    """Copy output line by line; a secret never reaches the file, also where a line is cut."""
    hidden = sorted((secret.encode() for secret in secrets if secret), key=len, reverse=True)
    pending = b""
    while block := os.read(source.fileno(), _LINE_LIMIT):
        pending += block
        end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if not end and len(pending) > _LINE_LIMIT:
            end = len(pending) - max(map(len, hidden), default=0)
        _write(log, pending[:end], hidden)
        pending = pending[end:]
    _write(log, pending, hidden)


def _write(log: IO[bytes], data: bytes, hidden: list[bytes]) -> None:
    for secret in hidden:
        data = data.replace(secret, b"***")
    with contextlib.suppress(OSError):  # a full disk must not end the server
        log.write(data)
        log.flush()


def _say(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    os._exit(code)  # the thread that reads standard input can't be joined
