"""/v1/messages of the simulated endpoint: Anthropic's dialect, rendered and counted as vLLM's route does.

`system` becomes a system message, `tool_use` a tool call, `tool_result` a tool message before what else its message
says; thinking is left out, as chat templates leave it out of the history. The dialect has no field that forces a
length, so an answer here always has its `max_tokens`: a replay could not be compared with another otherwise. Only the
tool call that `tool_choice` demands ends by itself, since its arguments would never be whole.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec

from hardware.engine.model import Request
from harness.mock_api import (
    LAST_CHUNK,
    Api,
    ApiError,
    Function,
    Job,
    Message,
    Part,
    ToolCall,
    chunk,
    decode,
    encode,
    render,
)
from harness.mock_text import WORDS, Answer, Prompt
from harness.mock_tools import Call, Forced, Tool

_ROLES = ("user", "assistant", "system")
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}
_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}
_SILENT = ("thinking", "redacted_thinking")
_PER_REQUEST = "x-anthropic-billing-header"
"""A system block of Claude Code that differs with every request: in the prompt, nothing could ever be cached."""


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    name: str = ""
    input: dict[str, Any] | None = None
    content: str | list[_Block] | None = None


class _Turn(msgspec.Struct):
    role: str
    content: str | list[_Block]


class _Tool(msgspec.Struct, omit_defaults=True):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None


class _Count(msgspec.Struct):
    model: str
    messages: list[_Turn]
    system: str | list[_Block] | None = None
    tools: list[_Tool] | None = None


class _Create(_Count, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    tool_choice: _Choice | None = None


class MessagesRoutes:
    """Bodies of /v1/messages and of /v1/messages/count_tokens."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._create = msgspec.json.Decoder(_Create)
        self._count = msgspec.json.Decoder(_Count)

    def create(self, body: bytes) -> Job:
        """Check and render a body. Raises ApiError."""
        fields = decode(self._create, body)
        prompt = self._prompt(fields)
        forced = _forced(fields)
        answer = self._api.answer(prompt, longest=fields.max_tokens, shortest=None, forced=forced is None, seed=None)
        kind = MessagesReply if forced is None else partial(ToolUseReply, forced.call(answer))
        return Job(prompt, answer, bool(fields.stream), partial(kind, self._api.model, prompt, answer))

    def count(self, body: bytes) -> bytes:
        """Answer of /v1/messages/count_tokens. Raises ApiError."""
        tokens = len(self._prompt(decode(self._count, body)))
        return encode({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})

    def _prompt(self, fields: _Count) -> Prompt:
        self._api.check_model(fields.model)
        tools = [_function(tool) for tool in fields.tools or ()]
        return Prompt.of_text(render(_messages(fields), encode(tools)))


def anthropic_error(error: ApiError) -> bytes:
    """The body of an error in this dialect's form."""
    return encode({"type": "error", "error": {"type": _KINDS[error.status], "message": str(error)}})


def _forced(fields: _Create) -> Forced | None:
    """The call that `tool_choice` demands. Raises ApiError."""
    choice = fields.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        return None
    if choice.type not in ("any", "tool") or (choice.type == "tool") != (choice.name is not None):
        raise ApiError(400, f"tool_choice: {choice.type!r} with name {choice.name!r} is not supported")
    return Forced([Tool(tool.name, tool.input_schema) for tool in fields.tools or ()], choice.name)


def _function(tool: _Tool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.input_schema}}


def _messages(fields: _Count) -> list[Message]:
    """The conversation as chat completions have it. Raises ApiError."""
    wrong = next((turn.role for turn in fields.messages if turn.role not in _ROLES), None)
    if wrong is not None:
        raise ApiError(400, f"messages: role {wrong!r} is not one of {', '.join(_ROLES)}")
    if not fields.messages:
        raise ApiError(400, "messages: at least one message is required")
    system = _text(fields.system) + "".join(_text(turn.content) for turn in fields.messages if turn.role == "system")
    made = [Message("system", system)] if system else []
    for turn in fields.messages:
        if isinstance(turn.content, str):
            made += [Message(turn.role, turn.content)] if turn.role != "system" else []
        elif turn.role != "system":
            made += _of_blocks(turn.role, turn.content)
    return made


