"""The server's side of a run: scraping, baselines at phase edges, and what they say together.

From the run, in one task (start and stop open and close a task group):

    found = await find_targets(endpoint_url, client, urls=..., file=..., headers=...)     # collectors.targets
    metrics = ServerMetrics(found.targets, journal_dir, clock=lambda: monotonic_ns() - t0, headers=..., client=...)
    await metrics.start()                # after record.begin(t0); found.notes are warnings where there is no target
    await metrics.edge("run_start")      # before the first request; costs one page per target
    ...
    await metrics.edge("steady_start")   # any phase edge: `X_start` opens phase X in metrics.parquet
    await metrics.edge("steady_end")
    await metrics.edge("run_end")        # after the drain: between run_start and run_end every request is whole
    summary = await metrics.stop()       # in a finally; flushes the journal; the dict is for summary.json

Then, before `results.store.finalize` removes the journal, `results.metrics_table.write_metrics(run_dir, run_id)`, which
`recover` calls as well. `metrics.increases("run_start", "run_end")` feeds `results.reconcile.reconcile` and
`results.token_origin.token_origin`, `metrics.evidence()` the latter; `samples()`, `infos()` and `engines()` the
fingerprint. An edge waits for a page on its way; where the run must not, await it in a task beside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from collectors.dialect import Mapped, Sample
from collectors.exposition import Page, Series
from collectors.metrics_sink import JournalSink
from collectors.scrape import INTERVAL_S, TIMEOUT_S, Baseline, Mark, Scraper, Watch
from collectors.tables import vocabulary
from collectors.targets import Target
from results.metrics_table import MetricsJournal
from results.reconcile import Increase, hit_rate
from results.token_origin import Evidence

_REPLICA_LABELS = ("engine", "dp_rank", "worker_id", "model_name", "model", "pod", "instance", "engine_type")
_WORKERS = ("worker", "prefill", "decode")


class ServerMetrics:
    """Scrapes the targets of one run into its journal."""

    def __init__(
        self,
        targets: list[Target],
        journal_dir: Path,
        *,
        clock: Callable[[], int],
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        headers: dict[str, str] | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self._journal = MetricsJournal(journal_dir)
        self._sink = JournalSink(self._journal)
        self._clock = clock
        self._stack = AsyncExitStack()
        self._scraper = Scraper(
            targets,
            clock=clock,
            sink=self._sink,
            interval_s=interval_s,
            timeout_s=timeout_s,
            headers=headers,
            client=client,
        )
        self.baselines: dict[str, Baseline] = {}

    async def start(self) -> None:
        """Begin to scrape in the background."""
        await self._stack.enter_async_context(self._scraper)

    async def edge(self, name: str) -> Baseline:
        """Take a baseline of every target, requested after this call."""
        self._sink.begin_edge(name, self._clock())
        self.baselines[name] = await self._scraper.snapshot(name)
        return self.baselines[name]

    async def stop(self) -> dict[str, Any]:
        """Stop scraping, close the journal, and say what was seen (see `summary`)."""
        await self._stack.aclose()
        written = self._journal.close()
        return {**self.summary(), "disk_full": not written}

    def increases(self, start: str, end: str) -> list[Increase]:
        """What every counter of the vocabulary gained between two baselines, targets that failed at one left out."""
        first, last = self.baselines[start], self.baselines[end]
        found: list[Increase] = []
        for watch in self._scraper.watches:
            a, b = first.marks[watch.target.url], last.marks[watch.target.url]
            steady = not watch.counters.unsteady
            if steady and b.page is not None and b.mapped is not None and a.failure is None:
                found += _gained(watch, a, b, b.page, b.mapped)
        return found

    def samples(self) -> list[Sample]:
        """The vocabulary's samples of the last page of each target."""
        return [
            sample
            for watch in self._scraper.watches
            if watch.page is not None and watch.mapped is not None
            for sample in watch.mapped.samples(watch.page)
        ]

    def infos(self) -> list[Series]:
        """The `*_config_info` series of the last page of each target."""
        pages = [watch.page for watch in self._scraper.watches if watch.page is not None]
        return [series for page in pages for series in page.series if series.name.endswith("_config_info")]

    def engines(self) -> list[str]:
        """The dialects seen, in order of first sight."""
        found = [d.engine for w in self._scraper.watches if w.mapped for d in w.mapped.dialects]
        return list(dict.fromkeys(found))

    def evidence(self) -> Evidence:
        """Replicas that look prefixes up in a cache of their own, and the smallest of their pools."""
        pools: dict[tuple[str, str | None], float] = {}
        blocks: dict[tuple[str, str | None], float] = {}
        replicas: set[tuple[str, str | None]] = set()
        sizes: set[float] = set()
        behind = 1
        apart = any(watch.role == "prefill" for watch in self._scraper.watches)
        looking_up = ("prefill",) if apart else _WORKERS
        for watch in self._scraper.watches:
            if watch.role not in looking_up or watch.page is None or watch.mapped is None:
                continue
            for sample in watch.mapped.samples(watch.page):
                engine = sample.series.label("engine") or sample.series.label("dp_rank")
                where = (watch.target.url, engine)
                if sample.name == "kv_usage" and ("tier", "device") in sample.labels:
                    replicas.add(where)
                    behind = max(behind, watch.counters.servers)
                elif sample.name == "kv_pool_tokens" and ("tier", "device") in sample.labels:
                    pools[where] = sample.value
                elif sample.name == "kv_pool_blocks":
                    blocks[where] = sample.value
                elif sample.name == "kv_block_tokens":
                    sizes.add(sample.value)
        block = sizes.pop() if len(sizes) == 1 else None
        if not pools and block is not None:
            pools = {where: count * block for where, count in blocks.items()}
        return Evidence(len(replicas) * behind or None, min(pools.values(), default=None), block)

    def summary(self) -> dict[str, Any]:
        """What was scraped and how it went, per target; gauges and hit rates over the run; hints.

        `targets[]`: url, role, engines, counts of scrapes, skipped ticks, failures by reason, restarts, samples that
        were not finite, broken lines and dropped series. `gauges`: by role, mean and max of each canonical gauge.
        `intervals`: between baselines in order, the same, and increases by role and canonical key, summed over targets.
        """
        names = list(self.baselines)
        intervals = [{"from": a, "to": b, **_interval(self.increases(a, b))} for a, b in pairwise(names)]
        return {
            "targets": [_target(watch) for watch in self._scraper.watches],
            "engines": self.engines(),
            "gauges": self._sink.gauges.between(0, self._clock()),
            "intervals": intervals,
            "notes": self._notes(),
        }

    def _interval(self, a: str, b: str) -> dict[str, Any]:
        first, last = self.baselines[a], self.baselines[b]
        return {
            "from": a,
            "to": b,
            "seconds": (last.t_ns - first.t_ns) / 1e9,
            **_interval(self.increases(a, b)),
            "gauges": self._sink.gauges.between(first.t_ns, last.ended_ns),
        }

    def _notes(self) -> list[str]:
        notes = [f"{w.target.url}: {note}" for w in self._scraper.watches if w.mapped for note in w.mapped.notes]
        notes += [
            f"{w.target.url}: never scraped: {w.failures.most_common(1)[0][0]}"
            for w in self._scraper.watches
            if not w.durations_ns and w.failures
        ]
        notes += [note for w in self._scraper.watches if (note := _shared(w))]
        models = {m for s in self.samples() if (m := s.series.label("model_name") or s.series.label("model"))}
        if len(models) > 1:
            notes.append(f"the pages count {len(models)} models together: {', '.join(sorted(models))}")
        roles = {w.role for w in self._scraper.watches if w.page is not None}
        if roles and not roles & set(_WORKERS):
            seen = "a frontend's page only" if "frontend" in roles else "no engine's page"
            notes.append(
                f"{seen}: cache tiers, KV usage and queues are the workers' to say; add --metrics-url for each"
            )
        return notes


