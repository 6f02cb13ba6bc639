"""What a search for the highest concurrency shows at its end."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from harness.find_max import Found


def print_found(found: Found, *, as_json: bool) -> None:
    """Write the levels and the answer to standard output."""
    if as_json:
        sys.stdout.write(json.dumps(found.document(), indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    table = Table(title=", ".join(one.text for one in found.objectives), title_justify="left")
    for heading in ("live sessions", *(one.figure for one in found.objectives), ""):
        table.add_column(heading, justify="right" if heading else "left")
    for level in sorted(found.levels, key=lambda level: level.concurrency):
        cells = [_cell(one.figure, level.verdict.values[one.figure]) for one in found.objectives]
        verdict = "holds" if level.verdict.holds else "does not hold"
        note = ", within the noise" if level.verdict.close else ""
        table.add_row(str(level.concurrency), *cells, verdict + note)
    console.print(table)
    for level in found.levels:
        for why in level.verdict.why:
            console.print(f"{level.concurrency}: {why}", markup=False, soft_wrap=True)
    answer = f"{found.highest} live sessions" if found.highest else "no number of live sessions that was tried"
    console.print(f"highest that holds: {answer} ({found.ended})", markup=False, soft_wrap=True)
    console.print(f"runs: {found.directory}", markup=False, soft_wrap=True)


def _cell(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.2f} %" if figure == "error_rate" else f"{1e3 * value:,.1f} ms"
