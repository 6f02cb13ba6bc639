"""Server-sent events, byte-exact by the WHATWG rules (HTML living standard, section 9.2.6), incremental.

Lines end in CR, LF or CRLF; nothing else ends a line (U+2028 in JSON is data). One leading BOM is dropped, one space
after the colon is dropped, `data` lines are joined by LF, comments are counted and forgotten except for the last.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event: its name (empty: message) and its data lines joined by LF."""

    name: str
    data: bytes


class EventParser:
    """Feed bytes in any portions; the events do not depend on where they were cut."""

    __slots__ = ("_data", "_name", "_skip_lf", "_started", "_tail", "comments", "last_comment")

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []
        self._name = ""
        self._skip_lf = False
        self._started = False
        self.comments = 0
        self.last_comment = ""

    @property
    def idle(self) -> bool:
        """Whether the next byte begins an event."""
        return not (self._tail or self._data or self._name or self._skip_lf)

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by `data`."""
        if self._skip_lf and data:
            self._skip_lf = False
            if data[:1] == b"\n":
                data = data[1:]
        text = self._tail + data if self._tail else data
        if not self._started:
            if len(text) < 3 and _BOM.startswith(text):
                self._tail = text
                return []
            self._started = True
            text = text.removeprefix(_BOM)
        events: list[Event] = []
        position = 0
        for match in _LINE_END.finditer(text):
            self._line(text[position : match.start()], events)
            position = match.end()
        self._tail = text[position:]
        # A CR that ends the data may be the first half of CRLF.
        self._skip_lf = position == len(text) and text[-1:] == b"\r"
        return events

    def end(self) -> list[Event]:
        """What an unterminated end still holds. The rules drop it; a lost usage chunk is worse than leniency."""
        events: list[Event] = []
        if self._tail:
            self._line(self._tail, events)
            self._tail = b""
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data or self._name:
                events.append(Event(self._name, b"\n".join(self._data)))
                self._data.clear()
                self._name = ""
            return
        if line[:1] == b":":
            self.comments += 1
            self.last_comment = line[1:].strip().decode("utf-8", "replace")
            return
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
