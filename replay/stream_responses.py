"""The streamed answer of the OpenAI Responses route."""

from __future__ import annotations

from typing import Any

from replay.stream import AnswerStream, count_of, error_text
from results.records import Finish

_VISIBLE = ("response.output_text.delta", "response.refusal.delta")


class ResponsesStream(AnswerStream):
    """`response.created` ... `response.completed`. Events carry running numbers, so that no frame can be learned."""

    __slots__ = ()

    def _chunk(self, chunk: dict[str, Any], t_ns: int, raw: bytes) -> None:
        kind = chunk.get("type")
        if not isinstance(kind, str):
            return
        item, response = chunk.get("item"), chunk.get("response")
        if kind.endswith(".delta"):
            if chunk.get("delta"):
                self._token(t_ns, kind in _VISIBLE)
        elif kind == "response.output_item.added" and isinstance(item, dict):
            if item.get("name"):  # a tool call begins with its name, as in the other dialects
                self._token(t_ns, False)
        elif isinstance(response, dict):
            self._response(kind, response)

    def _response(self, kind: str, response: dict[str, Any]) -> None:
        if kind == "response.failed":
            self._fail(error_text(response) or kind)
        elif kind == "response.completed":
            self.done_marker = True
            self.finish = Finish.TOOL_CALLS if _calls_tools(response) else Finish.STOP
        elif kind == "response.incomplete":
            self.done_marker = True
            details = response.get("incomplete_details")
            filtered = isinstance(details, dict) and details.get("reason") == "content_filter"
            self.finish = Finish.CONTENT_FILTER if filtered else Finish.LENGTH
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


def _calls_tools(response: dict[str, Any]) -> bool:
    output = response.get("output")
    return isinstance(output, list) and any(
        isinstance(item, dict) and str(item.get("type")).endswith("_call") for item in output
    )
