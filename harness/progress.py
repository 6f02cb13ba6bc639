"""What a run shows while it runs: one live panel on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from results.stats import percentile

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

PLAIN_EVERY_S = 5.0
_RECENT = 2_000
"""Latencies shown are those of the latest answers; the summary counts all of them."""


class ProgressView:
    """Collects the workers' reports and shows their sum on standard error."""

    def __init__(self, *, quiet: bool, duration_s: float | None, planned_trees: int | None) -> None:
        self.quiet = quiet
        self.note = ""
        self._duration_s = duration_s
        self._planned = planned_trees
        self._reports: dict[int, dict[str, Any]] = {}
        self._ttft: deque[float] = deque(maxlen=_RECENT)
        self._itl: deque[float] = deque(maxlen=_RECENT)
        self._rates: deque[tuple[float, int]] = deque(maxlen=20)
        self._started = monotonic()
        self._plain_due = 0.0
        self._live: Live | None = None

    def start(self) -> None:
        """The clock of the run starts."""
        self._started = monotonic()
        if not self.quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()

    def measured(self) -> None:
        """The measured part begins."""
        self.note = ""
        self._started = monotonic()

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def report(self, worker: int, report: dict[str, Any]) -> None:
        """Take one worker's report and refresh the view."""
        self._reports[worker] = report
        self._ttft.extend(report["ttft_ms"])
        self._itl.extend(report["itl_ms"])
        self._rates.append((monotonic(), self.total("output_tokens")))
        if self._live is not None:
            self._live.update(self._table())
        elif not self.quiet and monotonic() >= self._plain_due:
            self._plain_due = monotonic() + PLAIN_EVERY_S
            print(f"agentx: {self.line()}", file=sys.stderr, flush=True)

    def total(self, field: str) -> int:
        """Sum of a counter over all workers."""
        return sum(int(report[field]) for report in self._reports.values())

    def any(self, field: str) -> bool:
        """Whether any worker has set a mark."""
        return any(report[field] for report in self._reports.values())

    def last_error(self) -> str | None:
        """The latest error text a worker reported."""
        return next((r["last_error"] for r in self._reports.values() if r["last_error"]), None)

    def address(self) -> str:
        """The network address that is really used."""
        return next((str(r["address"]) for r in self._reports.values() if r["address"]), "")

    def recent(self) -> list[tuple[str, str, dict[int, float] | None]]:
        """(name, meaning, percentiles in seconds) of the latest answers; None while there are none."""
        out: list[tuple[str, str, dict[int, float] | None]] = []
        for name, text, values in (
            ("agentx_ttft_seconds", "TTFT of the latest answers.", list(self._ttft)),
            ("agentx_itl_seconds", "Mean gap between chunks of the latest answers.", list(self._itl)),
        ):
            out.append((name, text, {q: percentile(values, q) / 1e3 for q in (50, 90, 99)} if values else None))
        return out

    def line(self) -> str:
        """Everything in one plain line."""
        return "  ".join(f"{name} {value}" for name, value in self._cells())

    def _cells(self) -> list[tuple[str, str]]:
        elapsed = monotonic() - self._started
        of = f"/{self._duration_s:.0f}" if self._duration_s else ""
        planned = f"/{self._planned}" if self._planned else ""
        cells = [
            ("elapsed", f"{elapsed:.0f}{of} s"),
            ("sessions", f"{self.total('trees_live')} live, {self.total('trees_ended')}{planned} ended"),
            ("requests", f"{self.total('ok')} ok, {self.total('in_flight')} in flight"),
            ("TTFT", _pair(self._ttft)),
            ("ITL", _pair(self._itl)),
            ("output", f"{self._rate():.0f} tok/s"),
            ("cache hits", self._hit_rate()),
            ("errors", str(self.total("failed"))),
        ]
        if self.note:
            cells.append(("now", self.note))
        return cells

    def _rate(self) -> float:
        if len(self._rates) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._rates[0], self._rates[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def _hit_rate(self) -> str:
        of = self.total("cached_of")
        return f"{100 * self.total('cached_tokens') / of:.1f} %" if of else "not reported"

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(title="agentx", title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, value in self._cells():
            table.add_row(name, value)
        return table


def _pair(values: deque[float]) -> str:
    if not values:
        return "–"
    data = list(values)
    p50, p90 = percentile(data, 50), percentile(data, 90)
    return f"p50 {p50:.0f} ms, p90 {p90:.0f} ms"
