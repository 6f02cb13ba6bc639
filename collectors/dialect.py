"""Pages in one vocabulary: which engines speak on a page, and which of its series is what.

A page may speak several dialects (an engine and LMCache in it). What no table names stays raw; what a table names and
the page lacks is missing, never 0. The tables are data (`collectors.tables`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectors.exposition import Page, Series
from collectors.tables import Dialect, Labels, Rule, Term, dialects, plain, vocabulary

_PARTS = {"_bucket": "bucket", "_sum": "sum", "_count": "count"}
_KIND_OF = {
    "counter": frozenset({"counter", "unknown"}),
    "gauge": frozenset({"gauge", "unknown", "info"}),
    "histogram": frozenset({"histogram", "summary", "unknown"}),
}
_NO_VALUE = frozenset({"", "none", "null", "nan"})


class Sample(NamedTuple):
    """A value in the vocabulary. `part` is "" for plain values, else bucket, sum or count of a histogram.

    `labels` holds the canonical labels (tier, source, ...), `series` the source with all of its own.
    """

    name: str
    part: str
    labels: Labels
    value: float
    dialect: str
    series: Series


class Link(NamedTuple):
    """How the series at `place` on a page becomes a sample: value = raw * scale, or a constant out of a label."""

    place: int
    name: str
    part: str
    labels: Labels
    scale: float
    constant: float | None
    zero_is_unknown: bool
    dialect: str

    @property
    def key(self) -> str:
        """The canonical name with its labels, as metrics.parquet shows it."""
        inner = ",".join(f'{k}="{v}"' for k, v in self.labels)
        return f"{self.name}{{{inner}}}" if inner else self.name


@dataclass(slots=True)
class Mapped:
    """The dialects found on a page and its links; good for every page with the same series."""

    dialects: tuple[Dialect, ...]
    links: list[Link]
    notes: list[str] = field(default_factory=list)
    prefill: bool = False

    @property
    def role(self) -> str:
        """frontend, prefill, worker, cache or unknown: what the page is of, where nobody stated it."""
        if self.prefill:
            return "prefill"
        roles = {d.role for d in self.dialects}
        return next((role for role in ("frontend", "worker", "cache") if role in roles), "unknown")

    def samples(self, page: Page) -> list[Sample]:
        """The page in the vocabulary; what is not finite, or 0 where 0 means unknown, is left out."""
        found = []
        for link in self.links:
            value = float(page.values[link.place]) * link.scale if link.constant is None else link.constant
            if math.isnan(value) or (value == 0 and link.zero_is_unknown):
                continue
            found.append(Sample(link.name, link.part, link.labels, value, link.dialect, page.series[link.place]))
        return found


class Mapper:
    """Maps the pages of one target; works the table out again only when the page's series change."""

    def __init__(self) -> None:
        self._series: list[Series] | None = None
        self._mapped = Mapped((), [])

    def map(self, page: Page) -> Mapped:
        """The page's links."""
        if page.series != self._series:
            self._series, self._mapped = page.series, map_page(page)
        return self._mapped


def _parts(series: Series) -> tuple[str, str]:
    """(family, part) of a series: the name without what its kind adds to it."""
    name = plain(series.name)
    if series.kind in ("histogram", "summary", "gaugehistogram", "unknown"):
        for suffix, part in _PARTS.items():
            if name.endswith(suffix):
                return name.removesuffix(suffix), part
    if series.kind in ("counter", "unknown"):
        return name.removesuffix("_total"), ""
    return name, ""


def detect(series: Iterable[Series]) -> list[Dialect]:
    """The dialects whose names are there; one that extends another replaces it."""
    names = {plain(s.name) for s in series}
    found: list[Dialect] = []
    for dialect in dialects().values():
        covered = any(other.extends == dialect.engine for other in found)
        if not covered and any(name.startswith(dialect.detect) for name in names):
            found.append(dialect)
    return found


