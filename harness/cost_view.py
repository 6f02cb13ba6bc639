"""What `agentx cost` shows: cost by run, what a device-hour is made of, profit, and how far it moves."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_MOST_IN_DETAIL = 4
_AMOUNTS = {
    "revenue": "revenue",
    "cost": "cost",
    "gross_margin": "gross margin",
    "licence": "licence fee",
    "profit": "profit",
}


def print_costs(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Write all runs to standard output."""
    if as_json:
        sys.stdout.write(json.dumps(list(rows), indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    console.print(_costs(rows))
    assumed = rows[0]["assumed"]
    if assumed["tco"]:
        console.print(_items(assumed["tco"]["usd_per_device_hour"]))
    detailed = len(rows) <= _MOST_IN_DETAIL
    for row in rows:
        if row["profit"] and detailed:
            _print_profit(console, row)
        if row.get("tornado"):
            console.print(_tornado(row))
        if row.get("monte_carlo"):
            _print_monte_carlo(console, row)
    for what, origin in assumed["origins"].items():
        console.print(f"{what}: {origin}", markup=False, soft_wrap=True)
    for reason, figures in _by_reason(rows).items():
        console.print(f"{', '.join(figures)}: {reason}", markup=False, soft_wrap=True)
    if not detailed and assumed["usd_per_million"]:
        console.print("profit per rack, per MW and break-even of each run: fewer runs, or --json")


def _costs(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="per accelerator; each kind of token bears the whole price", title_justify="left")
    earning = any(row["profit"] for row in rows)
    for heading in ("run", "$/M input", "$/M output", "$/M total", "Mtok/$", "Mtok/s/MW"):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for heading in ("revenue $/h", "profit $/h") if earning else ():
        table.add_column(heading, justify="right")
    for row in rows:
        dollars = row["usd_per_million"]
        cells = [_number(dollars[kind], 3) for kind in ("input", "output", "total")]
        for name in ("tokens_per_usd", "tokens_per_s_per_mw"):
            total = row[name]["total"]
            cells.append(_number(None if total is None else total / 1e6, 2))
        if earning:
            cells += [_number(row["profit"] and row["profit"][name], 3) for name in ("revenue", "profit")]
        table.add_row(row["run_id"], *cells)
    return table


def _items(items: dict[str, float]) -> Table:
    table = Table("item", title="what an accelerator-hour costs to own", title_justify="left")
    table.add_column("$/hour", justify="right")
    for name, usd in items.items():
        table.add_row(name, _number(usd, 4))
    table.add_section()
    table.add_row("total", _number(sum(items.values()), 4))
    return table


def _print_profit(console: Console, row: dict[str, Any]) -> None:
    found = row["profit"]
    table = Table("at list prices", title=row["run_id"], title_justify="left")
    columns = (
        ("$/accelerator-hour", found, 1.0),
        ("k$/rack-year", found["per_rack_year"], 1e-3),
        ("M$/MW-year", found["per_mw_year"], 1e-6),
    )
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for name, label in _AMOUNTS.items():
        table.add_row(label, *(_number(amounts and amounts[name] * scale, 2) for _, amounts, scale in columns))
    console.print(table)
    said = {
        "cache hits": _percent(found["hit_rate"], "input"),
        "gross margin": _percent(found["gross_margin_share"], "revenue"),
        "breaks even at": _percent(found["break_even_utilisation"], "hours sold"),
        "or at": _percent(found["break_even_price"], "list prices"),
        "pays back in": f"{_number(found['months_to_pay_back'], 1)} months",
    }
    console.print("; ".join(f"{name} {value}" for name, value in said.items()), markup=False, soft_wrap=True)


def _tornado(row: dict[str, Any]) -> Table:
    title = (
        f"{row['run_id']}: profit, $/accelerator-hour, with one assumption moved ({row['profit']['profit']:,.2f} now)"
    )
    table = Table("assumption", "from", "to", "profit from", "profit to", "because", title=title, title_justify="left")
    for column in table.columns[1:5]:
        column.justify = "right"
    for bar in row["tornado"]:
        ends = [f"{bar[end]:,.4g}" for end in ("low", "high")]
        profits = [_number(bar[end], 2) for end in ("profit_at_low", "profit_at_high")]
        table.add_row(bar["parameter"], *ends, *profits, row["ranges"][bar["parameter"]]["why"])
    return table


def _print_monte_carlo(console: Console, row: dict[str, Any]) -> None:
    found = row["monte_carlo"]
    hourly, yearly = found["profit_per_device_hour"], found["profit_per_mw_year"]
    text = f"{row['run_id']}: {found['draws']:,} draws, seed {found['seed']}: profit, $/accelerator-hour, "
    text += ", ".join(f"{name} {value:,.2f}" for name, value in hourly.items())
    if yearly:
        text += "; M$ per MW and year, " + ", ".join(f"{name} {value / 1e6:,.2f}" for name, value in yearly.items())
    console.print(f"{text}; a loss in {100 * found['loss_share']:.1f} % of them", markup=False, soft_wrap=True)


def _by_reason(rows: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Reasons with the figures each stands for; of a figure by token kind the figure only."""
    found: dict[str, list[str]] = {}
    for key, reason in (item for row in rows for item in row["reasons"].items()):
        figure = key if key.startswith("profit") else key.partition(".")[0]
        if figure not in found.setdefault(reason, []):
            found[reason].append(figure)
    return found


def _percent(share: float | None, of: str) -> str:
    return "–" if share is None else f"{100 * share:,.1f} % of {of}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
