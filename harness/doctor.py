"""What this machine and this endpoint can and can't measure, each with the remedy."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time_ns
from typing import Any

import numpy as np

from collectors.client import LoopWatch
from replay.endpoint import Limits, parse_endpoint
from replay.exchange import Exchange
from replay.stream import ChatStream
from replay.transport import Transport

ITL_MS = 20.0
"""The pace of the test: 50 tokens/s a stream, what an agent's user sees on a fast server."""

HONEST_CPU = 0.70
"""Share of a core up to which a worker is trusted with streams: below the 85 % at which the public runner warns, with
room for prompts and records, which this test does not make."""

STAMP_LIMIT_MS = 0.5
_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `ok` None: a figure, not a verdict."""

    name: str
    ok: bool | None
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """A measured load: `streams` at 20 ms each on one worker."""

    streams: int
    cpu: float
    """Share of a core."""
    stamp_p99_ms: float | None
    """Arrival as the client has it minus the server's write."""
    loop_lag_p99_ms: float
    delivered: float
    """Chunks that came in time over chunks due: below 0.95 somebody could not keep up."""


class _TimedStream(ChatStream):
    """Reads the writing time from each event's id line, beside what every stream parser does."""

    __slots__ = ("errors_ns",)

    def __init__(self) -> None:
        super().__init__(None)
        self.errors_ns: list[int] = []

    def feed(self, body: bytes, t_ns: int) -> None:
        super().feed(body, t_ns)
        place = body.rfind(b"\nid: ")
        if place >= 0:
            self.errors_ns.append(t_ns - int(body[place + 5 : body.index(b"\n", place + 5)]))


def check_machine() -> list[Check]:
    """Everything about the client's side; takes some seconds."""
    checks = [_cores(), _descriptors()]
    loads = measure_loads()
    best = loads[-1]
    checks.append(
        Check(
            "arrival times",
            best.stamp_p99_ms is not None and best.stamp_p99_ms < STAMP_LIMIT_MS,
            "nothing arrived"
            if best.stamp_p99_ms is None
            else f"p99 {best.stamp_p99_ms:.3f} ms after the server's write, {best.streams} streams",
            "no kernel receive stamps here (Linux only): times include the client's own delay",
        )
    )
    for load in loads:
        found = f"{100 * load.cpu:.0f} % of a core, loop lag p99 {load.loop_lag_p99_ms:.1f} ms"
        checks.append(Check(f"{load.streams} streams at {ITL_MS:g} ms", None, found))
    each = honest_streams(loads)
    workers = max(1, (os.cpu_count() or 2) - 1)
    bound = "at least " if best.cpu < HONEST_CPU / 2 else ""
    found = f"{bound}{each} streams at 50 tokens/s with one worker, {each * workers} with {workers}"
    checks.append(Check("honest up to", None, found, "more streams: more --workers, or more client machines"))
    return checks


def honest_streams(loads: list[Load]) -> int:
    """Streams at which a worker reaches HONEST_CPU, from the heaviest load that the blaster could deliver."""
    delivered = [load for load in loads if load.delivered >= 0.95 and load.cpu > 0]
    if not delivered:
        return 0
    return int(delivered[-1].streams * min(2.0, HONEST_CPU / delivered[-1].cpu))


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Check("cores", cores >= 2, str(cores), "a client that shares its only core with a server measures itself")


def _descriptors() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{hard:,}"
    return Check("file descriptors", unlimited or hard >= 4096, found, "raise it with `ulimit -Hn 65536`")


def measure_loads() -> list[Load]:
    """Double the streams until a worker's honest share of its core is used up or the blaster gives out."""
    import uvloop

    loads = []
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.blaster", "--itl-ms", str(ITL_MS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as blaster:
        assert blaster.stdout is not None
        assert blaster.stdin is not None
        port = int(json.loads(blaster.stdout.readline())["port"])
        for streams in (50, 100, 200, 400, 800):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                loads.append(runner.run(_load(port, streams)))
            if loads[-1].cpu > HONEST_CPU or loads[-1].delivered < 0.95:
                break
        blaster.stdin.close()
    return loads


