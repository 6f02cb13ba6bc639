"""Bring foreign trace formats into a corpus: a file per format, and what they share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from replay.corpus import CorpusWriter
from replay.importers import weka
from replay.importers.decoded import Malformed, Row, distinct
from replay.importers.sources import documents, printable
from results.errors import UserError

FORMATS = {"weka": weka.decode}
_LICENCE_FILES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
_LICENCE_CHARACTERS = 1 << 16


@dataclass(slots=True)
class ImportReport:
    """What came in and what did not."""

    sessions: int = 0
    requests: int = 0
    subagents: int = 0
    subagent_requests: int = 0
    input_tokens: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(document, reason) for every document left out."""
    unknown_fields: Counter[str] = field(default_factory=Counter)
    """Fields that were ignored because nobody knows them, and how often each came."""
    renamed: int = 0
    """Sessions whose id had been seen before; they got a suffix."""


def import_traces(
    source: Path,
    output: Path,
    *,
    format_name: str,
    strict: bool,
    on_progress: Callable[[int, ImportReport], None] = lambda done, report: None,
) -> ImportReport:
    """Read every trace of `source` into a corpus file.

    Malformed documents are skipped and reported; with `strict` the first one raises UserError. UserError too when not a
    single session could be read.
    """
    if output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"-o {output}: that is the source itself")
    decode = FORMATS[format_name]
    report = ImportReport()
    taken: dict[str, int] = {}
    digest = hashlib.sha256()
    meta: dict[str, object] = {
        "name": printable(source.name),
        "importer": format_name,
        "importer_version": metadata.version("agentx-live"),
        "filters": [],
    }
    with CorpusWriter(output, meta) as writer:
        for document in documents(source):
            digest.update(document.data)
            try:
                if document.problem is not None:
                    raise Malformed(document.problem)
                session, rows, unknown = decode(document.data, document.name)
            except Malformed as error:
                if strict:
                    raise UserError(f"{document.name}: {error}", remedy="mend it, or drop --strict") from error
                report.skipped.append((document.name, str(error)))
                on_progress(document.progress, report)
                continue
            if (unique := distinct(session, taken)) != session:
                report.renamed += 1
                rows = [{**row, "session_id": unique} for row in rows]
            report.unknown_fields += unknown
            writer.add_session(rows)
            _count(report, rows)
            on_progress(document.progress, report)
        if not report.sessions:
            why = f"; the first: {report.skipped[0][0]}: {report.skipped[0][1]}" if report.skipped else ""
            raise UserError(f"{source}: no trace could be read{why}")
        writer.add_meta(source_digest=digest.hexdigest(), **_licence(source))
    return report


def _count(report: ImportReport, rows: list[Row]) -> None:
    children = [row for row in rows if row["parent_lane_id"] is not None]
    report.sessions += 1
    report.requests += len(rows) - len(children)
    report.subagents += len({row["lane_id"] for row in children})
    report.subagent_requests += len(children)
    report.input_tokens += sum(row["input_tokens"] for row in rows)


def _licence(source: Path) -> dict[str, str]:
    """Licence text's first line and whose it is, where a licence file lies beside the traces."""
    folder = source if source.is_dir() else source.parent
    for name in _LICENCE_FILES:
        path = folder / name
        if path.is_file():
            with path.open(errors="replace") as file:
                lines = [line.strip() for line in file.read(_LICENCE_CHARACTERS).splitlines() if line.strip()]
            attribution = next((line for line in reversed(lines) if line.startswith("Copyright")), "")
            return {"licence": lines[0] if lines else "", "attribution": attribution}
    return {}
