"""The streamed answer of an OpenAI-compatible server (chat and plain completions), event by event.

Most token chunks are recognised as `replay.frames` rather than parsed; everything else is parsed in full.

An event that can't be decoded is counted (`parse_errors`) and flagged; the answer goes on and keeps its status, since
servers lose such a chunk without losing the tokens after it. Whether a run with such answers is sound is for the
summary to say.
"""

from __future__ import annotations

import json
import re
import zlib
from abc import ABC, abstractmethod
from array import array
from itertools import islice
from operator import eq
from typing import Any

from replay.frames import Frame, decode, learn, string_inside
from replay.sse import Event, EventParser
from results.records import Finish, Flag, Status

FINISH = {
    "stop": Finish.STOP,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "tool_use": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
    "refusal": Finish.CONTENT_FILTER,
    "abort": Finish.ABORT,
}
_GIVEN_UP = ("abort", "error")
"""Finish reasons of an answer that the server did not complete: never a short success."""
_OVERFLOW = ("context length", "maximum context", "context_length_exceeded", "prompt is too long")
_OTHER_GAP = {b"\n\n": b"\r\n\r\n", b"\r\n\r\n": b"\n\n"}
_MAX_FRAMES = 2
"""Reasoning and text; every further frame is tried in vain on every chunk."""
_LEARNING_PAUSE = 32
"""Chunks between attempts once both frames are known: a server that stamps each second is learned anew each second, one
whose every chunk differs (running usage aside, which is never learned) pays for an attempt in 32."""
_MAX_COUNT = 2**31 - 1
_MAX_ERROR_TEXT = 65_536
_SHORT_SHARE = 0.9
"""An answer with less than this share of its forced length has failed; a few tokens short is only flagged."""


