"""The streamed answer of an OpenAI-compatible server (chat and plain completions), event by event.

**Learned frames.** Within one answer the token chunks differ in their text only. The first one is parsed in full; where
putting another text between its opening bytes and its closing bytes is shown to change the text and nothing else, a
later event with the same opening and closing and a plain text between them is by construction a token chunk, and is not
parsed again. Everything else is parsed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from array import array
from typing import Any

import msgspec

from replay.sse import Event, EventParser
from results.records import Finish, Flag, Status

FINISH = {
    "stop": Finish.STOP,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "tool_use": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
    "abort": Finish.ABORT,
}
_OVERFLOW = ("context length", "maximum context", "context_length_exceeded", "prompt is too long")
_PLAIN = re.compile(rb"[ !#-\[\]-~]+").fullmatch
"""Printable ASCII without quote and backslash: such text stands in JSON as it is."""
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|thinking|delta)"\s*:\s*"((?:[^"\\]|\\.)+)"')
_COALESCED = int(Flag.COALESCED)
"""As a plain integer: combining enum members costs more than all else that a token does."""
_MARK = b"agentx-mark"
_MAX_FRAMES = 2
_SHORT_SHARE = 0.9
"""An answer with less than this share of its forced length has failed; a few tokens short is only flagged."""
_decode = msgspec.json.Decoder().decode


class AnswerStream(ABC):
    """Times and counts of one answer, whatever its dialect.

    Times are CLOCK_MONOTONIC nanoseconds, -1 until known; token counts are None until said.
    """

    __slots__ = (
        "_final_usage",
        "_forced",
        "_frames",
        "_idle",
        "_parser",
        "_t_ns",
        "cached_tokens",
        "chunk_times",
        "coalesced",
        "done_marker",
        "error",
        "finish",
        "first_chunk_tokens",
        "first_text_ns",
        "first_token_ns",
        "flags",
        "input_tokens",
        "last_token_ns",
        "output_chunks",
        "output_tokens",
        "parse_errors",
        "reasoning_tokens",
        "status",
    )

    def __init__(self, forced_output: int | None = None) -> None:
        """`forced_output`: the number of tokens that the request forces, None when the model may stop."""
        self._forced = forced_output
        self._parser = EventParser()
        self._idle = True
        """The next byte begins an event."""
        self._frames: list[tuple[bytes, bytes, int, int, bool]] = []
        """Opening, closing, length of both, and whether the text is visible."""
        self._final_usage = False
        self._t_ns = -1
        self.first_token_ns = self.first_text_ns = self.last_token_ns = -1
        self.chunk_times = array("q")
        self.output_chunks = self.coalesced = self.parse_errors = self.flags = 0
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.first_chunk_tokens: int | None = None
        self.finish = Finish.NONE
        self.done_marker = False
        self.status = Status.TRUNCATED
        self.error: str | None = None

    def feed(self, body: bytes, t_ns: int) -> None:
        """Take body bytes that arrived at `t_ns`; an event has the time of its last byte."""
        if not (self._idle and self._is_learned(body, t_ns)):
            self._feed_parts(body, t_ns)

    def _is_learned(self, part: bytes, t_ns: int) -> bool:
        for opening, closing, start, tail, visible in self._frames:
            if part.startswith(opening) and part.endswith(closing) and _PLAIN(part, start, len(part) - tail):
                self._token(t_ns, visible)
                return True
        return False

    def _feed_parts(self, body: bytes, t_ns: int) -> None:
        """Several events, part of one, or one that is no learned frame."""
        parser = self._parser
        position = 0
        while position < len(body):
            end = body.find(b"\n\n", position) + 2
            part = body[position:end] if end > 1 else body[position:]
            position += len(part)
            whole = self._idle and end > 1
            if whole and self._is_learned(part, t_ns):
                continue
            for event in parser.feed(part):
                self._event(event, t_ns, part if whole else None)
            self._idle = parser.idle

    def end(self, t_ns: int, clean: bool) -> None:
        """The body is over: decide the status. `clean`: the transport saw its proper end."""
        for event in self._parser.end():
            self.flags |= Flag.UNTERMINATED_TAIL
            self._event(event, t_ns, None)
        if self.error is not None:
            return
        if not self._complete():
            self.status, self.error = Status.TRUNCATED, f"stream ended early after {self.output_chunks} chunks"
            return
        if not self.done_marker:
            self.flags |= Flag.NO_DONE
        self.status = Status.OK
        self._check_counts()

    def _complete(self) -> bool:
        """Whether anything said that the answer is whole: an end marker, a finish reason, a closing usage."""
        return bool(self.done_marker or self.finish or self._final_usage)

    def _check_counts(self) -> None:
        """What contradicts a success, or casts doubt on its counts."""
        if self.output_tokens is None:
            self.flags |= Flag.NO_USAGE
        elif self.output_chunks > self.output_tokens + 2:  # one token may close reasoning and open a tool call
            self.flags |= Flag.USAGE_MISMATCH
        if not self.output_chunks:
            self.flags |= Flag.EMPTY
            if not self.output_tokens:
                self.status, self.error = Status.STREAM_ERROR, "empty answer"
                return
        if self._forced is not None and self.output_tokens is not None and self.output_tokens < self._forced:
            self.flags |= Flag.SHORT_OUTPUT
            if self.output_tokens < _SHORT_SHARE * self._forced:
                self.status = Status.STREAM_ERROR
                self.error = f"short output: {self.output_tokens} of {self._forced} forced tokens"

    def _event(self, event: Event, t_ns: int, raw: bytes | None) -> None:
        """One parsed event; `raw` is its exact bytes when it came whole in one part."""
        data = event.data
        if data == b"[DONE]":
            self.done_marker = True
            return
        named_error = event.name.lower() == "error"
        if not data.strip():
            if named_error:
                self._fail(self._parser.last_comment or "error event without a reason")
            return
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if named_error:
                self._fail(data.decode("utf-8", "replace"))
                return
            self.parse_errors += 1
            self.flags |= Flag.PARSE_ERROR
            return
        if isinstance(chunk, dict):
            if named_error or chunk.get("error"):
                self._fail(error_text(chunk) or "error event without a reason")
                return
            self._chunk(chunk, t_ns, raw)

    def _fail(self, text: str) -> None:
        if self.error is None:
            self.error = text
            self.status = Status.CONTEXT_OVERFLOW if is_overflow(text) else Status.STREAM_ERROR

    @abstractmethod
    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes | None) -> None:
        """One decoded event of the dialect; `raw` is its exact bytes when it came whole in one part."""

    def _token(self, t_ns: int, visible: bool) -> None:
        if self.first_token_ns < 0:
            self.first_token_ns = t_ns
        elif t_ns == self.last_token_ns:
            self.coalesced += 1
            self.flags |= _COALESCED
        if visible and self.first_text_ns < 0:
            self.first_text_ns = t_ns
        self.last_token_ns = t_ns
        self.output_chunks += 1
        self.chunk_times.append(t_ns)

    def _learn(self, raw: bytes, chunk: dict[str, Any], text: object, *, visible: bool) -> None:
        """Keep the bytes around the text, once it is shown that they decide everything but the text."""
        if len(self._frames) >= _MAX_FRAMES or not isinstance(text, str) or not raw.startswith(b"data:"):
            return
        found = _TEXT.findall(raw)
        if len(found) != 1 or raw.count(b"\n") != 2:
            return
        match = _TEXT.search(raw)
        assert match is not None
        opening, closing = raw[: match.start(1)], raw[match.end(1) :]
        try:
            other = _decode((opening + _MARK + closing)[len(b"data:") :])
        except msgspec.DecodeError:
            return
        if _put_back(other, _MARK.decode(), text) == 1 and other == chunk:
            self._frames.append((opening, closing, len(opening), len(closing), visible))


class ChatStream(AnswerStream):
    """Chat completions and plain completions."""

    __slots__ = ("_continuous",)

    def __init__(self, forced_output: int | None = None) -> None:
        super().__init__(forced_output)
        self._continuous = -1

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes | None) -> None:
        choices = chunk.get("choices")
        choices = choices if isinstance(choices, list) else []
        grew = self._usage(chunk.get("usage"), final=not choices)
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            text = delta.get("content") or choice.get("text")
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            reason = choice.get("finish_reason")
            if text or reasoning or _has_call(delta) or (grew and not reason):
                if self.first_token_ns < 0 and self._continuous > 0:
                    self.first_chunk_tokens = self._continuous
                self._token(t_ns, bool(text))
                if raw is not None and len(choices) == 1 and not (text and reasoning):
                    self._learn(raw, chunk, text or reasoning, visible=bool(text))
            if isinstance(reason, str):
                self.finish = FINISH.get(reason, Finish.OTHER)

    def _usage(self, usage: object, *, final: bool) -> bool:
        """Take the latest counts; True when a running count of output tokens has grown since the last chunk."""
        if not isinstance(usage, dict):
            return False
        self._final_usage |= final
        self.input_tokens = count_of(usage.get("prompt_tokens"), self.input_tokens)
        output = self.output_tokens = count_of(usage.get("completion_tokens"), self.output_tokens)
        prompt_details, output_details = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        if isinstance(prompt_details, dict):
            self.cached_tokens = count_of(prompt_details.get("cached_tokens"), self.cached_tokens)
        reasoning = usage.get("reasoning_tokens")
        if isinstance(output_details, dict):
            reasoning = output_details.get("reasoning_tokens", reasoning)
        self.reasoning_tokens = count_of(reasoning, self.reasoning_tokens)
        before, self._continuous = self._continuous, -1 if output is None else output
        return 0 <= before < self._continuous


def _put_back(value: Any, mark: str, text: str) -> int:
    """Replace every string that is exactly `mark` inside `value` by `text`; returns how many there were."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = 0
    for key, inner in list(items):
        if inner == mark:
            value[key] = text
            found += 1
        else:
            found += _put_back(inner, mark, text)
    return found


