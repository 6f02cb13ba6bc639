"""What importing and describing a corpus shows."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from replay.importers.sources import source_bytes

if TYPE_CHECKING:
    from replay.importers import ImportReport
    from replay.stack_distance import HitCurve

_PLAIN_EVERY_S = 5.0
_MAX_NAMED = 20


class ImportView:
    """A progress bar on a terminal, a plain line every few seconds elsewhere, a report at the end."""

    def __init__(self, source: Path, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._due = monotonic() + _PLAIN_EVERY_S
        self._started = monotonic()
        self._total = source_bytes(source) if source.exists() else 0

    def __enter__(self) -> ImportView:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("importing", total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, report: ImportReport) -> None:
        """One more trace was read; `done` source bytes are behind us."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"{report.sessions} sessions")
        elif not self._quiet and monotonic() >= self._due:
            self._due = monotonic() + _PLAIN_EVERY_S
            share = f"{100 * done / self._total:.0f} %" if self._total else ""
            print(f"agentx: importing {share}, {report.sessions} sessions", file=sys.stderr, flush=True)

    def print_report(self, report: ImportReport, output: Path) -> None:
        """What came in, and every document that did not, with its reason."""
        seconds = monotonic() - self._started
        print(
            f"{report.sessions:,} sessions, {report.requests:,} requests, {report.subagents:,} sub-agents with "
            f"{report.subagent_requests:,} requests, {report.input_tokens:,} input tokens"
        )
        print(f"{output}: {output.stat().st_size:,} bytes in {seconds:.1f} s")
        if report.renamed:
            print(f"{report.renamed} sessions had an id seen before and got a suffix", file=sys.stderr)
        for name, count in report.unknown_fields.most_common(_MAX_NAMED):
            print(f"ignored {count:,} times the unknown field {name!r}", file=sys.stderr)
        for name, reason in report.skipped[:_MAX_NAMED]:
            print(f"skipped {name}: {reason}", file=sys.stderr)
        if len(report.skipped) > _MAX_NAMED:
            print(f"skipped {len(report.skipped) - _MAX_NAMED} more", file=sys.stderr)
        if report.skipped:
            print(f"{len(report.skipped)} malformed traces were skipped", file=sys.stderr)


def print_stats(stats: dict[str, Any]) -> None:
    """A corpus' figures as a table on standard output."""
    from rich.console import Console
    from rich.table import Table

    cache, fresh = stats["infinite_cache"], stats["fresh_turns"]
    table = Table(title=f"{stats['name']}  {stats['digest'][:12]}", title_justify="left")
    for heading in ("", "p50", "p90", "p99", "mean", "n"):
        table.add_column(heading, justify="right" if heading else "left")
    for key, label in (
        ("input", "input tokens"),
        ("output", "output tokens"),
        ("think_s", "think time, s"),
        ("requests_per_session", "requests a session"),
    ):
        d = stats[key]
        cells = ["–" if d[q] is None else _rounded(d[q]) for q in ("p50", "p90", "p99", "mean")]
        table.add_row(label, *cells, f"{d['n']:,}")
    table.add_section()
    hit = "–" if cache["hit_rate"] is None else f"{100 * cache['hit_rate']:.2f} %"
    for label, value in (
        ("sessions", f"{stats['sessions']:,}"),
        ("requests", f"{stats['requests']:,}"),
        ("sub-agents", f"{stats['subagents']:,}"),
        ("  their requests", f"{stats['subagent_requests']:,}"),
        ("flat agents", f"{stats['flat_agents']['agents']:,}, side calls {stats['flat_agents']['side_calls']:,}"),
        ("  their requests", f"{stats['flat_agents']['requests']:,}"),
        ("input tokens", f"{stats['input_tokens']:,}"),
        ("output tokens", f"{stats['output_tokens']:,}"),
        ("longest context", f"{stats['longest_context']:,}"),
        ("infinite-cache hits", hit),
        ("  turns that share nothing", f"{fresh['turns']:,} of {fresh['of']:,}"),
    ):
        table.add_row(label, value)
    console = Console(highlight=False)
    console.print(table)
    if fresh["share"] is not None and fresh["share"] > 0.5:
        console.print("the head of the prompt changes with every request: no prefix cache can help", soft_wrap=True)


def _rounded(value: float) -> str:
    """Half up, as people round: 104,381.5 is 104,382."""
    return f"{int(value + 0.5):,}" if value >= 100 else f"{value:.1f}"


def print_curve(curve: HitCurve, cache_blocks: int, concurrency: int) -> None:
    """Hit rate against cache size, one bar for every doubling up to `cache_blocks`."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=f"LRU prefix cache, {concurrency} live sessions at their recorded times", title_justify="left")
    for heading in ("blocks", "hit rate", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for blocks in curve_sizes(cache_blocks):
        rate = curve.hit_rate(blocks) or 0.0
        table.add_row(f"{blocks:,}", f"{100 * rate:.2f} %", "█" * round(40 * rate))
    console.print(table)


def curve_sizes(cache_blocks: int) -> list[int]:
    """`cache_blocks` and its halves, ascending."""
    return [size for k in reversed(range(16)) if (size := cache_blocks >> k)]
