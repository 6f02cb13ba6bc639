"""The end of a run on a terminal: one table, what was wrong, and where the files are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_summary(summary: dict[str, Any], directory: Path, *, as_json: bool) -> None:
    """Show a run's summary on standard output."""
    if as_json:
        sys.stdout.write(json.dumps(summary, indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    console.print(_latencies(summary))
    console.print(_figures(summary))
    for reason in summary["invalid_reasons"]:
        console.print(f"[red]not valid:[/red] {escape(reason)}", soft_wrap=True)
    for warning in summary["warnings"]:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}", soft_wrap=True)
    console.print(f"run directory: {directory}", soft_wrap=True, markup=False)


def _latencies(summary: dict[str, Any]) -> Table:
    table = Table(title=f"{summary['run_id']}  {'valid' if summary['valid'] else 'NOT VALID'}", title_justify="left")
    for heading in ("", "p50", "p90", "p99", "n"):
        table.add_column(heading, justify="left" if not heading else "right")
    latency = summary["latency"]
    for name, label in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("itl_s", "ITL"), ("e2e_s", "E2E latency")):
        stats = latency[name]
        table.add_row(label, *(_milliseconds(stats[q]) for q in ("p50", "p90", "p99")), f"{stats['n']:,}")
    speed = summary["interactivity"]["e2e_normalised"]
    table.add_row("interactivity", *(_rate(speed[q], "tok/s") for q in ("p50", "p90", "p99")), "")
    return table


def _figures(summary: dict[str, Any]) -> Table:
    requests, throughput, cache = summary["requests"], summary["throughput"], summary["cache"]
    table = Table(show_header=False)
    for label, value in (
        ("requests", f"{requests['ok']:,} ok, {requests['failed']:,} failed, {requests['cancelled']:,} cancelled"),
        ("input", f"{_rate(throughput['input_tok_s'], 'tok/s')}, from cache {_percent(cache['achieved'])}"),
        ("  in theory", f"{_percent(cache['theoretical'])} by an infinite prefix cache"),
        ("output", _rate(throughput["output_tok_s"], "tok/s")),
        ("sessions", f"{summary['jobs']['completed']:,} completed"),
    ):
        table.add_row(label, value)
    return table


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _rate(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.0f} {unit}"


def _percent(value: float | None) -> str:
    return "not reported" if value is None else f"{100 * value:.1f} %"
