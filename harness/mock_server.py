"""The simulated endpoint: a streaming server of four dialects in front of the engine model, in real time.

The engine decides when each token is there; the server writes it then. `python -P -m harness.mock_server`
prints `{"port": N}` when ready and ends when its standard input closes, so that it never outlives the run
that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import TextIO
from urllib.parse import unquote

from agentx import __version__
from hardware.engine.model import Engine, Request
from hardware.engine.profiles import PROFILES, Profile
from harness.mock_api import Api, ApiError, Job, Reply
from harness.mock_generate import GenerateRoute
from harness.mock_http import Connection, HttpRequest
from harness.mock_messages import MessagesRoutes, anthropic_error
from harness.mock_metrics import ServerMetrics
from harness.mock_openai import OpenAiRoutes
from results.errors import UserError

_CATCH_UP_S = 0.05
"""A wake-up late by less is made good by the next step; after a longer stall the engine starts afresh."""

_RETRY_AFTER_S = 1
"""What a refused client is told to wait."""
_MODELS, _MESSAGES = "/v1/models/", "/v1/messages"


@dataclass(frozen=True, slots=True)
class MockConfig:
    """What a simulated endpoint is."""

    profile: Profile
    model: str
    truth: Path | None = None
    """File for one JSON line per request: what really happened, on CLOCK_MONOTONIC."""
    early_role: bool = False
    """Send the role-only chunk with the response head; else with the first token, as vLLM does."""
    max_waiting: int | None = None
    """Requests beyond those served at once that may wait; further ones are refused with 429. None: any number."""


def configure(
    profile: str = "small",
    *,
    cache_blocks: int | None = None,
    block_size: int | None = None,
    max_model_len: int | None = None,
    model: str | None = None,
    reasoning_share: float | None = None,
    truth: Path | None = None,
    max_waiting: int | None = None,
) -> MockConfig:
    """A named profile with some sizes replaced; a cache too small for its model length limits that.

    Raises UserError for an unknown profile, and for a model length asked for that the cache can't hold.
    """
    if profile not in PROFILES:
        raise UserError(f"profile {profile} is not known", remedy=f"choose one of: {', '.join(PROFILES)}")
    base = PROFILES[profile]
    size = base.block_size if block_size is None else block_size
    blocks = base.cache_blocks if cache_blocks is None else cache_blocks
    length = min(base.max_model_len, size * blocks) if max_model_len is None else max_model_len
    for option, value in (("--block-size", size), ("--cache-blocks", blocks), ("--max-model-len", length)):
        if value < 1:
            raise UserError(f"{option} {value}", remedy="give at least 1")
    share = base.reasoning_share if reasoning_share is None else reasoning_share
    if not 0.0 <= share < 1.0:
        raise UserError(f"--reasoning-share {share:g}", remedy="give a share from 0 to below 1")
    if length > size * blocks:
        raise UserError(
            f"--max-model-len {length} does not fit into {blocks} cache blocks of {size} tokens",
            remedy=f"give --cache-blocks {-(-length // size)} or more",
        )
    sized = dataclasses.replace(base, block_size=size, cache_blocks=blocks, max_model_len=length, reasoning_share=share)
    return MockConfig(sized, model or f"agentx-{profile}", truth, max_waiting=max_waiting)


class _Stream:
    """One request being answered."""

    __slots__ = ("connection", "first_ns", "job", "last_ns", "received_ns", "reply", "request")

    def __init__(self, request: Request, job: Job, reply: Reply, connection: Connection, received_ns: int) -> None:
        self.request = request
        self.job = job
        self.reply = reply
        self.connection = connection
        self.received_ns = received_ns
        self.first_ns = self.last_ns = 0


class MockServer:
    """Start it on a running event loop; `port` says where it listens."""

    def __init__(self, config: MockConfig) -> None:
        self.config = config
        self.port = 0
        self._engine = Engine(config.profile)
        self._api = Api(config.model, config.profile)
        self._metrics = ServerMetrics(self._engine, config.model)
        self._streams: dict[Request, _Stream] = {}
        self._connections: set[Connection] = set()
        self._step_timer: asyncio.TimerHandle | None = None
        self._count = 0
        self._truth: TextIO | None = None
        openai, messages = OpenAiRoutes(self._api), MessagesRoutes(self._api)
        self._readers: dict[str, Callable[[bytes], Job]] = {
            "/v1/chat/completions": openai.chat,
            "/v1/completions": openai.completion,
            "/v1/messages": messages.create,
            "/generate": GenerateRoute(self._api).read,
        }
        self._routes: dict[str, dict[str, Callable[[HttpRequest, Connection], None]]] = {
            **{path: {"POST": self._generate} for path in self._readers},
            "/v1/messages/count_tokens": {"POST": lambda request, to: to.respond(200, messages.count(request.body))},
            "/tokenize": {"POST": lambda request, to: to.respond(200, self._api.tokenize(request.body))},
            "/v1/models": {"GET": lambda _, to: to.respond(200, self._api.models())},
            "/health": {"GET": lambda _, to: to.respond(200, b"")},
            "/metrics": {"GET": self._page},
            "/reset_prefix_cache": {"POST": self._reset},
            "/version": {"GET": self._version},
        }

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. OSError: the address can't be used; UserError: the truth log can't be written."""
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            lambda: Connection(self._handle, self._connections), host, port, backlog=4096
        )
        self.port = self._server.sockets[0].getsockname()[1]
        if self.config.truth is not None:
            try:
                self._truth = self.config.truth.open("w", buffering=1)
            except OSError as error:
                self._server.close()
                raise UserError(f"--truth {self.config.truth}: {error.strerror}") from error

    async def close(self) -> None:
        """Stop listening and drop every connection; requests under way are logged as aborted."""
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            await asyncio.sleep(0)
        await self._server.wait_closed()
        if self._step_timer is not None:
            self._step_timer.cancel()
        if self._truth is not None:
            self._truth.close()

    def _handle(self, request: HttpRequest, connection: Connection) -> None:
        methods = self._routes.get(request.path)
        if methods is None and request.path.startswith(_MODELS):
            methods = {"GET": self._model}
        if methods is None:
            connection.respond(404, b'{"detail":"Not Found"}')
        elif request.method not in methods:
            connection.respond(405, b'{"detail":"Method Not Allowed"}')
        else:
            try:
                methods[request.method](request, connection)
            except ApiError as error:
                body = anthropic_error(error) if request.path.startswith(_MESSAGES) else error.body
                connection.respond(error.status, body, error.content_type, error.headers)

    def _page(self, _: HttpRequest, connection: Connection) -> None:
        connection.respond(200, self._metrics.page(), b"text/plain; version=0.0.4; charset=utf-8")

    def _model(self, request: HttpRequest, connection: Connection) -> None:
        connection.respond(200, self._api.described(unquote(request.path.removeprefix(_MODELS))))

    def _version(self, _: HttpRequest, connection: Connection) -> None:
        version = f"{__version__} (simulated endpoint of agentx)"
        connection.respond(200, json.dumps({"version": version}).encode())

    def _reset(self, _: HttpRequest, connection: Connection) -> None:
        self._engine.cache.clear()
        connection.respond(200, b"")

    def _generate(self, http: HttpRequest, connection: Connection) -> None:
        job = self._readers[http.path](http.body)
        self._check_room()
        self._count += 1
        request_id = http.request_id or f"{self._count:016x}"
        request = Request(
            request_id,
            prompt_tokens=len(job.prompt),
            output_tokens=len(job.answer.picks),
            keys=job.prompt.block_keys(job.answer, self.config.profile.block_size),
            arrival_s=http.received_ns / 1e9,
        )
        stream = _Stream(request, job, job.reply(request_id), connection, http.received_ns)
        self._streams[request] = stream
        connection.on_lost = lambda: self._abort(stream)
        if job.stream:
            connection.start_stream(stream.reply.opening() if self.config.early_role else b"")
        self._engine.submit(request)
        if self._step_timer is None:
            self._begin_step(monotonic_ns() / 1e9)

    def _check_room(self) -> None:
        """Raises ApiError when all places and all of the queue are taken."""
        waiting = self.config.max_waiting
        if waiting is not None and len(self._streams) >= self.config.profile.max_num_seqs + waiting:
            error = ApiError(429, f"The queue of {waiting} is full; try again later.", kind="TooManyRequests")
            error.headers = b"retry-after: %d\r\n" % _RETRY_AFTER_S
            raise error

    def _begin_step(self, start_s: float) -> None:
        end_s = self._engine.begin(start_s)
        self._step_timer = None
        if end_s is not None:
            self._step_timer = self._loop.call_later(max(0.0, end_s - monotonic_ns() / 1e9), self._end_step)

    def _end_step(self) -> None:
        step = self._engine.finish()
        for request in step.emitted:
            self._send_token(self._streams[request])
        self._begin_step(max(step.end_s, monotonic_ns() / 1e9 - _CATCH_UP_S))

    def _send_token(self, stream: _Stream) -> None:
        request, job, reply = stream.request, stream.job, stream.reply
        now_ns = monotonic_ns()
        first = request.generated == 1
        if first:
            stream.first_ns = now_ns
            self._metrics.first_token(request, (now_ns - stream.received_ns) / 1e9)
        else:
            self._metrics.next_token((now_ns - stream.last_ns) / 1e9)
        stream.last_ns = now_ns
        opening = reply.opening() if first and job.stream and not self.config.early_role else b""
        if not request.done:
            if job.stream:
                stream.connection.write(opening + reply.token(request))
            return
        del self._streams[request]
        self._metrics.finished(request, job.answer.finish_reason, stream.first_ns / 1e9, now_ns / 1e9)
        # Before the last write: who has the answer finds its line.
        self._log(stream, aborted=False)
        if job.stream:
            stream.connection.end_stream(opening + reply.last(request))
        else:
            stream.connection.respond(200, reply.whole(request))

    def _abort(self, stream: _Stream) -> None:
        self._engine.cancel(stream.request)
        del self._streams[stream.request]
        self._metrics.aborted()
        self._log(stream, aborted=True)

    def _log(self, stream: _Stream, *, aborted: bool) -> None:
        if self._truth is None:
            return
        request = stream.request
        entry = {
            "request_id": request.request_id,
            "body_ns": stream.received_ns,
            "first_token_ns": stream.first_ns or None,
            "last_token_ns": stream.last_ns or None,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens if request.admitted_s is not None else None,
            "output_tokens": request.generated,
            "aborted": aborted,
        }
        self._truth.write(json.dumps(entry) + "\n")