async def _load(port: int, streams: int) -> Load:
    loop = asyncio.get_running_loop()
    transport = Transport(parse_endpoint(f"http://127.0.0.1:{port}"), Limits(), loop)
    await transport.open(streams)
    head = transport.request_head("/v1/chat/completions")
    tokens = round(_SECONDS * 1e3 / ITL_MS)
    left, over, parsers = streams, asyncio.Event(), [_TimedStream() for _ in range(streams)]

    def done(exchange: Exchange) -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set()

    watch = LoopWatch(loop)
    watch.start()
    started, cpu = loop.time(), process_time_ns()
    for number, parser in enumerate(parsers):
        transport.send(head, str(number), (b'{"max_tokens":%d}' % tokens,), Exchange(parser, done))
        if number % 20 == 19:
            await asyncio.sleep(ITL_MS / 1e3 / (streams / 20 + 1))  # spread over one gap, as real streams are
    try:
        async with asyncio.timeout(4 * _SECONDS):
            await over.wait()
    except TimeoutError:
        pass
    seconds, used = loop.time() - started, process_time_ns() - cpu
    lag_p99, _ = watch.take()
    watch.stop()
    transport.close()
    errors = [error for parser in parsers for error in parser.errors_ns]
    in_time = _SECONDS / max(seconds - ITL_MS / 1e3, 1e-9)
    return Load(
        streams=streams,
        cpu=used / 1e9 / seconds,
        stamp_p99_ms=float(np.percentile(errors, 99)) / 1e6 if errors else None,
        loop_lag_p99_ms=max(0, lag_p99) / 1e6,
        delivered=min(1.0, in_time) * len(errors) / (streams * tokens),
    )


def check_endpoint(
    url: str,
    *,
    api_key: str | None,
    ca_file: str | None,
    insecure: bool,
    ready_s: float,
    headers: Sequence[tuple[str, str]] = (),
) -> list[Check]:
    """Everything about the server's side: counts, fields, cache report, metrics. UserError when it can't be used."""
    from harness.probe import control_client, probe

    endpoint = parse_endpoint(url, api_key=api_key, ca_file=ca_file, insecure=insecure, headers=headers)
    found = probe(endpoint, model=None, tokenizer=None, ready_timeout_s=ready_s, tool_messages=True, quiet=True)
    shape, body = found.shape, found.body
    with control_client(endpoint) as http:
        cached = _reported_cache(http, found.model, "".join(found.words.words))
        metrics = http.get("/metrics")
    has_metrics = metrics.status_code == 200 and "# TYPE" in metrics.text
    return [
        Check("model", None, f"{found.model}, context {found.max_model_len or 'not said'}"),
        Check(
            "prompt sizes",
            found.doubt is None,
            found.doubt or f"exact, counted by {found.counter}",
            "give --tokenizer DIR with the server's own tokenizer files",
        ),
        Check(
            "chat template", None, f"{shape.constant} tokens a prompt, {shape.user} a user message{_noted(shape.note)}"
        ),
        Check(
            "forced length",
            body.ignore_eos or body.min_tokens,
            f"{body.length_field}{', ignore_eos' * body.ignore_eos}{', min_tokens' * body.min_tokens}",
            "answers may be shorter than recorded: throughput figures are then of other work",
        ),
        Check(
            "cache hits per request",
            cached is not None,
            "reported in usage" if cached is not None else "usage does not say cached tokens",
            "vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report",
        ),
        Check("cache block", None, f"{found.server_block} tokens" if found.server_block else "not said"),
        Check(
            "metrics page",
            has_metrics,
            "there" if has_metrics else "none at /metrics",
            "start the server with metrics on",
        ),
    ]


def _noted(note: str) -> str:
    return f" ({note})" if note else ""


def _reported_cache(http: Any, model: str, text: str) -> int | None:
    """Cached tokens that a repeated prompt's usage reports, None when it reports none at all."""
    fields = {"model": model, "messages": [{"role": "user", "content": text * 4}], "max_tokens": 1}
    details: Any = None
    for _ in range(2):
        response = http.post("/v1/chat/completions", json=fields)
        if response.status_code != 200:
            return None
        details = (response.json().get("usage") or {}).get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return int(count) if isinstance(count, int) else None
