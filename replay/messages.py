"""How a message looks in the request body: one source for the prompts and for the probe that measures them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

CALL_ID = "agentx001"
"""Nine letters and digits: some chat templates insist on exactly that."""

_CALL = {"id": CALL_ID, "type": "function", "function": {"name": "bash", "arguments": "{}"}}

ROLES = ("system", "user", "assistant", "assistant_call", "tool")


def message(role: str, content: str) -> dict[str, Any]:
    """A message of our role as chat completions take it; `assistant_call` is an answer that ends in a tool call."""
    if role == "assistant_call":
        return {"role": "assistant", "content": content, "tool_calls": [_CALL]}
    if role == "tool":
        return {"role": "tool", "tool_call_id": CALL_ID, "content": content}
    return {"role": role, "content": content}


def anthropic_message(role: str, content: str) -> dict[str, Any]:
    """The same for the Anthropic Messages route, where a system prompt is no message."""
    text: dict[str, Any] = {"type": "text", "text": content}
    if role == "assistant_call":
        call = {"type": "tool_use", "id": CALL_ID, "name": "bash", "input": {}}
        return {"role": "assistant", "content": [text, call]}
    if role == "tool":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CALL_ID, "content": content}]}
    return {"role": role, "content": content}


def anthropic_fields(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`system` and `messages` of the Messages route for what `message` made."""
    fields: dict[str, Any] = {}
    listed = []
    for made in messages:
        role, content = made["role"], made["content"]
        if role == "system":
            fields["system"] = content
        else:
            listed.append(anthropic_message("assistant_call" if "tool_calls" in made else role, content))
    return fields | {"messages": listed}


class Frames:
    """The bytes around the words of a conversation, by role. This one: messages of chat completions.

    Words need no escaping in JSON: they are lower-case ASCII and spaces.
    """

    def __init__(self) -> None:
        self.head: dict[str, bytes] = {}
        self.tail: dict[str, bytes] = {}
        for role in ROLES:
            self.head[role], self.tail[role] = self._around(role)

    def _around(self, role: str) -> tuple[bytes, bytes]:
        return _cut(message(role, "\0"))

    def lead(self, previous: str | None, role: str) -> bytes:
        """What stands before a message of `role` that follows one of `previous` (None: the first)."""
        return b"" if previous is None else b","


class AnthropicFrames(Frames):
    """`system` beside the messages: the conversation begins with either key."""

    def _around(self, role: str) -> tuple[bytes, bytes]:
        return _cut("\0" if role == "system" else anthropic_message(role, "\0"))

    def lead(self, previous: str | None, role: str) -> bytes:
        """See Frames."""
        if previous is None:
            return b'"system":' if role == "system" else b'"messages":['
        return b',"messages":[' if previous == "system" else b","


class NoFrames(Frames):
    """Token ids: a prompt is its words and nothing else."""

    def _around(self, role: str) -> tuple[bytes, bytes]:
        return b"", b""

    def lead(self, previous: str | None, role: str) -> bytes:
        """See Frames."""
        return b""


def _cut(value: object) -> tuple[bytes, bytes]:
    head, tail = msgspec.json.encode(value).split(b"\\u0000")
    return head, tail
