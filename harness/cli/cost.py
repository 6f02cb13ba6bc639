"""`agentx cost`: what the tokens of finished runs cost, and what they would earn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app
from results.errors import UserError

_EPILOG = (
    "[bold]Examples[/bold]\n\nagentx cost runs/ --gpus 8 --hardware b200 --tier rental-3y\n\n"
    "agentx cost runs/A --gpus 8 --price 3.7 --kw-per-gpu 1.71 --prices zai --utilisation 0.6"
)


@app.command("cost", epilog=_EPILOG)
def cost_command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    gpus: Annotated[int, typer.Option(help="Accelerators that served the run.", min=1)],
    price: Annotated[float | None, typer.Option(help="$ per accelerator-hour.", min=0.0)] = None,
    kw_per_gpu: Annotated[float | None, typer.Option(help="All-in kW per accelerator.", min=0.0)] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Take what is not given from the registry (agentx hardware list).")
    ] = None,
    tier: Annotated[str, typer.Option(help="Price tier of the registry.")] = "rental-3y",
    prices: Annotated[str | None, typer.Option(help="List prices for revenue and profit: zai, minimax.")] = None,
    utilisation: Annotated[float, typer.Option(help="Share of hours sold.", min=0.0, max=1.0)] = 0.6,
    licence: Annotated[float, typer.Option(help="Share of revenue for the model's owner.", min=0, max=1)] = 0.0,
    include_invalid: Annotated[bool, typer.Option("--include-invalid", help="Also runs that are not valid.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Dollars per million tokens, tokens per dollar and per MW; with --prices revenue and profit."""
    from hardware.registry import load_registry
    from harness.cost_view import print_costs
    from results.compare import find_runs
    from results.profit import LIST_PRICES
    from results.run_cost import run_cost

    if hardware is not None:
        accelerator = load_registry().get(hardware)
        price = accelerator.price(tier) if price is None else price
        kw_per_gpu = accelerator.kw_all_in if kw_per_gpu is None else kw_per_gpu
    if prices is not None and prices not in LIST_PRICES:
        raise UserError(f"--prices {prices}", remedy=f"choose one of: {', '.join(LIST_PRICES)}")
    rows = []
    for run in (found for path in runs for found in find_runs(path)):
        if not run.summary["valid"] and not include_invalid:
            typer.echo(f"agentx: {run.folder.name} is not valid and left out (--include-invalid)", err=True)
            continue
        rows.append(
            run_cost(
                run.summary,
                gpus,
                price,
                kw_per_gpu or None,
                LIST_PRICES[prices] if prices else None,
                utilisation=utilisation,
                licence_share=licence,
            )
        )
    if not rows:
        raise UserError("no valid run there", remedy="--include-invalid takes the others too")
    print_costs(rows, as_json=as_json)
