"""`agentx mock`: serve the simulated endpoint by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app, parse_tokens

_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "agentx mock\n\n"
    "agentx mock --port 0 --cache-blocks 4096 --truth truth.jsonl\n\n"
    "The same server, started for one run only: agentx run --mock"
)


@app.command("mock", epilog=_EPILOG)
def mock_command(
    profile: Annotated[str, typer.Option(help="Rates and sizes: small or large.")] = "small",
    port: Annotated[int, typer.Option(help="Port; 0: any free one.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    cache_blocks: Annotated[int | None, typer.Option(help="Prefix cache, in blocks.", min=1)] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens per block.", min=1)] = None,
    max_model_len: Annotated[
        str | None,
        typer.Option(help="Longest prompt and answer together (128k); default: the profile's."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model served.")] = None,
    reasoning_share: Annotated[
        float | None,
        typer.Option(help="Part of each chat answer that is thought first (reasoning_content); default 0."),
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="Write one JSON line per request: what really happened, and when.")
    ] = None,
    max_waiting: Annotated[
        int | None,
        typer.Option(help="Requests that may wait beyond those served at once; more get 429. Default: any.", min=0),
    ] = None,
) -> None:
    """Serve a simulated, OpenAI-compatible endpoint with a prefix cache and batching, until Ctrl-C."""
    from harness.mock_server import configure, serve

    config = configure(
        profile,
        cache_blocks=cache_blocks,
        block_size=block_size,
        max_model_len=parse_tokens(max_model_len) if max_model_len else None,
        model=model,
        reasoning_share=reasoning_share,
        truth=truth,
        max_waiting=max_waiting,
    )

    def say(bound: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{bound}"
        typer.echo(f"{config.model} at {url} (Ctrl-C stops it)\ntry: agentx run --endpoint {url} --duration 30s")

    serve(config, host, port, say)
