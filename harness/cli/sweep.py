"""`agentx sweep`: many runs from one YAML file, resumable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app
from results.errors import EXIT_INVALID, UserError

_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "agentx sweep sweep.yaml --dry-run\n\n"
    "agentx sweep sweep.yaml --only tp8/closed-loop/c16\n\n"
    "agentx sweep sweep.yaml --upload s3://bucket/benchmarks\n\n"
    "[bold]A sweep file[/bold]\n\n"
    "name: qwen-h200\n\n"
    "run: {duration: 15m, max_context: 128k}\n\n"
    "points: {low: 1, high: 64}        # adaptive; or a list: \\[1, 4, 16, 64]\n\n"
    "configurations:\n\n"
    "- {name: tp8, recipe: h200-vllm, serving: {model: Qwen/Qwen3-32B, tp: 8}}\n\n"
    "The same command again goes on where it was stopped; what is done is not repeated."
)


@app.command("sweep", epilog=_EPILOG)
def sweep_command(
    file: Annotated[Path, typer.Argument(help="The sweep file (YAML).")],
    out: Annotated[Path, typer.Option(help="Folder for the sweep's folder.")] = Path("runs"),
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CONFIGURATION[/SCENARIO[/cN]]", help="Only these curves or points; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the matrix and the time it will take; start nothing.")
    ] = False,
    matrix_json: Annotated[
        bool, typer.Option("--matrix-json", help="Print a GitHub Actions matrix, one job per point; start nothing.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print what is done as Markdown, for a CI summary; start nothing.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed points once more.")] = False,
    upload: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Copy every finished run there too: s3://bucket/runs, gs://…, or a folder."),
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the API key.")] = None,
    headers_file: Annotated[
        Path | None,
        typer.Option(help="File of further headers, `Name: value` a line (also AGENTX_HEADERS_FILE); written nowhere."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line per point.")] = False,
) -> int:
    """Serving configurations × concurrencies × scenarios: a run per point, in an order that shows the curves early."""
    from harness.credentials import API_KEY_VARIABLES, HEADERS_VARIABLE, control_headers, read_api_key
    from harness.sweep.load import load_sweep
    from harness.sweep.matrix import curves, select
    from harness.sweep.run import Driver
    from harness.sweep.server import check_placeholders
    from harness.sweep.state import State
    from harness.sweep.uploads import Uploads
    from harness.sweep.view import ci_matrix, matrix, print_matrix, time_left
    from results.upload import Destination

    sweep = load_sweep(file)
    for configuration in sweep.configurations:
        check_placeholders(configuration)
    try:
        chosen = select(curves(sweep), only or [])
    except ValueError as error:
        raise UserError(f"--only {error}: no such point in {file}", remedy="see `agentx sweep --dry-run`") from error
    if matrix_json:
        import json

        typer.echo(json.dumps(ci_matrix(chosen), separators=(",", ":")))
        return 0
    api_key = read_api_key(api_key_file)
    if api_key_file is not None and api_key:
        os.environ[API_KEY_VARIABLES[0]] = api_key  # for the runs, which are processes of their own
    if headers_file is not None:
        os.environ[HEADERS_VARIABLE] = str(headers_file.resolve())
    control_headers()  # a file that can't be used is said before the first server is started
    target = Destination.parse(upload) if upload else None
    with State(out / sweep.name, write=not (dry_run or markdown), say=lambda line: typer.echo(line, err=True)) as state:
        driver = Driver(
            sweep.name,
            state,
            file.parent,
            api_key,
            retry_failed,
            say=lambda line: None if quiet else typer.echo(line, err=True),
            uploads=Uploads(target.below(sweep.name), state) if target else None,
        )
        if markdown:
            from harness.sweep.markdown import to_markdown

            typer.echo(to_markdown(matrix(driver, chosen)), nl=False)
            return 0
        if dry_run:
            print_matrix(matrix(driver, chosen), time_left(driver, chosen), as_json=as_json)
            return 0
        driver.run(chosen)
        data = matrix(driver, chosen)
        print_matrix(data, None, as_json=as_json)
    if driver.signal is not None:
        return 128 + driver.signal
    points = [point for curve in data["curves"] for point in curve["points"]]
    return 0 if points and all(point.get("valid") for point in points) else EXIT_INVALID
