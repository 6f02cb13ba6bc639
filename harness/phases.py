"""From the start over the warm-up to the measured part, at one moment for all workers and for the server's counters."""

from __future__ import annotations

import asyncio
import sys
from time import monotonic_ns

from harness import load
from harness.progress import ProgressView
from harness.run_record import RunRecord
from harness.server_side import INTERVAL_S, LEAD_S, ServerSide
from harness.workers import WorkerPool
from replay.scenario import Scenario
from results.errors import EXIT_ENDPOINT, UserError

_LEAD_NS = 20_000_000
"""For a command to reach every worker."""


class Phases:
    """Tells the workers when to go and when to measure; takes the server's baselines at both edges."""

    def __init__(
        self,
        record: RunRecord,
        scenario: Scenario,
        workers: int,
        server: ServerSide,
        tasks: asyncio.TaskGroup,
        *,
        require_metrics: bool = False,
    ) -> None:
        self._record = record
        self._scenario = scenario
        self._workers = workers
        self._server = server
        self._tasks = tasks
        self._strict = require_metrics
        self._distances: list[int] = []
        self._pool: WorkerPool | None = None
        self._view: ProgressView | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._measuring = False

    async def begin(self, pool: WorkerPool, view: ProgressView) -> None:
        """Start the clock and the workers. With a warm-up, nothing is measured until every worker is warm."""
        self._pool, self._view = pool, view
        found = await self._server.find()
        if not found:
            self._without_pages(quiet=view.quiet)
        lead = round(LEAD_S * 1e9) if found else _LEAD_NS
        t0 = monotonic_ns() + lead
        self._record.begin(t0, self._workers)
        await self._server.start()
        if not load.warms_up(self._scenario):
            await self._server.measure(warmed_up=False)
            self._measuring = True
            late = monotonic_ns() - t0
            if late > 0:  # a slow page: the measured part begins when the workers do
                self._record.measure(late + _LEAD_NS)
        view.start()
        pool.tell(f"go {t0}")
        self._ticker = self._tasks.create_task(self._tick())
        if load.warms_up(self._scenario):
            view.note = "warming up"
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._scenario.warmup_grace_s, self._too_late)

    def _without_pages(self, *, quiet: bool) -> None:
        why = "; ".join(self._server.notes[-1:])
        if self._strict:
            raise UserError(f"--require-metrics: {why}", exit_code=EXIT_ENDPOINT)
        if not quiet:
            print(f"agentx: the server's side stays unknown: {why}", file=sys.stderr, flush=True)

    def warm(self, first_ns: int) -> None:
        """A worker is warm; `first_ns` is its shortest pause from now to a request."""
        self._distances.append(first_ns)
        if len(self._distances) == self._workers:
            self._end_grace()
            self._tasks.create_task(self._measure())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            if self._measuring:
                await self._server.tick()

    async def _measure(self) -> None:
        assert self._pool is not None
        assert self._view is not None
        await self._server.measure(warmed_up=True)
        self._measuring = True
        at = monotonic_ns() - self._record.t0_ns + _LEAD_NS
        self._record.measure(at)
        self._view.measured()
        self._pool.tell(f"measure {at} {min(self._distances)}")

    def _too_late(self) -> None:
        assert self._pool is not None
        self._record.invalid(f"the warm-up was not over after {self._scenario.warmup_grace_s:.0f} s")
        self._pool.tell("abort")

    def _end_grace(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Stop the clocks."""
        self._end_grace()
        if self._ticker is not None:
            self._ticker.cancel()
