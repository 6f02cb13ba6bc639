"""The streamed answer of the OpenAI Responses route."""

from __future__ import annotations

from typing import Any

from replay.stream import AnswerStream, count_of, error_text
from results.records import Finish

_TEXT_DELTAS = ("response.output_text.delta", "response.refusal.delta")
_OTHER_DELTAS = (
    "response.reasoning_text.delta",
    "response.reasoning_summary_text.delta",
    "response.function_call_arguments.delta",
)
_ENDS = {
    "response.completed": Finish.STOP,
    "response.incomplete": Finish.LENGTH,
}


class ResponsesStream(AnswerStream):
    """`response.created` ... `response.completed`."""

    __slots__ = ()

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes | None) -> None:
        kind = chunk.get("type")
        if kind in _TEXT_DELTAS or kind in _OTHER_DELTAS:
            if chunk.get("delta"):
                self._token(t_ns, kind in _TEXT_DELTAS)
            return
        response = chunk.get("response")
        if not isinstance(response, dict):
            return
        if kind == "response.failed":
            self._fail(error_text(response) or "response.failed")
        elif kind in _ENDS:
            self.done_marker = True
            self.finish = _ENDS[kind]
        self._usage_of(response.get("usage"))

    def _complete(self) -> bool:
        return self.done_marker

    def _usage_of(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        self.input_tokens = count_of(usage.get("input_tokens"), self.input_tokens)
        self.output_tokens = count_of(usage.get("output_tokens"), self.output_tokens)
        inputs, outputs = usage.get("input_tokens_details"), usage.get("output_tokens_details")
        if isinstance(inputs, dict):
            self.cached_tokens = count_of(inputs.get("cached_tokens"), self.cached_tokens)
        if isinstance(outputs, dict):
            self.reasoning_tokens = count_of(outputs.get("reasoning_tokens"), self.reasoning_tokens)
