"""`agentx cost`: what the tokens of finished runs cost, and what they would earn."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app, say

_EPILOG = (
    "[bold]Examples[/bold]\n\nagentx cost runs/ --gpus 8 --hardware b200 --tier rental-3y\n\n"
    "agentx cost runs/A --gpus 8 --tco tco.toml --prices zai --utilisation 0.6 --tornado --monte-carlo 10000"
)
_cost = partial(typer.Option, rich_help_panel="What an accelerator-hour costs")
_earn = partial(typer.Option, rich_help_panel="What tokens earn")
_doubt = partial(typer.Option, rich_help_panel="How sure that is")
_PRICES = "List prices: a name (docs/cost.md), FILE.toml, FILE.toml:NAME or openrouter:AUTHOR/MODEL."


@app.command("cost", epilog=_EPILOG)
def cost_command(
    runs: Annotated[list[str], typer.Argument(help="Run directories, or folders or URLs of them.")],
    gpus: Annotated[int, typer.Option(help="Accelerators that served the run.", min=1)],
    price: Annotated[float | None, _cost(help="$ per accelerator-hour.", min=0.0)] = None,
    kw_per_gpu: Annotated[float | None, _cost(help="All-in kW per accelerator.")] = None,
    hardware: Annotated[str | None, _cost(help="The rest from the registry (agentx hardware list).")] = None,
    hardware_file: Annotated[Path | None, _cost(help="Registry values of your own (TOML).")] = None,
    tier: Annotated[str, _cost(help="Price tier of the registry.")] = "rental-3y",
    as_of: Annotated[str | None, _cost(help="Registry and list prices known by 2026, 2026-07, 2026-07-15.")] = None,
    source: Annotated[str | None, _cost(help="Registry values whose source holds these words.")] = None,
    tco: Annotated[Path | None, _cost(help="Price from what is owned (TOML, docs/cost.md).")] = None,
    prices: Annotated[str | None, _earn(help=_PRICES)] = None,
    price_source: Annotated[str | None, _earn(help="List prices whose source holds these words.")] = None,
    utilisation: Annotated[float, _earn(help="Share of hours sold.", min=0.0, max=1.0)] = 0.6,
    licence: Annotated[
        float | None, _earn(help="Share of revenue for the model's owner (else the list's, else 0).", min=0, max=1)
    ] = None,
    rack: Annotated[int | None, _earn(help="Accelerators of a rack (else the scale-up domain).", min=1)] = None,
    tornado: Annotated[bool, _doubt("--tornado", help="Profit with one assumption moved at a time.")] = False,
    monte_carlo: Annotated[
        int | None, _doubt(help="Profit over N draws of all assumptions.", min=1, max=1_000_000, metavar="N")
    ] = None,
    seed: Annotated[int, _doubt(help="Of those draws.", min=0)] = 0,
    ranges: Annotated[Path | None, _doubt(help="How far assumptions move (TOML, docs/cost.md).")] = None,
    html: Annotated[Path | None, _doubt(help="Write the tornado as a page.")] = None,
    include_invalid: Annotated[bool, typer.Option("--include-invalid", help="Also runs that are not valid.")] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Also runs of different corpora, rules, models or stacks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Dollars per million tokens, tokens per dollar and per MW; with --prices revenue, profit and how sure they are."""
    from harness.cost_inputs import CostOptions, resolve
    from harness.cost_report import Doubt, cost_rows
    from harness.cost_view import print_costs

    options = CostOptions(
        gpus=gpus,
        price=price,
        kw_per_gpu=kw_per_gpu,
        hardware=hardware,
        hardware_file=hardware_file,
        tier=tier,
        as_of=as_of,
        source=source,
        tco=tco,
        rack=rack,
        prices=prices,
        price_source=price_source,
        utilisation=utilisation,
        licence=licence,
    )
    doubt = Doubt(tornado=tornado or html is not None, draws=monte_carlo, seed=seed, ranges=ranges)
    rows, notes = cost_rows(runs, resolve(options), doubt, include_invalid=include_invalid, allow_mixed=allow_mixed)
    say(notes)
    if html is not None:
        from harness.tornado_page import write_page

        write_page(rows, html)
    print_costs(rows, as_json=as_json)
