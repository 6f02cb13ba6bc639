"""What `agentx pareto` shows: a table for each curve, curves against each other; JSON and CSV of every point."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import IO, Any

import msgspec
from rich.console import Console
from rich.table import Table

from results.curves import Ratio, RunPoint, StackCurve

COLUMNS = (
    "curve", "run_id", "folder", "concurrency", "offload", "on_frontier", "x", "x_low", "x_high", "y", "y_low",
    "y_high", "tok_s_per_accelerator", "reason",
)  # fmt: skip


def rows_of(curve: StackCurve) -> list[dict[str, Any]]:
    """Every point of a curve, those without a place included, by x."""
    ordered = sorted(curve.points, key=lambda p: (p.x is None, p.x or 0.0, p.folder))
    return [_row(curve, point) for point in ordered]


def _row(curve: StackCurve, point: RunPoint) -> dict[str, Any]:
    placed = point.folder not in curve.frontier.excluded
    x_low, x_high = point.x_interval or (None, None)
    ends = sorted(y for r in point.rate_interval or () if (y := curve.y(r)) is not None)
    y_low, y_high = ends if len(ends) == 2 else (None, None)
    values = (
        curve.name, point.run_id, point.folder, point.concurrency, point.offload, point.folder in curve.on_frontier,
        point.x if placed else None, x_low, x_high, curve.y(point.rate) if placed else None, y_low, y_high,
        point.rate if placed else None, point.reason if placed else point.reason or "not a finite number",
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def document(curves: Sequence[StackCurve], ratios: Sequence[Ratio], wanted: Sequence[float]) -> dict[str, Any]:
    """Everything, JSON-ready."""
    view = curves[0].view
    return {
        "x": {"label": view.x.label, "percentile": view.percentile, "unit": view.x.unit, "better": view.x.better.value},
        "y": {
            "label": f"{view.tokens} tokens {view.y.label}",
            "unit": view.y.unit,
            "better": view.y.better.value,
            "interpolation": "Steffen, of tokens/s per accelerator",
        },
        "curves": [
            {
                "name": curve.name,
                "usd_per_device_hour": curve.money.usd_per_device_hour,
                "kw_per_device": curve.money.kw_per_device,
                "points": rows_of(curve),
                "at": [dict(zip(("x", "y", "clamped"), (x, *curve.at(x)), strict=True)) for x in wanted],
            }
            for curve in curves
        ],
        "ratios": [ratio_document(ratio) for ratio in ratios],
    }


def ratio_document(ratio: Ratio) -> dict[str, Any]:
    """One comparison of two curves, JSON-ready."""
    return {
        "base": ratio.base,
        "curve": ratio.curve,
        "common": ratio.common,
        "at": [{"x": x, "ratio": times} for x, times in ratio.at],
        "at_best_y": ratio.at_best,
    }


def write_csv(curves: Sequence[StackCurve], out: IO[str]) -> None:
    """A row for each run."""
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for curve in curves:
        writer.writerows(rows_of(curve))


def print_pareto(
    curves: Sequence[StackCurve], ratios: Sequence[Ratio], wanted: Sequence[float], *, as_json: bool, whole: bool
) -> None:
    """Frontier tables (`whole`: dominated points too), values at `wanted`, and ratios."""
    if as_json:
        text = msgspec.json.format(msgspec.json.encode(document(curves, ratios, wanted)), indent=2)
        sys.stdout.write(text.decode() + "\n")
        return
    console = Console(highlight=False)
    for curve in curves:
        console.print(_table(curve, whole=whole))
        for x in wanted:
            y, clamped = curve.at(x)
            where = f"at {x:g} {curve.view.x.unit}: {number(y)} {curve.view.y.unit}"
            console.print(f"{where}{' (outside what was measured: the nearest end)' if clamped else ''}", markup=False)
    for ratio in ratios:
        print_ratio(console, ratio, curves[0], wanted)


def print_ratio(console: Console, ratio: Ratio, any_curve: StackCurve, wanted: Sequence[float]) -> None:
    """How many times better the one curve is, at the ends of the common range and where asked."""
    unit = any_curve.view.x.unit
    console.print(f"\n{ratio.curve} against {ratio.base}", style="bold", markup=False, soft_wrap=True)
    if ratio.common is None:
        console.print(f"no {any_curve.view.x.label} that both measured: no ratio at equal {unit}", markup=False)
    else:
        low, high = ratio.common
        for x, times in ratio.at:
            if x in (low, high) or x in wanted:
                console.print(f"{_times(times)} at {x:.4g} {unit}", markup=False)
        for x in wanted:
            if not low <= x <= high:
                console.print(f"no ratio at {x:g} {unit}: both measured {low:.4g} to {high:.4g}", markup=False)
    console.print(f"{_times(ratio.at_best)} at the best {any_curve.view.y.unit} of each", markup=False)


def _table(curve: StackCurve, *, whole: bool) -> Table:
    view, found = curve.view, curve.frontier
    beaten = f", {len(found.dominated)} dominated" if found.dominated else ""
    table = Table(
        title=f"{curve.name}: {len(curve.on_frontier)} on the frontier{beaten}, {len(found.excluded)} without a place",
        title_justify="left",
    )
    table.add_column(f"{view.percentile} {view.x.label}\n{view.x.unit}", justify="right")
    table.add_column(f"{view.tokens} tokens {view.y.label}\n{view.y.unit}", justify="right")
    table.add_column("95 %", justify="right")
    table.add_column("sessions", justify="right")
    table.add_column("run", overflow="fold")
    table.add_column("")
    for row in rows_of(curve):
        if row["on_frontier"] or (whole and row["y"] is not None):
            table.add_row(*_cells(row))
    return table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    band = "" if row["y_low"] is None else f"{number(row['y_low'])} to {number(row['y_high'])}"
    marks = [f"offload {row['offload']}"] if row["offload"] else []
    marks += [] if row["on_frontier"] else ["dominated"]
    load = "" if row["concurrency"] is None else str(row["concurrency"])
    return number(row["x"]), number(row["y"]), band, load, row["run_id"], ", ".join(marks)


def number(value: float | None) -> str:
    """Four digits, or a dash."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _times(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}×"
