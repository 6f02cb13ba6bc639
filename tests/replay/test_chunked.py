from __future__ import annotations

import httptools
from hypothesis import given
from hypothesis import strategies as st

from replay.chunked import feed_chunks


def take(data: bytes) -> tuple[list[bytes], int, bool]:
    bodies: list[bytes] = []
    position, partial = feed_chunks(data, lambda body, t: bodies.append(body), 0)
    return bodies, position, partial


class Parser:
    """The C parser, fed the same chunks behind a head."""

    def __init__(self) -> None:
        self.body = b""
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self.body += body


chunks = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def encode(bodies: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)


@given(chunks, st.binary(max_size=12), st.integers(0, 300))
def test_what_it_takes_and_what_it_leaves_is_what_the_parser_sees(bodies: list[bytes], tail: bytes, cut: int) -> None:
    data = encode(bodies)[:cut] if cut % 2 else encode(bodies) + b"0\r\n\r\n" + tail
    taken, position, partial = take(data)
    assert encode(taken).lower() == data[:position].lower()
    rest = Parser()
    reference = Parser()
    rest.body = b"".join(taken)
    for parser, text in ((rest, data[position:]), (reference, data)):
        try:
            parser.parser.feed_data(text)
        except httptools.HttpParserError:
            pass
    assert rest.body == reference.body
    if partial:
        assert position < len(data)


def test_only_plain_chunks_are_taken() -> None:
    assert take(b"3\r\nabc\r\n3\r\nde") == ([b"abc"], 8, True)
    assert take(b"A\r\n0123456789\r\n") == ([b"0123456789"], 15, False)
    assert take(b"3;name=x\r\nabc\r\n") == ([], 0, False)
    assert take(b"3\r\nabcX\r\n") == ([], 0, False)
    assert take(b"0\r\n\r\n") == ([], 0, False)
    assert take(b"+3\r\nabc\r\n") == ([], 0, False)
    assert take(b"1_0\r\nabc\r\n") == ([], 0, False)
    assert take(b"zz\r\nabc\r\n") == ([], 0, False)
    assert take(b"3") == ([], 0, True)
    assert take(b"3\r") == ([], 0, True)
    assert take(b"") == ([], 0, False)
