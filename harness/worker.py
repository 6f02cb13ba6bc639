"""A worker process: the scheduler's commands carried out on real connections, and every answer written down.

Started as `python -P -m harness.worker`. Standard input: one line of configuration, then commands (`go <t0>`, `stop`,
`abort`); its end means that the parent died. Standard output: one JSON line of progress twice a second.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic_ns
from typing import Any

import msgspec

from collectors.client import LoopWatch
from harness import load
from harness.recording import Sent, judged, write_request
from harness.starts import Starts
from harness.throttle import Throttle
from harness.voice import Voice
from harness.worker_config import STARTS, WorkerConfig, map_plan
from harness.worker_progress import Progress
from replay.affinity import affinity_lines
from replay.corpus import Corpus
from replay.exchange import Exchange
from replay.live_tree import LiveTree
from replay.plan import Plan
from replay.scheduler import Command, Done, Outcome, Scheduler, Send, TreeEnded, TreeStarted, WakeAt, Warm
from replay.spoken import Spoken
from replay.start import start_at, start_share
from replay.transport import Transport, add_counters
from replay.tree import Tree, compile_tree
from replay.words import Phrasebook, WordTable
from results.errors import UserError
from results.journal import JournalWriter
from results.records import Phase, Status

TICK_S = 0.5
AHEAD_S = 0.005
SLICE_NS = 1_000_000
"""Answers are concluded for this long at a time; then sockets are looked at again."""
REFUSALS = frozenset(range(400, 500)) - {408, 409, 429}
"""Answers that the same conversation would get again: no later turn of it is sent."""
DRAIN_REASON = "not finished within the drain limit"
STALL_REASON = "nothing moved: the run was ended"


class Worker:
    """Owns some slots, their trees, its connections and its part of the journal."""

    def __init__(self, config: WorkerConfig, corpus: Corpus, plan: Plan, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.corpus = corpus
        self.plan = plan
        self.loop = loop
        self.transports = [Transport(endpoint, config.limits, loop) for endpoint in config.endpoints]
        self._secrets = config.secrets
        self.journal = JournalWriter(Path(config.journal_dir), config.worker, secrets=self._secrets)
        self.watch = LoopWatch(loop)
        self.book = Phrasebook(WordTable(config.words))
        self.slots = list(range(config.worker, config.scenario.concurrency, config.workers))
        self.scheduler = Scheduler(
            load.arrivals(config.scenario, config.worker, config.workers, plan.arrivals_s(corpus).tolist()),
            self._next_tree,
            config.pacing,
            refill=load.refill(config.scenario),
            warm_up=load.warms_up(config.scenario),
        )
        self.over = asyncio.Event()
        self.progress = Progress()
        self._surface = config.body.route
        self._voice = Voice(config, loop) if config.scenario.assistant == "live" else None
        self._make_stream = self._surface.stream if self._voice is None else self._surface.kept
        self._heads = [transport.request_head(self._surface.route) for transport in self.transports]
        self._body_head = config.body.head()
        self._t0 = 0
        self._seq = 0
        self._open = config.scenario.arrival != "closed"
        self._starts = Starts(Path(config.plan_dir) / STARTS)
        self._started: set[int] = set()
        self._prepared: dict[int, LiveTree | None] = {}
        self._upcoming: dict[int, LiveTree] = {}
        """Given to the scheduler, whose `TreeStarted` is still to be carried out."""
        self._trees: dict[int, LiveTree] = {}
        self.throttle = Throttle.of(config.scenario, config.workers, self._tokens, self._send)
        self._answers: deque[Exchange] = deque()
        self._commands: deque[Command] = deque()
        self._carrying_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._phase_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._send_lag_max = 0
        self._moved = (0, 0)
        """Requests sent when something last moved, and when that was."""
        self._stopping = False

    # lifecycle

    async def prepare(self) -> None:
        """Before the clock starts: a connection and a ready first prompt per slot."""
        for number, transport in enumerate(self.transports):
            mine = sum(slot % len(self.transports) == number for slot in self.slots)
            await transport.open(min(mine, 4096))
        for slot in self.slots:
            self._prepared[slot] = self._build(slot)

    def begin(self, t0_ns: int) -> None:
        """Start the first trees; `t0_ns` is the run's zero."""
        self._t0 = t0_ns
        self.watch.start()
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        ahead = max(0, t0_ns - monotonic_ns()) / 1e9
        if not load.warms_up(self.config.scenario):
            self._limit_duration(ahead)
        self._not_before(0, self._start)

    def _limit_duration(self, ahead_s: float) -> None:
        duration = load.duration_s(self.config.scenario)
        if duration is not None:
            self._end_timer = self.loop.call_later(ahead_s + duration, self.stop)

    def measure(self, at_ns: int, first_ns: int) -> None:
        """The measured part begins at `at_ns` after the run's zero, for all workers."""
        ahead = max(0, at_ns - self._now()) / 1e9
        self._limit_duration(ahead)
        self._not_before(at_ns, lambda: self._do(self.scheduler.measure(self._now(), first_ns)))

    def _not_before(self, at_ns: int, call: Callable[[], None]) -> None:
        """`call` at `at_ns` after the run's zero or just after: the loop's timers may fire a fraction of a ms early."""
        ahead_ns = at_ns - self._now()
        if ahead_ns > 0:
            self._phase_timer = self.loop.call_later(ahead_ns / 1e9, self._not_before, at_ns, call)
        else:
            call()

    def _start(self) -> None:
        self._do(self.scheduler.start(self._now()))

    def stop(self) -> None:
        """Send nothing more; let what is in flight end, within the drain limit."""
        if self._stopping:
            return
        self._stopping = True
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._end_timer = self.loop.call_later(self.config.scenario.drain_s, self._drain_over)
        self._do(self.scheduler.stop(self._now()))
        for send in self.throttle.take_all() if self.throttle is not None else ():
            # Never sent: no row but a count, and the scheduler need not wait for it.
            self.progress.unsent += 1
            self._do(self.scheduler.ended(send.slot, send.step, Outcome.CONTINUE, self._now(), primer=send.primer))

    def abort(self) -> None:
        """Stop at once: what is in flight is cancelled."""
        self.stop()
        self._cancel_all("interrupted twice")

    def _drain_over(self) -> None:
        self.progress.drain_cancelled = sum(transport.in_flight for transport in self.transports)
        self._cancel_all(DRAIN_REASON)

    def _cancel_all(self, reason: str, status: Status = Status.CANCELLED) -> None:
        for transport in self.transports:
            transport.cancel_all(reason, status)

    def _watchdog(self, reads: int) -> None:
        """End a run in which nothing moves: answers that never come are failures, not waited for for ever."""
        seen, at = self._moved
        if reads or seen != self._seq or self._stopping or self.scheduler.waits_for_time:
            self._moved = (self._seq, self._now())
        elif self._now() - at > self.config.scenario.stall_s * 1e9:
            self.progress.stalled = True
            self.stop()
            self._cancel_all(STALL_REASON, Status.TIMEOUT)

    def close(self) -> None:
        """Close connections and the journal."""
        for timer in (self._timer, self._phase_timer, self._end_timer, self._ticker):
            if timer is not None:
                timer.cancel()
        self.watch.stop()
        for transport in self.transports:
            transport.close()
        while self._answers:
            self._conclude(self._answers.popleft())
        self._sample()
        self.progress.disk_full |= not self.journal.close()

    def _now(self) -> int:
        return monotonic_ns() - self._t0

    # the scheduler's commands

    def _next_tree(self, slot: int) -> Tree | None:
        if self._open or slot not in self._started:
            self._started.add(slot)
            start = slot
        else:
            start = self._starts.take()
        live = self._prepared.pop(start) if start in self._prepared else self._build(start)
        if live is None:
            return None
        self._upcoming[slot] = live
        self.loop.call_later(AHEAD_S, self._prepare_next, slot + self.config.workers)
        return live.tree

    def _build(self, start: int) -> LiveTree | None:
        """The `start`-th tree of the run with its first prompt rendered (a few ms); None when there are no more."""
        config = self.config
        chosen = self.plan.session_for(start)
        if chosen is None:
            return None
        session, number = chosen
        rows = self.plan.rows(self.corpus, session)
        tree = compile_tree(self.corpus, session, rows, config.shape, config.tree_rules)
        scenario, name = config.scenario, self.corpus.session_ids[session]
        if scenario.start_max > 0 and start < config.selection.concurrency and not self._open:
            tree = start_at(tree, start_share(scenario.seed, name, start, scenario.start_min, scenario.start_max))
        live = LiveTree(
            tree,
            number,
            self.book,
            config.salt,
            f"{name}/{number}",
            scenario.shared_prefix,
            config.server_block,
            self._surface.frames,
            keeps_answers=self._voice is not None,
        )
        first = tree.start.primers[0] if tree.start is not None and tree.start.primers else 0
        if tree.start is None or tree.start.primers:
            live.render(tree.steps[first])
        return live

    def _prepare_next(self, arrival: int) -> None:
        """Build the next tree before a slot waits for it: a few ms that would make other sends late.

        In a closed loop another worker may take that tree first; then this one is dropped.
        """
        start = arrival if self._open else self._starts.peek()
        if not self._stopping and start not in self._prepared:
            slots = self.config.selection.concurrency
            for taken in [number for number in self._prepared if slots <= number < start]:
                del self._prepared[taken]
            self._prepared[start] = self._build(start)

    def _do(self, commands: Iterable[Command]) -> None:
        """Carry out commands; those that come up on the way wait their turn."""
        self._commands.extend(commands)
        if self._carrying_out:
            return
        self._carrying_out = True
        try:
            while self._commands:
                self._carry_out(self._commands.popleft())
        finally:
            self._carrying_out = False

    def _carry_out(self, command: Command) -> None:
        match command:
            case Send():
                if self.throttle is None:
                    self._send(command)
                else:
                    self.throttle.put(command)
            case WakeAt(at_ns):
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self.loop.call_later(max(0, at_ns - self._now()) / 1e9, self._wake)
            case TreeStarted(slot):
                self._trees[slot] = self._upcoming.pop(slot)
                self.progress.trees_live += 1
            case TreeEnded():
                self._tree_ended(command)
            case Warm(first_ns):
                emit({"warm": first_ns})
            case Done():
                self.over.set()

    def _wake(self) -> None:
        self._do(self.scheduler.wake(self._now()))

    def _tree_ended(self, ended: TreeEnded) -> None:
        live = self._trees.pop(ended.slot)
        self.journal.tree(
            session=live.tree.session,
            pass_=live.number,
            slot=ended.slot,
            end=int(ended.end),
            partial=int(live.tree.start is not None),
            planned_requests=len(live.tree.steps),
            sent_requests=ended.sent,
            started_ns=ended.started_ns,
            ended_ns=ended.at_ns,
        )
        self.progress.trees_live -= 1
        self.progress.trees_ended += 1

    def _tokens(self, send: Send) -> int:
        return self._trees[send.slot].tree.steps[send.step].input_tokens

    def _send(self, send: Send) -> None:
        live = self._trees[send.slot]
        step = live.tree.steps[send.step]
        theory = live.theoretical_cached(step)
        conversation = live.render(step)
        tokens = step.output_tokens if send.phase is Phase.STEADY else 1
        stream = self._make_stream(tokens if self.config.body.forces_length else None)
        planned = step.input_tokens + conversation.excess
        sent = Sent(self._seq, send.slot, live, step, send.due_ns, theory, planned, send.phase, send.primer, tokens)
        self._seq += 1
        request_id = f"{self.config.run_id}-{self.config.worker}-{sent.seq}"
        # A list of ids: each has its comma ahead, the first none.
        prompt = memoryview(conversation.body)[1 if self._surface.token_ids else 0 :]
        parts = (self._body_head, prompt, self.config.body.tail(tokens))
        exchange = Exchange(stream, self._answered, sent)
        self.progress.in_flight += 1
        lines = b""
        if (kind := self.config.scenario.affinity) != "none":
            tree_id = f"{self.config.run_id}-{live.tree.session}-{live.number}"
            lines = affinity_lines(kind, tree_id, step.lane, live.tree.steps[0].lane)
        # A tree stays in its slot and a slot at its endpoint, where the tree's prefix is cached.
        number = send.slot % len(self.transports)
        self.transports[number].send(self._heads[number], request_id, parts, exchange, lines)

    def _answered(self, exchange: Exchange) -> None:
        """An answer is over: kept for `_work`, since reading the others must not wait for what it entails."""
        self._answers.append(exchange)
        if len(self._answers) == 1:
            self.loop.call_soon(self._work)

    def _work(self) -> None:
        """Write down answers and send what follows, a slice at a time, oldest first."""
        until = monotonic_ns() + SLICE_NS
        while self._answers:
            self._conclude(self._answers[0])
            self._answers.popleft()
            if monotonic_ns() > until:
                break
        if self._answers:
            self.loop.call_soon(self._work)

    def _conclude(self, exchange: Exchange) -> None:
        sent, status = exchange.context, judged(exchange, self.config.scenario)
        assert isinstance(sent, Sent)
        write_request(self.journal, exchange, sent, status, self._t0)
        if exchange.sent_ns >= 0:
            self._send_lag_max = max(self._send_lag_max, exchange.sent_ns - self._t0 - sent.due_ns)
        self.progress.count(exchange, status, self._secrets)
        self._abort_on_failures()
        outcome = Outcome.CONTINUE
        if status is Status.CONTEXT_OVERFLOW:
            outcome = Outcome.OVERFLOW
        elif status is Status.HTTP_ERROR and exchange.http_status in REFUSALS:
            outcome = Outcome.REFUSED
        if sent.phase is Phase.WARMUP and status not in (Status.OK, Status.CANCELLED):
            self.progress.warmup_failed += 1
            self.stop()
        # From the answer's end, not from now: what the client takes in between shows as send lag.
        ended = exchange.done_ns - self._t0
        if self._voice is None or status is not Status.OK:
            self._follow(sent, outcome, ended)
        else:
            self._voice.hear(exchange, lambda spoken: self._follow(sent, outcome, ended, spoken))

    def _follow(self, sent: Sent, outcome: Outcome, ended_ns: int, spoken: Spoken | None = None) -> None:
        """Everything that waited for an answer."""
        if spoken is not None:
            sent.live.said(sent.step, spoken)
        if not sent.primer:
            sent.live.finished(sent.step)
        self._do(self.scheduler.ended(sent.slot, sent.step.index, outcome, ended_ns, primer=sent.primer))

    def _abort_on_failures(self) -> None:
        """The public rule: past a floor of finished requests, a failure ratio above the limit ends the run."""
        progress = self.progress
        if self._stopping or progress.finished < max(self.config.selection.concurrency, 10):
            return
        if progress.failed / progress.finished > self.config.scenario.failed_limit:
            progress.failing = True
            self.stop()

    # twice a second

    def _tick(self) -> None:
        self._ticker = self.loop.call_later(TICK_S, self._tick)
        self._sample()
        self.report()

    def _sample(self) -> None:
        lag_p99, lag_max = self.watch.take()
        counters = add_counters([transport.take_counters() for transport in self.transports])
        self._watchdog(counters["reads"])
        self.journal.client(
            t_ns=self._now(),
            loop_lag_p99_ns=lag_p99,
            loop_lag_max_ns=lag_max,
            send_lag_max_ns=self._send_lag_max,
            **self.watch.usage(),
            **counters,
            in_flight=self.progress.in_flight,
        )
        self._send_lag_max = 0
        self.progress.disk_full = not self.journal.flush()

    def report(self) -> None:
        """One line of progress for the parent."""
        address = self.transports[0].address
        self.progress.address = str(address[1]) if address else ""
        emit({"progress": self.progress.take()})


