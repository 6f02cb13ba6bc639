"""`agentx recover`: bring back a run that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app


@app.command("recover", epilog="[bold]Example[/bold]\n\nagentx recover runs/20261201T103000Z-3f2a")
def recover_command(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> int:
    """Rebuild the Parquet files and the summary of a run that was killed."""
    from harness.summary_view import print_summary
    from results.recover import recover

    summary = recover(run)
    if summary is None:
        typer.echo(f"{run}: nothing to recover, the run is complete", err=as_json)
        if as_json:
            typer.echo((run / "summary.json").read_text(), nl=False)
        return 0
    print_summary(summary, run, as_json=as_json)
    return 0
