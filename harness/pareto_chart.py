"""Charts of frontiers: PNG and SVG (matplotlib), and a page with names under the mouse (plotly)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.pareto_view import rows_of, write_csv
from results.curves import StackCurve
from results.errors import UserError

SUFFIXES = (".csv", ".png", ".svg", ".html")
_STEPS = 64
"""Points of a drawn curve between the ends of what was measured."""


def write_file(curves: Sequence[StackCurve], path: Path) -> None:
    """By the suffix of `path`. UserError for another suffix, a missing library, a place that can't be written."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".csv":
            with path.open("w", encoding="utf-8", newline="") as out:
                write_csv(curves, out)
        elif suffix == ".html":
            path.write_text(_page(curves), encoding="utf-8")
        elif suffix in SUFFIXES:
            _picture(curves, path)
        else:
            raise UserError(f"--out {path}", remedy=f"a name that ends in {', '.join(SUFFIXES)}")
    except ImportError as error:
        raise UserError(
            f"--out {path}: {error.name} is missing", remedy="pip install 'agentx-live[analysis]'"
        ) from error
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror}", remedy="choose a file you can write") from error


def _line(curve: StackCurve) -> tuple[list[float], list[float]]:
    if curve.span is None:
        return [], []
    low, high = curve.span
    places = sorted(
        {low + (high - low) * k / _STEPS for k in range(_STEPS + 1)} | {c.x for c in curve.frontier.corners}
    )
    drawn = [(x, y) for x in places if (y := curve.at(min(max(x, low), high))[0]) is not None]
    return [x for x, _ in drawn], [y for _, y in drawn]


def _titles(curve: StackCurve) -> tuple[str, str]:
    view = curve.view
    return (
        f"{view.percentile} {view.x.label}, {view.x.unit} ({view.x.better.value} is better)",
        f"{view.tokens} tokens {view.y.label}, {view.y.unit} ({view.y.better.value} is better)",
    )


def _picture(curves: Sequence[StackCurve], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        colour = f"C{number}"
        axes.plot(*_line(curve), color=colour, label=curve.name)
        _mark(axes, [row for row in rows_of(curve) if row["y"] is not None], colour)
    x_title, y_title = _titles(curves[0])
    axes.set(xlabel=x_title, ylabel=y_title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(title="squares: with cache offload; pale: dominated")
    figure.savefig(path, dpi=150)


def _mark(axes: Any, rows: Sequence[dict[str, Any]], colour: str) -> None:
    """Points by kind, thousands of them at once; 95 % bands of those on the frontier."""
    for offload in (False, True):
        for on_frontier in (False, True):
            some = [row for row in rows if bool(row["offload"]) == offload and row["on_frontier"] == on_frontier]
            xs, ys = [row["x"] for row in some], [row["y"] for row in some]
            axes.scatter(xs, ys, marker="s" if offload else "o", color=colour, alpha=1.0 if on_frontier else 0.3)
    best = [row for row in rows if row["on_frontier"]]
    for axis, lines in (("x", axes.hlines), ("y", axes.vlines)):
        across = "y" if axis == "x" else "x"
        known = [row for row in best if row[f"{axis}_low"] is not None and row[f"{axis}_high"] is not None]
        ends = [[row[f"{axis}_{end}"] for row in known] for end in ("low", "high")]
        lines([row[across] for row in known], *ends, color=colour, linewidth=0.8)


def _page(curves: Sequence[StackCurve]) -> str:
    import plotly.graph_objects as go

    figure = go.Figure()
    for curve in curves:
        xs, ys = _line(curve)
        figure.add_scatter(x=xs, y=ys, mode="lines", name=curve.name)
        rows = [row for row in rows_of(curve) if row["y"] is not None]
        figure.add_scatter(
            x=[row["x"] for row in rows],
            y=[row["y"] for row in rows],
            mode="markers",
            name=f"{curve.name}: runs",
            marker_symbol=["square" if row["offload"] else "circle" for row in rows],
            marker_opacity=[1.0 if row["on_frontier"] else 0.3 for row in rows],
            text=[f"{row['run_id']}, {row['concurrency']} sessions" for row in rows],
        )
    x_title, y_title = _titles(curves[0])
    figure.update_layout(xaxis_title=x_title, yaxis_title=y_title, template="plotly_white")
    return str(figure.to_html(full_html=True, include_plotlyjs=True))