def serve(
    config: MockConfig,
    host: str,
    port: int,
    on_ready: Callable[[int], None],
    *,
    until_stdin_closes: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM (or the end of standard input). `on_ready` gets the port.

    Raises UserError when the address can't be used.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(config, host, port, on_ready, until_stdin_closes))


async def _serve(
    config: MockConfig, host: str, port: int, on_ready: Callable[[int], None], until_stdin_closes: bool
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = MockServer(config)
    try:
        await server.start(host, port)
    except OSError as error:
        raise UserError(
            f"--host {host} --port {port}: {error.strerror or error}",
            remedy="choose another port; 0 takes a free one",
        ) from error
    try:
        on_ready(server.port)
        if until_stdin_closes:
            threading.Thread(target=_wait_for_stdin, args=(loop, stop), daemon=True).start()
        await stop.wait()
    finally:
        await server.close()


def _wait_for_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # Not sys.stdin: a daemon thread inside it would hold its lock at interpreter exit.
    while os.read(0, 4096):
        pass
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stop.set)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def main(arguments: list[str] | None = None) -> None:
    """Entry of the child process that `agentx run --mock` starts."""
    parser = argparse.ArgumentParser(prog="harness.mock_server")
    parser.add_argument("--profile", default="small")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cache-blocks", type=int)
    parser.add_argument("--block-size", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--model")
    parser.add_argument("--reasoning-share", type=float)
    parser.add_argument("--truth", type=Path)
    options = vars(parser.parse_args(arguments))
    host, port = options.pop("host"), options.pop("port")
    try:
        serve(
            configure(**options),
            host,
            port,
            lambda bound: print(json.dumps({"port": bound}), flush=True),
            until_stdin_closes=True,
        )
    except UserError as error:
        print(f"agentx: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
