"""`agentx run`: replay a corpus against an endpoint and leave one run directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import app, parse_duration, parse_tokens
from results.errors import EXIT_INVALID, UserError

API_KEY_VARIABLES = ("AGENTX_API_KEY", "OPENAI_API_KEY")

_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "agentx run --mock --duration 30s\n\n"
    "agentx run --endpoint http://127.0.0.1:8000 --corpus corpus.parquet --concurrency 16 --duration 15m\n\n"
    "The API key comes from AGENTX_API_KEY or OPENAI_API_KEY (or --api-key-file), never from a flag."
)


@app.command("run", epilog=_EPILOG)
def run_command(
    endpoint: Annotated[
        str | None, typer.Option(help="URL of the server, with or without /v1; unix:/path.sock.")
    ] = None,
    mock: Annotated[
        str | None, typer.Option(metavar="[PROFILE]", help="Use the built-in simulated endpoint, started for this run.")
    ] = None,
    mock_cache_blocks: Annotated[
        int | None, typer.Option(help="Prefix cache of the simulated endpoint, in blocks.", min=1)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name; default: the only one the server lists.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Corpus file; default: the one that ships.")] = None,
    concurrency: Annotated[int, typer.Option(help="Live session trees.", min=1)] = 8,
    duration: Annotated[
        str | None,
        typer.Option(help="Stop sending after this long (90s, 15m, 1h); default 10m, or none with --sessions."),
    ] = None,
    sessions: Annotated[int | None, typer.Option(help="End after this many session trees.", min=1)] = None,
    max_context: Annotated[
        str | None, typer.Option(help="Leave out requests beyond this prompt + answer (128k); a lane ends there.")
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="Multiplies recorded tool and think times; 0: no waiting.", min=0.0)
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Order of the sessions.")] = 42,
    salt: Annotated[
        str | None,
        typer.Option(help="Text salt; default: new for every run. Give the same to repeat the same prompts."),
    ] = None,
    workers: Annotated[str, typer.Option(help="Client processes, or auto.")] = "auto",
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="DIR|server|usage", help="Where token counts come from; default: server, else usage."),
    ] = None,
    messages: Annotated[
        str, typer.Option(metavar="plain|tools", help="Tool results as user messages, or as tool messages.")
    ] = "tools",
    shared_prefix: Annotated[
        str,
        typer.Option(
            metavar="trace|none", help="Sessions share tools and system prompt where the trace says so, or nothing."
        ),
    ] = "trace",
    drain: Annotated[str, typer.Option(help="How long answers may take to end after the last send.")] = "60s",
    out: Annotated[Path, typer.Option(help="Folder for run directories.")] = Path("runs"),
    chunks: Annotated[
        bool, typer.Option("--chunks", help="Keep the arrival time of every chunk (chunks.parquet).")
    ] = False,
    ready_timeout: Annotated[str, typer.Option(help="How long to wait for the server to come up.")] = "30s",
    connect_timeout: Annotated[str, typer.Option(help="Limit on opening a connection.")] = "10s",
    first_byte_timeout: Annotated[
        str | None, typer.Option(help="Limit on the first byte of an answer; default none.")
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(help="Limit between two bytes of an answer; default none.")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the API key.")] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of a private certificate authority.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not verify certificates (stamped in run.json).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No plan, no progress.")] = False,
) -> int:
    """Replay a corpus against a live endpoint, measure, and write one run directory."""
    from hardware.engine.profiles import PROFILES
    from harness.run import RunOptions, run
    from harness.summary_view import print_summary
    from replay.endpoint import Limits
    from replay.plan import Selection
    from replay.scheduler import Pacing

    if (endpoint is None) == (mock is None):
        raise UserError("run needs one endpoint", remedy="give --endpoint URL, or --mock for the simulated one")
    if mock is not None:
        _choice("--mock", mock, tuple(PROFILES))
    _choice("--messages", messages, ("plain", "tools"))
    _choice("--shared-prefix", shared_prefix, ("trace", "none"))
    seconds = parse_duration(duration) if duration else (None if sessions else 600.0)
    if seconds == 0:
        raise UserError("--duration 0 sends nothing", remedy="give a positive duration, or --sessions N")
    options = RunOptions(
        endpoint=endpoint,
        mock=mock,
        mock_options=("--cache-blocks", str(mock_cache_blocks)) if mock_cache_blocks else (),
        model=model,
        corpus=corpus,
        selection=Selection(concurrency, seed, parse_tokens(max_context) if max_context else None, sessions),
        pacing=Pacing(time_scale=time_scale),
        limits=Limits(
            connect_s=parse_duration(connect_timeout),
            first_byte_s=parse_duration(first_byte_timeout) if first_byte_timeout else None,
            between_bytes_s=parse_duration(idle_timeout) if idle_timeout else None,
        ),
        duration_s=seconds,
        drain_s=parse_duration(drain),
        workers=_workers(workers),
        tokenizer=tokenizer,
        tool_messages=messages == "tools",
        share_head=shared_prefix == "trace",
        salt=salt,
        out=out,
        ready_timeout_s=parse_duration(ready_timeout),
        keep_chunks=chunks,
        quiet=quiet,
        ca_file=ca_file,
        insecure=insecure,
    )
    finished = run(options, read_api_key(api_key_file), sys.argv[1:])
    print_summary(finished.summary, finished.directory, as_json=as_json)
    if finished.signal is not None:
        return 128 + finished.signal  # 130 for Ctrl-C, 143 for TERM, as a shell reports them
    return 0 if finished.summary["valid"] else EXIT_INVALID


def _choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{option} {value}", remedy=f"choose {' or '.join(allowed)}")


def _workers(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--workers {text}", remedy="give a number of processes, or auto")
    return int(text)


def read_api_key(file: Path | None) -> str | None:
    """The API key from a file or the environment; never from a flag, which the process list would show."""
    if file is not None:
        try:
            return file.read_text().strip()
        except OSError as error:
            raise UserError(f"--api-key-file {file}: {error.strerror}") from error
    return next((os.environ[name] for name in API_KEY_VARIABLES if os.environ.get(name)), None)
