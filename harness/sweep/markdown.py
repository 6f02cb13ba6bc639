"""A sweep's results as Markdown for a CI job summary: a table and a chart per curve. Pure."""

from __future__ import annotations

from typing import Any

_HEAD = "| concurrency | status | tok/s/user (p90) | tok/s | tok/s per GPU | TTFT p90 | from cache |"
_RULE = "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"


def to_markdown(data: dict[str, Any]) -> str:
    """`data` as `view.matrix` gives it."""
    parts = [f"## Sweep {data['sweep']}"]
    for curve in data["curves"]:
        points = sorted(curve["points"], key=lambda point: point["concurrency"])
        parts.append(f"### {curve['configuration']}/{curve['scenario']}\n\n{_serving(curve)}")
        parts.append("\n".join([_HEAD, _RULE, *(_row(point, curve["accelerators"]) for point in points)]))
        if chart := _chart(points):
            parts.append(chart)
        parts += [f"- c{p['concurrency']}: {_cell(p['reason'])}" for p in points if p.get("reason")]
    return "\n\n".join(parts) + "\n"


def _serving(curve: dict[str, Any]) -> str:
    serving = curve["serving"]
    known = [serving["model"], serving["engine"], serving["precision"], serving["hardware"]]
    count = f"{curve['accelerators']} accelerators" if curve["accelerators"] else "no accelerator"
    return _cell(" · ".join([*(text for text in known if text), count]))


def _row(point: dict[str, Any], accelerators: int) -> str:
    total = point.get("total_tok_s")
    status = point["status"] if point["status"] != "done" else ("valid" if point["valid"] else "not valid")
    cells = (
        str(point["concurrency"]),
        status,
        _number(point.get("interactivity_p90_tok_s_user"), "{:.1f}"),
        _number(total, "{:,.0f}"),
        _number(total / accelerators if total is not None and accelerators else None, "{:,.0f}"),
        _number(point.get("ttft_p90_s"), "{:.3f} s"),
        _number(point.get("cache_achieved"), "{:.1%}"),
    )
    return f"| {' | '.join(cells)} |"


def _chart(points: list[dict[str, Any]]) -> str:
    """Throughput over interactivity as a Mermaid chart; a category per point, because its axes are evenly spaced."""
    placed = [(p["interactivity_p90_tok_s_user"], p["total_tok_s"]) for p in points if p.get("total_tok_s") is not None]
    if len(placed) < 2:
        return ""
    placed.sort()
    names = ", ".join(f'"{x:.1f}"' for x, _ in placed)
    heights = ", ".join(f"{y:.1f}" for _, y in placed)
    return (
        "```mermaid\nxychart-beta\n"
        f'  x-axis "tokens/s per user (p90)" [{names}]\n  y-axis "tokens/s"\n  line [{heights}]\n```'
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _cell(text: str) -> str:
    """Text that can't end a cell or start markup."""
    for character in "\\|<>`*_[]":
        text = text.replace(character, f"\\{character}")
    return text
