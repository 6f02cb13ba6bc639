"""Imports run one way, and what decides stays free of I/O: the contracts in pyproject.toml, kept by a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500


def lint_imports(cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_imports_run_one_way() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


def test_a_forbidden_import_is_noticed(tmp_path: Path) -> None:
    import shutil

    for package in ("harness", "replay", "collectors", "results", "hardware"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "agentx.py", tmp_path)
    stats = tmp_path / "results" / "stats.py"
    stats.write_text(stats.read_text() + "\nimport replay.plan\nimport time\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    assert "results is not allowed to import replay" in done.stdout
    assert "results.stats is not allowed to import time" in done.stdout


def test_files_are_read_in_a_sitting() -> None:
    folders = ("harness", "replay", "collectors", "results", "hardware", "tests", "benchmarks")
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not {name: lines for name, lines in long.items() if not name.startswith("tests/")}, long


def test_help_starts_at_once() -> None:
    """The command line imports nothing heavy before it knows what to do."""
    heavy = "('pyarrow', 'httpx', 'pandas', 'numpy')"
    code = f"import sys, harness.cli as c; c.register(); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
