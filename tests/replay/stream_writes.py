"""Pieces of answer streams in the chat dialect: what servers write, one event a function."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from results.records import Flag, Status


class W(NamedTuple):
    """One write: `data` sent `ms` after the request."""

    ms: float
    data: bytes


@dataclass(frozen=True)
class Case:
    """A named stream; `expect` holds attributes of the parser, times in ms."""

    name: str
    writes: list[W]
    expect: dict[str, Any]
    forced: int | None = None
    clean: bool = True
    flags: Flag = field(default=Flag(0))


def event(payload: Any) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return b"data: " + text.encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    return event({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def txt(text: str, **more: Any) -> bytes:
    return chunk({"content": text}, **more)


def think(text: str) -> bytes:
    return chunk({"reasoning_content": text})


def call(index: int, **fields: Any) -> bytes:
    function = {k: v for k, v in fields.items() if k in ("name", "arguments")}
    entry: dict[str, Any] = {"index": index, "function": function}
    if "id" in fields:
        entry["id"] = fields["id"]
    return chunk({"content": None, "tool_calls": [entry]})


def fin(reason: str = "stop") -> bytes:
    return chunk({}, reason)


def counts(prompt: int, completion: int, **details: int) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if "cached" in details:
        usage["prompt_tokens_details"] = {"cached_tokens": details["cached"]}
    if "reasoning" in details:
        usage["completion_tokens_details"] = {"reasoning_tokens": details["reasoning"]}
    return usage


def use(prompt: int, completion: int, **details: int) -> bytes:
    return event({"id": "x", "choices": [], "usage": counts(prompt, completion, **details)})


def spaced(start: float, step: float, parts: list[bytes]) -> list[W]:
    return [W(start + k * step, part) for k, part in enumerate(parts)]


DONE = event("[DONE]")
TAIL = [W(900, fin()), W(910, use(10, 2)), W(920, DONE)]
PLAIN = [W(100, txt("a")), W(110, txt("b"))]
OK = {"status": Status.OK, "error": None}
