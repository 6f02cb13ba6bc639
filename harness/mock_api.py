"""What all routes of the simulated endpoint share: checks, the chat template, what an answer will be, errors.

The routes themselves are in `mock_openai`, `mock_messages` and `mock_generate`: bodies in, bytes of answers out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time_ns
from typing import Any, Protocol, TypeVar

import msgspec

from hardware.engine.model import Request
from hardware.engine.profiles import Profile
from harness.mock_text import (
    ANSWER_START,
    CALL,
    END,
    RETURN,
    START,
    VOCABULARY,
    Answer,
    Prompt,
    token_id,
    token_text,
)

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
LAST_CHUNK = b"0\r\n\r\n"

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


class ApiError(Exception):
    """An answer that is not the one asked for. Its body is in vLLM's form until a route gives it its own."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = encode({"error": {"message": message, "type": kind, "param": param, "code": status}})
        self.content_type = b"application/json"
        self.headers = b""
        """More lines of the response's head, each with its end."""


class Reply(Protocol):
    """Bytes of one answer, in HTTP chunks where they are parts of a stream."""

    def opening(self) -> bytes:
        """What comes before the first token; may be empty."""

    def token(self, request: Request) -> bytes:
        """The latest token, which is not the last."""

    def last(self, request: Request) -> bytes:
        """The last token and the end of the stream."""

    def whole(self, request: Request) -> bytes:
        """The body of an answer that was not streamed."""


@dataclass(frozen=True, slots=True)
class Job:
    """One checked request for generation."""

    prompt: Prompt
    answer: Answer
    stream: bool
    reply: Callable[[str], Reply]
    """Takes the request's id."""


class Function(msgspec.Struct):
    """The function that a tool call calls."""

    name: str
    arguments: str = ""


class ToolCall(msgspec.Struct):
    """A tool call in the history."""

    function: Function


class Part(msgspec.Struct):
    """A part of a message's content."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """A message of chat completions, which other dialects are turned into."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None


class _Tokenize(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: msgspec.Raw = msgspec.Raw(b"null")
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class Api:
    """Everything that follows from the model's name and the profile alone."""

    def __init__(self, model: str, profile: Profile) -> None:
        self.model = model
        self.profile = profile
        self.created = time_ns() // 1_000_000_000
        self._tokenize = msgspec.json.Decoder(_Tokenize)

    def check_model(self, model: str | None) -> None:
        """Raises ApiError for another model than the one served."""
        if model not in (None, "", self.model):
            raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")

    def answer(
        self, prompt: Prompt, *, longest: int | None, shortest: int | None, forced: bool | None, seed: int | None
    ) -> Answer:
        """What will be generated; None: not said. `forced`: never ends before `longest`. Raises ApiError."""
        room = self.profile.max_model_len - len(prompt)
        if longest is not None and longest < 1:
            raise ApiError(400, f"max_tokens must be at least 1, got {longest}.", param="max_tokens")
        asked = longest or 1
        if room < asked:
            raise ApiError(
                400,
                f"This model's maximum context length is {self.profile.max_model_len} tokens. However, you "
                f"requested {asked} output tokens and your prompt contains {len(prompt)} input tokens, for a "
                f"total of {len(prompt) + asked} tokens. Please reduce the length of the input prompt or the "
                "number of requested output tokens.",
                param="input_tokens",
            )
        longest = longest or room
        if not 0 <= (shortest or 0) <= longest:
            raise ApiError(400, f"min_tokens must be between 0 and max_tokens={longest}, got {shortest}.")
        mean = None if forced else self.profile.answer_tokens
        return Answer.draw(prompt, seed or 0, shortest=shortest or 0, longest=longest, mean=mean)

    def tokenize(self, body: bytes) -> bytes:
        """Answer of /tokenize. Raises ApiError."""
        fields = decode(self._tokenize, body)
        self.check_model(fields.model)
        if (fields.prompt is None) == (fields.messages is None):
            raise ApiError(400, "Give either `prompt` or `messages`")
        if fields.messages is not None:
            data = render(fields.messages, bytes(fields.tools), answer=fields.add_generation_prompt)
        else:
            data = (fields.prompt or "").encode()
        pieces = Prompt.of_text(data).pieces()
        return encode(
            {
                "count": len(pieces),
                "max_model_len": self.profile.max_model_len,
                "tokens": [token_id(piece) for piece in pieces],
                "token_strs": [token_text(piece) for piece in pieces] if fields.return_token_strs else None,
            }
        )

    def models(self) -> bytes:
        """Answer of /v1/models: OpenAI's fields and Anthropic's beside each other, since both clients ask here."""
        page = {"has_more": False, "first_id": self.model, "last_id": self.model}
        return encode({"object": "list", "data": [self._entry()], **page})

    def described(self, model: str) -> bytes:
        """Answer of /v1/models/ID. Raises ApiError for another model than the one served."""
        self.check_model(model)
        return encode(self._entry())

    def _entry(self) -> dict[str, Any]:
        length = self.profile.max_model_len
        anthropic = {
            "type": "model",
            "display_name": self.model,
            "created_at": datetime.fromtimestamp(self.created, UTC),
            "lifecycle": "active",
            "max_input_tokens": length,
            "max_tokens": length,
        }
        return {
            "id": self.model,
            "object": "model",
            "created": self.created,
            "owned_by": "agentx",
            "root": self.model,
            "parent": None,
            "max_model_len": length,
            **anthropic,
        }


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The fields of a body. Raises ApiError."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"Invalid request body: {error}") from error


def prompt_of_ids(ids: list[int], *, param: str) -> Prompt:
    """A prompt of token ids. Raises ApiError on one that is none."""
    unknown = next((i for i in ids if not 0 <= i < VOCABULARY), None)
    if unknown is not None:
        raise ApiError(400, f"Token id {unknown} is out of vocabulary", param=param)
    return Prompt.of_ids(ids)


def render(messages: list[Message], tools: bytes = b"null", *, answer: bool = True) -> bytes:
    """The chat template; `answer`: ends where the answer begins. Raises ApiError."""
    if not messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    parts: list[bytes] = []
    if tools not in (b"null", b"[]"):
        parts += (START, b"system\n", tools, END)
    for message in messages:
        if message.role not in ROLES:
            raise ApiError(400, f"Unexpected message role {message.role!r}", param="messages")
        thought = (message.reasoning_content or "").encode()  # kept where the history has it, as it was generated
        parts += (START, message.role.encode(), b"\n", thought, _content(message.content))
        for call in message.tool_calls or ():
            parts += (CALL, call.function.name.encode(), b"\n", call.function.arguments.encode(), RETURN)
        parts.append(END)
    if answer:
        parts.append(ANSWER_START)
    return b"".join(parts)


def _content(content: str | list[Part] | None) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    for part in content:
        if part.type != "text":
            raise ApiError(400, f"Content of type {part.type!r} is not supported", param="messages")
    return "".join(part.text for part in content).encode()


def chunk(data: bytes) -> bytes:
    """An HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)
