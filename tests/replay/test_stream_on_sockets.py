"""Every stream case over a real connection: the server places the writes, the client must read the same from them."""

from __future__ import annotations

import asyncio

import pytest

from replay.exchange import Exchange
from replay.stream import ChatStream
from results.records import Flag, Status
from tests.raw_server import Request, Writer, raw_server
from tests.replay.stream_cases import CASES
from tests.replay.stream_writes import Case
from tests.replay.transport_client import client, run

SLOWER = 1.0
"""Times as written: the longest case takes 3.2 s, and all run at once."""
LATE_MS = 15.0
"""A busy machine may write late; the client's own share is checked against the write's real time."""


def test_every_case_over_real_sockets() -> None:
    by_name = {f"r-{number + 1}": case for number, case in enumerate(CASES)}
    written: dict[str, list[tuple[int, bytes]]] = {}

    async def script(request: Request, writer: Writer) -> None:
        name = request.headers["x-request-id"]
        case = by_name[name]
        await writer.head()
        for ms, data in case.writes:
            await writer.at(ms * SLOWER)
            await writer.chunk(data)
        if case.clean:
            await writer.end()
        else:
            writer.close()
        written[name] = writer.written[1:]

    async def main() -> dict[str, Exchange]:
        async with raw_server(script) as server, client(server.url, connections=len(CASES)) as c:
            waiting = {f"r-{k + 1}": c.start(forced=case.forced) for k, case in enumerate(CASES)}
            async with asyncio.timeout(20):
                return {name: await future for name, future in waiting.items()}

    results: dict[str, Exchange] = {}

    async def collect() -> None:
        results.update(await main())

    run(collect())
    for name, case in by_name.items():
        check(case, results[name], written[name])


def check(case: Case, exchange: Exchange, written: list[tuple[int, bytes]]) -> None:
    stream = exchange.stream
    assert isinstance(stream, ChatStream)
    assert exchange.status is case.expect["status"], (case.name, exchange.error)
    for field, expected in case.expect.items():
        if field in ("first_token", "first_text", "last_token"):
            got = getattr(stream, f"{field}_ns")
            if expected is None:
                assert got == -1, case.name
            else:
                # The same write, as late as it really was: within a millisecond of the moment it was made.
                moment = next(t for (t, _), w in zip(written, case.writes, strict=False) if w.ms == expected)
                assert got - moment == pytest.approx(0, abs=LATE_MS * 1e6), case.name
        elif field not in ("coalesced", "error"):
            assert getattr(stream, field) == expected, (case.name, field)
    lost = Flag.COALESCED  # whether writes share a read is the network's to decide
    assert Flag(stream.flags) & ~lost == case.flags & ~lost, case.name
    if case.expect["status"] is Status.OK:
        assert exchange.kernel_stamps, case.name
