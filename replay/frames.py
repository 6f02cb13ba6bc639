"""Learned frames: recognising a token chunk without parsing it.

Within one answer the token chunks mostly differ in their text only. One is parsed in full; where putting another text
between its opening bytes and its closing bytes is shown to change that text and nothing else, a later event with the
same opening and closing, and between them the inside of a JSON string, is by construction a token chunk like it.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import msgspec

from replay.sse import EventParser

string_inside = re.compile(
    rb"(?:[ !#-\[\]-\x7f]++"
    rb'|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}'
    rb"|[\xc2-\xdf][\x80-\xbf]"
    rb"|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})++"
).match
"""The inside of a JSON string that is not empty, as far as it goes: RFC 8259 section 7 over well-formed UTF-8."""

_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|thinking|delta)"\s*:\s*"((?:[^"\\]|\\.)+)"')
_MARK = "agentx-mark"
_from_json = msgspec.json.Decoder().decode


class Frame(NamedTuple):
    """The bytes around the text of a token chunk, with their lengths; whether the text is visible (not reasoning)."""

    opening: bytes
    closing: bytes
    start: int
    tail: int
    visible: bool


def decode(data: bytes) -> Any:
    """The JSON value in `data`. Raises ValueError where there is none.

    As lenient as the writers that servers use: NaN and infinities, halves of surrogate pairs and raw control characters
    in strings are accepted.
    """
    try:
        return _from_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(data.decode(), strict=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def learn(raw: bytes, chunk: dict[str, Any], text: str, *, visible: bool) -> Frame | None:
    """The frame of `raw`, if that alone is an event whose data is `chunk` and whose only text is `text`."""
    found = list(_TEXT.finditer(raw))
    if len(found) != 1:
        return None
    opening, closing = raw[: found[0].start(1)], raw[found[0].end(1) :]
    # The blank line first: a byte order mark counts at the very start of a stream only.
    probe = EventParser()
    events = probe.feed(b"\n" + opening + _MARK.encode() + closing)
    if len(events) != 1 or not probe.idle:
        return None
    try:
        other = decode(events[0].data)
        same = _put_back(other, text) == 1 and other == chunk
    except (ValueError, RecursionError):
        return None
    return Frame(opening, closing, len(opening), len(closing), visible) if same else None


def _put_back(value: Any, text: str) -> int:
    """Replace every string inside `value` that is exactly the mark by `text`; returns how many there were."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = 0
    for key, inner in list(items):
        if inner == _MARK:
            value[key] = text
            found += 1
        else:
            found += _put_back(inner, text)
    return found
