"""What reading a token chunk costs: the learned frame against parsing every chunk's JSON, as ratios in one run.

usage: python -m benchmarks.bench_parse

Prints nanoseconds per chunk. `scan` is the floor: finding where each event ends and nothing else. The parsing readers
do the least that a token needs with the same bookkeeping as ours, and no error, usage or finish reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module, util
from time import perf_counter
from typing import Any

import httptools
import msgspec

from replay.stream import ChatStream

Feed = Callable[[bytes, int], Any]

CHUNKS, REPEATS, FLOOD = 20_000, 7, 16
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str, usage: int | None = None) -> bytes:
    """A chunk as vLLM writes it."""
    more = (
        f',"usage":{{"prompt_tokens":90000,"total_tokens":{90_000 + usage},"completion_tokens":{usage}}}'
        if usage
        else ""
    )
    return (
        'data: {"id":"chatcmpl-0000000000000001","object":"chat.completion.chunk","created":1700000000,"model":"m",'
        f'"choices":[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}]'
        f"{more}}}\n\n"
    ).encode()


PLAIN = [event(" the")] * 1000


def scan(body: bytes, t_ns: int) -> None:
    """Where each event ends, and its bytes."""
    position = 0
    while (end := body.find(b"\n", position)) >= 0:
        body[position:end]
        position = end + 2


def with_json(load: Callable[[bytes], Any]) -> Feed:
    """A reader that parses every chunk."""
    stream = ChatStream()

    def feed(body: bytes, t_ns: int) -> None:
        position = 0
        while (end := body.find(b"\n", position)) >= 0:
            choice = load(body[position + 6 : end])["choices"][0]
            if choice["delta"].get("content"):
                stream._token(t_ns, True)
            position = end + 2

    return feed


def over_http(feed: Feed) -> Feed:
    """The C parser with the smallest callbacks, handing bodies to `feed`."""

    class Callbacks:
        def on_body(self, body: bytes) -> None:
            feed(body, 1)

    parser = httptools.HttpResponseParser(Callbacks())
    parser.feed_data(HEAD)
    return lambda body, _: parser.feed_data(body)


def nanoseconds(make: Callable[[], Feed], events: list[bytes], per_read: int = 1, *, http: bool = False) -> float:
    """Per chunk: best of REPEATS, the least disturbed."""
    reads = [b"".join(events[k : k + per_read]) for k in range(0, len(events), per_read)]
    if http:
        reads = [b"%x\r\n%b\r\n" % (len(read), read) for read in reads]
    rounds = CHUNKS // len(events)
    best = float("inf")
    for _ in range(REPEATS):
        feed = over_http(make()) if http else make()
        started = perf_counter()
        for k in range(rounds):
            for read in reads:
                feed(read, k)
        best = min(best, perf_counter() - started)
    return best / rounds / len(events) * 1e9


def readers() -> dict[str, Callable[[], Feed]]:
    """The floor, ours, and what there is in JSON parsers."""
    found: dict[str, Callable[[], Feed]] = {
        "scan": lambda: scan,
        "learned frames (ours)": lambda: ChatStream().feed,
        "msgspec every chunk": lambda: with_json(msgspec.json.Decoder().decode),
        "json every chunk": lambda: with_json(json.loads),
    }
    if util.find_spec("orjson"):
        loads = import_module("orjson").loads
        found["orjson every chunk"] = lambda: with_json(loads)
    return found


def main() -> None:
    """Print both tables."""
    print(f"{'ns per chunk':24}{'one a read':>12}{f'{FLOOD} a read':>12}{'over HTTP':>12}")
    for name, make in readers().items():
        figures = nanoseconds(make, PLAIN), nanoseconds(make, PLAIN, FLOOD), nanoseconds(make, PLAIN, http=True)
        print(f"{name:24}" + "".join(f"{figure:12.0f}" for figure in figures))
    inputs = {
        "another script": [event(" 漢字")] * 1000,
        "escapes": [event("\\n\\n")] * 1000,
        "CRLF": [chunk.replace(b"\n", b"\r\n") for chunk in PLAIN],
        "usage in every chunk": [event(" the", k + 1) for k in range(1000)],
        "every chunk differs": [event(" the").replace(b'"m"', b'"m%d"' % k) for k in range(1000)],
        "a chunk in two reads": [half for chunk in PLAIN for half in (chunk[:100], chunk[100:])],
    }
    print("\nours, ns per read")
    for name, events in inputs.items():
        print(f"{name:24}{nanoseconds(lambda: ChatStream().feed, events):12.0f}")


if __name__ == "__main__":
    main()
