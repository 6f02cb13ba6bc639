"""`agentx query`: SQL over any number of runs."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.common import app, say

_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    'agentx query "SELECT run_id, concurrency, latency_ttft_s_p90, valid FROM runs ORDER BY concurrency" runs/\n\n'
    'agentx query "SELECT status, count(*) FROM requests GROUP BY status" runs/A runs/B --json\n\n'
    'agentx query "DESCRIBE runs" runs/A\n\n'
    "Tables: runs (summary.json and run.json, one row each), requests, sessions, chunks, metrics, power, client: "
    "docs/analysis.md."
)


@app.command("query", epilog=_EPILOG)
def query_command(
    sql: Annotated[str, typer.Argument(help="One statement in DuckDB's SQL.")],
    runs: Annotated[list[str], typer.Argument(help="Run directories, or folders or URLs of them.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list of objects.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the answer.")] = False,
) -> None:
    """SQL over the files of run directories. It reads the runs and nothing else, and writes nothing."""
    from harness.query_view import Form, print_answer, watched
    from results.dataset import scan
    from results.errors import UserError
    from results.query import Database
    from results.run_columns import WANTED

    if as_json and as_csv:
        raise UserError("--json and --csv are two forms", remedy="give one")
    with watched(scan(*runs, summary=WANTED), quiet=quiet) as found:
        database = Database(found, " ".join(runs))
        answer = database.ask(sql)
    if not quiet:
        say(database.notes)
    print_answer(answer, Form.JSON if as_json else Form.CSV if as_csv else Form.TABLE)
