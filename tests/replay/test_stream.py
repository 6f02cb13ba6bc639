"""The stream parser: every case whole, cut everywhere, and against a slow reader on what hypothesis makes up."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.sse import EventParser
from replay.stream import ChatStream, parse_error_body, parse_json_answer
from results.records import Finish, Flag, Status
from tests.replay.reference_stream import events_of, tokens_of
from tests.replay.stream_cases import CASES, DONE, Case, W, chunk, event, fin, think, txt, use

TIMES = {"first_token": "first_token_ns", "first_text": "first_text_ns", "last_token": "last_token_ns"}


def read(writes: list[W], *, forced: int | None = None, clean: bool = True) -> ChatStream:
    stream = ChatStream(forced)
    for ms, data in writes:
        stream.feed(data, round(ms * 1e6))
    stream.end(round(writes[-1].ms * 1e6) if writes else 0, clean)
    return stream


def state(stream: ChatStream) -> dict[str, Any]:
    names = [name for name in ChatStream.__slots__ if not name.startswith("_")]
    return {
        name: list(value) if name == "chunk_times" else value for name in names for value in [getattr(stream, name)]
    }


def check(case: Case, stream: ChatStream, *, coalesced: bool = True) -> None:
    for name, expected in case.expect.items():
        if name in TIMES:
            got = getattr(stream, TIMES[name])
            assert got == (-1 if expected is None else round(expected * 1e6)), name
        elif name != "coalesced" or coalesced:
            assert getattr(stream, name) == expected, name
    flags = Flag(stream.flags)
    assert (flags if coalesced else flags & ~Flag.COALESCED) == (
        case.flags if coalesced else case.flags & ~Flag.COALESCED
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_whole(case: Case) -> None:
    check(case, read(case.writes, forced=case.forced, clean=case.clean))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_c09_byte_by_byte(case: Case) -> None:
    """An event has the time of its last byte, so single bytes at the write's time change nothing but coalescing."""
    writes = [W(w.ms, bytes([byte])) for w in case.writes for byte in w.data]
    check(case, read(writes, forced=case.forced, clean=case.clean), coalesced=False)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_c09_cut_once_anywhere(case: Case) -> None:
    whole = state(read(case.writes, forced=case.forced, clean=case.clean))
    data = b"".join(w.data for w in case.writes)
    at_once = state(read([W(1, data)], forced=case.forced, clean=case.clean))
    for cut in range(1, len(data), max(1, len(data) // 400)):
        halves = state(read([W(1, data[:cut]), W(1, data[cut:])], forced=case.forced, clean=case.clean))
        assert halves == at_once
    ignore = ("chunk_times", "first_token_ns", "first_text_ns", "last_token_ns", "coalesced", "flags")
    assert {k: v for k, v in whole.items() if k not in ignore} == {k: v for k, v in at_once.items() if k not in ignore}


def test_p31_a_character_cut_across_writes_has_the_time_of_its_end() -> None:
    body = txt("漢")
    middle = body.index("漢".encode()) + 1
    stream = read([W(100, body[:middle]), W(130, body[middle:]), W(140, fin()), W(150, DONE)])
    assert stream.first_token_ns == 130_000_000
    assert stream.parse_errors == 0


def test_learned_frames_are_used_and_change_nothing() -> None:
    stream = ChatStream()
    for k in range(5):
        stream.feed(txt(f"t{k}"), k)
    assert len(stream._frames) == 1
    assert stream.output_chunks == 5
    thinking = ChatStream()
    for k, part in enumerate([think("a"), think("b"), txt("c"), txt("d")]):
        thinking.feed(part, k)
    assert len(thinking._frames) == 2
    assert (thinking.first_token_ns, thinking.first_text_ns, thinking.output_chunks) == (0, 2, 4)


def test_a_frame_that_holds_the_text_twice_is_not_learned() -> None:
    stream = ChatStream()
    twice = event({"choices": [{"delta": {"content": "a", "reasoning": "a"}}]})
    for k in range(3):
        stream.feed(twice, k)
    assert not stream._frames
    assert stream.output_chunks == 3


texts = st.one_of(
    st.sampled_from(
        ["", " tok", "a", '"', "\\", "\n", "data: ", "}", "\u2028", "é", "漢字", "🙂", '{"error":1}', "[DONE]"]
    ),
    st.text(max_size=6),
)
deltas = st.one_of(
    st.builds(lambda t: {"content": t}, texts),
    st.builds(lambda t: {"reasoning_content": t}, texts),
    st.builds(lambda t: {"reasoning": t, "content": None}, texts),
    st.builds(lambda t: {"role": "assistant", "content": t}, texts),
    st.builds(lambda t: {"content": t, "role": "assistant"}, texts),
    st.builds(lambda t: {"tool_calls": [{"index": 0, "function": {"arguments": t}}]}, texts),
    st.just({}),
)
pieces = st.one_of(
    st.builds(lambda d: chunk(d), deltas),
    st.builds(lambda d: chunk(d).replace(b"data: ", b"data:"), deltas),
    st.builds(lambda d: chunk(d).replace(b"\n", b"\r\n"), deltas),
    st.builds(lambda d: b"id: 1\n" + chunk(d), deltas),
    st.builds(lambda t: b": " + t.replace("\n", "").replace("\r", "").encode() + b"\n\n", texts),
    st.sampled_from([b"\n", b"\r\n", b"data: {\n\n", b"event: ping\ndata: {}\n\n", fin(), use(3, 4)]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=12), st.lists(st.integers(0, 2000), max_size=12))
def test_any_stream_however_cut_is_read_as_the_slow_reader_does(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    stream = ChatStream()
    for low, high in pairwise(places):
        stream.feed(data[low:high], high)
    stream.end(len(data), True)
    assert stream.output_chunks == tokens_of(data)


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.text("data:event \r\n\ufeffx", max_size=40).map(str.encode), st.integers(1, 7))
def test_events_are_those_of_the_slow_reader(data: bytes, step: int) -> None:
    parser = EventParser()
    events = [e for k in range(0, len(data), step) for e in parser.feed(data[k : k + step])]
    events += parser.end()
    assert [(e.name, e.data) for e in events] == events_of(data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(CASES) - 1), st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6))
