"""Bring back a run that was killed: the same files as a normal end, from what the journal holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from results.errors import UserError
from results.journal import read_header, read_journal
from results.store import finalize


def recover(run_dir: Path) -> dict[str, Any] | None:
    """Rebuild the result files; the new summary, or None when the run is complete already.

    Raises UserError when `run_dir` is no run directory or nothing can be read.
    """
    manifest = run_dir / "run.json"
    if not manifest.is_file():
        raise UserError(f"{run_dir}: no run.json", remedy="give a run directory, such as runs/<run_id>")
    journal = run_dir / "journal"
    if not journal.is_dir():
        return None
    header = read_header(journal)
    parts = read_journal(journal)
    rows, torn = sum(len(p.requests) for p in parts), sum(p.torn for p in parts)
    note = f"killed: {rows} requests were recovered" + (f", {torn} cut rows dropped" if torn else "")
    header["invalid_reasons"] = [*header.get("invalid_reasons", []), note]
    summary = finalize(run_dir, header, keep_chunks=bool(header.get("keep_chunks")))
    document = json.loads(manifest.read_bytes())
    document["status"], document["valid"] = "recovered", summary["valid"]
    temporary = manifest.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    temporary.replace(manifest)
    return summary
