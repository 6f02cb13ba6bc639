"""`agentx offload`: what a cache tier in host memory or on SSD gains."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.common import app, say

_EPILOG = (
    "[bold]Examples[/bold]\n\nagentx offload runs/dram --without runs/none --gpus 8 --price 2.9\n\n"
    "agentx offload runs/A --without runs/B --gb 2000 --json"
)


@app.command("offload", epilog=_EPILOG)
def offload_command(
    runs: Annotated[list[str], typer.Argument(help="Run directories, folders or URLs: with the tier.")],
    without: Annotated[list[str], typer.Option(help="The same without it; repeatable.")],
    gb: Annotated[float | None, typer.Option(help="GB (1e9 bytes) of the tier, where runs do not say.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Accelerators that served (else the sweep's).", min=1)] = None,
    price: Annotated[float | None, typer.Option(help="$ per accelerator-hour.", min=0.0)] = None,
    include_invalid: Annotated[bool, typer.Option("--include-invalid", help="Also runs that are not valid.")] = False,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Also pairs of different corpora, rules, loads, models or stacks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Cache hits, throughput and dollars gained by each GB of a cache tier, at every load that both sides measured."""
    from harness.offload_view import offload_rows, print_offload
    from results.offload import Assumed

    assumed = Assumed(gb, gpus, price)
    rows, notes = offload_rows(runs, without, assumed, include_invalid=include_invalid, allow_mixed=allow_mixed)
    say(notes)
    print_offload(rows, as_json=as_json)
