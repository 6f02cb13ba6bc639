"""Scrapes metrics pages on the run's clock, each target by itself and never overlapping itself.

A page that takes longer than the interval skips ticks, which are counted. Whatever goes wrong with a page is counted
by reason and never reaches the run. Baselines are scrapes whose request began after they were asked for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import CLOCK_REALTIME, clock_gettime
from types import TracebackType
from typing import Protocol, Self

import httpx

from collectors.counters import Counters
from collectors.dialect import Mapped, Mapper
from collectors.exposition import MAX_PAGE_BYTES, NotMetricsError, Page, PageParser, Series
from collectors.targets import Target, refusal, status_reason

INTERVAL_S = 1.0
TIMEOUT_S = 10.0
_REDIRECTS = 3
_TRIES = 4
"""Pages asked for per server behind one address until a baseline has heard each: with random choice between two, one
is still unheard after eight in 1 of 128 baselines."""

_INLINE_BYTES = 1 << 18
"""Larger pages are parsed in a thread: about 0.1 s of work would hold up the loop."""

_ACCEPT = {
    # OpenMetrics unasked: Python servers prefer it whatever its weight, and write names with colons as underscores then
    "accept": "text/plain;version=0.0.4;q=1, */*;q=0.1",
    "accept-encoding": "identity",  # compressing is the server's work, which is what is measured
    "connection": "close",  # a connection kept would hide the other servers behind a balancer
    "user-agent": "agentx",
}


class ScrapeError(Exception):
    """A page could not be had; the text is the reason."""


class Sink(Protocol):
    """Where scrapes go: the journal."""

    def page(self, watch: Watch, t_ns: int, took_ns: int, page: Page, mapped: Mapped, edge: str | None) -> None:
        """One page of a target."""

    def down(self, watch: Watch, t_ns: int, took_ns: int) -> None:
        """A scrape that failed."""


@dataclass(slots=True)
class Watch:
    """One target and all that is known of it."""

    target: Target
    parser: PageParser = field(default_factory=PageParser)
    mapper: Mapper = field(default_factory=Mapper)
    counters: Counters = field(default_factory=Counters)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    page: Page | None = None
    mapped: Mapped | None = None
    url: str = ""
    scrapes: int = 0
    skipped_ticks: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    vanished: int = 0
    """Times it answered and then did not."""
    up: bool = False
    empty_pages: int = 0
    nonfinite: int = 0
    bad_lines: int = 0
    first_bad: str | None = None
    duplicates: int = 0
    dropped: int = 0
    truncated: int = 0
    largest_bytes: int = 0
    durations_ns: list[int] = field(default_factory=list)

    @property
    def role(self) -> str:
        """As stated, else as its page shows."""
        return self.target.role or (self.mapped.role if self.mapped else "unknown")


@dataclass(frozen=True, slots=True)
class Mark:
    """One target at a baseline: counters' gains so far, and its page. `failure` says why there is none."""

    t_ns: int
    gained: dict[Series, float]
    resets: int
    page: Page | None
    mapped: Mapped | None
    failure: str | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Every target at one moment: `t_ns` when it was asked for, `ended_ns` when the last page was there."""

    name: str
    t_ns: int
    ended_ns: int
    marks: dict[str, Mark]


class Scraper:
    """Scrapes `targets` every `interval_s`. `clock` returns nanoseconds since the run's start.

    `headers` (credentials) go to trusted targets only. Use as an async context: leaving it stops the scraping.
    """

    def __init__(
        self,
        targets: list[Target],
        *,
        clock: Callable[[], int],
        sink: Sink | None = None,
        interval_s: float = INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        headers: dict[str, str] | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self.watches = [
            Watch(target, url=target.address or target.url) for target in {t.url: t for t in targets}.values()
        ]
        self._clock = clock
        self._sink = sink
        self._interval_ns = round(interval_s * 1e9)
        self._timeout_s = timeout_s
        self._headers = headers or {}
        self._own_client = client is None
        self._client = client or httpx.AsyncClient(timeout=None, trust_env=False)
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Begin to scrape."""
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(self._follow(watch)) for watch in self.watches]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop scraping; a page on its way is given up."""
        for task in self._tasks:
            task.cancel()
        try:
            await self._group.__aexit__(None, None, None)  # an error of the block stays what it is
        finally:
            if self._own_client:
                await self._client.aclose()

    async def snapshot(self, name: str) -> Baseline:
        """A page of every target, each requested after this call; a target that fails has a mark that says why."""
        asked = self._clock()
        async with asyncio.TaskGroup() as group:
            tasks = {w.target.url: group.create_task(self._mark(w, name)) for w in self.watches}
        return Baseline(name, asked, self._clock(), {url: task.result() for url, task in tasks.items()})

    async def _mark(self, watch: Watch, name: str) -> Mark:
        async with watch.lock:
            began = self._clock()
            heard = watch.counters.pages
            failure = await self._scrape(watch, edge=name)
            for _ in range(_TRIES * watch.counters.servers):
                if failure is not None or not watch.counters.unheard(heard):
                    break
                failure = await self._scrape(watch, edge=name)
            page, mapped = (watch.page, watch.mapped) if failure is None else (None, None)
            return Mark(began, dict(watch.counters.gained), watch.counters.resets, page, mapped, failure)

    async def _follow(self, watch: Watch) -> None:
        due = self._clock()
        while True:
            async with watch.lock:
                await self._scrape(watch)
            due += self._interval_ns
            late = self._clock() - due
            if late > 0:
                missed = late // self._interval_ns
                watch.skipped_ticks += missed
                due += missed * self._interval_ns
            await asyncio.sleep(max(0.0, (due - self._clock()) / 1e9))

    async def _scrape(self, watch: Watch, edge: str | None = None) -> str | None:
        """One page; the reason when it could not be had. The caller holds the target's lock."""
        began = self._clock()
        try:
            async with asyncio.timeout(self._timeout_s):
                body, content_type, wall_s = await self._fetch(watch)
            if len(body) > _INLINE_BYTES:
                page, mapped = await asyncio.to_thread(_take, watch, body, content_type, wall_s)
            else:
                page, mapped = _take(watch, body, content_type, wall_s)
        except Exception as error:  # whatever a page does, the run goes on
            reason = str(error) if isinstance(error, ScrapeError | NotMetricsError) else refusal(error)
            watch.scrapes += 1
            watch.failures[reason] += 1
            watch.vanished += watch.up
            watch.up = False
            if self._sink is not None:
                self._sink.down(watch, began, self._clock() - began)
            return reason
        took = self._clock() - began
        watch.scrapes += 1
        watch.up = True
        watch.largest_bytes = max(watch.largest_bytes, len(body))
        watch.durations_ns.append(took)
        if self._sink is not None:
            self._sink.page(watch, began, took, page, mapped, edge)
        return None

    async def _fetch(self, watch: Watch) -> tuple[bytes, str, float]:
        """Body, content type, and the server's wall clock (ours where it sends no date)."""
        url = watch.url
        headers = {**_ACCEPT, **(self._headers if watch.target.trusted else {})}
        for _ in range(_REDIRECTS + 1):
            async with self._client.stream("GET", url, headers=headers, follow_redirects=False) as response:
                if response.is_redirect:
                    following = httpx.URL(url).join(response.headers["location"])
                    if following.host != httpx.URL(url).host or following.port != httpx.URL(url).port:
                        raise ScrapeError(f"redirected to {following.host}: give that address with --metrics-url")
                    url = str(following)
                    continue
                if response.status_code != 200:
                    raise ScrapeError(status_reason(response.status_code))
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_PAGE_BYTES:
                        raise ScrapeError(f"a page of more than {MAX_PAGE_BYTES >> 20} MiB")
                watch.url = url
                wall_s = _date(response.headers.get("date")) or clock_gettime(CLOCK_REALTIME)
                return bytes(body), response.headers.get("content-type", ""), wall_s
        raise ScrapeError("redirected in a circle")


def _date(text: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date."""
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def _take(watch: Watch, body: bytes, content_type: str, wall_s: float) -> tuple[Page, Mapped]:
    """Parse, map and count a page; the target's lock is held, and nothing else touches its watch meanwhile."""
    page = watch.parser.parse(body, content_type)
    mapped = watch.mapper.map(page)
    watch.counters.update(page, wall_s)
    watch.page, watch.mapped = page, mapped
    watch.empty_pages += not page.series
    watch.nonfinite += page.nonfinite
    watch.bad_lines += page.bad_lines
    watch.first_bad = watch.first_bad or page.first_bad
    watch.duplicates += page.duplicates
    watch.dropped = max(watch.dropped, page.dropped)
    watch.truncated += page.truncated
    return page, mapped
