"""/v1/chat/completions and /v1/completions of the simulated endpoint, in the fields and forms of vLLM."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import time_ns
from typing import Any

import msgspec

from hardware.engine.model import Request
from harness.mock_api import LAST_CHUNK, Api, ApiError, Job, Message, chunk, decode, encode, prompt_of_ids, render
from harness.mock_text import WORD_BYTES, WORD_IDS, WORDS, Answer, Prompt
from harness.mock_tools import Call, ChatChoice, Forced, forced_in_chat

DEFAULT_COMPLETION_TOKENS = 16
"""What /v1/completions generates when not told, there as here."""

_DONE = chunk(b"data: [DONE]\n\n") + LAST_CHUNK


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
    return_token_ids: bool | None = None


class _Chat(_Generate, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"null")
    tool_choice: str | ChatChoice | None = None


class _Completion(_Generate, kw_only=True):
    prompt: str | list[int]


class OpenAiRoutes:
    """Bodies of both routes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._chat = msgspec.json.Decoder(_Chat)
        self._completion = msgspec.json.Decoder(_Completion)

    def chat(self, body: bytes) -> Job:
        """Check and render a body of /v1/chat/completions. Raises ApiError."""
        fields = decode(self._chat, body)
        self._check(fields)
        prompt = Prompt.of_text(render(fields.messages, bytes(fields.tools)))
        limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
        return self._job(fields, prompt, limit, forced_in_chat(fields.tool_choice, bytes(fields.tools)), chat=True)

    def completion(self, body: bytes) -> Job:
        """Check and render a body of /v1/completions. Raises ApiError."""
        fields = decode(self._completion, body)
        self._check(fields)
        if isinstance(fields.prompt, str):
            prompt = Prompt.of_text(fields.prompt.encode())
        else:
            prompt = prompt_of_ids(fields.prompt, param="prompt")
        if not len(prompt):
            raise ApiError(400, "The decoder prompt cannot be empty", param="prompt")
        limit = DEFAULT_COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens
        return self._job(fields, prompt, limit, None, chat=False)

    def _check(self, fields: _Generate) -> None:
        self._api.check_model(fields.model)
        if fields.n not in (None, 1):
            raise ApiError(400, "n must be 1 here", param="n")
        if fields.stream_options is not None and not fields.stream:
            raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")

    def _job(self, fields: _Generate, prompt: Prompt, limit: int | None, forced: Forced | None, *, chat: bool) -> Job:
        answer = self._api.answer(
            prompt, longest=limit, shortest=fields.min_tokens, forced=fields.ignore_eos, seed=fields.seed
        )
        if chat and forced is None and (thought := int(self._api.profile.reasoning_share * len(answer.picks))):
            answer = replace(answer, thought=thought)
        usage = bool(fields.stream_options and fields.stream_options.include_usage)
        reply = partial(
            OpenAiReply if forced is None else partial(CallReply, forced.call(answer)),
            self._api.model,
            answer,
            prompt if fields.return_token_ids else None,
            chat=chat,
            include_usage=usage,
        )
        return Job(prompt, answer, bool(fields.stream), reply)


