"""A slow, obviously right reader of answer streams: the rules written down one by one, nothing incremental."""

from __future__ import annotations

import json
from typing import Any


def lines_of(data: bytes) -> list[bytes]:
    """Lines end in CRLF, LF or CR; the last may lack its end."""
    out, line, k = [], bytearray(), 0
    while k < len(data):
        if data[k : k + 2] == b"\r\n":
            out.append(bytes(line))
            line.clear()
            k += 2
        elif data[k : k + 1] in (b"\n", b"\r"):
            out.append(bytes(line))
            line.clear()
            k += 1
        else:
            line += data[k : k + 1]
            k += 1
    if line:
        out.append(bytes(line))
    return out


def events_of(data: bytes) -> list[tuple[str, bytes]]:
    """(name, data) of every event, an unterminated last one included."""
    if data[:3] == b"\xef\xbb\xbf":
        data = data[3:]
    out: list[tuple[str, bytes]] = []
    name = ""
    parts: list[bytes] = []
    for line in [*lines_of(data), b""]:
        if line == b"":
            if parts or name:
                out.append((name, b"\n".join(parts)))
            name, parts = "", []
        elif not line.startswith(b":"):
            key, colon, value = line.partition(b":")
            value = value[1:] if colon and value.startswith(b" ") else value
            if key == b"data":
                parts.append(value)
            elif key == b"event":
                name = value.decode("utf-8", "replace")
    return out


def tokens_of(data: bytes) -> int:
    """Content chunks in a well-formed stream (no running usage)."""
    count = 0
    for name, payload in events_of(data):
        if name.lower() == "error":
            continue
        try:
            chunk = json.loads(payload.decode("utf-8"))
        except ValueError:
            continue
        if not isinstance(chunk, dict):
            continue
        if chunk.get("error"):
            continue
        choices = chunk.get("choices")
        count += (
            sum(has_content(choice) for choice in choices if isinstance(choice, dict))
            if isinstance(choices, list)
            else 0
        )
    return count


def has_content(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    if delta.get("content") or choice.get("text") or delta.get("reasoning_content") or delta.get("reasoning"):
        return True
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            function = call.get("function")
            function = function if isinstance(function, dict) else {}
            if call.get("id") or function.get("name") or function.get("arguments"):
                return True
    return False
