"""Tool calls of the simulated endpoint: made where the request forces one, and only there.

The words of the answer become one string argument. The function's name and the braces come with the first and the last
word and count nothing, so that lengths and usage are those of any other answer; an answer cut by its length leaves the
braces open, as on a real server. What was generated as a call is not found in the cache by the next turn's prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harness.mock_api import ApiError, decode, encode
from harness.mock_text import WORDS, Answer

_ARGUMENT = "input"
"""The argument of a function whose schema names none."""


class Tool(msgspec.Struct):
    """A function that may be called; `parameters`: the JSON schema of its arguments."""

    name: str
    parameters: dict[str, Any] | None = None


class _ChatTool(msgspec.Struct):
    function: Tool


class _Named(msgspec.Struct):
    name: str


class ChatChoice(msgspec.Struct):
    """`tool_choice` of chat completions where it names a function."""

    function: _Named


class Call:
    """An answer as the call of a function."""

    __slots__ = ("_answer", "argument", "closed", "name")

    def __init__(self, tool: Tool, answer: Answer) -> None:
        self._answer = answer
        self.name = tool.name
        properties = (tool.parameters or {}).get("properties")
        self.argument = next(iter(properties), _ARGUMENT) if isinstance(properties, dict) else _ARGUMENT
        self.closed = answer.finish_reason == "stop"
        """The arguments are complete."""

    def piece(self, generated: int) -> str:
        """What the `generated`-th token (from 1) adds to the arguments' JSON."""
        word = WORDS[self._answer.picks[generated - 1]].decode()
        if generated == 1:
            word = encode({self.argument: ""}).decode()[:-2] + word
        return word + '"}' if self.closed and generated == len(self._answer.picks) else word

    def arguments(self) -> str:
        """The JSON of the arguments, however far it came."""
        return "".join([self.piece(k + 1) for k in range(len(self._answer.picks))])

    def value(self) -> dict[str, str]:
        """The arguments as an object, however far they came."""
        return {self.argument: self._answer.text().decode()}


class Forced:
    """A request that demands a call: of the function `name`, or of any (None)."""

    def __init__(self, tools: Sequence[Tool], name: str | None) -> None:
        """Raises ApiError where there is nothing to call."""
        if not tools:
            raise ApiError(400, "When using `tool_choice`, `tools` must be set.", param="tool_choice")
        self._tools = [tool for tool in tools if name in (None, tool.name)]
        if not self._tools:
            raise ApiError(400, f"`tool_choice` names {name!r}, which is none of `tools`.", param="tool_choice")

    def call(self, answer: Answer) -> Call:
        """The call that `answer` is; its first word draws the function where several may be called."""
        return Call(self._tools[answer.picks[0] % len(self._tools)], answer)


_chat_tools = msgspec.json.Decoder(list[_ChatTool] | None)


def forced_in_chat(choice: str | ChatChoice | None, tools: bytes) -> Forced | None:
    """What `tool_choice` of chat completions demands; `tools`: their JSON. Raises ApiError."""
    if choice in (None, "auto", "none"):
        return None
    if choice != "required" and not isinstance(choice, ChatChoice):
        raise ApiError(400, f"tool_choice {choice!r} is not supported.", param="tool_choice")
    given = [tool.function for tool in decode(_chat_tools, tools) or ()]
    return Forced(given, choice.function.name if isinstance(choice, ChatChoice) else None)
