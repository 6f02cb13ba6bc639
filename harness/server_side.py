"""What the server said during a run: its pages scraped beside the workers, baselines at the phase edges.

The measured interval goes from the edge at its start, when nothing of the run is in flight, to that after the drain:
it holds exactly the requests that were sent in the measured part, so that counters and answers can be compared to the
token, and no warm-up is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import monotonic_ns
from typing import Any

import httpx

from collectors.fingerprint import fingerprint
from collectors.server import ServerMetrics
from collectors.targets import Discovered, discover, find_targets
from replay.endpoint import Endpoint
from results.server_view import ServerView

INTERVAL_S = 60.0
"""Length of the intervals for which the origin of input tokens is told."""
LEAD_S = 0.3
"""Between the first baseline and the first request: ten pages of a busy engine."""
_JSON_ROUTES = {"models": "/v1/models", "server_info": "/server_info", "version": "/version"}


class ServerSide:
    """Scrapes from `start` to `stop`; without a page to scrape it says why and does nothing."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        journal: Path,
        *,
        urls: Sequence[str],
        file: Path | None,
        stated: dict[str, str],
        clock: Callable[[], int],
    ) -> None:
        self._endpoints = endpoints
        self._endpoint = endpoints[0]
        self._journal = journal
        self._urls, self._file, self._stated = urls, file, stated
        self._clock = clock
        self._client: httpx.AsyncClient | None = None
        self._metrics: ServerMetrics | None = None
        self._found = Discovered([], [])
        self._from_ns = 0
        self._warmed_up = False
        self._ticks: list[tuple[str, int]] = []
        self.fingerprint: dict[str, dict[str, Any]] = {}

    async def find(self) -> bool:
        """Look for pages; True when there is one. UserError on an address or a file that can't be used."""
        endpoint = self._endpoint
        if endpoint.uds is not None and not self._urls and self._file is None:
            self._found = Discovered([], ["a unix socket has no metrics page of its own; give --metrics-url"])
            return False
        verify = endpoint.ssl_context() if endpoint.tls else True
        way = httpx.AsyncHTTPTransport(verify=verify, proxy=endpoint.proxy) if endpoint.proxy else None
        self._client = httpx.AsyncClient(
            verify=verify,
            timeout=httpx.Timeout(10.0, connect=5.0),
            trust_env=False,
            mounts={f"all://{endpoint.host}": way},  # as the load goes; pages elsewhere are on the servers' network
        )
        headers = dict(endpoint.headers)
        self._found = await find_targets(endpoint.base, self._client, urls=self._urls, file=self._file, headers=headers)
        for other in self._endpoints[1:]:
            await self._find_beside(other, headers)
        if not self._found.targets:
            return False
        self._metrics = ServerMetrics(
            self._found.targets, self._journal, clock=self._clock, headers=headers, client=self._client
        )
        return True

    async def _find_beside(self, endpoint: Endpoint, headers: dict[str, str]) -> None:
        """The page next to a further endpoint; credentials of its own are not known to the scraper and not sent."""
        assert self._client is not None
        if endpoint.uds is not None:
            self._found.notes.append(f"{endpoint.base}: a unix socket has no metrics page of its own")
            return
        found = await discover(endpoint.base, self._client, headers=dict(endpoint.headers))
        known = {target.url for target in self._found.targets}
        trusted = dict(endpoint.headers) == headers
        self._found.targets.extend(replace(t, trusted=trusted) for t in found.targets if t.url not in known)
        if not found.targets:
            self._found.notes.extend(found.notes)

    @property
    def notes(self) -> list[str]:
        """Why there is no page, or none of some place that was tried."""
        return self._found.notes

    async def start(self) -> None:
        """Begin to scrape, with a first baseline."""
        if self._metrics is not None:
            await self._metrics.start()
            await self._metrics.edge("run_start")

    async def measure(self, *, warmed_up: bool) -> None:
        """The measured part is about to begin and nothing is in flight; `warmed_up`: something was sent before."""
        self._from_ns = self._clock()
        self._warmed_up = warmed_up
        if self._metrics is not None:
            await self._metrics.edge("steady_start")

    async def tick(self) -> None:
        """One more baseline: the intervals between them are told apart."""
        if self._metrics is not None:
            name = f"t{len(self._ticks) + 1}"
            self._ticks.append((name, self._clock()))
            await self._metrics.edge(name)

    async def finish(self) -> None:
        """Everything has been answered: the last baseline, and what is serving."""
        if self._metrics is not None:
            await self._metrics.edge("run_end")
        self.fingerprint = await self._fingerprint()

    async def stop(self) -> ServerView:
        """Close the journal; what the summary needs. To be called once, also after a failure."""
        metrics, view = self._metrics, ServerView(notes=list(self._found.notes), from_ns=self._from_ns)
        if metrics is not None:
            view.summary = await metrics.stop()
            view.notes += view.summary.pop("notes")
            if {"steady_start", "run_end"} <= metrics.baselines.keys():
                view.increases = metrics.increases("steady_start", "run_end")
                view.evidence = metrics.evidence()
                edges = [("steady_start", self._from_ns), *self._ticks, ("run_end", self._clock())]
                edges = [edge for edge in edges if edge[0] in metrics.baselines]
                view.intervals = [(a[1], b[1], metrics.increases(a[0], b[0])) for a, b in pairwise(edges)]
                if self._warmed_up:
                    view.warm_up = metrics.increases("run_start", "steady_start")
        if self._client is not None:
            await self._client.aclose()
        return view

    async def _fingerprint(self) -> dict[str, dict[str, Any]]:
        found: dict[str, Any] = {}
        routes: list[str] = []
        if self._client is not None and self._endpoint.uds is None:
            names = [*_JSON_ROUTES, "openapi"]
            paths = [*_JSON_ROUTES.values(), "/openapi.json"]
            answers = await asyncio.gather(*(self._json(path) for path in paths))
            found = {name: answer for name, answer in zip(names, answers, strict=True) if answer}
            routes = list(found.pop("openapi", {}).get("paths", {}))
        metrics = self._metrics
        return fingerprint(
            samples=metrics.samples() if metrics else (),
            infos=metrics.infos() if metrics else (),
            engines=metrics.engines() if metrics else (),
            routes=routes,
            stated=self._stated,
            **found,
        )

    async def _json(self, path: str) -> dict[str, Any] | None:
        assert self._client is not None
        try:
            answer = await self._client.get(
                self._endpoint.base + path, headers=dict(self._endpoint.headers), timeout=5.0
            )
            document = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        return document if isinstance(document, dict) else None


def since(zero: Callable[[], int]) -> Callable[[], int]:
    """A clock of nanoseconds since the run's zero."""
    return lambda: monotonic_ns() - zero()