def map_page(page: Page) -> Mapped:
    """Find the dialects of a page and link its series to the vocabulary."""
    found = detect(page.series)
    prefill = any(series.label("dynamo_component") == "prefill" for series in page.series)
    mapped = Mapped(tuple(found), [], prefill=prefill and not any(d.role == "frontend" for d in found))
    families: dict[str, list[tuple[int, str]]] = {}
    for index, series in enumerate(page.series):
        if series.kind != "created":
            family, part = _parts(series)
            families.setdefault(family, []).append((index, part))
    for dialect in found:
        block = _block_size(page)
        for rule in dialect.rules:
            if any(name in families for name in rule.unless):
                continue
            links = _link_rule(rule, dialect, page, families, block, mapped.notes)
            mapped.links += _lowest_rank(links, page, dialect.rank_labels)
    if not found and page.series:
        mapped.notes.append("no engine known here has these names: raw series only")
    return mapped


def _link_rule(
    rule: Rule,
    dialect: Dialect,
    page: Page,
    families: dict[str, list[tuple[int, str]]],
    block: float | None,
    notes: list[str],
) -> list[Link]:
    term = vocabulary()[rule.to]
    wanted = _KIND_OF["histogram" if rule.part else "gauge" if rule.label_value else term.kind]
    for name in rule.names:
        usable = [(i, part) for i, part in families.get(name, ()) if page.series[i].kind in wanted]
        if not usable:
            continue
        scale = rule.scale
        if rule.blocks_by_help and "block" in _help_of(page, page.series[usable[0][0]]):
            if block is None:
                notes.append(f"{name} counts blocks of unknown size: not mapped")
                return []
            scale *= block
        links = []
        for index, part in usable:
            link = _link(rule, term, page.series[index], index, part, scale, dialect.engine)
            if link is not None:
                links.append(link)
        return links
    return []


def _link(rule: Rule, term: Term, series: Series, index: int, part: str, scale: float, engine: str) -> Link | None:
    if rule.part is not None:
        if part != rule.part:
            return None
        part = ""
        scale = 1.0 if rule.part == "count" else scale
    elif (part == "") == (term.kind == "histogram"):
        return None
    if any((series.label(label) or values[0]) not in values for label, values in rule.where.items()):
        return None
    labels = dict(rule.labels)
    if rule.split is not None:
        raw = series.label(rule.split.label)
        if raw is None:
            if rule.split.missing is not None:
                labels[rule.split.to] = rule.split.missing
        elif raw in rule.split.values or not rule.split.only:
            labels[rule.split.to] = rule.split.values.get(raw, raw)
        else:
            return None
    constant = None
    if rule.label_value is not None:
        text = series.label(rule.label_value)
        if text is None or text.lower() in _NO_VALUE:
            return None
        try:
            constant = float(text)
        except ValueError:
            return None
    if part == "bucket":
        labels["le"] = series.label("le") or ""
        if scale != 1.0:
            labels["le"] = _bound(labels["le"], scale)
    scale = 1.0 if part in ("bucket", "count") else scale
    return Link(
        index, rule.to, part, tuple(sorted(labels.items())), scale, constant, rule.zero_is_unknown, engine
    )  # fmt: skip


def _bound(text: str, scale: float) -> str:
    """A bucket's bound in the canonical unit; left alone where it is no finite number."""
    try:
        bound = float(text) * scale
    except ValueError:
        return text
    return f"{bound:.12g}" if math.isfinite(bound) else text


def _lowest_rank(links: list[Link], page: Page, rank_labels: Sequence[str]) -> list[Link]:
    """Of the ranks of one replica, which say the same, the lowest."""
    if not rank_labels:
        return links
    best: dict[object, tuple[list[tuple[int, str]], Link]] = {}
    for link in links:
        own = page.series[link.place].labels
        group = (link.name, link.part, tuple(pair for pair in own if pair[0] not in rank_labels))
        rank = [(int(value) if value.isdigit() else 0, value) for key, value in own if key in rank_labels]
        if group not in best or rank < best[group][0]:
            best[group] = (rank, link)
    return [link for _, link in best.values()]


def _help_of(page: Page, series: Series) -> str:
    return page.help_texts.get(series.name) or page.help_texts.get(series.name.removesuffix("_total")) or ""


def _block_size(page: Page) -> float | None:
    for series in page.series:
        if series.name.endswith("cache_config_info"):
            text = series.label("block_size") or ""
            return float(text) if text.isdigit() else None
    return None
