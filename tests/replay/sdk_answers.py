"""What an answer says: as the objects of the official clients have it, and as our parser has it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from replay.spoken import KeptAnthropic, KeptChat
from replay.stream import AnswerStream
from replay.stream_responses import ResponsesStream
from results.records import Finish

PROMPT = " hi" * 40
"""Long enough that a second request finds blocks of it in the cache."""


class Said(NamedTuple):
    """One answer; counts are None where they were not said."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    """Names and the JSON of the arguments."""
    input: int | None
    cached: int | None
    output: int | None
    reasoning_tokens: int | None
    finish: Finish


class CallingChat(KeptChat):
    """Keeps the arguments of tool calls too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[int, list[str]] = {}

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        super()._chunk(chunk, t_ns, raw)
        for choice in chunk.get("choices", ()):
            for call in choice.get("delta", {}).get("tool_calls") or ():
                _call(self.calls, call["index"], call["function"].get("name"), call["function"].get("arguments"))
            if self.kept is not None and choice.get("text"):
                self.kept.text.append(choice["text"])


class CallingAnthropic(KeptAnthropic):
    """The same of the Messages route."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[int, list[str]] = {}

    def _content(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        super()._content(chunk, t_ns, raw)
        block, delta = chunk.get("content_block", {}), chunk.get("delta", {})
        if block.get("type") == "tool_use" or delta.get("type") == "input_json_delta":
            _call(self.calls, chunk["index"], block.get("name"), delta.get("partial_json"))


def _call(calls: dict[int, list[str]], index: int, name: str | None, arguments: str | None) -> None:
    entry = calls.setdefault(index, ["", ""])
    entry[0] += name or ""
    entry[1] += arguments or ""


def heard(stream: CallingChat | CallingAnthropic) -> Said:
    """What our parser has."""
    assert stream.kept is not None
    calls = [(name, arguments) for _, (name, arguments) in sorted(stream.calls.items())]
    return Said("".join(stream.kept.text), "".join(stream.kept.reasoning), calls, *counts(stream))


def counts(stream: AnswerStream) -> tuple[int | None, int | None, int | None, int | None, Finish]:
    """Usage and finish reason, as `Said` ends."""
    return stream.input_tokens, stream.cached_tokens, stream.output_tokens, stream.reasoning_tokens, stream.finish


CHAT_FINISH = {
    None: Finish.NONE,
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}
MESSAGES_FINISH = {
    None: Finish.NONE,
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "refusal": Finish.CONTENT_FILTER,
    "pause_turn": Finish.OTHER,
}


def chat_said(client: Any, **body: Any) -> tuple[Said, int]:
    """The OpenAI client's own account of a streamed chat answer, and the number of its chunks with content."""
    with client.chat.completions.stream(messages=[{"role": "user", "content": PROMPT}], **body) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        snapshot = stream.current_completion_snapshot
    (choice,) = snapshot.choices
    message = choice.message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    finish = CHAT_FINISH[choice.finish_reason]
    said = Said(message.content or "", _reasoning(message), calls, *_openai_counts(snapshot.usage), finish)
    return said, sum(_has_content(part.delta) for chunk in chunks for part in chunk.choices)


def _reasoning(message: Any) -> str:
    return getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""


def _has_content(delta: Any) -> bool:
    calls = [part for call in delta.tool_calls or () for part in (call.id, call.function.name, call.function.arguments)]
    return any((delta.content, delta.refusal, _reasoning(delta), *calls))


def completion_said(client: Any, **body: Any) -> tuple[Said, int]:
    """The same of a streamed completion, whose parts the client leaves to be joined."""
    parts = list(client.completions.create(stream=True, prompt=PROMPT, **body))
    choices = [choice for part in parts for choice in part.choices]
    text, finish = "".join(choice.text for choice in choices), CHAT_FINISH[choices[-1].finish_reason]
    return Said(text, "", [], *_openai_counts(parts[-1].usage), finish), sum(bool(choice.text) for choice in choices)


