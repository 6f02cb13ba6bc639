"""One run from command to summary: plan, probe, workers, clock, journal, result files."""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import Any

from collectors.network import NetworkProbe
from collectors.power import PowerMeter, is_local
from harness import load
from harness.live_metrics import live_metrics
from harness.mock_process import MockProcess
from harness.phases import Phases
from harness.plan_view import print_plan
from harness.probe import Probed
from harness.probe_all import parse_endpoints, probe_all
from harness.progress import ProgressView
from harness.run_record import RunRecord, limits_of
from harness.server_side import ServerSide, since
from harness.worker_config import WorkerConfig, share_plan
from harness.workers import WorkerDied, WorkerPool
from replay.corpus import Corpus, builtin_path
from replay.endpoint import Endpoint, Limits, read_headers
from replay.fixed import fixed_corpus
from replay.plan import Plan, Selection, make_plan
from replay.scenario import Rules, Scenario
from results.errors import UserError
from results.server_view import ServerView
from results.store import finalize
from results.upload import Destination

STREAMS_PER_WORKER = 500
"""`--workers auto`: one process measures this many 20 ms streams with a core to spare (benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched beside the requests."""

    metrics_urls: tuple[str, ...] = ()
    metrics_file: Path | None = None
    require_metrics: bool = False
    serving: dict[str, str] = field(default_factory=dict)
    power: tuple[str, ...] = ("auto",)
    idle_s: float = 5.0
    prometheus: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The run as the command line gave it; written whole into run.json (keys are not part of it)."""

    endpoints: tuple[str, ...]
    mock: str | None
    mock_options: tuple[str, ...]
    model: str | None
    corpus: Path | None
    rules: Rules
    limits: Limits
    workers: int | None
    tokenizer: str | None
    salt: str | None
    out: Path
    ready_timeout_s: float
    keep_chunks: bool
    quiet: bool
    ca_file: str | None
    insecure: bool
    headers_file: Path | None = None
    sidecar: Path | None = None
    watch: Watch = field(default_factory=Watch)
    upload: Destination | None = None
    """Where the finished run directory is copied to."""

    @property
    def scenario(self) -> Scenario:
        """The rules in force."""
        return self.rules.scenario


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run leaves behind."""

    directory: Path
    summary: dict[str, Any]
    signal: int | None
    """The signal that interrupted the run, if one did."""


def run(options: RunOptions, api_key: str | None, command: list[str]) -> Finished:
    """Do the whole run. Raises UserError before anything was sent when it can't start."""
    scenario = options.scenario
    corpus = fixed_corpus(scenario.fixed) if scenario.fixed else Corpus.load(options.corpus or builtin_path())
    plan = make_plan(corpus, Selection.of(scenario))
    print_plan(corpus, plan, options.rules, quiet=options.quiet)
    _raise_file_limit(plan.selection.concurrency)
    with MockProcess.maybe(options.mock, options.mock_options) as mock_url:
        urls = (mock_url,) if mock_url else options.endpoints
        endpoints = parse_endpoints(
            urls,
            api_key=api_key,
            ca_file=options.ca_file,
            insecure=options.insecure,
            headers=read_headers(options.headers_file) if options.headers_file else (),
        )
        probed = probe_all(
            endpoints,
            model=options.model,
            tokenizer=options.tokenizer,
            ready_timeout_s=options.ready_timeout_s,
            tool_messages=scenario.messages == "tools",
            quiet=options.quiet,
            surface=scenario.surface,
            keeps_answers=scenario.assistant == "live",
            keeps_reasoning=scenario.reasoning == "keep" and scenario.surface == "chat",
        )
        found = probed[0]
        plan = _fit_model(corpus, plan, options, found)
        record = RunRecord.create(options, corpus, plan, endpoints, probed, command, salt=_salt(options))
        configs = _worker_configs(options, record, endpoints, found, plan, corpus)
        try:
            received, server = _measured(options, record, configs, endpoints)
        except UserError:
            record.discard()
            raise
    summary = finalize(record.directory, record.header, keep_chunks=options.keep_chunks, server=server)
    record.finish(summary)
    _upload(options, record.directory)
    return Finished(record.directory, summary, received)


def _upload(options: RunOptions, directory: Path) -> None:
    """Copy the run to where `--upload` says; a failure is a line on standard error, the run and its verdict stand."""
    if options.upload is None:
        return
    if (failure := options.upload.send(directory)) is not None:
        by_hand = options.upload.by_hand(directory)
        print(f"agentx: {failure}; the run is in {directory}; copy it with `{by_hand}`", file=sys.stderr, flush=True)
    elif not options.quiet:
        print(f"agentx: copied to {options.upload.below(directory.name)}", file=sys.stderr, flush=True)


