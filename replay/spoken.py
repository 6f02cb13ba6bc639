"""What the server really said, kept so that it becomes the history of the next prompt (`assistant: live`).

A stream here is the one of `replay.stream` that also keeps the answer. It parses every chunk in full: learning frames
spares just what is wanted. Text goes into the prompt escaped for JSON; token ids go in as they were generated.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from replay.frames import decode
from replay.stream import AnswerStream, ChatStream, KeptAnswer
from replay.stream_anthropic import AnthropicStream
from replay.stream_generate import GenerateStream


class Spoken(NamedTuple):
    """An answer as a later prompt holds it."""

    encoded: bytes
    """For between a message's head and tail, or for a list of token ids."""
    tokens: int
    cacheable: bool
    """The next prompt has the very tokens that were generated: their cache entries can be hit."""
    dropped: bool = False
    """It was thought before it was said, and the thought is not in the prompt."""


class KeptChat(ChatStream):
    """Chat completions, and completions with `return_token_ids`."""

    __slots__ = ()

    def __init__(self, forced_output: int | None = None) -> None:
        super().__init__(forced_output)
        self.kept = KeptAnswer()

    def _learn(self, raw: bytes, chunk: dict[str, Any], text: object, *, visible: bool) -> None:
        """A learned chunk is skipped unread."""

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        super()._chunk(chunk, t_ns, raw)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and self.kept is not None:
                _take_choice(self.kept, choice)


def _take_choice(kept: KeptAnswer, choice: dict[str, Any]) -> None:
    delta, ids = choice.get("delta"), choice.get("token_ids")
    if isinstance(delta, dict):
        _add(kept.text, delta.get("content"))
        _add(kept.reasoning, delta.get("reasoning_content") or delta.get("reasoning"))
    if isinstance(ids, list):
        kept.ids += ids


class KeptAnthropic(AnthropicStream):
    """The Messages route."""

    __slots__ = ()

    def __init__(self, forced_output: int | None = None) -> None:
        super().__init__(forced_output)
        self.kept = KeptAnswer()

    def _learn(self, raw: bytes, chunk: dict[str, Any], text: object, *, visible: bool) -> None:
        """A learned chunk is skipped unread."""

    def _content(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        super()._content(chunk, t_ns, raw)
        block = chunk.get("delta") or chunk.get("content_block")
        if isinstance(block, dict) and self.kept is not None:
            _add(self.kept.text, block.get("text"))
            _add(self.kept.reasoning, block.get("thinking"))


class KeptGenerate(GenerateStream):
    """SGLang's native route, every event of which is decoded whole."""

    __slots__ = ()

    def __init__(self, forced_output: int | None = None) -> None:
        super().__init__(forced_output)
        self.kept = KeptAnswer()

    def _decode(self, data: bytes) -> Any:
        return decode(data)

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        super()._chunk(chunk, t_ns, raw)
        ids = chunk.get("output_ids")
        if self.kept is not None and isinstance(ids, list):
            # All ids so far, or (`--incremental-streaming-output`) the new ones: the running count tells.
            whole = self.output_tokens is not None and len(ids) >= self.output_tokens
            self.kept.ids = ids if whole else [*self.kept.ids, *ids]


def _add(parts: list[str], text: object) -> None:
    if isinstance(text, str) and text:
        parts.append(text)


def spoken_ids(stream: AnswerStream) -> Spoken | None:
    """The answer as token ids; None where the server gave none, or not one for every token it counted."""
    ids = stream.kept.ids if stream.kept is not None else []
    if not ids or (stream.output_tokens is not None and stream.output_tokens != len(ids)):
        return None
    return Spoken(b"".join(b",%d" % number for number in ids), len(ids), cacheable=True)


def spoken_text(
    text: str,
    tokens: int,
    generated: int | None,
    *,
    reasoning: str = "",
    field: str = "reasoning_content",
    dropped: bool = False,
) -> Spoken:
    """The answer as text that counts `tokens`, of which the server `generated` so many.

    `reasoning` goes into the message's own `field` for it, and `tokens` counts it too; `dropped`: it is left out.
    """
    encoded = _escaped(text)
    if reasoning:
        encoded += b'","%b":"%b' % (field.encode(), _escaped(reasoning))
    return Spoken(encoded, tokens, cacheable=tokens == generated and not dropped, dropped=dropped)


def _escaped(text: str) -> bytes:
    # ASCII escapes: halves of surrogate pairs that a server cut stay what they were.
    return json.dumps(text)[1:-1].encode()
