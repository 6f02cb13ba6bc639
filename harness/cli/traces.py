"""`agentx traces`: corpora."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.common import traces_app
from results.errors import UserError


@traces_app.command(
    "import", epilog="[bold]Example[/bold]\n\nagentx traces import --format weka traces.tar.zst -o corpus.parquet"
)
def import_command(
    source: Annotated[
        Path, typer.Argument(help="Folder, .json, .jsonl (each also .gz, .zst), .zip or .tar[.gz|.zst].")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Corpus file to write.")],
    format_name: Annotated[str, typer.Option("--format", help="Trace format: weka.")] = "weka",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first malformed trace.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Bring recorded sessions into a corpus file."""
    from harness.import_view import ImportView
    from replay.importers import FORMATS, import_traces

    if format_name not in FORMATS:
        raise UserError(f"--format {format_name}", remedy=f"choose one of: {', '.join(FORMATS)}")
    with ImportView(source, quiet=quiet) as view:
        report = import_traces(source, output, format_name=format_name, strict=strict, on_progress=view.update)
    view.print_report(report, output)


@traces_app.command(
    "stats",
    epilog="[bold]Examples[/bold]\n\nagentx traces stats corpus.parquet --json\n\n"
    "agentx traces stats corpus.parquet --cache-blocks 65536 --concurrency 32",
)
def stats_command(
    corpus: Annotated[Path | None, typer.Argument(help="Corpus file; default: the one that ships.")] = None,
    cache_blocks: Annotated[
        int | None, typer.Option(help="Also the hit rate of LRU caches of up to this many blocks.", min=1)
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Live sessions for that, at their recorded times.", min=1)] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Sessions, sizes, pauses, sub-agents, and the hit rate of an infinite prefix cache."""
    from harness.import_view import curve_sizes, print_curve, print_stats
    from replay.corpus import Corpus, builtin_path
    from replay.corpus_stats import corpus_stats
    from replay.stack_distance import hit_curve

    loaded = Corpus.load(corpus or builtin_path())
    stats = corpus_stats(loaded)
    curve = hit_curve(loaded, concurrency) if cache_blocks else None
    if as_json:
        if curve is not None and cache_blocks is not None:
            points = [{"blocks": size, "hit_rate": curve.hit_rate(size)} for size in curve_sizes(cache_blocks)]
            stats["lru_cache"] = {"concurrency": concurrency, "curve": points}
        sys.stdout.write(json.dumps(stats, indent=2, allow_nan=False) + "\n")
        return
    print_stats(stats)
    if curve is not None and cache_blocks is not None:
        print_curve(curve, cache_blocks, concurrency)


@traces_app.command(
    "synth", epilog="[bold]Example[/bold]\n\nagentx traces synth -o mine.parquet --sessions 100 --seed 1"
)
def synth_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Corpus file to write.")],
    sessions: Annotated[int, typer.Option(help="Number of sessions.", min=1)] = 24,
    seed: Annotated[int, typer.Option(help="The same seed gives the same corpus.")] = 7,
) -> None:
    """Generate coding-agent sessions from a seed."""
    from replay.synth import write_synthetic

    write_synthetic(output, seed=seed, sessions=sessions)
    typer.echo(f"{sessions} sessions in {output}")
