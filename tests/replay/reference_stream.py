"""A slow, obviously right reader of chat streams: the rules written down one by one, nothing incremental."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from replay.stream import AnswerStream
from results.records import Finish, Flag, Status

FINISH = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
    "abort": Finish.ABORT,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.CONTENT_FILTER,
    "tool_use": Finish.TOOL_CALLS,
}
OVERFLOW = ("context length", "maximum context", "context_length_exceeded", "prompt is too long")
NO_REASON = "error event without a reason"


def held(stream: AnswerStream) -> dict[str, Any]:
    """All public attributes of a stream, but for what later prompts keep of it."""
    names = [
        name
        for name in dir(AnswerStream)
        if not name.startswith("_") and name != "kept" and not callable(getattr(AnswerStream, name))
    ]
    values = {name: getattr(stream, name) for name in names}
    return {**values, "chunk_times": list(stream.chunk_times), "flags": int(stream.flags)}


class PlainEvent(NamedTuple):
    """An event, and how many bytes of the stream it takes to know it (None: the end of the stream)."""

    name: str
    data: bytes
    comment: bytes
    known_at: int | None


def lines_of(data: bytes) -> list[tuple[bytes, int | None]]:
    """Lines end in CRLF, LF or CR (known with its first byte); the last may lack its end."""
    out: list[tuple[bytes, int | None]] = []
    line = bytearray()
    k = 0
    while k < len(data):
        if data[k] in b"\r\n":
            out.append((bytes(line), k + 1))
            line.clear()
            k += 2 if data[k : k + 2] == b"\r\n" else 1
        else:
            line.append(data[k])
            k += 1
    return [*out, (bytes(line), None)] if line else out


def events_of(data: bytes) -> list[PlainEvent]:
    """Every event, an unterminated last one included."""
    mark = 3 if data[:3] == b"\xef\xbb\xbf" else 0
    out: list[PlainEvent] = []
    name, comment = "", b""
    parts: list[bytes] = []
    for line, end in [*lines_of(data[mark:]), (b"", None)]:
        if line == b"":
            if parts or name:
                out.append(PlainEvent(name, b"\n".join(parts), comment, None if end is None else mark + end))
            name, comment, parts = "", b"", []
        elif line.startswith(b":"):
            comment = line[1:].strip()
        else:
            key, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if key == b"data":
                parts.append(value)
            elif key == b"event":
                name = value.decode("utf-8", "replace")
    return out


def read_plainly(
    pieces: Sequence[tuple[bytes, int]], *, forced: int | None = None, end_ns: int = 0, clean: bool = True
) -> dict[str, Any]:
    """What a `ChatStream` fed with `pieces` (bytes, arrival) must hold in its public attributes."""
    arrival = [t for piece, t in pieces for _ in piece]
    reader = _Reader()
    for event in events_of(b"".join(piece for piece, _ in pieces)):
        if event.known_at is None:
            reader.flags |= Flag.UNTERMINATED_TAIL
        reader.event(event, end_ns if event.known_at is None else arrival[event.known_at - 1])
    reader.end(forced, clean)
    times = reader.times
    return {
        "first_token_ns": times[0] if times else -1,
        "first_text_ns": reader.first_text,
        "last_token_ns": times[-1] if times else -1,
        "chunk_times": times,
        "output_chunks": len(times),
        "coalesced": sum(a == b for a, b in pairwise(times)),
        "input_tokens": reader.counts.get("input"),
        "output_tokens": reader.counts.get("output"),
        "reasoning_tokens": reader.counts.get("reasoning"),
        "cached_tokens": reader.counts.get("cached"),
        "first_chunk_tokens": reader.first_chunk_tokens,
        "finish": reader.finish,
        "done_marker": reader.done,
        "parse_errors": reader.parse_errors,
        "flags": int(reader.flags),
        "status": reader.status,
        "error": reader.error,
    }


class _Reader:
    def __init__(self) -> None:
        self.times: list[int] = []
        self.first_text = -1
        self.first_chunk_tokens: int | None = None
        self.counts: dict[str, int] = {}
        self.finish = Finish.NONE
        self.done = self.usage_alone = False
        self.parse_errors = 0
        self.flags = Flag(0)
        self.status = Status.TRUNCATED
        self.error: str | None = None

    def fail(self, text: str) -> None:
        if self.error is None:
            self.error = text or NO_REASON
            overflow = any(words in text.lower() for words in OVERFLOW)
            self.status = Status.CONTEXT_OVERFLOW if overflow else Status.STREAM_ERROR

    def event(self, event: PlainEvent, t: int) -> None:
        comment = event.comment.decode("utf-8", "replace")
        is_error = event.name.lower() == "error"
        if event.data == b"[DONE]":
            self.done = True
            return
        if event.data.strip() == b"":
            if is_error:
                self.fail(comment)
            return
        try:
            value = json.loads(event.data.decode("utf-8"), strict=False)
        except (ValueError, RecursionError):
            if is_error:
                self.fail(event.data.decode("utf-8", "replace"))
            else:
                self.parse_errors += 1
                self.flags |= Flag.PARSE_ERROR
            return
        if isinstance(value, dict) and (value.get("error") or "error" in (value.get("object"), value.get("type"))):
            is_error = True
        if is_error:
            self.fail(reason_of(value) or comment)
        elif isinstance(value, dict):
            self.chunk(value, t)

    def chunk(self, value: dict[str, Any], t: int) -> None:
        choices = value["choices"] if isinstance(value.get("choices"), list) else []
        before = self.counts.get("output")
        if isinstance(value.get("usage"), dict):
            self.usage(value["usage"])
            self.usage_alone = self.usage_alone or not choices
        grew = before is not None and self.counts["output"] > before
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            visible, content = content_of(choice)
            reason = choice.get("finish_reason")
            if content or (grew and not reason):
                if not self.times:
                    self.first_chunk_tokens = self.counts.get("output") or None
                self.times.append(t)
                if len(self.times) > 1 and self.times[-2] == t:
                    self.flags |= Flag.COALESCED
                if visible and self.first_text == -1:
                    self.first_text = t
            if isinstance(reason, str):
                self.finish = FINISH.get(reason, Finish.OTHER)
                if reason in ("abort", "error"):
                    self.fail(f"the server gave up: finish_reason {reason}")

    def usage(self, usage: dict[str, Any]) -> None:
        prompt, output = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        said = {
            "input": usage.get("prompt_tokens"),
            "output": usage.get("completion_tokens"),
            "cached": prompt.get("cached_tokens") if isinstance(prompt, dict) else None,
            "reasoning": usage.get("reasoning_tokens"),
        }
        if isinstance(output, dict) and "reasoning_tokens" in output:
            said["reasoning"] = output["reasoning_tokens"]
        for name, value in said.items():
            if type(value) is int and 0 <= value < 2**31:
                self.counts[name] = value

    def end(self, forced: int | None, clean: bool) -> None:
        if self.error is not None:
            return
        if not (self.done or self.usage_alone or self.finish != Finish.NONE):
            self.error = f"{'stream ended early' if clean else 'connection lost'} after {len(self.times)} chunks"
            return
        self.status = Status.OK
        if not self.done:
            self.flags |= Flag.NO_DONE
        output = self.counts.get("output")
        if output is None:
            self.flags |= Flag.NO_USAGE
        elif len(self.times) > output + 2:
            self.flags |= Flag.USAGE_MISMATCH
        if not self.times:
            self.flags |= Flag.EMPTY
            if not output:
                self.status, self.error = Status.STREAM_ERROR, "empty answer"
                return
        if forced is not None and output is not None and output < forced:
            self.flags |= Flag.SHORT_OUTPUT
            if output < 0.9 * forced:
                self.status = Status.STREAM_ERROR
                self.error = f"short output: {output} of {forced} forced tokens"


def content_of(choice: dict[str, Any]) -> tuple[bool, bool]:
    """Whether a choice holds visible text; whether it holds content of any kind."""
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    visible = bool(delta.get("content") or choice.get("text") or delta.get("refusal"))
    functions = [delta.get("function_call")]
    ids = []
    for call in delta["tool_calls"] if isinstance(delta.get("tool_calls"), list) else []:
        if isinstance(call, dict):
            ids.append(call.get("id"))
            functions.append(call.get("function"))
    called = any(ids) or any(isinstance(f, dict) and (f.get("name") or f.get("arguments")) for f in functions)
    return visible, bool(visible or delta.get("reasoning_content") or delta.get("reasoning") or called)


def reason_of(value: Any) -> str:
    """The words of an error; where they are no string, as JSON without spaces."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    inner = value.get("error") or value
    if isinstance(inner, str):
        return inner
    if not isinstance(inner, dict):
        return ""
    words = inner.get("message") or inner.get("detail") or value.get("message") or value.get("detail") or ""
    if not isinstance(words, str):
        words = json.dumps(words, ensure_ascii=False, separators=(",", ":"))
    kind = str(inner.get("code") or inner.get("type") or "")
    return f"{words} ({kind})" if words and kind else words or kind