def _measured(
    options: RunOptions, record: RunRecord, configs: list[WorkerConfig], endpoints: tuple[Endpoint, ...]
) -> tuple[int | None, ServerView]:
    """Let the workers run while server, power and the way to the endpoint are watched."""
    journal = record.directory / "journal"
    local = all(endpoint.uds is not None or is_local(endpoint.host) for endpoint in endpoints)
    endpoint = endpoints[0]  # of several, the way to the first is measured
    with ExitStack() as stack:
        meter = stack.enter_context(PowerMeter(journal, options.watch.power, local=local))
        if endpoint.uds is None and endpoint.proxy is None:
            tls = endpoint.ssl_context() if endpoint.tls else None
            stack.enter_context(NetworkProbe(journal, endpoint.host, endpoint.port, tls=tls))
        meter.measure_idle(options.watch.idle_s)
        received, server = asyncio.run(_drive(options, record, configs, endpoints))
    record.manifest["power"] = meter.report()
    return received, server


def _salt(options: RunOptions) -> str:
    """A new text for every run, so that a live server's cache of the last one can't be measured by mistake."""
    return options.salt or secrets.token_hex(8)


def _fit_model(corpus: Corpus, plan: Plan, options: RunOptions, found: Probed) -> Plan:
    """Plan again when the model's context is shorter than the longest request."""
    limit = found.max_model_len
    if limit is None or plan.longest_context <= limit:
        return plan
    bounded = make_plan(corpus, Selection.of(options.scenario, limit))
    print_plan(corpus, bounded, options.rules, quiet=options.quiet, why=f"the model takes {limit:,} tokens")
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
    options: RunOptions, record: RunRecord, endpoints: tuple[Endpoint, ...], found: Probed, plan: Plan, corpus: Corpus
) -> list[WorkerConfig]:
    journal = record.directory / "journal"
    share_plan(journal / "plan", corpus, plan)
    concurrency = plan.selection.concurrency
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
            endpoints=endpoints,
            limits=options.limits,
            body=found.body,
            shape=found.shape,
            words=found.words.words,
            salt=record.salt,
            server_block=found.server_block,
            scenario=options.scenario,
            selection=plan.selection,
            counter=found.counter_source,
        )
        for worker in range(workers)
    ]


async def _drive(
    options: RunOptions, record: RunRecord, configs: list[WorkerConfig], endpoints: tuple[Endpoint, ...]
) -> tuple[int | None, ServerView]:
    """Let the workers run; the signal that interrupted them, if one did, and what the server said."""
    scenario = options.scenario
    duration = load.duration_s(scenario)
    view = ProgressView(quiet=options.quiet, duration_s=duration, planned_trees=scenario.sessions)
    server = ServerSide(
        endpoints,
        record.directory / "journal",
        urls=options.watch.metrics_urls,
        file=options.watch.metrics_file,
        stated=options.watch.serving,
        clock=since(lambda: record.t0_ns),
    )
    with live_metrics(options.watch.prometheus, view, record.run_id), one_error():
        async with asyncio.TaskGroup() as tasks:
            strict = options.watch.require_metrics
            phases = Phases(record, scenario, len(configs), server, tasks, require_metrics=strict)
            pool = WorkerPool(configs, view.report, phases.warm)
            interrupts = Interrupts(pool, view)
            try:
                await pool.start()
                interrupts.listen()
                await phases.begin(pool, view)
                try:
                    await pool.wait()
                except* WorkerDied as group:
                    record.invalid(str(group.exceptions[0]))
                phases.close()
                await server.finish()
            finally:
                phases.close()
                view.stop()
                await pool.close()
                seen = await server.stop()
    record.manifest["serving"] = server.fingerprint
    record.end(
        interrupted=interrupts.count > 0, stopped_ns=interrupts.first_ns, duration_s=duration, address=view.address()
    )
    _judge(record, view, scenario)
    return interrupts.signal, seen


@contextmanager
def one_error() -> Iterator[None]:
    """A task group wraps what its body raised; the user's one-line error must come out as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None


def _judge(record: RunRecord, view: ProgressView, scenario: Scenario) -> None:
    """What the workers' last reports say against the run."""
    if limits_of(scenario):
        record.unsent(view.total("unsent"))
    if failed := view.total("warmup_failed"):
        record.invalid(f"the warm-up failed: {failed} requests, the last with: {view.last_error()}")
    if view.any("failing"):
        limit = f"{100 * scenario.failed_limit:.0f} %"
        record.invalid(f"stopped early: more than {limit} of the requests failed; last error: {view.last_error()}")
    if view.any("stalled"):
        record.invalid(f"stopped early: for {scenario.stall_s:g} s no byte came, nothing was sent and nothing was due")
    if cut := view.total("drain_cancelled"):
        record.invalid(f"{cut} requests had not finished {scenario.drain_s:.0f} s after the end and were cancelled")
    if view.any("disk_full"):
        record.invalid("the disk was full: records may be missing")


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
