"""`agentx compare`: two runs, or two folders of runs."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.common import app
from results.errors import EXIT_INVALID

_EPILOG = (
    "[bold]Examples[/bold]\n\nagentx compare runs/A runs/B\n\n"
    'agentx compare baseline/ runs/ --fail-if "ttft_p90 worse 5%" --fail-if "output_tok_s worse 3%"'
)


@app.command("compare", epilog=_EPILOG)
def compare_command(
    before: Annotated[str, typer.Argument(help="A run directory, or a folder or URL of runs.")],
    after: Annotated[str, typer.Argument(help="The same, to compare with.")],
    fail_if: Annotated[
        list[str] | None, typer.Option(help="Exit 1 when this holds: 'FIGURE worse N%'; repeatable.")
    ] = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Also runs of different corpora, rules, loads or models.")
    ] = False,
    at: Annotated[
        list[float] | None, typer.Option(help="Of two curves, also their ratio at this interactivity; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws behind the intervals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """What changed from one run to the other, and what of it is noise; of two curves, their ratio at equal speed."""
    from harness.compare_view import Compared, print_comparisons
    from harness.pareto import compare_sides
    from results.comparable import PAIR, Aspect, check, mixed
    from results.compare import compare, pair, parse_gate
    from results.dataset import find_runs

    gates = [parse_gate(text) for text in fail_if or ()]
    compared, broken = [], []
    left, right = find_runs(before), find_runs(after)
    curves = compare_sides((before, left), (after, right), at or (), allow_mixed=allow_mixed)
    for a, b in pair(left, right, curves=curves is not None):
        both = [a.manifest, b.manifest]
        differ = check(both, PAIR, allow_mixed=allow_mixed, what=f"{a.folder} and {b.folder}")
        changes = compare(a, b, seed)
        compared.append(Compared(a, b, differ, mixed(both, frozenset({Aspect.STACK})), changes))
        by_name = {change.metric: change for change in changes}
        broken += [f"{b.folder.name}: {why}" for gate in gates if (why := gate.broken_by(by_name[gate.metric]))]
    if gates and not compared:
        broken.append("no run of one side has the load of one of the other: no gate can hold")
    print_comparisons(compared, broken, curves, as_json=as_json)
    return EXIT_INVALID if broken else 0
