"""What `agentx offload` reads of runs, and shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from results.comparable import ONE_CHANGE, check
from results.dataset import read, usable
from results.offload import Assumed, offload_row, pair_up

_HEADINGS = (
    "sessions", "GB", "hits, points", "total tok/s", "output tok/s", "$/hour", "points/TB", "tok/s/GB", "$/GB-year"
)  # fmt: skip


def offload_rows(
    with_tier: Sequence[str], without: Sequence[str], assumed: Assumed, *, include_invalid: bool, allow_mixed: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """One JSON-ready row for each operating point, and lines about what was left out or is mixed.

    UserError when nothing pairs, or a pair differs in more than the tier and not `allow_mixed`.
    """
    added, notes = usable(read(*with_tier), include_invalid=include_invalid)
    bare, more = usable(read(*without), include_invalid=include_invalid)
    pairs, alone = pair_up(added, bare)
    notes += more + alone
    rows = []
    for before, after in pairs:
        what = f"{before.folder} and {after.folder}"
        differ = check([before.manifest, after.manifest], ONE_CHANGE, allow_mixed=allow_mixed, what=what)
        notes += [f"{what} differ in {line}" for line in differ]
        rows.append(offload_row(before, after, assumed) | {"differences": differ})
    return rows, notes


def print_offload(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Write all operating points to standard output."""
    if as_json:
        sys.stdout.write(json.dumps(list(rows), indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    table = Table("scenario", title="gained by the tier (~: within noise, ?: no interval)", title_justify="left")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for row in rows:
        rates, each = row["throughput"], row["per_gb"]
        points = each["hit_rate_points"]
        table.add_row(
            str(row["scenario"]),
            "–" if row["concurrency"] is None else f"{row['concurrency']:,}",
            _plain(row["added_gb"]),
            _gain(row["hit_rate_points"]),
            _gain(rates["total_tok_s"]),
            _gain(rates["output_tok_s"]),
            _plain(row["usd_per_hour"]),
            _plain(None if points is None else 1000 * points),
            _plain(each["total_tok_s"]),
            _plain(row["usd_per_gb_year"]),
        )
    console.print(table)
    for key, reason in dict.fromkeys(item for row in rows for item in row["reasons"].items()):
        console.print(f"{key}: {reason}", markup=False, soft_wrap=True)


def _gain(figure: dict[str, Any]) -> str:
    if figure["gain"] is None:
        return "–"
    mark = {True: "", False: " ~", None: " ?"}[figure["significant"]]
    return f"{figure['gain']:+,.4g}{mark}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"
