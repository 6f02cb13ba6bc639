"""`agentx collect`: serve this node's power readings to a run on another machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app, parse_duration
from results.errors import UserError

_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "AGENTX_COLLECT_TOKEN=... agentx collect --listen 0.0.0.0:9477\n\n"
    "and on the client, with the same token: agentx run --endpoint URL --power agent:http://NODE:9477\n\n"
    "/samples gives JSON, /metrics the same as Prometheus text. There is no encryption: use a tunnel where it matters."
)


@app.command("collect", epilog=_EPILOG)
def collect_command(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to serve on.")] = "127.0.0.1:9477",
    power: Annotated[
        list[str] | None,
        typer.Option(help="What to read: auto, nvidia, amd, rapl, ipmi, cmd:COMMAND ... (repeatable)."),
    ] = None,
    interval: Annotated[str, typer.Option(help="Time between readings.")] = "1s",
    token_file: Annotated[
        Path | None, typer.Option(help="File that holds the token; default: AGENTX_COLLECT_TOKEN.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print address and devices as one line of JSON.")] = False,
) -> None:
    """Read this node's power and serve it to a run on another machine, until Ctrl-C."""
    from collectors.power import TOKEN_VARIABLE
    from collectors.power.agent import Agent

    host, port = _address(listen)
    seconds = parse_duration(interval)
    if seconds < 0.05:
        raise UserError(f"--interval {interval}", remedy="give at least 50ms")
    token = _token(token_file) if token_file else os.environ.get(TOKEN_VARIABLE)
    agent = Agent(host, port, power or ["auto"], token=token or None, interval_s=seconds)
    shown = f"http://{f'[{host}]' if ':' in host else host}:{agent.port}"
    if as_json:
        devices = [{"source": source, "device": device, "name": name} for source, device, name in agent.devices]
        sys.stdout.write(json.dumps({"url": shown, "devices": devices}) + "\n")
    else:
        for source, device, name in agent.devices:
            typer.echo(f"{source}  {device}  {name}")
        typer.echo(f"serving at {shown} (Ctrl-C stops it)")
    sys.stdout.flush()
    agent.serve()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"--listen {text}", remedy="write HOST:PORT, such as 127.0.0.1:9477")
    return host, int(port)


def _token(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except OSError as error:
        raise UserError(f"--token-file {file}: {error.strerror}") from error
    if not token:
        raise UserError(f"--token-file {file}: empty", remedy="write the token into it")
    return token
