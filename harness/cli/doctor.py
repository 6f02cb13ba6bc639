"""`agentx doctor`: what can be measured here."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app, parse_duration
from results.errors import EXIT_INVALID


@app.command("doctor", epilog="[bold]Example[/bold]\n\nagentx doctor --endpoint http://127.0.0.1:8000")
def doctor_command(
    endpoint: Annotated[str | None, typer.Option(help="Server to look at; without it, this machine only.")] = None,
    ready_timeout: Annotated[str, typer.Option(help="How long to wait for the server to come up.")] = "10s",
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the API key.")] = None,
    headers_file: Annotated[
        Path | None, typer.Option(help="File of further headers, `Name: value` a line (also AGENTX_HEADERS_FILE).")
    ] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of a private certificate authority.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not verify certificates.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say what this machine and an endpoint can and can't measure, each with the remedy (about ten seconds)."""
    from harness.credentials import headers_file as headers_of
    from harness.credentials import read_api_key
    from harness.doctor import check_endpoint, check_machine
    from replay.endpoint import read_headers

    checks = []
    if endpoint is not None:
        key, headers = read_api_key(api_key_file), headers_of(headers_file)
        checks += check_endpoint(
            endpoint,
            api_key=key,
            headers=read_headers(headers) if headers else (),
            ca_file=ca_file,
            insecure=insecure,
            ready_s=parse_duration(ready_timeout),
        )
    if not as_json:
        print("agentx: measuring this machine's ceiling", file=sys.stderr, flush=True)
    checks += check_machine()
    if as_json:
        sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        for check in checks:
            mark = {True: "ok", False: "NO", None: "  "}[check.ok]
            typer.echo(f"{mark}  {check.name}: {check.found}")
            if check.remedy and check.ok is False:
                typer.echo(f"      {check.remedy}")
    return EXIT_INVALID if any(check.ok is False for check in checks) else 0
