"""`agentx compare`: two runs, or two folders of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app
from results.errors import EXIT_INVALID, UserError

_EPILOG = (
    "[bold]Examples[/bold]\n\nagentx compare runs/A runs/B\n\n"
    'agentx compare baseline/ runs/ --fail-if "ttft_p90 worse 5%" --fail-if "output_tok_s worse 3%"'
)


@app.command("compare", epilog=_EPILOG)
def compare_command(
    before: Annotated[Path, typer.Argument(help="A run directory, or a folder of runs.")],
    after: Annotated[Path, typer.Argument(help="The same, to compare with.")],
    fail_if: Annotated[
        list[str] | None, typer.Option(help="Exit 1 when this holds: 'FIGURE worse N%'; repeatable.")
    ] = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Compare runs of different corpora, scenarios or models.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the draws behind the intervals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """What changed from one run to the other, with intervals, and what of it is noise."""
    from collectors.fingerprint import incomparable
    from harness.compare_view import print_comparisons
    from results.compare import compare, differences, find_runs, pair, parse_gate

    gates = [parse_gate(text) for text in fail_if or ()]
    compared, broken = [], []
    for a, b in pair(find_runs(before), find_runs(after)):
        mixed = differences(a, b) + incomparable(a.manifest.get("serving", {}), b.manifest.get("serving", {}))
        if mixed and not allow_mixed:
            what = "; ".join(mixed[:3])
            raise UserError(f"{a.folder} and {b.folder} differ in {what}", remedy="--allow-mixed compares them anyway")
        changes = compare(a, b, seed)
        compared.append((a, b, mixed, changes))
        by_name = {change.metric: change for change in changes}
        broken += [f"{b.folder.name}: {why}" for gate in gates if (why := gate.broken_by(by_name[gate.metric]))]
    print_comparisons(compared, broken, as_json=as_json)
    return EXIT_INVALID if broken else 0
