"""Bring back a run that was killed: the same files as a normal end, from what the journal holds."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from results.errors import UserError
from results.journal import is_written, read_header, read_journal
from results.store import finalize, remove_journal, write_json

LAST_WORDS_S = 3.0
"""How long workers may take to notice that the run is gone and write what they hold."""


def recover(run_dir: Path) -> dict[str, Any] | None:
    """Rebuild the result files; the new summary, or None when the run is complete already.

    Raises UserError when `run_dir` is no run directory, the run still goes on, or nothing can be read.
    """
    manifest = _read(run_dir / "run.json", "give a run directory, such as runs/<run_id>")
    journal = run_dir / "journal"
    if not journal.is_dir():
        _complete(run_dir, manifest)
        return None
    _wait_for_writers(run_dir, journal)
    header = read_header(journal)
    parts = read_journal(journal)
    rows, torn = sum(len(p.requests) for p in parts), sum(p.torn for p in parts)
    note = f"killed: {rows} requests were recovered" + (f", {torn} rows were cut" if torn else "")
    header["invalid_reasons"] = [*header.get("invalid_reasons", []), note]
    summary = finalize(run_dir, header, keep_chunks=bool(header.get("keep_chunks")))
    write_json(run_dir / "run.json", {**manifest, "status": "recovered", "valid": summary["valid"]})
    return summary


def _read(path: Path, remedy: str) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path.parent}: no {path.name}", remedy=remedy) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}", remedy=remedy) from error
    return document


def _wait_for_writers(run_dir: Path, journal: Path) -> None:
    deadline = monotonic() + LAST_WORDS_S
    while is_written(journal):
        if monotonic() > deadline:
            raise UserError(f"{run_dir}: the run still goes on", remedy="stop it with Ctrl-C, which keeps its results")
        sleep(0.05)


def _complete(run_dir: Path, manifest: dict[str, Any]) -> None:
    """Finish what a crash after the last result file left undone."""
    summary = _read(run_dir / "summary.json", "it has no journal either: there is nothing to recover from")
    remove_journal(run_dir)
    if manifest.get("status") == "running":
        write_json(run_dir / "run.json", {**manifest, "status": "finished", "valid": summary["valid"]})
