"""The simulated endpoint in a thread of this process, and a plain client that sees every byte with its time."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import uvloop

from hardware.engine.profiles import Profile
from harness.mock_server import MockConfig, MockServer

FAST = Profile(
    block_size=16,
    cache_blocks=2_048,
    max_model_len=8_192,
    max_num_seqs=256,
    max_num_batched_tokens=8_192,
    step_s=0.001,
    prefill_tokens_s=2e6,
    decode_request_s=1e-6,
    kv_tokens_s=1e9,
    answer_tokens=20.0,
)


@contextmanager
def serving(config: MockConfig) -> Iterator[int]:
    """Port of a server that lives as long as the block."""
    ready = threading.Event()
    server = MockServer(config)
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def live() -> None:
        stop = asyncio.Event()
        await server.start()
        loops.append((asyncio.get_running_loop(), stop))
        ready.set()
        await stop.wait()
        await server.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(live())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield server.port
    finally:
        loop, stop = loops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()


@dataclass
class Answer:
    """One streamed answer: its events, and when each arrived."""

    sent_ns: int
    events: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def token_ns(self) -> list[int]:
        """Arrival of every chunk with content."""
        return [
            t
            for t, e in self.events
            if e["choices"] and e["choices"][0].get("delta", {}).get("content") not in (None, "")
        ]

    def after_ms(self, t_ns: int) -> float:
        return (t_ns - self.sent_ns) / 1e6


def post_bytes(path: str, body: Any, headers: str = "") -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(data)}\r\n\r\n".encode() + data


def stream(sock: socket.socket, body: dict[str, Any]) -> Answer:
    """Send one chat request and read its answer to the end, noting the time of every read."""
    data = post_bytes("/v1/chat/completions", {"stream": True, "ignore_eos": True, **body})
    answer = Answer(monotonic_ns())
    sock.sendall(data)
    pending = b""
    while True:
        received = sock.recv(65536)
        now = monotonic_ns()
        assert received, "closed in mid-stream"
        pending += received
        *frames, pending = pending.split(b"\n\n")
        for frame in frames:
            text = frame[frame.index(b"data: ") + 6 :]
            if text == b"[DONE]":
                while not pending.endswith(b"0\r\n\r\n"):
                    pending += sock.recv(65536)
                return answer
            answer.events.append((now, json.loads(text)))


def words(count: int, start: str = "alpha") -> str:
    """A message content of `count` tokens."""
    return f" {start}" + " beta" * (count - 1)


def chat(count: int, start: str = "alpha", **fields: Any) -> dict[str, Any]:
    """A body whose prompt has `count` tokens: 7 of the template, the rest content."""
    return {"messages": [{"role": "user", "content": words(count - 7, start)}], **fields}
