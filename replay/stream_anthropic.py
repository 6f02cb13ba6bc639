"""The streamed answer of the Anthropic Messages route."""

from __future__ import annotations

from typing import Any

from replay.stream import AnswerStream, count_of


class AnthropicStream(AnswerStream):
    """`message_start` ... `message_stop`. The input count excludes what came from the cache; the total includes it."""

    __slots__ = ("_cache_read", "_cache_written", "_uncached")

    def __init__(self, forced_output: int | None = None) -> None:
        super().__init__(forced_output)
        self._uncached: int | None = None
        self._cache_read: int | None = None
        self._cache_written: int | None = None

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        kind = chunk.get("type")
        if kind == "message_start":
            message = chunk.get("message")
            self._usage_of(message.get("usage") if isinstance(message, dict) else None)
        elif kind in ("content_block_start", "content_block_delta"):
            self._content(chunk, t_ns, raw)
        elif kind == "message_delta":
            delta = chunk.get("delta")
            reason = delta.get("stop_reason") if isinstance(delta, dict) else None
            if isinstance(reason, str):
                self._finish(reason)
            self._usage_of(chunk.get("usage"))
        elif kind == "message_stop":
            self.done_marker = True

    def _complete(self) -> bool:
        """A stop reason alone is no end here: `message_stop` follows it."""
        return self.done_marker

    def _content(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        block = chunk.get("delta") if chunk["type"] == "content_block_delta" else chunk.get("content_block")
        if not isinstance(block, dict):
            return
        text, thinking = block.get("text"), block.get("thinking")
        other = block.get("partial_json") or block.get("name") or block.get("data")  # tool calls, redacted thinking
        if text or thinking or other:
            self._token(t_ns, bool(text))
            self._learn(raw, chunk, text or thinking, visible=bool(text))

    def _usage_of(self, usage: object) -> None:
        """Counts are running totals: the latest value of each stands; absent ones stay unknown."""
        if not isinstance(usage, dict):
            return
        self._uncached = count_of(usage.get("input_tokens"), self._uncached)
        self._cache_read = count_of(usage.get("cache_read_input_tokens"), self._cache_read)
        self._cache_written = count_of(usage.get("cache_creation_input_tokens"), self._cache_written)
        self.output_tokens = count_of(usage.get("output_tokens"), self.output_tokens)
        details = usage.get("output_tokens_details")
        if isinstance(details, dict):
            self.reasoning_tokens = count_of(details.get("thinking_tokens"), self.reasoning_tokens)
        if self._uncached is not None:
            self.input_tokens = self._uncached + (self._cache_read or 0) + (self._cache_written or 0)
        self.cached_tokens = self._cache_read
