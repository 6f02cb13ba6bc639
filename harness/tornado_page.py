"""The tornado of `agentx cost` as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from results.errors import UserError


def write_page(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A chart for each run that has a tornado; UserError without plotly or a tornado, and for a file not writable."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise UserError("--html needs plotly", remedy="pip install 'agentx-live[analysis]'") from error
    drawn = [row for row in rows if row.get("tornado")]
    if not drawn:
        why = rows[0]["reasons"].get("profit", "no run has a profit")
        raise UserError(f"--html {path}: nothing to draw", remedy=why)
    parts = ["<!doctype html><meta charset='utf-8'><title>agentx cost</title>"]
    for number, row in enumerate(drawn):
        figure = go.Figure(_bars(go, row))
        figure.update_layout(
            title=escape(f"{row['run_id']}: profit with one assumption moved"),
            xaxis_title="profit, $ per accelerator-hour",
            barmode="overlay",
            template="plotly_white",
        )
        figure.add_vline(x=row["profit"]["profit"])
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0))
    try:
        path.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--html {path}: {error.strerror}", remedy="choose a file you can write") from error


def _bars(go: Any, row: dict[str, Any]) -> list[Any]:
    now, bars = row["profit"]["profit"], row["tornado"][::-1]  # plotly stacks from below
    names = [bar["parameter"] for bar in bars]
    return [
        go.Bar(
            name=f"at the {end} end",
            y=names,
            x=[bar[f"profit_at_{end}"] - now for bar in bars],
            base=now,
            orientation="h",
            customdata=[[bar[end], bar[f"profit_at_{end}"]] for bar in bars],
            hovertemplate="%{y} = %{customdata[0]:.4g}: %{customdata[1]:.2f}<extra></extra>",
        )
        for end in ("low", "high")
    ]
