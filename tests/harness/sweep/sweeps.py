"""Sweep files for tests, and the command line that runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PATHS = {"PYTHONPATH": str(ROOT)}
"""The processes of a sweep run this tree, wherever the package is installed from."""

HEAD = """\
name: s
run: {sessions: 1, duration: 20s, drain: 5s, time_scale: 0, max_context: 10k, workers: 1}
"""


def configuration(name: str = "a", mode: str = "good", rest: str = "", more: str = "") -> str:
    """One configuration whose server is `fast_server` in a mode."""
    return f"""\
- name: {name}
  serving: {{model: quick, engine: simulated, accelerators: 0}}
  server:
    commands:
      server: ["{{python}}", -m, tests.harness.sweep.fast_server, {mode}, "{{port}}"{rest and ", " + rest}]
    env: {{PYTHONPATH: {ROOT}}}
    ready_timeout: 10s
    stop_timeout: 2s
{more}"""


def write(folder: Path, *configurations: str, points: str = "[1]", head: str = HEAD) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(f"{head}points: {points}\nconfigurations:\n" + "".join(configurations))
    return path


def arguments(*words: str) -> list[str]:
    return [sys.executable, "-m", "agentx", "sweep", *words]


def sweep(*words: str, timeout: float = 50, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(*words),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
        env={**os.environ, **PATHS, **environment},
    )


def states(folder: Path) -> list[dict[str, Any]]:
    """Lines of the state of sweep `s` under `folder`."""
    return [json.loads(line) for line in (folder / "s" / "state.jsonl").read_text().splitlines()]


def ended(folder: Path) -> dict[str, dict[str, Any]]:
    """The last line of every point."""
    return {line["point"]: line for line in states(folder)}


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
