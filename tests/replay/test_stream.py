"""The stream parser: every case whole, cut everywhere, and against a slow reader on what hypothesis makes up."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.frames import Frame
from replay.stream import ChatStream, parse_error_body, parse_json_answer
from results.records import Finish, Flag, Status
from tests.replay.reference_stream import held, read_plainly
from tests.replay.stream_cases import CASES
from tests.replay.stream_writes import DONE, Case, W, chunk, counts, event, fin, think, txt, use

TIMES = {"first_token": "first_token_ns", "first_text": "first_text_ns", "last_token": "last_token_ns"}


def read(writes: list[W], *, forced: int | None = None, clean: bool = True) -> ChatStream:
    stream = ChatStream(forced)
    for ms, data in writes:
        stream.feed(data, round(ms * 1e6))
    stream.end(round(writes[-1].ms * 1e6) if writes else 0, clean)
    return stream


def pieces_of(writes: list[W]) -> list[tuple[bytes, int]]:
    return [(w.data, round(w.ms * 1e6)) for w in writes]


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
def test_whole_as_the_slow_reader(case: Case) -> None:
    stream = read(case.writes, forced=case.forced, clean=case.clean)
    end_ns = round(case.writes[-1].ms * 1e6)
    assert held(stream) == read_plainly(pieces_of(case.writes), forced=case.forced, end_ns=end_ns, clean=case.clean)


SMALL = [case for case in CASES if sum(len(w.data) for w in case.writes) < 60_000]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_c09_byte_by_byte(case: Case) -> None:
    """An event has the time of its last byte, so single bytes at the write's time change nothing but coalescing."""
    writes = [W(w.ms, bytes([byte])) for w in case.writes for byte in w.data]
    check(case, read(writes, forced=case.forced, clean=case.clean), coalesced=False)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_c09_cut_once_anywhere(case: Case) -> None:
    data = b"".join(w.data for w in case.writes)
    at_once = held(read([W(1, data)], forced=case.forced, clean=case.clean))
    for cut in range(1, len(data), max(1, len(data) // 400)):
        halves = held(read([W(1, data[:cut]), W(1, data[cut:])], forced=case.forced, clean=case.clean))
        assert halves == at_once


@pytest.mark.parametrize(("character", "first"), [("漢", 1), ("🙂", 3)])
def test_p31_a_character_cut_across_writes_has_the_time_of_its_end(character: str, first: int) -> None:
    body = txt(character)
    middle = body.index(character.encode()) + first
    stream = read([W(100, body[:middle]), W(130, body[middle:]), W(140, fin()), W(150, DONE)])
    assert stream.first_token_ns == 130_000_000
    assert stream.parse_errors == 0


def feed_all(stream: ChatStream, parts: list[bytes]) -> list[Frame]:
    for k, part in enumerate(parts):
        stream.feed(part, k)
    assert stream.output_chunks == len(parts)
    return stream._frames


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("kind", [txt, think])
def test_one_frame_serves_texts_in_any_script(kind: Any, ending: bytes) -> None:
    texts = ["a", " the", "漢字", "é\u2028", "🙂", "\n\n", 'say "hi"', "\\", "\x7f"]
    assert len(feed_all(ChatStream(), [kind(text).replace(b"\n", ending) for text in texts])) == 1


def test_a_ping_with_other_line_ends_does_not_stop_learning() -> None:
    stream = ChatStream()
    stream.feed(b": ping\r\n\r\n", 0)
    assert len(feed_all(stream, [txt("a"), txt("b")])) == 1


def test_reasoning_and_text_have_a_frame_each() -> None:
    stream = ChatStream()
    assert len(feed_all(stream, [think("a"), think("b"), txt("c"), txt("d"), think("e")])) == 2
    assert (stream.first_token_ns, stream.first_text_ns) == (0, 2)


def test_a_frame_is_learned_anew_when_the_server_stamps_anew() -> None:
    stream = ChatStream()
    frames = feed_all(stream, [txt("a", created=second) for second in range(4) for _ in range(100)])
    assert b'"created": 3' in frames[0].closing


def test_running_usage_and_finish_reasons_are_never_learned() -> None:
    assert not feed_all(ChatStream(), [txt("a", usage=counts(5, k)) for k in range(5)])
    assert not feed_all(ChatStream(), [chunk({"content": "a"}, "length")] * 5)


def test_attempts_in_vain_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = []
    monkeypatch.setattr("replay.stream.learn", lambda raw, *_, **__: attempts.append(raw))
    feed_all(ChatStream(), [txt("a", padding="x" * k) for k in range(320)])
    assert len(attempts) == 10


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
usages = st.none() | st.builds(counts, st.integers(0, 9), st.integers(0, 9))
chunks = st.builds(
    lambda delta, reason, usage: chunk(delta, reason, **({} if usage is None else {"usage": usage})),
    deltas,
    st.sampled_from([None] * 12 + ["stop", "length", "abort", "odd"]),
    usages,
)
events = st.one_of(
    chunks,
    st.builds(lambda d: chunk(d), deltas),
    st.builds(lambda d: chunk(d).replace(b"data: ", b"data:"), deltas),
    st.builds(lambda d: chunk(d).replace(b"\n", b"\r\n"), deltas),
    st.builds(lambda d: chunk(d).replace(b"\n", b"\r"), deltas),
    st.builds(lambda d: b"id: 1\n" + chunk(d), deltas),
    st.builds(lambda t: b": " + t.replace("\n", "").replace("\r", "").encode() + b"\n\n", texts),
    st.sampled_from(
        [b"\n", b"\r\n", b"\r", b"\xef\xbb\xbf", b"data: {\n\n", b"event: ping\ndata: {}\n\n", DONE, fin(), use(3, 4)]
    ),
    st.sampled_from(
        [event({"error": {"message": "oom"}}), event({"error": "maximum context"}), b"event: Error\n: busy\n\n"]
    ),
)
cut_places = st.lists(st.integers(0, 2000), max_size=12)


def cut_at(data: bytes, cuts: list[int]) -> list[W]:
    """`data` in pieces, each a millisecond after the one before."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [W(k, data[low:high]) for k, (low, high) in enumerate(pairwise(places))]


def agree(writes: list[W], forced: int | None = None) -> None:
    stream = read(writes, forced=forced)
    end_ns = round(writes[-1].ms * 1e6) if writes else 0
    assert held(stream) == read_plainly(pieces_of(writes), forced=forced, end_ns=end_ns)


@settings(max_examples=400, deadline=None)
@given(st.lists(events, max_size=12), cut_places, st.none() | st.integers(1, 12))
def test_any_stream_however_cut_is_read_as_the_slow_reader_does(
    parts: list[bytes], cuts: list[int], forced: int | None
) -> None:
    agree(cut_at(b"".join(parts), cuts), forced)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=20))
def test_any_stream_in_whole_events_is_read_as_the_slow_reader_does(parts: list[bytes]) -> None:
    """Each event a read of its own: where learned frames are met most."""
    agree([W(k, part) for k, part in enumerate(parts)])


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([case for case in CASES if sum(len(w.data) for w in case.writes) < 6_000]),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    cut_places,
)
def test_damaged_bytes_are_read_as_the_slow_reader_does(
    case: Case, damage: list[tuple[int, int]], cuts: list[int]
) -> None:
    data = bytearray(b"".join(w.data for w in case.writes))
    for place, byte in damage:
        data[place % len(data)] = byte
    agree(cut_at(bytes(data), cuts))


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
        (500, gzip.compress(b'{"error":"too\\nbusy"}', mtime=0), (Status.HTTP_ERROR, "HTTP 500: too busy")),
        (500, gzip.compress(b"half of it", mtime=0)[:15], (Status.HTTP_ERROR, "HTTP 500: half")),
        (404, b'"a string"', (Status.HTTP_ERROR, "HTTP 404: a string")),
        (404, b"[]", (Status.HTTP_ERROR, "HTTP 404")),
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
        (b'{"object":"error","message":"gone"}', "gone"),
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