class OpenAiReply:
    """Everything but the word and the end is the same for all frames of an answer, unless token ids are asked for."""

    __slots__ = ("_answer", "_chat", "_fixed", "_head", "_kind", "_prompt", "_token_head", "_usage", "_words")

    def __init__(
        self, model: str, answer: Answer, ids_of: Prompt | None, request_id: str, *, chat: bool, include_usage: bool
    ) -> None:
        """`ids_of`: the prompt, where ids are to be returned."""
        self._answer = answer
        self._chat = chat
        self._usage = include_usage
        self._prompt = ids_of
        self._kind = "chat.completion" if chat else "text_completion"
        reply_id = f"{'chatcmpl' if chat else 'cmpl'}-{request_id}"
        self._fixed = {"id": reply_id, "created": time_ns() // 1_000_000_000, "model": model}
        self._head = b"data: " + encode({**self._fixed, "object": self._kind + ".chunk" if chat else self._kind})[:-1]
        self._words = CHAT_WORDS if chat else COMPLETION_WORDS
        head = self._head + b',"choices":[{"index":0,'
        # All words are of one length, so the chunk's size line is part of the constant head too.
        self._token_head = b"%x\r\n%b" % (len(head) + len(self._words[0]) - 2, head)

    def opening(self) -> bytes:
        """The opening chunk, which has a role and no content; nothing for completions."""
        if not self._chat:
            return b""
        ids = b"" if self._prompt is None else b',"prompt_token_ids":' + encode(self._prompt.ids())
        return chunk(
            self._head + b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]' + ids + b"}\n\n"
        )

    def token(self, request: Request) -> bytes:
        """One token."""
        if self._prompt is not None:
            return self._with_ids(self._prompt, request, b"null")
        if request.generated <= self._answer.thought:
            word = THOUGHT_WORDS[self._answer.picks[request.generated - 1]][:-2]
            return chunk(self._head + b',"choices":[{"index":0,' + word)
        return self._token_head + self._words[self._answer.picks[request.generated - 1]]

    def last(self, request: Request) -> bytes:
        """The last token with the finish reason, usage if asked for, and the end of the stream."""
        reason = b'"%b"' % self._reason().encode()
        if self._prompt is not None:
            frames = self._with_ids(self._prompt, request, reason)
        else:
            word = self._words[self._answer.picks[-1]][:-2]
            word = word.replace(b'"finish_reason":null', b'"finish_reason":' + reason)
            frames = chunk(self._head + b',"choices":[{"index":0,' + word)
        return frames + self._ending(request)

    def _ending(self, request: Request) -> bytes:
        """What follows the last token: usage if asked for, and the end of the stream."""
        if not self._usage:
            return _DONE
        return (
            chunk(self._head + b',"choices":[],"usage":' + encode(usage_of(request, self._answer)) + b"}\n\n") + _DONE
        )

    def _with_ids(self, prompt: Prompt, request: Request, reason: bytes) -> bytes:
        """One token with its id; completions say those of the prompt with the first."""
        pick = self._answer.picks[request.generated - 1]
        ids = b',"token_ids":[%d]' % WORD_IDS[pick]
        if request.generated == 1 and not self._chat:
            ids += b',"prompt_token_ids":' + encode(prompt.ids())
        words = THOUGHT_WORDS if request.generated <= self._answer.thought else self._words
        word = words[pick][:-2].replace(b'"finish_reason":null', b'"finish_reason":' + reason + ids)
        return chunk(self._head + b',"choices":[{"index":0,' + word)

    def whole(self, request: Request) -> bytes:
        """The body of an answer that was not streamed."""
        choice: dict[str, Any] = {
            "index": 0,
            **self._said(),
            "logprobs": None,
            "finish_reason": self._reason(),
            "stop_reason": None,
        }
        body = {**self._fixed, "object": self._kind, "choices": [choice], "usage": usage_of(request, self._answer)}
        if self._prompt is not None:
            choice["token_ids"] = self._answer.ids()
            (body if self._chat else choice)["prompt_token_ids"] = self._prompt.ids()
        return encode(body)

    def _said(self) -> dict[str, Any]:
        text, start = self._answer.text().decode(), self._answer.thought * WORD_BYTES
        if not self._chat:
            return {"text": text}
        thought = {"reasoning_content": text[:start]} if start else {}
        return {"message": {"role": "assistant", **thought, "content": text[start:], "tool_calls": []}}

    def _reason(self) -> str:
        return self._answer.finish_reason


class CallReply(OpenAiReply):
    """An answer that calls a function: its id and name come with the first piece of the arguments."""

    __slots__ = ("_call", "_call_id")

    def __init__(
        self,
        call: Call,
        model: str,
        answer: Answer,
        ids_of: Prompt | None,
        request_id: str,
        *,
        chat: bool,
        include_usage: bool,
    ) -> None:
        super().__init__(model, answer, ids_of, request_id, chat=chat, include_usage=include_usage)
        self._call = call
        self._call_id = f"call_{request_id}"

    def token(self, request: Request) -> bytes:
        """One piece of the arguments."""
        return self._piece(request, None)

    def last(self, request: Request) -> bytes:
        """See OpenAiReply."""
        return self._piece(request, self._reason()) + self._ending(request)

    def _piece(self, request: Request, reason: str | None) -> bytes:
        function = {"arguments": self._call.piece(request.generated)}
        call: dict[str, Any] = {"index": 0, "function": function}
        if request.generated == 1:
            function = {"name": self._call.name, **function}
            call = {"index": 0, "id": self._call_id, "type": "function", "function": function}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "logprobs": None, "finish_reason": reason}
        if self._prompt is not None:
            choice["token_ids"] = [WORD_IDS[self._answer.picks[request.generated - 1]]]
        return chunk(self._head + b',"choices":' + encode([choice]) + b"}\n\n")

    def _said(self) -> dict[str, Any]:
        function = {"name": self._call.name, "arguments": self._call.arguments()}
        call = {"id": self._call_id, "type": "function", "function": function}
        return {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}

    def _reason(self) -> str:
        return "tool_calls" if self._call.closed else "length"


def usage_of(request: Request, answer: Answer) -> dict[str, Any]:
    """True usage, with what came from the prefix cache and what was thought."""
    thought = {"completion_tokens_details": {"reasoning_tokens": min(answer.thought, request.generated)}}
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + request.generated,
        "completion_tokens": request.generated,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
        **(thought if answer.thought else {}),
    }


CHAT_WORDS = tuple(b'"delta":{"content":"%b"},"logprobs":null,"finish_reason":null}]}\n\n\r\n' % word for word in WORDS)
THOUGHT_WORDS = tuple(word.replace(b'"content"', b'"reasoning_content"', 1) for word in CHAT_WORDS)
COMPLETION_WORDS = tuple(
    b'"text":"%b","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n\r\n' % word for word in WORDS
)
