"""The streamed answer of SGLang's native `/generate` route."""

from __future__ import annotations

import re
from typing import Any

from replay.frames import decode
from replay.stream import AnswerStream, count_of

_META = b'"meta_info":'
"""Never inside a JSON string: its second quote would be escaped there."""
_no_text = re.compile(rb'\s*\{\s*"text"\s*:\s*""').match


class GenerateStream(AnswerStream):
    """Events repeat the whole text and all token ids so far, then `meta_info` with running counts.

    With `--incremental-streaming-output` an event has the new text and ids only; the counts run on. So tokens are
    known from the growth of `completion_tokens` in either mode, and the growing part of an event, which comes before
    `meta_info`, is not decoded: an answer of n tokens costs n small decodes, not n of n tokens.
    """

    __slots__ = ()

    def _decode(self, data: bytes) -> Any:
        meta = -1 if _no_text(data) else data.rfind(_META)
        if meta > 0:
            try:
                return decode(b"{" + data[meta:])
            except ValueError:
                pass  # something else with that name: decided on the whole
        return decode(data)

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        meta = chunk.get("meta_info")
        if not isinstance(meta, dict):
            return
        before = self.output_tokens or 0
        self.input_tokens = count_of(meta.get("prompt_tokens"), self.input_tokens)
        self.cached_tokens = count_of(meta.get("cached_tokens"), self.cached_tokens)
        self.reasoning_tokens = count_of(meta.get("reasoning_tokens"), self.reasoning_tokens)
        self.output_tokens = count_of(meta.get("completion_tokens"), self.output_tokens)
        if (self.output_tokens or 0) > before:
            if not self.chunk_times:
                self.first_chunk_tokens = self.output_tokens
            self._token(t_ns, chunk.get("text") != "")
        self._reason(meta.get("finish_reason"))

    def _reason(self, reason: object) -> None:
        """A finish reason is an object with its type; older servers send the type alone."""
        said = reason if isinstance(reason, dict) else {"type": reason}
        kind, message = said.get("type"), said.get("message")
        if not isinstance(kind, str):
            return
        if kind == "abort" and isinstance(message, str) and message:
            self._fail(message)
        self._finish(kind)