def _gained(watch: Watch, a: Mark, b: Mark, page: Page, mapped: Mapped) -> list[Increase]:
    found = []
    for link in mapped.links:
        term = vocabulary()[link.name]
        series = page.series[link.place]
        if term.kind == "gauge" or series not in b.gained:
            continue
        labels = {**dict(link.labels), **({"part": link.part} if link.part else {})}
        origin = {key: value for key, value in series.labels if key in _REPLICA_LABELS}
        found.append(
            Increase(
                link.name,
                (b.gained[series] - a.gained.get(series, 0.0)) * link.scale,
                watch.target.url,
                watch.role,
                link.dialect,
                labels,
                origin,
                b.resets - a.resets,
            )
        )
    return found


def _interval(increases: list[Increase]) -> dict[str, Any]:
    summed: dict[str, dict[str, float]] = {}
    for i in increases:
        if "le" not in i.labels:
            inner = ",".join(f'{k}="{v}"' for k, v in sorted(i.labels.items()))
            key = f"{i.name}{{{inner}}}" if inner else i.name
            of_role = summed.setdefault(i.role, {})
            of_role[key] = of_role.get(key, 0.0) + i.value
    return {
        "increases": summed,
        "hit_rate": {tier: hit_rate(increases, tier) for tier in ("device", "host", "external")},
        "restarts": max((i.resets for i in increases), default=0),
    }


def _target(watch: Watch) -> dict[str, Any]:
    took = watch.durations_ns
    return {
        "url": watch.target.url,
        "role": watch.role,
        "role_stated": watch.target.role is not None,
        "engines": [d.engine for d in watch.mapped.dialects] if watch.mapped else [],
        "scrapes": watch.scrapes,
        "failures": dict(watch.failures),
        "vanished": watch.vanished,
        "skipped_ticks": watch.skipped_ticks,
        "restarts": watch.counters.resets,
        "servers": watch.counters.servers,
        "empty_pages": watch.empty_pages,
        "nonfinite": watch.nonfinite,
        "bad_lines": watch.bad_lines,
        "first_bad_line": watch.first_bad,
        "duplicates": watch.duplicates,
        "dropped_series": watch.dropped,
        "truncated": watch.truncated,
        "series": len(watch.page.series) if watch.page else 0,
        "page_bytes_max": watch.largest_bytes,
        "scrape_s": {"mean": float(np.mean(took)) / 1e9, "max": max(took) / 1e9} if took else None,
    }


def _shared(watch: Watch) -> str | None:
    """What it costs when several servers answer at one address."""
    counters = watch.counters
    if not counters.unsteady and counters.servers < 2:
        return None
    count = "several" if counters.unsteady else str(counters.servers)
    cost = "its counters are not used" if counters.unsteady else "gauges are of one of them at a time"
    return f"{watch.target.url}: {count} servers answer in turn, {cost}; give --metrics-url for each"
