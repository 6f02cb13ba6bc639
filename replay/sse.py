"""Server-sent events, byte-exact by the WHATWG rules (HTML living standard, section 9.2.6), incremental.

Lines end in CR, LF or CRLF; nothing else ends a line (U+2028 in JSON is data). One leading BOM is dropped, one space
after the colon is dropped, `data` lines are joined by LF, `id` and `retry` mean nothing to a POST that is not repeated.

Lenient in two places, where the rules would lose what a measurement needs: an event with a name and no data is
dispatched too (servers report errors so), and so is an event that the end of the stream left open (`end`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_split_lines = re.compile(rb"\r\n|\n|\r").split
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event: its name (empty: message), its data lines joined by LF, the last comment inside it."""

    name: str
    data: bytes
    comment: bytes = b""


class EventParser:
    """Feed bytes in any portions; the events do not depend on where they were cut."""

    __slots__ = ("_comment", "_data", "_name", "_skip_lf", "_started", "_tail", "comments")

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        """Pieces of a line that has not ended: joined once, so that a long line costs no more than its length."""
        self._data: list[bytes] = []
        self._name = ""
        self._comment = b""
        self._skip_lf = False
        self._started = False
        self.comments = 0

    @property
    def idle(self) -> bool:
        """Whether the next byte begins an event."""
        return not (self._tail or self._data or self._name or self._comment or self._skip_lf)

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by `data`."""
        if not data:
            return []
        # An event of one data line, as almost all are, is taken as it is.
        line_end = len(data) - 2
        if data.startswith(b"data: ") and data.find(b"\n") == line_end and data[-1] == 0x0A and self._is_plain(data):
            self._started = True
            return [Event("", data[6:line_end])]
        if not self._started:
            data = b"".join((*self._tail, data))
            if _BOM.startswith(data) and data != _BOM:
                self._tail = [data]
                return []
            self._tail.clear()
            self._started = True
            data = data.removeprefix(_BOM)
        elif self._skip_lf and data[0] == 0x0A:
            data = data[1:]
        # A CR at the end may be the first half of CRLF.
        self._skip_lf = data.endswith(b"\r")
        return self._lines(data)

    def _is_plain(self, data: bytes) -> bool:
        return self.idle and b"\r" not in data

    def _lines(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        *lines, rest = _split_lines(data) if b"\r" in data else data.split(b"\n")
        if lines and self._tail:
            lines[0] = b"".join((*self._tail, lines[0]))
            self._tail.clear()
        for line in lines:
            self._line(line, events)
        if rest:
            self._tail.append(rest)
        return events

    def end(self) -> list[Event]:
        """The event that the end of the stream left open, if any."""
        events: list[Event] = []
        if self._tail:
            self._line(b"".join(self._tail), events)
            self._tail.clear()
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data or self._name:
                events.append(Event(self._name, b"\n".join(self._data), self._comment))
                self._data.clear()
                self._name = ""
            self._comment = b""
            return
        if line[:1] == b":":
            self.comments += 1
            self._comment = line[1:].strip()
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
