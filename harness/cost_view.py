"""What `agentx cost` shows: one row for each run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_costs(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Write all runs to standard output."""
    if as_json:
        sys.stdout.write(json.dumps(list(rows), indent=2, allow_nan=False) + "\n")
        return
    table = Table(title="per accelerator; each kind of token bears the whole price", title_justify="left")
    earning = any(row["profit"] for row in rows)
    for heading in ("run", "$/M input", "$/M output", "$/M total", "Mtok/$", "Mtok/s/MW"):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for heading in ("revenue $/h", "profit $/h") if earning else ():
        table.add_column(heading, justify="right")
    for row in rows:
        dollars = row["usd_per_million"]
        cells = [_money(dollars[kind]) for kind in ("input", "output", "total")]
        cells += [_millions(row["tokens_per_usd"]["total"]), _millions(row["tokens_per_s_per_mw"]["total"])]
        if earning:
            cells += [_money(row["profit"] and row["profit"][name]) for name in ("revenue", "profit")]
        table.add_row(row["run_id"], *cells)
    console = Console(highlight=False)
    console.print(table)
    for reason in dict.fromkeys(reason for row in rows for reason in row["reasons"].values()):
        console.print(f"not known or assumed: {reason}", markup=False, soft_wrap=True)


def _money(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3f}"


def _millions(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.2f}"