def _has_call(delta: dict[str, Any]) -> bool:
    """Whether a tool-call delta says anything: an id, a name, or a piece of the arguments."""
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(call, dict) and call.get("id"):
            return True
        if isinstance(function, dict) and (function.get("name") or function.get("arguments")):
            return True
    return False


def count_of(value: object, before: int | None) -> int | None:
    """`value` where it is a count, else what was known `before`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else before


def is_overflow(text: str) -> bool:
    """Whether an error says that the prompt is longer than the model takes (the public runner's wordings)."""
    lower = text.lower()
    return any(words in lower for words in _OVERFLOW)


def error_text(body: dict[str, Any]) -> str:
    """The words of an error object in the shapes of OpenAI, vLLM, SGLang, Anthropic and FastAPI."""
    error = body.get("error", body)
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return ""
    message = error.get("message") or error.get("detail") or body.get("message") or body.get("detail")
    kind = error.get("code") or error.get("type")
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode() if message else ""
    return f"{text} ({kind})" if kind and text else text or (str(kind) if kind else "")


def parse_error_body(http_status: int, body: bytes) -> tuple[Status, str]:
    """Status and one line for an answer that is not 2xx, whatever its body is."""
    text = ""
    try:
        decoded = _decode(body)
        text = error_text(decoded) if isinstance(decoded, dict) else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        if body[:2] != b"\x1f\x8b":
            plain = re.sub(rb"<(script|style).*?</\1>|<[^>]*>", b" ", body, flags=re.DOTALL | re.IGNORECASE)
            text = " ".join(plain.decode("utf-8", "replace").split())
    status = Status.CONTEXT_OVERFLOW if is_overflow(text) and http_status in (400, 413, 422) else Status.HTTP_ERROR
    return status, f"HTTP {http_status}: {text}" if text else f"HTTP {http_status}"


def parse_json_answer(body: bytes) -> tuple[Status, str]:
    """A 2xx answer in one JSON object although a stream was asked for: its token times are unknown, so it failed."""
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status.STREAM_ERROR, "a body that is not JSON"
    text = error_text(answer) if isinstance(answer, dict) and answer.get("error") else ""
    if text:
        return Status.CONTEXT_OVERFLOW if is_overflow(text) else Status.STREAM_ERROR, text
    return Status.STREAM_ERROR, "the server did not stream: token times are unknown"
