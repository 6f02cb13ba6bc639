"""What `agentx compare` shows: a table for each pair of runs, and the gates that do not hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from results.compare import BETTER, Change, RunFiles

Compared = tuple[RunFiles, RunFiles, list[str], list[Change]]


def print_comparisons(compared: Sequence[Compared], broken: Sequence[str], *, as_json: bool) -> None:
    """Write all pairs to standard output."""
    if as_json:
        pairs = [
            {
                "before": str(a.folder),
                "after": str(b.folder),
                "valid": [a.summary["valid"], b.summary["valid"]],
                "differences": mixed,
                "changes": [asdict(change) | {"better": BETTER[change.metric]} for change in changes],
            }
            for a, b, mixed, changes in compared
        ]
        sys.stdout.write(json.dumps({"pairs": pairs, "broken": list(broken)}, indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    for a, b, mixed, changes in compared:
        console.print(_table(a, b, changes))
        for run in (a, b):
            if not run.summary["valid"]:
                console.print(f"[yellow]{run.folder.name} is not valid[/yellow]")
        for text in mixed:
            console.print(f"differs in {text}", markup=False, soft_wrap=True)
    for why in broken:
        console.print(f"[red]gate:[/red] {why}", soft_wrap=True)


def _table(a: RunFiles, b: RunFiles, changes: Sequence[Change]) -> Table:
    table = Table(title=f"{a.folder.name} -> {b.folder.name}", title_justify="left")
    for heading in ("", "before", "after", "change", "95 %", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for change in changes:
        if change.before is None and change.after is None:
            continue
        interval = (
            "" if change.interval is None else f"{_percent(change.interval[0])} to {_percent(change.interval[1])}"
        )
        table.add_row(
            change.metric,
            _value(change.before),
            _value(change.after),
            _percent(change.relative),
            interval,
            _verdict(change),
        )
    return table


def _verdict(change: Change) -> str:
    if change.worse is None or change.significant is None:
        return "open"
    if not change.significant:
        return "noise"
    return "[red]worse[/red]" if change.worse > 0 else "[green]better[/green]"


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f} %"
