"""What every command shares: the application, durations and counts, one-line errors."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from results.errors import EXIT_INTERRUPTED, EXIT_USAGE, UserError

app = typer.Typer(
    name="agentx",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
traces_app = typer.Typer(no_args_is_help=True, help="Corpora: bring in, describe, generate.")
app.add_typer(traces_app, name="traces")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmM])?")

_CommandLineFault: Any = typer.BadParameter.__mro__[2]
"""ClickException, from the click that typer uses: newer ones bring their own copy."""

_MOST_NOTES = 10

debug = False


def parse_duration(text: str) -> float:
    """Seconds from `90s`, `15m`, `1h`, `250ms` or a bare number of seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 90s, 15m or 1h")
    return float(match[1]) * _UNIT_S[match[2]]


def parse_tokens(text: str) -> int:
    """Token count from `128k`, `1M` or a bare integer (k = 1,000: contexts are quoted in thousands)."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a token count; write 131072, 128k or 1M")
    scale = {"k": 1_000, "m": 1_000_000}.get((match[2] or "").lower(), 1)
    return int(float(match[1]) * scale)


def version_callback(value: bool) -> None:
    """Print the version and stop."""
    if value:
        from agentx import __version__

        typer.echo(f"agentx {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=version_callback, is_eager=True, help="Show the version.")
    ] = False,
    debug_: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours (also NO_COLOR).")] = False,
) -> None:
    """Replay captured coding-agent sessions against real LLM endpoints; say what a serving stack is worth."""
    global debug
    debug = debug_
    if no_color:
        os.environ["NO_COLOR"] = "1"


def say(notes: Sequence[str]) -> None:
    """Lines about a result, to standard error; many of them become a count."""
    for note in notes[:_MOST_NOTES]:
        typer.echo(f"agentx: {note}", err=True)
    if len(notes) > _MOST_NOTES:
        typer.echo(f"agentx: and {len(notes) - _MOST_NOTES:,} more like that", err=True)


def fail(error: UserError) -> NoReturn:
    """Print one line to stderr and leave with the error's exit code."""
    typer.echo(f"agentx: {error}", err=True)
    raise SystemExit(error.exit_code)


def _with_default_profile(arguments: list[str]) -> list[str]:
    """`--mock` may stand without a profile; the option parser wants a value."""
    out: list[str] = []
    for position, argument in enumerate(arguments):
        out.append(argument)
        following = arguments[position + 1 : position + 2]
        if argument == "--mock" and (not following or following[0].startswith("-")):
            out.append("small")
    return out


def open_standard_streams() -> None:
    """What a caller closed leads to /dev/null: else the next file or socket opened gets its number, and our lines."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)  # inheritable: for the worker processes as well
            if null > 2:
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (for as long as the process lives)


def entry() -> None:
    """Load the commands and run one; a traceback only with --debug."""
    open_standard_streams()
    from harness.cli import register

    register()
    try:
        result: Any = app(_with_default_profile(sys.argv[1:]), standalone_mode=False)
    except UserError as error:
        if debug:
            raise
        fail(error)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, _CommandLineFault):
            if message := " ".join(error.format_message().split()).rstrip("."):
                fail(UserError(message, remedy="--help shows what there is"))
            sys.exit(EXIT_USAGE)  # no arguments at all: the help was shown
        if isinstance(error, typer.Abort):
            sys.exit(EXIT_INTERRUPTED)
        typer.echo(f"agentx: {type(error).__name__}: {error}; run again with --debug for the traceback", err=True)
        sys.exit(EXIT_USAGE)
    sys.exit(result if isinstance(result, int) else 0)
