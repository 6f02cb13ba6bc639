"""`agentx pareto`: frontiers, and curves against each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app, say

_EPILOG = (
    "[bold]Examples[/bold]\n\nagentx pareto runs --out frontier.png\n\n"
    "agentx pareto runs/b200 runs/mi355x --at 100 --per million --hardware B200 --tier on-demand\n\n"
    "agentx pareto runs --x ttft --percentile p50 --tokens output --json"
)
_axes = partial(typer.Option, rich_help_panel="Axes")
_money = partial(typer.Option, rich_help_panel="What an accelerator costs and draws")


@app.command("pareto", epilog=_EPILOG)
def pareto_command(
    runs: Annotated[list[str], typer.Argument(help="Run directories, or folders or URLs of them.")],
    x: Annotated[
        str, _axes(help="interactivity (1 / E2E per token), interactivity-itl, interactivity-full, ttft, e2e or job.")
    ] = "interactivity",
    percentile: Annotated[str, _axes(help="Of x: p50, p75, p90, p95, p99.")] = "p90",
    tokens: Annotated[str, _axes(help="total, output, input, computed_input or cached_input.")] = "total",
    per: Annotated[
        str, _axes(help="gpu, mw, usd (tokens per $), million ($ per M), joule or joule-measured (J per token).")
    ] = "gpu",
    at: Annotated[
        list[float] | None, typer.Option(help="Also the curves at this x, and their ratio; repeatable.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Accelerators that served each run (else its sweep's).", min=1)
    ] = None,
    price: Annotated[float | None, _money(help="$ per accelerator-hour.", min=0.0)] = None,
    kw_per_gpu: Annotated[float | None, _money(help="All-in kW per accelerator.")] = None,
    hardware: Annotated[str | None, _money(help="The rest from the registry (else the run's own hardware).")] = None,
    hardware_file: Annotated[Path | None, _money(help="Registry values of your own (TOML).")] = None,
    tier: Annotated[str, _money(help="Price tier of the registry.")] = "rental-3y",
    out: Annotated[
        list[Path] | None, typer.Option(help="Write FILE.png, .svg, .html or .csv; repeatable.", metavar="FILE")
    ] = None,
    dominated: Annotated[bool, typer.Option("--dominated", help="Show dominated points too.")] = False,
    include_invalid: Annotated[bool, typer.Option("--include-invalid", help="Also runs that are not valid.")] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Also runs of different corpora, rules or models.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: every point, dominated ones too.")] = False,
) -> None:
    """Which runs no other beats, a curve for each stack, and how many times better one curve is at equal speed."""
    from harness.pareto import ParetoOptions, curves_below
    from harness.pareto_view import print_pareto
    from results.curves import compare_curves

    options = ParetoOptions(
        x=x,
        percentile=percentile,
        tokens=tokens,
        per=per,
        gpus=gpus,
        price=price,
        kw_per_gpu=kw_per_gpu,
        hardware=hardware,
        hardware_file=hardware_file,
        tier=tier,
        include_invalid=include_invalid,
        allow_mixed=allow_mixed,
    )
    curves, notes = curves_below(runs, options)
    say(notes)
    wanted = sorted(set(at or ()))
    ratios = [compare_curves(curves[0], curve, wanted) for curve in curves[1:]]
    print_pareto(curves, ratios, wanted, as_json=as_json, whole=dominated)
    for path in out or ():
        from harness.pareto_chart import write_file

        write_file(curves, path)