def emit(message: dict[str, Any]) -> None:
    """One JSON line to the parent; a parent that is gone is noticed on standard input."""
    try:
        os.write(1, msgspec.json.encode(message) + b"\n")
    except OSError:
        pass


async def _serve(config: WorkerConfig) -> None:
    loop = asyncio.get_running_loop()
    corpus, order, kept = map_plan(Path(config.plan_dir))
    plan = Plan.for_worker(config.selection, order, kept)
    worker = Worker(config, corpus, plan, loop)
    loop.set_exception_handler(_crash)
    await worker.prepare()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    emit({"ready": config.worker})
    try:
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(_listen(reader, worker))]
            if worker.throttle is not None:
                beside.append(tasks.create_task(worker.throttle.run()))
            await worker.over.wait()
            for task in beside:
                task.cancel()
    finally:
        worker.close()
        worker.report()
    emit({"done": config.worker})


def _crash(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback raised: a fault of ours. End at once, so that the parent says so, instead of hanging half alive."""
    error = context.get("exception")
    traceback.print_exception(error) if error else print(context.get("message"), file=sys.stderr)
    os._exit(70)


async def _listen(reader: asyncio.StreamReader, worker: Worker) -> None:
    while line := await reader.readline():
        match line.decode().split():
            case ["go", t0]:
                worker.begin(int(t0))
            case ["measure", at, first]:
                worker.measure(int(at), int(first))
            case ["stop"]:
                worker.stop()
            case ["abort"]:
                worker.abort()
    worker.journal.flush()
    os._exit(1)  # the parent is gone: leave a recoverable journal and nothing else


def main() -> None:
    """Entry of the process."""
    import uvloop

    config = msgspec.json.decode(_first_line(), type=WorkerConfig)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except UserError as error:
        emit({"error": error.message, "remedy": error.remedy, "exit_code": error.exit_code})
        sys.exit(1)


def _first_line() -> bytes:
    """Read byte by byte, so that the lines after it stay in the pipe for the event loop."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


if __name__ == "__main__":
    main()
