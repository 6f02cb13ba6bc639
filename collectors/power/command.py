"""A program run for what it prints."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from collectors.power.source import SourceError

TIMEOUT_S = 15.0
"""amd-smi takes a second to start, and several with eight GPUs."""


def output(command: Sequence[str]) -> str:
    """What `command` writes to stdout; SourceError when it is missing, fails, hangs or prints no text."""
    name = command[0]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise SourceError(f"{name} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"{name} did not end within {TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise SourceError(f"{name}: {error.strerror}") from error
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip() or text.strip() or "no message"
        raise SourceError(f"{name} failed ({done.returncode}): {said.splitlines()[0]}")
    return text
