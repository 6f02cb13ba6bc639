"""What counters gained while one target was watched, through restarts, and through a balancer in front of several."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from collectors.exposition import Page, Series

Key = tuple[str, tuple[tuple[str, str], ...]]

_COUNTING = frozenset({"counter", "histogram", "summary", "unknown"})
_SUFFIXES = ("_total", "_bucket", "_sum", "_count")
_SAME_START_S = 0.05
"""One process says its start time (a float of seconds since 1970) with less noise than this."""


@dataclass(slots=True)
class _Process:
    """The last page of one server process. `started_s` where the page says it."""

    started_s: float | None
    page: int
    last: dict[Series, float] = field(default_factory=dict)
    created: dict[Key, float] = field(default_factory=dict)
    uptime: dict[Series, float] = field(default_factory=dict)


@dataclass(slots=True)
class Counters:
    """Sums up the increases of every counting series of one target; feed it each page in order.

    Processes are told apart by `process_start_time_seconds`. One that began after the watching did is a restart: all
    that it counted is added. One that began before is another server behind the same address: it is counted from its
    first page on. Without that series a restart is seen by an `*_uptime_seconds` or a value that fell, or by a
    `_created` twin that moved. What a server counted after its last page is lost: sums over a restart are lower bounds.
    """

    gained: dict[Series, float] = field(default_factory=dict)
    """Increase since the first page. A series that appears later began at 0."""
    resets: int = 0
    """Restarts: pages of a process that is new, or on which at least one series began again."""
    pages: int = 0
    servers: int = 0
    """Processes that ran before the watching began: more than one where a balancer is in front."""
    _falls: int = 0
    _began_s: float = 0.0
    _processes: list[_Process] = field(default_factory=list)
    _twins: dict[Series, Key] = field(default_factory=dict)

    @property
    def unsteady(self) -> bool:
        """Values go up and down as no server's do: several answer in turn and nothing tells them apart."""
        return self._falls >= 3 and self._falls > 0.1 * self.pages

    def unheard(self, pages: int) -> bool:
        """Whether one of several servers was not heard since there were so many pages."""
        return self.servers > 1 and any(process.page < pages for process in self._processes)

    def update(self, page: Page, wall_s: float) -> bool:
        """Take a page in; whether a server had restarted. `wall_s`: the server's clock then, seconds since 1970."""
        values = page.values.tolist()
        if not self.pages:
            self._began_s = wall_s
        process, restarted = self._process(page, values)
        fell = _uptime_fell(process, page, values)
        if fell:  # a series that comes back later began at 0 again
            process.last.clear()
            process.created.clear()
        moved = _moved(process, page, values)
        counts_from_zero = bool(self.pages) and (restarted or fell or process.page >= 0)
        for series, value in zip(page.series, values, strict=True):
            if series.kind not in _COUNTING or math.isnan(value):
                continue
            last = process.last.get(series)
            if last is None:
                gain = value if counts_from_zero else 0.0
            elif value < last or (moved and self._twin(series) in moved):
                gain = value
                fell |= _counts(series)
            else:
                gain = value - last
            process.last[series] = value
            self.gained[series] = self.gained.get(series, 0.0) + gain
        process.page = self.pages
        self.pages += 1
        self._falls += fell
        self.resets += restarted or fell
        return restarted or fell

    def _process(self, page: Page, values: list[float]) -> tuple[_Process, bool]:
        """Whose page it is, and whether that process is a restarted one heard for the first time."""
        starts = [v for s, v in zip(page.series, values, strict=True) if s.name == "process_start_time_seconds"]
        started = min((v for v in starts if not math.isnan(v)), default=None)
        for process in self._processes:
            if started is None or process.started_s is None or abs(process.started_s - started) < _SAME_START_S:
                process.started_s = started if process.started_s is None else process.started_s
                return process, False
        restarted = started is not None and bool(self._processes) and started > self._began_s
        self.servers += not restarted
        self._processes.append(_Process(started, -1))
        return self._processes[-1], restarted

    def _twin(self, series: Series) -> Key:
        base = self._twins.get(series)
        if base is None:
            suffix = next((s for s in _SUFFIXES if series.name.endswith(s)), "")
            labels = tuple(pair for pair in series.labels if pair[0] != "le")
            base = self._twins[series] = (series.name.removesuffix(suffix), labels)
        return base


def _counts(series: Series) -> bool:
    """Whether a fall means a restart: a series without a declared kind may well be a gauge."""
    return series.kind != "unknown" or series.name.endswith(_SUFFIXES)


def _uptime_fell(process: _Process, page: Page, values: list[float]) -> bool:
    fell = False
    for series, value in zip(page.series, values, strict=True):
        if series.name.endswith("_uptime_seconds") and not math.isnan(value):
            fell |= value < process.uptime.get(series, value)
            process.uptime[series] = value
    return fell


def _moved(process: _Process, page: Page, values: list[float]) -> set[Key]:
    moved = set()
    for series, value in zip(page.series, values, strict=True):
        if series.kind == "created" and not math.isnan(value):
            key = (series.name.removesuffix("_created"), series.labels)
            if process.created.setdefault(key, value) != value:
                moved.add(key)
                process.created[key] = value
    return moved
