"""What `agentx compare` shows: a table for each pair of runs, and the gates that do not hold."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.pareto import ComparedCurves
from harness.pareto_view import print_ratio, ratio_document
from results.compare import BETTER, Change
from results.dataset import RunFiles, why_invalid


@dataclass(frozen=True, slots=True)
class Compared:
    """A pair of runs and what was found."""

    before: RunFiles
    after: RunFiles
    mixed: list[str]
    """Why they should not be compared (`--allow-mixed`)."""
    stacks: list[str]
    """How what was serving differs: what is compared."""
    changes: list[Change]


def print_comparisons(
    compared: Sequence[Compared], broken: Sequence[str], curves: ComparedCurves | None = None, *, as_json: bool
) -> None:
    """Write all pairs, and the ratio of the curves that they make, to standard output."""
    if as_json:
        pairs = [
            {
                "before": str(pair.before.folder),
                "after": str(pair.after.folder),
                "valid": [pair.before.summary.get("valid"), pair.after.summary.get("valid")],
                "differences": pair.mixed,
                "stacks": pair.stacks,
                "changes": [asdict(change) | {"better": BETTER[change.metric]} for change in pair.changes],
            }
            for pair in compared
        ]
        whole = {"pairs": pairs, "curves": curves and ratio_document(curves.ratio), "broken": list(broken)}
        sys.stdout.write(json.dumps(whole, indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    for pair in compared:
        console.print(_table(pair.before, pair.after, pair.changes))
        for run in (pair.before, pair.after):
            if not run.summary.get("valid"):
                console.print(f"[yellow]{run.folder.name}[/yellow]: {escape(why_invalid(run.summary))}", soft_wrap=True)
        for text in pair.stacks:
            console.print(f"stack: {text}", markup=False, soft_wrap=True)
        for text in pair.mixed:
            console.print(f"differs in {text}", markup=False, soft_wrap=True)
    if curves is not None:
        print_ratio(console, curves.ratio, curves.base, curves.wanted)
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
