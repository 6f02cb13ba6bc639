"""Server-sent events: the rules one by one, and any bytes however cut against the slow reader."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay.sse import Event, EventParser
from tests.replay.reference_stream import events_of


def parse(*parts: bytes) -> list[Event]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a \n\n", [("", b" a ")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data\ndata\n\n", [("", b"\n")]),
        (b"data: a\r\rdata: b\r\n\r\ndata: c\n\r\n", [("", b"a"), ("", b"b"), ("", b"c")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [("x", b"a"), ("", b"b")]),
        (b"event: x\nevent: y\ndata: a\n\n", [("y", b"a")]),
        (b"id: 1\nretry: 5\nData: no\ndata : no\n data: no\ndata: a\n\n", [("", b"a")]),
        (b"id: 1\n\n: comment\n\n\n\n", []),
        (b": data: a\n\n", []),
        (b"event: error\n\n", [("error", b"")]),
        (b"data: a\xe2\x80\xa8b\xc2\x85\x0b\x0c\x1c\n\n", [("", b"a\xe2\x80\xa8b\xc2\x85\x0b\x0c\x1c")]),
        (b"data: a\x00\xff\n\n", [("", b"a\x00\xff")]),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [("", b"a")]),
        (b"\xef\xbbdata: a\n\n", []),
        (b"data: a\n", []),
    ],
)
def test_the_rules(data: bytes, expected: list[tuple[str, bytes]]) -> None:
    found = [(event.name, event.data) for event in parse(data)]
    assert found == expected
    assert [(e.name, e.data) for e in parse(*(bytes([byte]) for byte in data))] == expected


def test_an_event_is_known_with_the_carriage_return_of_its_blank_line() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r\n") == []
    assert parser.feed(b"\r") == [Event("", b"a")]
    assert not parser.idle
    assert parser.feed(b"") == []
    assert parser.feed(b"\n") == []
    assert parser.idle


def test_a_mark_after_the_first_event_is_no_mark() -> None:
    assert parse(b"data: a\n\n", b"\xef\xbb\xbfdata: b\n\n") == [Event("", b"a")]


def test_a_comment_belongs_to_the_event_around_it() -> None:
    first, second, third = parse(b": early\nevent: error\n\nevent: error\n: busy \n\nevent: error\n\n")
    assert [first.comment, second.comment, third.comment] == [b"early", b"busy", b""]


def test_comments_are_counted() -> None:
    parser = EventParser()
    parser.feed(b": ping\n\n:\n\n:x\ndata: a\n\n")
    assert parser.comments == 3


def test_the_end_flushes_what_was_left_open() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\ndata: b") == []
    assert parser.end() == [Event("", b"a\nb")]
    assert parser.end() == []


def test_a_long_line_costs_its_length_only() -> None:
    """A line in many pieces is joined once: 60,000 pieces of 200 bytes would otherwise be 360 GB of copying."""
    parser = EventParser()
    parser.feed(b"data: ")
    for _ in range(60_000):
        parser.feed(b"x" * 200)
    (event,) = parser.feed(b"\n\n")
    assert len(event.data) == 12_000_000


lines = st.lists(
    st.sampled_from(
        [b"data", b"event", b"id", b":", b": ", b"x", b"error", b" ", b"\n", b"\r", b"\r\n", b"\xef\xbb\xbf"]
    ),
    max_size=24,
).map(b"".join)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60) | lines, st.lists(st.integers(0, 100), max_size=5))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [10, 11])
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
def test_any_bytes_however_cut_are_read_as_the_slow_reader_does(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    parser = EventParser()
    found = [event for a, b in pairwise(places) for event in parser.feed(data[a:b])]
    assert [tuple(event) for event in [*found, *parser.end()]] == [tuple(event[:3]) for event in events_of(data)]