def _openai_counts(usage: Any) -> tuple[int | None, int | None, int | None, int | None]:
    if usage is None:
        return None, None, None, None
    inputs, outputs = usage.prompt_tokens_details, usage.completion_tokens_details
    return (
        usage.prompt_tokens,
        None if inputs is None else inputs.cached_tokens,
        usage.completion_tokens,
        None if outputs is None else outputs.reasoning_tokens,
    )


def messages_said(client: Any, **body: Any) -> tuple[Said, int]:
    """The Anthropic client's own account of a streamed answer, and the number of its events with content."""
    with client.messages.stream(messages=[{"role": "user", "content": PROMPT}], **body) as stream:
        events = list(stream)
        message = stream.get_final_message()
    arguments: dict[int, str] = {}
    for event in events:
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            arguments[event.index] = arguments.get(event.index, "") + event.delta.partial_json
    said = Said(
        "".join(block.text for block in message.content if block.type == "text"),
        "".join(block.thinking for block in message.content if block.type == "thinking"),
        [(b.name, arguments.get(k, "")) for k, b in enumerate(message.content) if b.type == "tool_use"],
        *_anthropic_counts(message.usage),
        MESSAGES_FINISH[message.stop_reason],
    )
    return said, sum(map(_is_content, events))


def _is_content(event: Any) -> bool:
    if event.type == "content_block_delta":
        kind = event.delta.type
        said = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
        return kind in said and bool(getattr(event.delta, said[kind]))
    return event.type == "content_block_start" and event.content_block.type in ("tool_use", "redacted_thinking")


def _anthropic_counts(usage: Any) -> tuple[int, int | None, int, int | None]:
    """The client leaves the three parts of the input apart."""
    parts = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    details = usage.output_tokens_details
    thinking = None if details is None else details.thinking_tokens
    return sum(part or 0 for part in parts), parts[1], usage.output_tokens, thinking


def fed(stream: AnswerStream, body: bytes, cuts: Iterable[int]) -> None:
    """Feed `body` cut at these places (taken modulo its length), and end it."""
    places = sorted({cut % len(body) for cut in cuts} | {0, len(body)})
    for number, (low, high) in enumerate(pairwise(places)):
        stream.feed(body[low:high], number)
    stream.end(len(places), clean=True)


class HearingResponses(ResponsesStream):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, str] = {}
        """By kind of delta."""

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        super()._chunk(chunk, t_ns, raw)
        if chunk["type"].endswith(".delta"):
            self.said[chunk["type"]] = self.said.get(chunk["type"], "") + chunk["delta"]

    def heard(self) -> Said:
        """Calls of one answer are joined: their deltas name items, whose names are not in them."""
        text, thought, arguments = (
            self.said.get(f"response.{kind}.delta", "")
            for kind in ("output_text", "reasoning_text", "function_call_arguments")
        )
        return Said(text, thought, [("", arguments)], *counts(self))


def response_said(client: Any) -> tuple[Said, int]:
    """The OpenAI client's own account of a streamed response, and the number of its events with content."""
    events = list(client.responses.create(model="m", input=PROMPT, stream=True))
    response = events[-1].response
    text, thought, arguments = "", "", ""
    for item in response.output:
        if item.type == "function_call":
            arguments += item.arguments
        elif item.type == "message":
            text += "".join(part.text for part in item.content)
        else:
            thought += "".join(part.text for part in item.content)
    called = any(item.type == "function_call" for item in response.output)
    finish = Finish.TOOL_CALLS if called else Finish.STOP
    if response.status == "incomplete":
        filtered = response.incomplete_details.reason == "content_filter"
        finish = Finish.CONTENT_FILTER if filtered else Finish.LENGTH
    usage = response.usage
    cached, reasoning = usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens
    said = Said(text, thought, [("", arguments)], usage.input_tokens, cached, usage.output_tokens, reasoning, finish)
    begun = [event for event in events if event.type == "response.output_item.added"]
    calls = sum(event.item.type == "function_call" for event in begun)
    return said, calls + sum(bool(event.delta) for event in events if event.type.endswith(".delta"))
