"""Token counts from the usage that a server reports for tiny requests, by route; what a server refuses.

Every route of `replay.surface` has a counter, since each has its own fields and its own form of usage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from replay.endpoint import header_secrets
from replay.messages import anthropic_fields, message
from results.errors import EXIT_ENDPOINT, UserError
from results.redact import beginning, redact

_MAX_ERROR_CHARS = 300


class Refused(Exception):
    """The server does not take a request (4xx or 5xx); `status` is its answer's."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Unmeasurable(UserError):
    """The server's counts are no token counts of our words: prompts can be sent, their sizes can't be promised."""


class UsageCounter:
    """Counts by asking for one token and reading `usage.prompt_tokens`: works with every server."""

    name = "usage"
    route = "/v1/chat/completions"
    renders_as_chat = True
    """Whether messages cost here what the server's tokenize route counts for them."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        self._http = http
        self._model = model
        self._length_field = "max_tokens"
        self.requests = self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        """What the probe itself has cost the server, by its own usage."""

    def count_messages(self, messages: Sequence[dict[str, Any]]) -> int:
        """See TokenCounter."""
        try:
            counted = self.ask({**self.fields(messages), **self.length(self._length_field, 1)})
        except Refused as refusal:
            # Some endpoints know the field only by its newer name, and say so.
            if self._length_field != "max_tokens" or "max_completion_tokens" not in str(refusal):
                raise
            self._length_field = "max_completion_tokens"
            return self.count_messages(messages)
        if counted is None:
            raise Unmeasurable(
                "the endpoint reports no usage, so prompt tokens can't be known",
                remedy="switch usage on at the server",
                exit_code=EXIT_ENDPOINT,
            )
        return counted

    def ask(self, fields: dict[str, Any]) -> int | None:
        """Send a request that does not stream; its prompt tokens, None without usage. Raises Refused."""
        response = post(self._http, self.route, {**self._leading(), **fields})
        self.requests += 1
        try:
            prompt, output, cached = self._usage_of(response.json())
        except (ValueError, KeyError, TypeError):
            return None
        self.prompt_tokens += prompt
        self.output_tokens += output
        self.cached_tokens += cached
        return prompt

    def fields(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The part of a request that holds `messages`."""
        return {"messages": list(messages)}

    def length(self, field: str, tokens: int, *, ignore_eos: bool = False, min_tokens: bool = False) -> dict[str, Any]:
        """The part of a request that says how long the answer is to be."""
        fields: dict[str, Any] = {field: tokens}
        fields |= {"ignore_eos": True} if ignore_eos else {}
        return fields | ({"min_tokens": tokens} if min_tokens else {})

    def _leading(self) -> dict[str, Any]:
        return {"model": self._model, "stream": False}

    def _usage_of(self, answer: dict[str, Any]) -> tuple[int, int, int]:
        """Prompt, output and cached tokens; KeyError, TypeError or ValueError without usage."""
        usage = answer["usage"]
        details = usage.get("prompt_tokens_details")
        cached = (details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
        return int(usage["prompt_tokens"]), int(usage["completion_tokens"]), cached

    def count_text(self, text: str) -> int:
        """See TextCounter; the constant is the chat template around one user message."""
        return self.count_messages([message("user", text)])


class CompletionsCounter(UsageCounter):
    """Plain completions: prompts are token ids."""

    route = "/v1/completions"


class MessagesCounter(UsageCounter):
    """The Anthropic Messages route, whose input count leaves out what came from the cache."""

    route = "/v1/messages"
    renders_as_chat = False

    def fields(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """See UsageCounter."""
        return anthropic_fields(messages)

    def _usage_of(self, answer: dict[str, Any]) -> tuple[int, int, int]:
        usage = answer["usage"]
        cached = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        return int(usage["input_tokens"]) + cached + written, int(usage["output_tokens"]), cached


class GenerateCounter(UsageCounter):
    """SGLang's native route."""

    route = "/generate"

    def length(self, field: str, tokens: int, *, ignore_eos: bool = False, min_tokens: bool = False) -> dict[str, Any]:
        """See UsageCounter."""
        chosen: dict[str, Any] = {"max_new_tokens": tokens}
        chosen |= {"ignore_eos": True} if ignore_eos else {}
        return {"sampling_params": chosen | ({"min_new_tokens": tokens} if min_tokens else {})}

    def _leading(self) -> dict[str, Any]:
        return {"stream": False}

    def _usage_of(self, answer: dict[str, Any]) -> tuple[int, int, int]:
        said = answer["meta_info"]
        return int(said["prompt_tokens"]), int(said["completion_tokens"]), int(said.get("cached_tokens") or 0)


COUNTERS: dict[str, type[UsageCounter]] = {
    "chat": UsageCounter,
    "completions": CompletionsCounter,
    "messages": MessagesCounter,
    "generate": GenerateCounter,
}


def post(http: httpx.Client, route: str, fields: dict[str, Any]) -> httpx.Response:
    """POST to a control route. Raises Refused on 4xx and 5xx, UserError where nobody answers."""
    try:
        response = http.post(route, json=fields)
    except httpx.HTTPError as error:
        raise UserError(
            f"POST {route}: {error or type(error).__name__}", remedy="look at the server's log", exit_code=EXIT_ENDPOINT
        ) from error
    if response.status_code >= 400:
        reason = redact(beginning(response.text), header_secrets(http.headers.items()))[:_MAX_ERROR_CHARS]
        raise Refused(f"POST {route}: HTTP {response.status_code}: {reason}", response.status_code)
    return response
