"""What counters gained while one target was watched, through restarts of the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from collectors.exposition import Page, Series

_COUNTING = frozenset({"counter", "histogram", "summary", "unknown"})
_SUFFIXES = ("_total", "_bucket", "_sum", "_count")
_START_S = 0.5
"""Start times of one process differ by less than this between pages (a float of seconds since 1970)."""


@dataclass(slots=True)
class Counters:
    """Sums up the increases of every counting series of one target; feed it each page in order.

    A restart is seen by a value below the last one, by a `_created` twin that moved, or for the whole page by
    `process_start_time_seconds` that moved or an `*_uptime_seconds` that fell; what the new server counted is then
    added whole. What the old one counted after its last scrape is lost, so sums over a restart are lower bounds.
    """

    gained: dict[Series, float] = field(default_factory=dict)
    """Increase since the first page. A series that appears later began at 0."""
    resets: int = 0
    """Restarts: pages on which the process was another one, or at least one series began again."""
    _last: dict[Series, float] = field(default_factory=dict)
    _created: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)
    _base: dict[Series, tuple[str, tuple[tuple[str, str], ...]]] = field(default_factory=dict)
    _start: dict[Series, float] = field(default_factory=dict)
    _pages: int = 0

    def update(self, page: Page) -> bool:
        """Take a page in; whether the server had restarted since the page before."""
        values = page.values.tolist()
        restarted = self._restarted(page, values)
        if restarted:  # a series that comes back later began at 0 again
            self._last.clear()
            self._created.clear()
        moved = self._moved(page, values)
        for series, value in zip(page.series, values, strict=True):
            if series.kind not in _COUNTING or math.isnan(value):
                continue
            last = self._last.get(series)
            if last is None:
                gain = value if self._pages else 0.0
            elif value < last or (moved and self._twin(series) in moved):
                gain, restarted = value, True
            else:
                gain = value - last
            self._last[series] = value
            self.gained[series] = self.gained.get(series, 0.0) + gain
        self._pages += 1
        self.resets += restarted
        return restarted

    def _moved(self, page: Page, values: list[float]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
        moved = set()
        for series, value in zip(page.series, values, strict=True):
            if series.kind == "created" and not math.isnan(value):
                key = (series.name.removesuffix("_created"), series.labels)
                if self._created.setdefault(key, value) != value:
                    moved.add(key)
                    self._created[key] = value
        return moved

    def _restarted(self, page: Page, values: list[float]) -> bool:
        restarted = False
        for series, value in zip(page.series, values, strict=True):
            start = series.name == "process_start_time_seconds"
            if not (start or series.name.endswith("_uptime_seconds")) or math.isnan(value):
                continue
            last = self._start.get(series, value)
            restarted |= value > last + _START_S if start else value < last
            self._start[series] = value
        return restarted

    def _twin(self, series: Series) -> tuple[str, tuple[tuple[str, str], ...]]:
        base = self._base.get(series)
        if base is None:
            name = series.name
            for suffix in _SUFFIXES:
                if name.endswith(suffix):
                    name = name.removesuffix(suffix)
                    break
            labels = tuple(pair for pair in series.labels if pair[0] != "le")
            base = self._base[series] = (name, labels)
        return base