class KeptAnswer:
    """What an answer said, where later prompts want it."""

    __slots__ = ("ids", "reasoning", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.ids: list[int] = []


class AnswerStream(ABC):
    """Times and counts of one answer, whatever its dialect.

    Times are CLOCK_MONOTONIC nanoseconds, -1 until known; token counts are None until said.
    """

    __slots__ = (
        "_final_usage",
        "_forced",
        "_frames",
        "_gap",
        "_idle",
        "_learn_from",
        "_parser",
        "cached_tokens",
        "chunk_times",
        "coalesced",
        "done_marker",
        "error",
        "finish",
        "first_chunk_tokens",
        "first_text_ns",
        "flags",
        "input_tokens",
        "kept",
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
        self._gap = b"\n\n"
        """Where bodies are cut before parsing. Either is right; an event cut out whole can be learned."""
        self._frames: list[Frame] = []
        self._learn_from = 0
        """The number of chunks from which on another frame may be learned."""
        self._final_usage = False
        self.first_text_ns = -1
        self.chunk_times = array("q")
        """Arrival of every chunk with content, in order."""
        self.coalesced = self.parse_errors = self.flags = 0
        """`coalesced`: chunks that share the arrival of the one before, known at the end."""
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.first_chunk_tokens: int | None = None
        self.kept: KeptAnswer | None = None
        self.finish = Finish.NONE
        self.done_marker = False
        self.status = Status.TRUNCATED
        self.error: str | None = None

    @property
    def output_chunks(self) -> int:
        """How many chunks with content came."""
        return len(self.chunk_times)

    @property
    def first_token_ns(self) -> int:
        """Arrival of the first chunk with content of any kind."""
        return self.chunk_times[0] if self.chunk_times else -1

    @property
    def last_token_ns(self) -> int:
        """Arrival of the last chunk with content."""
        return self.chunk_times[-1] if self.chunk_times else -1

    def feed(self, body: bytes, t_ns: int) -> None:
        """Take body bytes that arrived at `t_ns`; an event has the time of its last byte."""
        position = self._skip_learned(body, 0, t_ns) if self._idle else 0
        if position < len(body):
            self._feed_parts(body, position, t_ns)

    def feed_token(self, data: bytes, position: int, end: int, t_ns: int) -> bool:
        """Take data[position:end] if it is one token chunk of a known frame and nothing else; False: not taken."""
        if self._idle:
            for opening, closing, start, tail, visible in self._frames:
                if data.startswith(opening, position):
                    inside = string_inside(data, position + start)
                    if inside is not None:
                        after = inside.end()
                        if after + tail == end and data.startswith(closing, after):
                            self._token(t_ns, visible)
                            return True
        return False

    def _skip_learned(self, body: bytes, position: int, t_ns: int) -> int:
        """Count the token chunks of known frames that stand at `position`; where they end."""
        size = len(body)
        while position < size:
            for opening, closing, start, tail, visible in self._frames:
                if body.startswith(opening, position):
                    inside = string_inside(body, position + start)
                    if inside is not None and body.startswith(closing, inside.end()):
                        position = inside.end() + tail
                        self._token(t_ns, visible)
                        break
            else:
                break
        return position

    def _feed_parts(self, body: bytes, position: int, t_ns: int) -> None:
        """What begins with anything but a token chunk of a known frame."""
        parser = self._parser
        while position < len(body):
            low, found = position, body.find(self._gap, position)
            if found < 0 and (other := body.find(_OTHER_GAP[self._gap], position)) >= 0:
                self._gap, found = _OTHER_GAP[self._gap], other
            position = found + len(self._gap) if found >= 0 else len(body)
            part = body[low:position]
            for event in parser.feed(part):
                self._event(event, t_ns, part)
            # After a blank line the parser is idle; otherwise nothing is left.
            position = self._skip_learned(body, position, t_ns)
        self._idle = parser.idle

    def end(self, t_ns: int, clean: bool) -> None:
        """The body is over: decide the status. `clean`: the transport saw its proper end, which only words an error,
        since servers close properly on answers cut short and carelessly on whole ones."""
        for event in self._parser.end():
            self.flags |= Flag.UNTERMINATED_TAIL
            self._event(event, t_ns, b"")
        self.coalesced = sum(map(eq, self.chunk_times, islice(self.chunk_times, 1, None)))
        if self.coalesced:
            self.flags |= Flag.COALESCED
        if self.error is not None:
            return
        if not self._complete():
            what = "stream ended early" if clean else "connection lost"
            self.status, self.error = Status.TRUNCATED, f"{what} after {self.output_chunks} chunks"
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

    def _event(self, event: Event, t_ns: int, raw: bytes) -> None:
        """One parsed event; `raw`: the bytes that completed it, which often are all of it."""
        data = event.data
        if data == b"[DONE]":
            self.done_marker = True
            return
        named_error = bool(event.name) and event.name.lower() == "error"
        if not data or data.isspace():
            if named_error:
                self._fail(event.comment.decode("utf-8", "replace"))
            return
        try:
            chunk = self._decode(data)
        except ValueError:
            if named_error:
                self._fail(data.decode("utf-8", "replace"))
                return
            self.parse_errors += 1
            self.flags |= Flag.PARSE_ERROR
            return
        if named_error or (isinstance(chunk, dict) and _is_error(chunk)):
            self._fail(error_text(chunk) or event.comment.decode("utf-8", "replace"))
        elif isinstance(chunk, dict):
            self._chunk(chunk, t_ns, raw)

    def _decode(self, data: bytes) -> Any:
        """What a dialect needs of an event's data. Raises ValueError where it is no JSON."""
        return decode(data)

    def _fail(self, text: str) -> None:
        if self.error is None:
            self.error = text or "error event without a reason"
            self.status = Status.CONTEXT_OVERFLOW if is_overflow(text) else Status.STREAM_ERROR

    @abstractmethod
    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        """One decoded event of the dialect; `raw`: the bytes that completed it."""

    def _finish(self, reason: str) -> None:
        self.finish = FINISH.get(reason, Finish.OTHER)
        if reason in _GIVEN_UP:
            self._fail(f"the server gave up: finish_reason {reason}")

    def _token(self, t_ns: int, visible: bool) -> None:
        self.chunk_times.append(t_ns)
        if visible and self.first_text_ns < 0:
            self.first_text_ns = t_ns

    def _learn(self, raw: bytes, chunk: dict[str, Any], text: object, *, visible: bool) -> None:
        """Learn the frame of a token chunk, unless another attempt was made just before."""
        if self.output_chunks < self._learn_from or not isinstance(text, str):
            return
        frame = learn(raw, chunk, text, visible=visible)
        if frame is not None:
            self._frames = [frame, *self._frames][:_MAX_FRAMES]
        if frame is None or len(self._frames) == _MAX_FRAMES:
            self._learn_from = self.output_chunks + _LEARNING_PAUSE


class ChatStream(AnswerStream):
    """Chat completions and plain completions."""

    __slots__ = ()

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        choices = chunk.get("choices")
        choices = choices if isinstance(choices, list) else []
        usage = chunk.get("usage")
        grew = isinstance(usage, dict) and self._usage(usage, final=not choices)
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            text = delta.get("content") or choice.get("text") or delta.get("refusal")
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            reason = choice.get("finish_reason")
            if text or reasoning or _has_call(delta) or (grew and not reason):
                if not self.chunk_times:
                    self.first_chunk_tokens = self.output_tokens or None
                self._token(t_ns, bool(text))
                # Usage and finish reasons must be read each time, even if they repeat.
                if not (usage or reason or len(choices) > 1):
                    self._learn(raw, chunk, text or reasoning, visible=bool(text))
            if isinstance(reason, str):
                self._finish(reason)

    def _usage(self, usage: dict[str, Any], *, final: bool) -> bool:
        """Take the latest counts; True when a running count of output tokens has grown since the last chunk."""
        self._final_usage |= final
        self.input_tokens = count_of(usage.get("prompt_tokens"), self.input_tokens)
        before = self.output_tokens
        output = self.output_tokens = count_of(usage.get("completion_tokens"), before)
        prompt_details, output_details = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
        if isinstance(prompt_details, dict):
            self.cached_tokens = count_of(prompt_details.get("cached_tokens"), self.cached_tokens)
        reasoning = usage.get("reasoning_tokens")
        if isinstance(output_details, dict):
            reasoning = output_details.get("reasoning_tokens", reasoning)
        self.reasoning_tokens = count_of(reasoning, self.reasoning_tokens)
        return before is not None and output is not None and before < output


def _has_call(delta: dict[str, Any]) -> bool:
    """Whether a tool-call delta says anything: an id, a name, or a piece of the arguments."""
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict) and (call.get("id") or _names_or_argues(call.get("function"))):
            return True
    return _names_or_argues(delta.get("function_call"))


def _names_or_argues(function: object) -> bool:
    return isinstance(function, dict) and bool(function.get("name") or function.get("arguments"))


def count_of(value: object, before: int | None) -> int | None:
    """`value` where it is a count that a row can hold, else what was known `before`."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT else before


def _is_error(chunk: dict[str, Any]) -> bool:
    """The shapes of an error without an event name: OpenAI's, older vLLM's, Anthropic's and the Responses route's."""
    return bool(chunk.get("error")) or chunk.get("object") == "error" or chunk.get("type") == "error"


def is_overflow(text: str) -> bool:
    """Whether an error says that the prompt is longer than the model takes (the public runner's wordings)."""
    lower = text.lower()
    return any(words in lower for words in _OVERFLOW)


def error_text(body: object) -> str:
    """The words of an error in the shapes of OpenAI, vLLM, SGLang, Anthropic and FastAPI, or a plain string."""
    error = (body.get("error") or body) if isinstance(body, dict) else body
    if isinstance(error, str):
        return error
    if not isinstance(error, dict) or not isinstance(body, dict):
        return ""
    message = error.get("message") or error.get("detail") or body.get("message") or body.get("detail")
    kind = error.get("code") or error.get("type")
    text = message if isinstance(message, str) else _compact(message) if message else ""
    return f"{text} ({kind})" if kind and text else text or (str(kind) if kind else "")


def _compact(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return ""


def _inflated(body: bytes) -> bytes:
    """`body`, unpacked if it is gzip (servers send it unasked); b"" where it is damaged."""
    if body[:2] != b"\x1f\x8b":
        return body
    try:
        return zlib.decompressobj(wbits=31).decompress(body, _MAX_ERROR_TEXT)
    except zlib.error:
        return b""


def parse_error_body(http_status: int, body: bytes) -> tuple[Status, str]:
    """Status and one line for an answer that is not 2xx, whatever its body is."""
    body = _inflated(body)
    try:
        text = error_text(decode(body))
    except ValueError:
        plain = re.sub(rb"<(script|style).*?</\1>|<[^>]*>", b" ", body, flags=re.DOTALL | re.IGNORECASE)
        text = plain.decode("utf-8", "replace")
    text = " ".join(text.split())
    status = Status.CONTEXT_OVERFLOW if is_overflow(text) and http_status in (400, 413, 422) else Status.HTTP_ERROR
    return status, f"HTTP {http_status}: {text}" if text else f"HTTP {http_status}"


def parse_json_answer(body: bytes) -> tuple[Status, str]:
    """A 2xx answer in one JSON object although a stream was asked for: its token times are unknown, so it failed."""
    try:
        answer = decode(body)
    except ValueError:
        return Status.STREAM_ERROR, "a body that is not JSON"
    text = error_text(answer) if isinstance(answer, dict) and _is_error(answer) else ""
    if text:
        return Status.CONTEXT_OVERFLOW if is_overflow(text) else Status.STREAM_ERROR, text
    return Status.STREAM_ERROR, "the server did not stream: token times are unknown"
