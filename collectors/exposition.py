"""Pages of Prometheus text and OpenMetrics into series and values, tolerant of what is broken on them.

Every series is parsed once by prometheus_client, by the parser that its content type names and by the other where that
one refuses, and remembered by its text; later pages of the same target only read its number. One broken line costs
itself. Limits: a page of `MAX_PAGE_BYTES`, `MAX_SERIES` series per target, `MAX_SERIES_PER_NAME` of one name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as openmetrics_parser

MAX_PAGE_BYTES = 64 * 2**20
"""Three times the largest page seen in the field (20 MB); a larger one is refused and counted."""

MAX_SERIES = 100_000
MAX_SERIES_PER_NAME = 20_000
"""A label that takes ever new values would fill the memory and push other names out. The largest recorded page has 777
series; a histogram of 20 buckets over 1,000 label sets still fits."""

_SUFFIXES = {
    "counter": ("", "_total", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
    "summary": ("", "_sum", "_count", "_created"),
    "info": ("", "_info"),
}
_HEAD = re.compile(r'[^\s{]*+\{(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+\}')
_KINDS = frozenset({"counter", "gauge", "histogram", "summary", "gaugehistogram", "info", "stateset"})


class NotMetricsError(ValueError):
    """The body is no page of metrics; the text says what it is."""


class Series(NamedTuple):
    """One time series: the sample's full name, its labels sorted by name, the kind its page declares.

    `kind` is counter, gauge, histogram, summary, ..., `unknown` where the page does not say, and `created` for the
    time stamps that stand beside counters.
    """

    name: str
    labels: tuple[tuple[str, str], ...]
    kind: str

    def label(self, name: str) -> str | None:
        """The value of one label."""
        return next((value for key, value in self.labels if key == name), None)


@dataclass(slots=True)
class Page:
    """What one scrape said. `values` (float64) runs along `series`; NaN where the page held NaN or an infinity."""

    series: list[Series]
    values: np.ndarray
    nonfinite: int = 0
    bad_lines: int = 0
    first_bad: str | None = None
    duplicates: int = 0
    """Samples whose series was already on the page; the first counts."""
    dropped: int = 0
    """Samples of series beyond the limits."""
    truncated: bool = False
    """An OpenMetrics page without its end mark."""
    help_texts: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> list[tuple[Series, float]]:
        """All samples of a name."""
        return [(s, float(v)) for s, v in zip(self.series, self.values, strict=True) if s.name == name]


class PageParser:
    """Parses the pages of one target. Not for use by two threads at a time."""

    def __init__(self, *, max_series: int = MAX_SERIES, max_series_per_name: int = MAX_SERIES_PER_NAME) -> None:
        self._max_series = max_series
        self._max_per_name = max_series_per_name
        self._by_text: dict[str, Series] = {}
        self._distinct: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
        self._per_name: dict[str, int] = {}
        self._help: dict[str, str] = {}

    def parse(self, body: bytes, content_type: str = "") -> Page:
        """The page in `body`. Raises NotMetricsError for HTML, JSON and pages above `MAX_PAGE_BYTES`."""
        if len(body) > MAX_PAGE_BYTES:
            raise NotMetricsError(f"a page of more than {MAX_PAGE_BYTES >> 20} MiB")
        text = body.decode("utf-8", "replace")
        _refuse_other(text, content_type)
        openmetrics = "openmetrics" in content_type
        page = Page([], np.zeros(0), help_texts=self._help)
        page.truncated = openmetrics and not text.rstrip().endswith("# EOF")
        values: list[float] = []
        seen: set[int] = set()
        family, kind = "", "unknown"
        for raw in text.split("\n"):
            line = raw.strip()
            if not line:
                continue
            if line[0] == "#":
                declared = self._comment(line, page)
                if declared is not None:
                    family, kind = declared
                continue
            head, rest = _split(line)
            series = self._by_text.get(head)
            if series is None:
                series = self._learn(head, family, kind, openmetrics, page)
                if series is None:
                    continue
            value = _number(rest)
            if value is None:
                _bad(page, line)
                continue
            if id(series) in seen:
                page.duplicates += 1
                continue
            seen.add(id(series))
            if not math.isfinite(value):
                page.nonfinite += 1
                value = math.nan
            page.series.append(series)
            values.append(value)
        page.values = np.array(values, dtype=np.float64)
        return page

    def _comment(self, line: str, page: Page) -> tuple[str, str] | None:
        """(family, kind) of a TYPE line; remembers HELP texts."""
        parts = line.split(None, 3)
        if len(parts) < 3 or parts[1] not in ("TYPE", "HELP"):
            return None
        name = parts[2].strip('"')
        if parts[1] == "HELP":
            self._help.setdefault(name, parts[3] if len(parts) > 3 else "")
            return None
        if len(parts) < 4:
            _bad(page, line)
            return name, "unknown"
        return name, parts[3] if parts[3] in _KINDS else "unknown"

    def _learn(self, head: str, family: str, kind: str, openmetrics: bool, page: Page) -> Series | None:
        """Parse a series seen for the first time; None when it is broken or one too many."""
        name = head.partition("{")[0]
        full = len(self._distinct) >= self._max_series or self._per_name.get(name, 0) >= self._max_per_name
        if full:
            page.dropped += 1
            return None
        parsed = _parse_head(head, openmetrics)
        if parsed is None:
            _bad(page, head)
            return None
        key = (parsed[0], tuple(sorted(parsed[1].items())))
        series = self._distinct.get(key)
        if series is None:
            series = Series(*key, _kind(key[0], family, kind))
            self._distinct[key] = series
            self._per_name[name] = self._per_name.get(name, 0) + 1
        self._by_text[head] = series
        return series


def _refuse_other(text: str, content_type: str) -> None:
    start = text[:256].lstrip("\ufeff \t\r\n")
    if start.startswith("<") or "text/html" in content_type:
        raise NotMetricsError("an HTML page, not metrics")
    if start.startswith("[") or (start.startswith('{"') and '":' in start) or "json" in content_type:
        raise NotMetricsError("a JSON document, not Prometheus metrics")


def _bad(page: Page, line: str) -> None:
    page.bad_lines += 1
    if page.first_bad is None:
        page.first_bad = line[:120]


def _split(line: str) -> tuple[str, str]:
    """(name with labels, the rest): value, time stamp, without the exemplar."""
    if " # {" in line:  # an exemplar, or a label's value that looks like one
        match = _HEAD.match(line)
        if match is not None:
            return match[0], line[match.end() :].partition(" # ")[0]
        line = line.partition(" # {")[0]
    cut = line.rfind("}") + 1
    if cut:
        return line[:cut], line[cut:]
    head, _, rest = line.partition(" ")
    if not rest:
        head, _, rest = line.partition("\t")
    return head, rest


def _number(text: str) -> float | None:
    parts = text.split(None, 2)
    if not 1 <= len(parts) <= 2 or "_" in parts[0]:
        return None
    try:
        if len(parts) == 2:
            float(parts[1])  # a time stamp, or the line is broken
        return float(parts[0])
    except ValueError:
        return None


def _parse_head(head: str, openmetrics: bool) -> tuple[str, dict[str, str]] | None:
    for strict in (openmetrics, not openmetrics):
        try:
            families = _families(head, strict)
        except (ValueError, IndexError, KeyError, TypeError):  # the parser's ways to say no
            continue
        samples = [sample for family in families for sample in family.samples]
        if len(samples) == 1 and samples[0].name:
            return samples[0].name, dict(samples[0].labels)
    return None


def _families(head: str, openmetrics: bool) -> list[Metric]:
    if openmetrics:
        parse: Any = openmetrics_parser.text_string_to_metric_families  # without types in the library
        return list(parse(f"{head} 0\n# EOF\n"))
    return list(parser.text_string_to_metric_families(f"{head} 0\n"))


def _kind(name: str, family: str, kind: str) -> str:
    """The kind that the last TYPE line gives this sample, `unknown` when it speaks of another family.

    Servers that write the colons of their samples as underscores leave them in the TYPE line.
    """
    if name.partition(":")[1] == "":
        family = family.replace(":", "_")
    if name.endswith("_created") and kind in ("gauge", "counter", "histogram", "summary"):
        return "created" if name.startswith(family.removesuffix("_total")) else "unknown"
    suffixes = _SUFFIXES.get(kind, ("",))
    return kind if any(name == family + suffix for suffix in suffixes) else "unknown"
