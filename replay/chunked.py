"""Whole HTTP/1.1 chunks, without the parser: what a streaming answer consists of but for its head and its end.

The C parser costs about 2 us a chunk in callbacks; a chunk that lies whole in the buffer, between two others, needs
none of it. Whatever is not exactly `<hex size>CRLF<size bytes>CRLF` with a size above zero is left to the parser.
"""

from __future__ import annotations

from collections.abc import Callable

_SIZE_LINE = 10
"""Longest size line looked at: eight hex digits and CRLF."""


def feed_chunks(data: bytes, feed: Callable[[bytes, int], None], t_ns: int) -> tuple[int, bool]:
    """Pass the body of every whole chunk at the front of `data` to `feed`.

    Returns the position of the first byte that was not consumed, and whether that is the beginning of an ordinary chunk
    whose rest has not come yet (False: the parser must see it, or there is nothing left).
    """
    position, length = 0, len(data)
    while position < length:
        line_end = data.find(b"\r\n", position, position + _SIZE_LINE)
        if line_end < 0:
            return position, length - position < _SIZE_LINE and data[position:].rstrip(b"\r").isalnum()
        digits = data[position:line_end]
        try:
            size = int(digits, 16) if digits.isalnum() else 0
        except ValueError:
            return position, False
        if size == 0:
            return position, False
        start = line_end + 2
        end = start + size
        if length < end + 2:
            return position, True
        if data[end : end + 2] != b"\r\n":
            return position, False
        feed(data[start:end], t_ns)
        position = end + 2
    return position, False
