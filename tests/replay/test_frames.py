"""Learned frames: what is learned, what must not be, and that the text between is exactly a JSON string's inside."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay.frames import Frame, decode, learn, string_inside
from tests.replay.stream_writes import event


def learned(raw: bytes, text: str = "a") -> Frame | None:
    data = b"\n".join(line[5:] for line in raw.splitlines() if line.startswith(b"data:"))
    return learn(raw, decode(data), text, visible=True)


CHUNK = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}


@pytest.mark.parametrize(
    "raw",
    [
        event(CHUNK),
        event(CHUNK).replace(b"data: ", b"data:"),
        event(CHUNK).replace(b"\n", b"\r\n"),
        b"event: content_block_delta\nid: 7\n" + event(CHUNK),
        b'data: {"choices":\ndata: [{"text" : "a"}]}\n\n',
        event('{"choices":[{"text":"a","logprobs":NaN}]}'),
    ],
)
def test_one_text_in_one_event_is_learned(raw: bytes) -> None:
    frame = learned(raw)
    assert frame is not None
    assert frame.opening + b"a" + frame.closing == raw
    assert (frame.start, frame.tail) == (len(frame.opening), len(frame.closing))


@pytest.mark.parametrize(
    ("label", "raw"),
    [
        ("two texts", event({"choices": [{"delta": {"content": "a", "reasoning": "a"}}]})),
        ("the text is elsewhere too", event({"choices": [{"delta": {"content": "a"}, "text": "agentx-mark"}]})),
        ("the mark is there already", event({"id": "agentx-mark", "choices": [{"delta": {"content": "a"}}]})),
        ("the text is another", event({"meta": {"content": "b"}, "choices": [{"delta": {"refusal": "a"}}]})),
        ("hidden by a later name", event('{"choices":[{"delta":{"content":"a"},"delta":{}}]}')),
        ("inside a string", event('{"note":"\\"content\\":\\"a\\"","choices":[]}')),
        ("two events", event(CHUNK) + b"data: {}\n\n"),
        ("the start of another event", event(CHUNK) + b"data: {"),
        ("no blank line", event(CHUNK)[:-1]),
        ("after a byte order mark", b"\xef\xbb\xbf" + event(CHUNK)),
        ("an empty text", event({"choices": [{"delta": {"content": ""}}]})),
    ],
)
def test_what_shows_no_frame_is_not_learned(label: str, raw: bytes) -> None:
    assert learn(raw, decode(_first_data(raw)), "a", visible=True) is None, label


def _first_data(raw: bytes) -> bytes:
    return raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")[0].removeprefix(b"data: ")


def test_nesting_near_the_limit_is_not_learned_and_does_not_raise() -> None:
    for depth in (*range(700, 1000), 5000):
        raw = event('{"choices":[{"delta":{"content":"a"}}],"x":' + "[" * depth + "]" * depth + "}")
        try:
            chunk = decode(raw[6:-2])
        except ValueError:
            continue
        learn(raw, chunk, "a", visible=True)


def whole(data: bytes) -> bool:
    """Whether the pattern takes all of `data`."""
    match = string_inside(data)
    return match is not None and match.end() == len(data)


def inside(data: bytes) -> bool:
    """Whether `data` between quotes is a JSON string, and not the empty one: by the standard library."""
    try:
        value = json.loads('"' + data.decode() + '"')
    except ValueError:
        return False
    return isinstance(value, str) and value != ""


escapes = [b"\\", b"\\n", b"\\\\", b'\\"', b"\\u00e9", b"\\ud83d", b"\\u12", b"\\x", b'"']
controls = [b"\n", b"\x00", b"\x1f", b"\x7f", b" ", b"a"]
beyond = [b"\xc3\xa9", b"\xc3", b"\xe6\xbc\xa2", b"\xed\xa0\x80", b"\xc0\x80", b"\xf0\x9f\x99\x82", b"\xf4\x90\x80\x80"]
pieces = st.sampled_from([*escapes, *controls, *beyond])


@settings(max_examples=600, deadline=None)
@given(
    st.lists(pieces, max_size=8).map(b"".join)
    | st.binary(max_size=4)
    | st.text(max_size=4).map(lambda t: t.encode("utf-8", "surrogatepass"))
)
@example(b"")
@example(b'a","b')
@example(b"a\\")
def test_the_text_is_exactly_what_json_allows(data: bytes) -> None:
    assert whole(data) is inside(data)


def test_every_pair_of_bytes() -> None:
    for high in range(256):
        for low in range(256):
            data = bytes((high, low))
            assert whole(data) is inside(data), data


def test_a_text_that_fails_at_its_end_fails_in_linear_time() -> None:
    started = time.perf_counter()
    assert not whole(b"a\\n" * 300_000 + b"\x00")
    assert time.perf_counter() - started < 5


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(values, st.booleans())
def test_decoding_agrees_with_the_standard_library(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    assert repr(decode(data)) == repr(json.loads(text))
