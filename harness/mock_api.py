"""The simulated endpoint's API: request bodies checked and rendered, answers encoded, as vLLM does both."""

from __future__ import annotations

from dataclasses import dataclass
from time import time_ns
from typing import Any, TypeVar

import msgspec

from hardware.engine.profiles import Profile
from harness.mock_text import (
    ANSWER_START,
    CALL,
    END,
    RETURN,
    START,
    VOCABULARY,
    WORDS,
    Answer,
    Prompt,
    token_id,
    token_text,
)

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
DEFAULT_COMPLETION_TOKENS = 16
"""What /v1/completions generates when not told, there as here."""

T = TypeVar("T")

_json = msgspec.json.Encoder()


class ApiError(Exception):
    """An answer other than 200, in vLLM's form."""

    def __init__(self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = _json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""


class _ToolCall(msgspec.Struct):
    function: _Function


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_ToolCall] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Generate(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    n: int | None = None


class _Chat(_Generate, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"null")


class _Completion(_Generate, kw_only=True):
    prompt: str | list[int]


class _Tokenize(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[_Message] | None = None
    tools: msgspec.Raw = msgspec.Raw(b"null")
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One checked request for generation."""

    chat: bool
    prompt: Prompt
    answer: Answer
    stream: bool
    include_usage: bool


class Api:
    """Everything that follows from the model's name and the profile alone."""

    def __init__(self, model: str, profile: Profile) -> None:
        self.model = model
        self.profile = profile
        self.created = time_ns() // 1_000_000_000
        self._chat = msgspec.json.Decoder(_Chat)
        self._completion = msgspec.json.Decoder(_Completion)
        self._tokenize = msgspec.json.Decoder(_Tokenize)

    def chat(self, body: bytes) -> Job:
        """Check and render a body of /v1/chat/completions. Raises ApiError."""
        fields = _decode(self._chat, body)
        self._check(fields)
        prompt = Prompt.of_text(_render(fields.messages, fields.tools, answer=True))
        limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        return self._job(fields, prompt, limit, chat=True)

    def completion(self, body: bytes) -> Job:
        """Check and render a body of /v1/completions. Raises ApiError."""
        fields = _decode(self._completion, body)
        self._check(fields)
        if isinstance(fields.prompt, str):
            prompt = Prompt.of_text(fields.prompt.encode())
        else:
            unknown = next((i for i in fields.prompt if not 0 <= i < VOCABULARY), None)
            if unknown is not None:
                raise ApiError(400, f"Token id {unknown} is out of vocabulary", param="prompt")
            prompt = Prompt.of_ids(fields.prompt)
        if not len(prompt):
            raise ApiError(400, "The decoder prompt cannot be empty", param="prompt")
        limit = DEFAULT_COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens
        return self._job(fields, prompt, limit, chat=False)

    def tokenize(self, body: bytes) -> bytes:
        """Answer of /tokenize. Raises ApiError."""
        fields = _decode(self._tokenize, body)
        self._check_model(fields.model)
        if (fields.prompt is None) == (fields.messages is None):
            raise ApiError(400, "Give either `prompt` or `messages`")
        if fields.messages is not None:
            data = _render(fields.messages, fields.tools, answer=fields.add_generation_prompt)
        else:
            data = (fields.prompt or "").encode()
        pieces = Prompt.of_text(data).pieces()
        return _json.encode(
            {
                "count": len(pieces),
                "max_model_len": self.profile.max_model_len,
                "tokens": [token_id(piece) for piece in pieces],
                "token_strs": [token_text(piece) for piece in pieces] if fields.return_token_strs else None,
            }
        )

    def models(self) -> bytes:
        """Answer of /v1/models."""
        entry = {
            "id": self.model,
            "object": "model",
            "created": self.created,
            "owned_by": "agentx",
            "root": self.model,
            "parent": None,
            "max_model_len": self.profile.max_model_len,
        }
        return _json.encode({"object": "list", "data": [entry]})

    def _check(self, fields: _Generate) -> None:
        self._check_model(fields.model)
        if fields.n not in (None, 1):
            raise ApiError(400, "n must be 1 here", param="n")
        if fields.stream_options is not None and not fields.stream:
            raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")

    def _check_model(self, model: str | None) -> None:
        if model not in (None, "", self.model):
            raise ApiError(404, f"The model `{model}` does not exist.", kind="NotFoundError", param="model")

    def _job(self, fields: _Generate, prompt: Prompt, limit: int | None, *, chat: bool) -> Job:
        longest = self.profile.max_model_len - len(prompt)
        if limit is not None and limit < 1:
            raise ApiError(400, f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
        asked = limit or 1
        if longest < asked:
            raise ApiError(
                400,
                f"This model's maximum context length is {self.profile.max_model_len} tokens. However, you "
                f"requested {asked} output tokens and your prompt contains {len(prompt)} input tokens, for a "
                f"total of {len(prompt) + asked} tokens. Please reduce the length of the input prompt or the "
                "number of requested output tokens.",
                param="input_tokens",
            )
        longest = limit or longest
        shortest = fields.min_tokens or 0
        if not 0 <= shortest <= longest:
            raise ApiError(400, f"min_tokens must be between 0 and max_tokens={longest}, got {shortest}.")
        answer = Answer.draw(
            prompt,
            fields.seed or 0,
            shortest=shortest,
            longest=longest,
            mean=None if fields.ignore_eos else self.profile.answer_tokens,
        )
        usage = bool(fields.stream_options and fields.stream_options.include_usage)
        return Job(chat, prompt, answer, bool(fields.stream), usage)


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"Invalid request body: {error}") from error


def _render(messages: list[_Message], tools: msgspec.Raw, *, answer: bool) -> bytes:
    if not messages:
        raise ApiError(400, "messages must not be empty", param="messages")
    parts: list[bytes] = []
    if bytes(tools) not in (b"null", b"[]"):
        parts += (START, b"system\n", bytes(tools), END)
    for message in messages:
        if message.role not in ROLES:
            raise ApiError(400, f"Unexpected message role {message.role!r}", param="messages")
        parts += (START, message.role.encode(), b"\n", _content(message.content))
        for call in message.tool_calls or ():
            parts += (CALL, call.function.name.encode(), b"\n", call.function.arguments.encode(), RETURN)
        parts.append(END)
    if answer:
        parts.append(ANSWER_START)
    return b"".join(parts)


def _content(content: str | list[_Part] | None) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    for part in content:
        if part.type != "text":
            raise ApiError(400, f"Content of type {part.type!r} is not supported", param="messages")
    return "".join(part.text for part in content).encode()


class ReplyFormat:
    """Bytes of one answer: everything but the word and the end is the same for all of its frames."""

    __slots__ = ("_chat", "_fixed", "_head", "_token_head", "_words")

    def __init__(self, api: Api, reply_id: str, *, chat: bool) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._chat = chat
        self._fixed = {"id": reply_id, "created": time_ns() // 1_000_000_000, "model": api.model}
        self._head = b"data: " + _json.encode({**self._fixed, "object": kind})[:-1]
        self._words = CHAT_WORDS if chat else COMPLETION_WORDS
        head = self._head + b',"choices":[{"index":0,'
        # All words are of one length, so the chunk's size line is part of the constant head too.
        self._token_head = b"%x\r\n%b" % (len(head) + len(self._words[0]) - 2, head)

    def role(self) -> bytes:
        """The opening chunk, which has a role and no content; nothing for completions."""
        if not self._chat:
            return b""
        return _frame(
            self._head + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def token(self, pick: int) -> bytes:
        """One token."""
        return self._token_head + self._words[pick]

    def last(self, answer: Answer, usage: dict[str, Any] | None) -> bytes:
        """The last token with the finish reason, usage if asked for, and the end of the stream."""
        word = self._words[answer.picks[-1]][:-2].replace(
            b'"finish_reason":null', b'"finish_reason":"%b"' % answer.finish_reason.encode()
        )
        frames = _frame(self._head + b',"choices":[{"index":0,' + word)
        if usage is not None:
            frames += _frame(self._head + b',"choices":[],"usage":' + _json.encode(usage) + b"}\n\n")
        return frames + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    def whole(self, answer: Answer, usage: dict[str, Any]) -> bytes:
        """The body of an answer that was not streamed."""
        text = answer.text().decode()
        said: dict[str, Any] = {"text": text}
        if self._chat:
            said = {"message": {"role": "assistant", "content": text, "tool_calls": []}}
        choice = {
            "index": 0,
            **said,
            "logprobs": None,
            "finish_reason": answer.finish_reason,
            "stop_reason": None,
        }
        kind = "chat.completion" if self._chat else "text_completion"
        return _json.encode({**self._fixed, "object": kind, "choices": [choice], "usage": usage})


def usage_of(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """True usage, with what came from the prefix cache."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHAT_WORDS = tuple(b'"delta":{"content":"%b"},"logprobs":null,"finish_reason":null}]}\n\n\r\n' % word for word in WORDS)
COMPLETION_WORDS = tuple(
    b'"text":"%b","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n\r\n' % word for word in WORDS
)
