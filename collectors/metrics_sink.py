"""From scrapes to the run's journal, and the gauges of the vocabulary kept for the summary."""

from __future__ import annotations

import numpy as np

from collectors.dialect import Mapped, Sample
from collectors.exposition import Page, Series
from collectors.scrape import Watch
from collectors.tables import vocabulary
from results.metrics_table import MetricsJournal, SeriesRow


class Gauges:
    """The canonical gauges of all pages of a run, to be summed over replicas at any moment."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[tuple[int, str, float, float]]] = {}
        self._lost: list[tuple[int, str]] = []

    def add(self, role: str, key: str, t_ns: int, target: str, value: float, largest: float) -> None:
        """A gauge of one page, combined over its label sets."""
        self._rows.setdefault((role, key), []).append((t_ns, target, value, largest))

    def lost(self, t_ns: int, target: str) -> None:
        """The target did not answer: what it said last is no longer so."""
        self._lost.append((t_ns, target))

    def between(self, start_ns: int, end_ns: int) -> dict[str, dict[str, dict[str, float]]]:
        """By role and canonical key: `mean` and `max` over the pages between the two times, and how many `pages`.

        At each page the targets of the role are combined as they stand: counts are summed, shares averaged (`max` is
        then the largest of any label set), so that two replicas with 3 and 5 running requests are 8.
        """
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (role, key), rows in sorted(self._rows.items()):
            summed = vocabulary()[key.partition("{")[0]].combine == "sum"
            latest: dict[str, float] = {}
            values: list[float] = []
            largest = -np.inf
            events = [(t, url, value, top) for t, url, value, top in rows if start_ns <= t <= end_ns]
            gone = [(t, url, np.nan, np.nan) for t, url in self._lost if start_ns <= t <= end_ns]
            for _, url, value, top in sorted(events + gone, key=lambda event: event[0]):
                if np.isnan(value):
                    latest.pop(url, None)
                    continue
                latest[url] = value
                values.append(sum(latest.values()) / (1 if summed else len(latest)))
                largest = max(largest, values[-1] if summed else top)
            if values:
                # With several targets the first pages come one by one; the sum is whole once each has been heard.
                whole = values[len({url for _, url, *_ in events}) - 1 :] if summed else values
                row = {"mean": float(np.mean(whole)), "max": float(largest), "pages": float(len(values))}
                found.setdefault(role, {})[key] = row
        return found


class JournalSink:
    """Writes scrapes to the journal, and keeps the gauges of the vocabulary for the summary."""

    def __init__(self, journal: MetricsJournal) -> None:
        self._journal = journal
        self._numbers: dict[tuple[str, Series], int] = {}
        self._page_numbers: dict[str, tuple[list[Series], np.ndarray]] = {}
        self._edges: dict[str, int] = {}
        self.gauges = Gauges()

    def begin_edge(self, name: str, t_ns: int) -> None:
        """Rows that carry this edge belong to it from now on."""
        self._edges[name] = self._journal.edge(name, t_ns)

    def page(self, watch: Watch, t_ns: int, took_ns: int, page: Page, mapped: Mapped, edge: str | None) -> None:
        """One page of a target."""
        url = watch.target.url
        known = self._page_numbers.get(url)
        if known is None or known[0] != page.series:
            known = page.series, self._number(watch, page, mapped)
            self._page_numbers[url] = known
        number = self._edges.get(edge, -1) if edge else -1
        self._journal.add(t_ns, known[1], page.values, edge=number)
        self._own(watch, t_ns, up=1.0, took_ns=took_ns)
        for key, combined, largest in combine(mapped.samples(page)):
            self.gauges.add(watch.role, key, t_ns, url, combined, largest)
        self._journal.flush()

    def down(self, watch: Watch, t_ns: int, took_ns: int) -> None:
        """A scrape that failed."""
        self.gauges.lost(t_ns, watch.target.url)
        self._own(watch, t_ns, up=0.0, took_ns=took_ns)
        self._journal.flush()

    def _own(self, watch: Watch, t_ns: int, *, up: float, took_ns: int) -> None:
        """Ours, named as Prometheus names its own: whether the page was there, and how long it took."""
        names = ("up", "scrape_duration_seconds")
        numbers = [self._series(watch, Series(name, (), "gauge"), None, None) for name in names]
        self._journal.add(t_ns, np.array(numbers), np.array([up, took_ns / 1e9]))

    def _number(self, watch: Watch, page: Page, mapped: Mapped) -> np.ndarray:
        links = {link.place: link for link in mapped.links if link.constant is None}
        numbers = np.empty(len(page.series), np.int64)
        for index, series in enumerate(page.series):
            link = links.get(index)
            numbers[index] = self._series(watch, series, link.key if link else None, link.scale if link else None)
        return numbers

    def _series(self, watch: Watch, series: Series, canonical: str | None, scale: float | None) -> int:
        key = (watch.target.url, series)
        number = self._numbers.get(key)
        if number is None:
            labels = tuple(sorted({**watch.target.labels, **dict(series.labels)}.items()))
            row = SeriesRow(watch.target.url, watch.role, series.name, labels, series.kind, canonical, scale)
            number = self._numbers[key] = self._journal.series(row)
        return number


def combine(samples: list[Sample]) -> list[tuple[str, float, float]]:
    """(canonical key, combined value, largest value) of each gauge over the label sets of a page.

    Counts are summed; shares like KV usage are never summed but averaged, with the largest beside the mean; settings
    count where all agree.
    """
    grouped: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for sample in samples:
        if vocabulary()[sample.name].kind == "gauge":
            grouped.setdefault((sample.name, sample.labels), []).append(sample.value)
    found = []
    for (name, labels), values in grouped.items():
        how = vocabulary()[name].combine
        if how == "same" and len(set(values)) > 1:
            continue
        value = sum(values) if how == "sum" else float(np.mean(values))
        inner = ",".join(f'{k}="{v}"' for k, v in labels)
        found.append((f"{name}{{{inner}}}" if inner else name, value, max(values)))
    return found
