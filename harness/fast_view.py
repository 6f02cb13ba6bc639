"""What `agentx fast` reads of runs, and shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from results.dataset import RunFiles, read, usable
from results.errors import UserError
from results.fast import CAUSES, Session, sessions_of
from results.fast_value import Market, fast_report
from results.places import one_line, parquet_source, printable

_REQUESTS = [
    "session_id", "pass", "lane_id", "phase", "status", "sent_ns", "first_token_ns", "last_token_ns", "done_ns",
    "output_tokens", "flags",
]  # fmt: skip
_TREES = ["session_id", "pass", "end", "partial", "started_ns", "ended_ns"]


def fast_rows(paths: Sequence[str], market: Market, *, include_invalid: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """One JSON-ready row for each run, and lines about what was left out. UserError when nothing is left."""
    runs, notes = usable(read(*paths), include_invalid=include_invalid)
    rows = [
        {"run_id": run.run_id, "folder": printable(run.folder)} | fast_report(_sessions(run), market) for run in runs
    ]
    return rows, notes


def _sessions(run: RunFiles) -> list[Session]:
    return sessions_of(_columns(run, "requests", _REQUESTS), _columns(run, "sessions", _TREES))


def _columns(run: RunFiles, name: str, wanted: list[str]) -> dict[str, Any]:
    file = run.folder / f"{name}.parquet"
    try:
        table = pq.ParquetFile(parquet_source(file)).read(columns=wanted)
    except Exception as error:  # Arrow's, the file system's, and those of a store's client
        raise UserError(f"{printable(file)}: can't be read: {one_line(error)}") from error
    if missing := [column for column in wanted if column not in table.column_names]:
        raise UserError(f"{printable(file)}: no column {missing[0]}", remedy="run again with this agentx")
    columns: dict[str, Any] = table.to_pydict()
    return columns


def print_fast(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Write all runs to standard output."""
    if as_json:
        sys.stdout.write(json.dumps(list(rows), indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    for row in rows:
        if row["sessions"]:
            _print_run(console, row)
        else:
            console.print(row["run_id"], markup=False)
        for key, reason in row["reasons"].items():
            console.print(f"{key}: {reason}", markup=False, soft_wrap=True)


def _print_run(console: Console, row: dict[str, Any]) -> None:
    shares = row["time_share"]
    text = ", ".join(f"{cause} {100 * shares[cause]['all']:.1f} %" for cause in CAUSES)
    console.print(f"{row['run_id']}: {row['sessions']:,} sessions: {text}", markup=False, soft_wrap=True)
    if row["overlapping_sessions"]:
        console.print(
            f"{row['overlapping_sessions']:,} sessions have agents: figures of them are bounds, low to high",
            markup=False,
            soft_wrap=True,
        )
    console.print(_speed_ups(row))
    console.print(_prices(row))


def _speed_ups(row: dict[str, Any]) -> Table:
    table = Table("decode speed", title="whole session, over sessions", title_justify="left")
    for heading in ("p10", "p50", "p90", "hours saved", "worth it up to $/M output"):
        table.add_column(heading, justify="right")
    for at in row["by_factor"]:
        bounds = at["speed_up"]
        cells = [_range(bounds["low"][q], bounds["high"][q], "×") for q in ("p10", "p50", "p90")]
        price = at["break_even_usd_per_million"] or {"low": None, "high": None}
        table.add_row(
            f"{at['factor']:g}×",
            *cells,
            _range(at["saved_hours"]["low"], at["saved_hours"]["high"]),
            _range(price["low"], price["high"]),
        )
    ceiling = row["ceiling"]
    table.add_row(
        "no time", *(_range(ceiling["low"][q], ceiling["high"][q], "×") for q in ("p10", "p50", "p90")), "", ""
    )
    return table


def _prices(row: dict[str, Any]) -> Table:
    table = Table("decode speed", "fast $/M output", title_justify="left")
    table.title = "tokens and the sessions' hours, $" if row["assumed"]["hour_usd"] is not None else "break-even"
    for heading in ("pays from $/hour", "turns worth it", "all batch", "two tiers", "all fast"):
        table.add_column(heading, justify="right")
    for at in row["by_factor"]:
        for priced in at["by_price"]:
            hour, plan = priced["break_even_hour_usd"], priced["plan"]
            tiers = ["–"] * 4
            if plan:
                share = plan["turns_worth_it"]
                tiers = ["–" if share is None else f"{100 * share:.0f} %"]
                for name in ("all_batch", "two_tiers", "all_fast"):
                    tiers.append(_range(plan[name]["total_usd"]["low"], plan[name]["total_usd"]["high"]))
            cells = (f"{at['factor']:g}×", f"{priced['usd_per_million']:g}", _range(hour["low"], hour["high"]))
            table.add_row(*cells, *tiers)
    return table


def _range(low: float | None, high: float | None, unit: str = "") -> str:
    ends = ["–" if end is None else f"{end:,.4g}{unit}" for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