def _text(content: str | list[_Block] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(b.text for b in content if b.type == "text" and not b.text.startswith(_PER_REQUEST))


def _of_blocks(role: str, blocks: list[_Block]) -> list[Message]:
    results: list[Message] = []
    said: list[Part] = []
    calls: list[ToolCall] = []
    for block in blocks:
        if block.type == "tool_result":
            results.append(Message("tool", _result(block.content)))
        elif block.type == "tool_use":
            calls.append(ToolCall(Function(block.name, json.dumps(block.input or {}))))
        elif block.type not in _SILENT:  # what is not text is refused when it is rendered
            said.append(Part(block.type, block.text))
    if role == "user" and not said:
        return results
    return [*results, Message(role, said, calls)]


def _result(content: str | list[_Block] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    other = next((block.type for block in content if block.type != "text"), None)
    if other is not None:
        raise ApiError(400, f"Content of type {other!r} is not supported")
    return "\n".join(block.text for block in content)


class MessagesReply:
    """A token's frame is the same for all answers, word by word."""

    __slots__ = ("_answer", "_message", "_prompt_tokens")

    def __init__(self, model: str, prompt: Prompt, answer: Answer, request_id: str) -> None:
        self._answer = answer
        self._prompt_tokens = len(prompt)
        self._message = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}

    def opening(self) -> bytes:
        """The message, a ping, and the block that takes the text.

        The cache's share of the input is said at the end, as vLLM does: here its fields are absent, not 0.
        """
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        message: dict[str, Any] = {
            **self._message,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return chunk(_event("message_start", message=message)) + _PING + self._block_start()

    def _block_start(self) -> bytes:
        return _BLOCK_START

    def token(self, request: Request) -> bytes:
        """One token."""
        return TEXT_DELTAS[self._answer.picks[request.generated - 1]]

    def last(self, request: Request) -> bytes:
        """The last token, the stop reason with the usage, and the end of the stream."""
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": None}
        ending = _event("message_delta", delta=delta, usage=_usage_of(request))
        return self.token(request) + _BLOCK_STOP + chunk(ending) + _MESSAGE_STOP

    def whole(self, request: Request) -> bytes:
        """The body of an answer that was not streamed."""
        return encode(
            {
                **self._message,
                "content": [self._block()],
                "stop_reason": self._stop_reason(),
                "stop_sequence": None,
                "usage": _usage_of(request),
            }
        )

    def _block(self) -> dict[str, Any]:
        return {"type": "text", "text": self._answer.text().decode()}

    def _stop_reason(self) -> str:
        return _STOP_REASONS[self._answer.finish_reason]


class ToolUseReply(MessagesReply):
    """An answer that uses a tool: the block begins with its id and name, the deltas are pieces of the input's JSON."""

    __slots__ = ("_call", "_tool_use")

    def __init__(self, call: Call, model: str, prompt: Prompt, answer: Answer, request_id: str) -> None:
        super().__init__(model, prompt, answer, request_id)
        self._call = call
        self._tool_use = {"type": "tool_use", "id": f"toolu_{request_id}", "name": call.name}

    def token(self, request: Request) -> bytes:
        """One piece of the input."""
        delta = {"type": "input_json_delta", "partial_json": self._call.piece(request.generated)}
        return chunk(_event("content_block_delta", index=0, delta=delta))

    def _block_start(self) -> bytes:
        return chunk(_event("content_block_start", index=0, content_block={**self._tool_use, "input": {}}))

    def _block(self) -> dict[str, Any]:
        return {**self._tool_use, "input": self._call.value()}

    def _stop_reason(self) -> str:
        return "tool_use" if self._call.closed else "max_tokens"


def _usage_of(request: Request) -> dict[str, int]:
    """The three parts of the input add up to the prompt; a prefix cache that fills itself says no creation."""
    return {
        "input_tokens": request.prompt_tokens - request.cached_tokens,
        "cache_read_input_tokens": request.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": request.generated,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


_PING = chunk(_event("ping"))
_BLOCK_START = chunk(_event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
_BLOCK_STOP = chunk(_event("content_block_stop", index=0))
_MESSAGE_STOP = chunk(_event("message_stop")) + LAST_CHUNK
TEXT_DELTAS = tuple(
    chunk(_event("content_block_delta", index=0, delta={"type": "text_delta", "text": word.decode()})) for word in WORDS
)
