"""The built-in blaster: streams tokens at an exact pace and says in every event when it wrote it.

`python -P -m harness.blaster` prints `{"port": N}` and serves until its standard input closes. Every POST is answered
by a stream of `max_tokens` chunks, one every `--itl-ms`; the event's `id` line holds CLOCK_MONOTONIC nanoseconds just
before the write, which a client that measures itself compares with its own arrival time.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import re
import sys
import threading
from time import monotonic_ns
from typing import cast

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\nid: %d\n\n'
_END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
_MAX_TOKENS = re.compile(rb'"max_tokens":(\d+)')


class Pacer:
    """Writes what is due, a millisecond's worth at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, itl_ns: int) -> None:
        self._loop = loop
        self._itl_ns = itl_ns
        self._due: list[tuple[int, int, Stream, int]] = []
        self._order = 0

    def add(self, stream: Stream, tokens: int) -> None:
        """Begin a stream, its first token one gap from now."""
        if not self._due:
            self._loop.call_later(0.001, self._tick)
        self._push(monotonic_ns() + self._itl_ns, stream, tokens)

    def _push(self, due: int, stream: Stream, left: int) -> None:
        self._order += 1
        heapq.heappush(self._due, (due, self._order, stream, left))

    def _tick(self) -> None:
        now = monotonic_ns()
        while self._due and self._due[0][0] <= now:
            due, _, stream, left = heapq.heappop(self._due)
            if stream.write(last=left == 1):
                self._push(due + self._itl_ns, stream, left - 1)
        if self._due:
            self._loop.call_later(0.001, self._tick)


class Stream(asyncio.Protocol):
    """One connection; answers requests one after the other."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Callback of the event loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        """Callback of the event loop."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Callback of the event loop: a request is whole when its closing brace came (the doctor's are tiny)."""
        self._buffer += data
        if self._buffer.endswith(b"}") and self._transport is not None:
            found = _MAX_TOKENS.search(self._buffer)
            self._buffer = b""
            self._transport.write(_HEAD)
            self._pacer.add(self, int(found[1]) if found else 1)

    def write(self, *, last: bool) -> bool:
        """Write one token; False when the stream is over."""
        if self._transport is None:
            return False
        event = _EVENT % monotonic_ns()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        if last:
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(_END), _END))
        return not last


async def _serve(itl_ms: float) -> None:
    loop = asyncio.get_running_loop()
    pacer = Pacer(loop, round(itl_ms * 1e6))
    server = await loop.create_server(lambda: Stream(pacer), "127.0.0.1", 0, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    stop = asyncio.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(stop.set)), daemon=True).start()
    await stop.wait()
    server.close()


def main() -> None:
    """Entry of the process."""
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("--itl-ms", type=float, default=20.0)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(arguments.itl_ms))


if __name__ == "__main__":
    main()
