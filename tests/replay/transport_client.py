"""The transport as a test uses it: a request, its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from replay.endpoint import Endpoint, Limits, parse_endpoint
from replay.exchange import Buffer, Exchange
from replay.stream import ChatStream
from replay.transport import Transport


class Client:
    """Sends requests through a real transport and waits for their exchanges."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.head = transport.request_head("/v1/chat/completions")
        self.count = 0

    def start(self, parts: Sequence[Buffer] = (b"{}",), forced: int | None = None) -> asyncio.Future[Exchange]:
        done: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        exchange = Exchange(ChatStream(forced), done.set_result)
        self.count += 1
        self.transport.send(self.head, f"r-{self.count}", parts, exchange)
        return done

    async def ask(self, parts: Sequence[Buffer] = (b"{}",), forced: int | None = None) -> Exchange:
        async with asyncio.timeout(10):
            return await self.start(parts, forced)


@asynccontextmanager
async def client(endpoint: Endpoint | str, limits: Limits | None = None, connections: int = 0) -> AsyncIterator[Client]:
    parsed = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    transport = Transport(parsed, limits or Limits(), asyncio.get_running_loop())
    await transport.open(connections)
    try:
        yield Client(transport)
    finally:
        transport.close()


def run(coroutine: object) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(coroutine)  # type: ignore[arg-type]


def ms(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / 1e6
