"""How a token chunk is read: the learned frame against parsing every chunk's JSON, as ratios in one run.

`python -m benchmarks.bench_parse` prints microseconds per chunk and the ratio to ours.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import httptools
import msgspec

from replay.stream import ChatStream

EVENT = (
    b'data: {"id":"chatcmpl-0000000000000001","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
ROUNDS, REPEATS = 20_000, 7


class HttpParser:
    """The C parser with the smallest callbacks, handing bodies to `feed`."""

    def __init__(self, feed: Callable[[bytes, int], Any]) -> None:
        self.feed = feed
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self.feed(body, 1)


def with_json(load: Callable[[bytes], Any]) -> Callable[[bytes, int], None]:
    """The least that a parsing reader must do for a token, with the same bookkeeping as ours."""
    stream = ChatStream()

    def feed(body: bytes, t_ns: int) -> None:
        choice = load(body[6:-2])["choices"][0]
        if choice["delta"].get("content"):
            stream._token(t_ns, True)

    return feed


def microseconds(work: Callable[[], Any]) -> float:
    """Best of REPEATS: the least disturbed."""
    best = float("inf")
    for _ in range(REPEATS):
        started = perf_counter()
        for _ in range(ROUNDS):
            work()
        best = min(best, (perf_counter() - started) / ROUNDS * 1e6)
    return best


def main() -> None:
    """Print the table."""
    stream = ChatStream()
    decode = msgspec.json.Decoder().decode
    by_parser, by_msgspec, by_json = (
        HttpParser(stream.feed),
        HttpParser(with_json(decode)),
        HttpParser(with_json(json.loads)),
    )
    rows = {
        "HTTP parser and learned frame (ours)": lambda: by_parser.parser.feed_data(CHUNK),
        "HTTP parser and msgspec per chunk": lambda: by_msgspec.parser.feed_data(CHUNK),
        "HTTP parser and json per chunk": lambda: by_json.parser.feed_data(CHUNK),
    }
    found = {name: microseconds(work) for name, work in rows.items()}
    ours = next(iter(found.values()))
    for name, value in found.items():
        print(f"{name:40} {value:6.2f} us  {value / ours:5.2f}")


if __name__ == "__main__":
    main()
