"""A real HTTP server of metrics pages whose answers a test changes while it runs, and readings by other means."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic_ns

TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Answer:
    """What the server says next."""

    body: bytes | str = b""
    status: str = "200 OK"
    content_type: str = TEXT
    delay_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


Page = Callable[[str], Answer | Awaitable[Answer]]


class MetricsServer:
    """Serves `page(path)`. `up` and `down` bind and free the same port, as a server that restarts does."""

    def __init__(self, page: Page | Answer) -> None:
        self.page = page
        self.port = 0
        self.requests: list[tuple[int, str]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.in_flight_peak = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def __aenter__(self) -> MetricsServer:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                path = head.split(" ", 2)[1]
                self.requests.append((monotonic_ns(), path))
                lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
                self.headers.append({key.lower(): value.strip() for key, _, value in lines})
                self.in_flight += 1
                self.in_flight_peak = max(self.in_flight_peak, self.in_flight)
                try:
                    await self._answer(path, writer)
                finally:
                    self.in_flight -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, path: str, writer: asyncio.StreamWriter) -> None:
        answer = self.page if isinstance(self.page, Answer) else self.page(path)
        if not isinstance(answer, Answer):
            answer = await answer
        await asyncio.sleep(answer.delay_s)
        body = answer.body.encode() if isinstance(answer.body, str) else answer.body
        extra = "".join(f"{key}: {value}\r\n" for key, value in answer.headers.items())
        extra += f"content-type: {answer.content_type}\r\ncontent-length: {len(body)}\r\n"
        head = f"HTTP/1.1 {answer.status}\r\n{extra}\r\n"
        writer.write(head.encode() + body)
        await writer.drain()


def vllm(prompt: float = 0, hits: float = 0, *, running: float = 0, usage: float = 0.0, start: float = 1e9) -> str:
    """A small page as vLLM writes it."""
    labels = '{engine="0",model_name="m"}'
    return f"""# TYPE process_start_time_seconds gauge
process_start_time_seconds {start}
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{labels} {prompt}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{labels} {prompt}
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{labels} {hits}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{labels} {running}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{labels} {usage}
"""


def said(text: str, name: str, **labels: str) -> float:
    """Sum of the samples of a name with these labels, read line by line: the oracle for what a page says."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
        if match is None:
            continue
        own = dict(re.findall(r'(\w+)="([^"]*)"', match[1] or ""))
        if all(own.get(key) == value for key, value in labels.items()):
            found.append(float(match[2]))
    assert found, f"the page has no {name} {labels}"
    return math.fsum(found)
