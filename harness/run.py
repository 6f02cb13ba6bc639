"""One run from command to summary: plan, probe, workers, clock, journal, result files."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import Any

from harness.mock_process import MockProcess
from harness.plan_view import print_plan
from harness.probe import Probed, probe
from harness.progress import ProgressView
from harness.run_record import RunRecord
from harness.worker_config import WorkerConfig, share_plan
from harness.workers import WorkerDied, WorkerPool
from replay.corpus import Corpus, builtin_path
from replay.endpoint import Endpoint, Limits, parse_endpoint
from replay.plan import Plan, Selection, make_plan
from replay.scheduler import Pacing
from results.errors import UserError
from results.store import finalize

STREAMS_PER_WORKER = 500
"""`--workers auto`: one process measures this many 20 ms streams with a core to spare (benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The run as the command line gave it; written whole into run.json (keys are not part of it)."""

    endpoint: str | None
    mock: str | None
    mock_options: tuple[str, ...]
    model: str | None
    corpus: Path | None
    selection: Selection
    pacing: Pacing
    limits: Limits
    duration_s: float | None
    drain_s: float
    workers: int | None
    tokenizer: str | None
    tool_messages: bool
    share_head: bool
    salt: str | None
    out: Path
    ready_timeout_s: float
    keep_chunks: bool
    quiet: bool
    ca_file: str | None
    insecure: bool
    error_rate_limit: float = 0.10


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run leaves behind."""

    directory: Path
    summary: dict[str, Any]
    signal: int | None
    """The signal that interrupted the run, if one did."""


def run(options: RunOptions, api_key: str | None, command: list[str]) -> Finished:
    """Do the whole run. Raises UserError before anything was sent when it can't start."""
    corpus = Corpus.load(options.corpus or builtin_path())
    plan = make_plan(corpus, options.selection)
    print_plan(corpus, plan, quiet=options.quiet)
    _raise_file_limit(options.selection.concurrency)
    with MockProcess.maybe(options.mock, options.mock_options) as mock_url:
        url = mock_url or options.endpoint
        if url is None:
            raise UserError("no endpoint", remedy="give --endpoint URL, or --mock for the simulated one")
        endpoint = parse_endpoint(url, api_key=api_key, ca_file=options.ca_file, insecure=options.insecure)
        found = probe(
            endpoint,
            model=options.model,
            tokenizer=options.tokenizer,
            ready_timeout_s=options.ready_timeout_s,
            tool_messages=options.tool_messages,
            quiet=options.quiet,
        )
        plan = _fit_model(corpus, plan, options.selection, found, quiet=options.quiet)
        record = RunRecord.create(options, corpus, plan, endpoint, found, command, salt=_salt(options))
        configs = _worker_configs(options, record, endpoint, found, plan, corpus)
        received = asyncio.run(_drive(options, record, configs))
    summary = finalize(record.directory, record.header, keep_chunks=options.keep_chunks)
    record.finish(summary)
    return Finished(record.directory, summary, received)


def _salt(options: RunOptions) -> str:
    """A new text for every run, so that a live server's cache of the last one can't be measured by mistake."""
    return options.salt or secrets.token_hex(8)


def _fit_model(corpus: Corpus, plan: Plan, selection: Selection, found: Probed, *, quiet: bool) -> Plan:
    """Plan again when the model's context is shorter than the longest request."""
    limit = found.max_model_len
    if limit is None or plan.longest_context <= limit:
        return plan
    shorter = min(limit, selection.max_context or limit)
    bounded = make_plan(corpus, Selection(selection.concurrency, selection.seed, shorter, selection.sessions))
    print_plan(corpus, bounded, quiet=quiet, why=f"the model takes {limit:,} tokens")
    return bounded


def _raise_file_limit(concurrency: int) -> None:
    """Stop before sending when the sockets can't all be opened."""
    needed = 2 * concurrency + 128
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise UserError(
                f"--concurrency {concurrency} needs {needed} file descriptors, the hard limit is {hard}",
                remedy=f"raise it with `ulimit -Hn {needed}`",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _worker_configs(
    options: RunOptions, record: RunRecord, endpoint: Endpoint, found: Probed, plan: Plan, corpus: Corpus
) -> list[WorkerConfig]:
    journal = record.directory / "journal"
    share_plan(journal / "plan", corpus, plan.order, plan.kept)
    concurrency = options.selection.concurrency
    cores = max(1, len(os.sched_getaffinity(0)) - 1) if hasattr(os, "sched_getaffinity") else 1
    workers = options.workers or min(cores, -(-concurrency // STREAMS_PER_WORKER))
    workers = max(1, min(workers, concurrency))
    return [
        WorkerConfig(
            run_id=record.run_id,
            worker=worker,
            workers=workers,
            journal_dir=str(journal),
            plan_dir=str(journal / "plan"),
            endpoint=endpoint,
            limits=options.limits,
            body=found.body,
            route="/v1/chat/completions",
            shape=found.shape,
            words=found.words.words,
            salt=record.salt,
            share_head=options.share_head,
            tool_messages=options.tool_messages,
            server_block=found.server_block,
            pacing=options.pacing,
            selection=plan.selection,
            duration_s=options.duration_s,
            drain_s=options.drain_s,
            error_rate_limit=options.error_rate_limit,
        )
        for worker in range(workers)
    ]


async def _drive(options: RunOptions, record: RunRecord, configs: list[WorkerConfig]) -> int | None:
    """Let the workers run; the signal that interrupted them, if one did."""
    view = ProgressView(quiet=options.quiet, duration_s=options.duration_s, planned_trees=options.selection.sessions)
    pool = WorkerPool(configs, view.report)
    interrupts = Interrupts(pool, view)
    try:
        await pool.start()
        interrupts.listen()
        t0 = monotonic_ns() + 20_000_000
        record.begin(t0, len(configs))
        view.start()
        pool.tell(f"go {t0}")
        try:
            await pool.wait()
        except* WorkerDied as group:
            record.invalid(str(group.exceptions[0]))
    finally:
        view.stop()
        await pool.close()
    record.end(
        interrupted=interrupts.count > 0,
        stopped_ns=interrupts.first_ns,
        duration_s=options.duration_s,
        address=view.address(),
    )
    if view.any("failing"):
        limit = f"{100 * options.error_rate_limit:.0f} %"
        record.invalid(f"stopped early: more than {limit} of the requests failed; last error: {view.last_error()}")
    if cut := view.total("drain_cancelled"):
        record.invalid(f"{cut} requests had not finished {options.drain_s:.0f} s after the end and were cancelled")
    if view.any("disk_full"):
        record.invalid("the disk was full: records may be missing")
    return interrupts.signal


class Interrupts:
    """The first SIGINT or SIGTERM drains, the second stops now; both leave a complete run directory."""

    def __init__(self, pool: WorkerPool, view: ProgressView) -> None:
        self.count = 0
        self.signal: int | None = None
        self.first_ns: int | None = None
        self._pool = pool
        self._view = view

    def listen(self) -> None:
        """Install the handlers on the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupted, number)

    def _interrupted(self, number: int) -> None:
        self.count += 1
        self.signal = self.signal or number
        if self.count == 1:
            self.first_ns = monotonic_ns()
            self._view.note = "draining; once more to stop now"
            print("agentx: draining; once more to stop now", file=sys.stderr, flush=True)
            self._pool.tell("stop")
        else:
            self._pool.tell("abort")


def new_run_id() -> str:
    """UTC second and four random hex digits: sorts by time, unique enough for one folder."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
