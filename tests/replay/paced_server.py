"""A server in its own process that paces answers on an absolute grid and says, to the nanosecond, when it wrote what.

Run as a program: prints its port, serves until its standard input ends, then prints one JSON object
`{request id: [nanoseconds of every content write]}` on CLOCK_MONOTONIC, the clock of every process of the machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.raw_server import Request, Writer, delta, finish, raw_server, usage


@dataclass
class Paced:
    """What the client's side of a test knows: the port, and after the block what was written when."""

    port: int
    written: dict[str, list[int]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def paced_server(ttft_ms: float, itl_ms: float, tokens: int) -> Iterator[Paced]:
    """A running paced server; its log is there when the block is over."""
    arguments = [sys.executable, "-m", "tests.replay.paced_server", str(ttft_ms), str(itl_ms), str(tokens)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        paced = Paced(int(process.stdout.readline()))
        try:
            yield paced
        finally:
            out, _ = process.communicate(timeout=10)
            paced.written.update(json.loads(out))


async def serve(ttft_ms: float, itl_ms: float, tokens: int) -> None:
    written: dict[str, list[int]] = {}

    async def script(request: Request, writer: Writer) -> None:
        mine = written.setdefault(request.headers["x-request-id"], [])
        await writer.at(ttft_ms)
        await writer.head()
        for k in range(tokens):
            await writer.at(ttft_ms + k * itl_ms)
            await writer.event(delta(content=" tok"))
            mine.append(writer.written[-1][0])
        await writer.event(finish())
        await writer.event(usage(10, tokens, 0))
        await writer.event("[DONE]")
        await writer.end()

    async with raw_server(script) as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(written))


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