def test_damaged_bytes_never_raise(which: int, damage: list[tuple[int, int]]) -> None:
    data = bytearray(b"".join(w.data for w in CASES[which].writes))
    for place, byte in damage:
        data[place % len(data)] = byte
    stream = read([W(1, bytes(data))])
    assert stream.status in Status
    assert stream.output_chunks == len(stream.chunk_times)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (503, b"busy", (Status.HTTP_ERROR, "HTTP 503: busy")),
        (500, b"", (Status.HTTP_ERROR, "HTTP 500")),
        (502, b"<html><script>x()</script><h1>Bad\n Gateway</h1></html>", (Status.HTTP_ERROR, "HTTP 502: Bad Gateway")),
        (429, b'{"error":{"message":"slow down","type":"rate"}}', (Status.HTTP_ERROR, "HTTP 429: slow down (rate)")),
        (400, b'{"message":"maximum context","code":4}', (Status.CONTEXT_OVERFLOW, "HTTP 400: maximum context (4)")),
        (422, b'{"detail":[{"msg":"field required"}]}', (Status.HTTP_ERROR, 'HTTP 422: [{"msg":"field required"}]')),
        (500, b"\x1f\x8b\x08garbage", (Status.HTTP_ERROR, "HTTP 500")),
        (404, b'"a string"', (Status.HTTP_ERROR, "HTTP 404")),
        (400, b"\xff\xfe", (Status.HTTP_ERROR, "HTTP 400: \ufffd\ufffd")),
    ],
)  # fmt: skip
def test_error_bodies(status: int, body: bytes, expected: tuple[Status, str]) -> None:
    assert parse_error_body(status, body) == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"nonsense", "not JSON"),
        (b'{"error":{"message":"oom"}}', "oom"),
        (json.dumps({"choices": [{"message": {"content": "hi"}}]}).encode(), "did not stream"),
        (b"[]", "did not stream"),
    ],
)
def test_answers_that_are_no_stream_have_failed(body: bytes, words: str) -> None:
    status, text = parse_json_answer(body)
    assert status is Status.STREAM_ERROR
    assert words in text


def test_unknown_finish_reasons_are_kept_apart_from_silence() -> None:
    assert read([W(1, txt("a")), W(2, fin("because")), W(3, DONE)]).finish is Finish.OTHER
