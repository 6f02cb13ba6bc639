"""`agentx fast`: what faster decoding would be worth to the sessions of finished runs."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.common import app, say

_EPILOG = (
    "[bold]Examples[/bold]\n\nagentx fast runs/A --speed-up 2.5 --hour-usd 100\n\n"
    "agentx fast runs/ --hour-usd 150 --batch-price 5 --fast-price 50 --fast-price 300 --json"
)


@app.command("fast", epilog=_EPILOG)
def fast_command(
    runs: Annotated[list[str], typer.Argument(help="Run directories, or folders or URLs of them.")],
    speed_up: Annotated[
        list[float] | None, typer.Option("--speed-up", help="Decode speed of the fast mode over the run's; repeatable.")
    ] = None,
    hour_usd: Annotated[float | None, typer.Option(help="$ that an hour sooner is worth.", min=0.0)] = None,
    fast_price: Annotated[
        list[float] | None, typer.Option(help="$ per M output tokens of the fast mode; repeatable.", min=0.0)
    ] = None,
    batch_price: Annotated[
        float, typer.Option(help="$ per M output tokens at the run's own speed; 0: fast prices are extra.", min=0.0)
    ] = 0.0,
    include_invalid: Annotated[bool, typer.Option("--include-invalid", help="Also runs that are not valid.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Where sessions' time goes, how much sooner they end at faster decoding, and which price that is worth."""
    from harness.fast_view import fast_rows, print_fast
    from results.fast_value import FACTORS, FAST_USD, Market

    market = Market(tuple(speed_up or FACTORS), tuple(fast_price or FAST_USD), batch_price, hour_usd)
    rows, notes = fast_rows(runs, market, include_invalid=include_invalid)
    say(notes)
    print_fast(rows, as_json=as_json)
