"""How a message looks in the request body: one source for the prompts and for the probe that measures them."""

from __future__ import annotations

from typing import Any

import msgspec

CALL_ID = "agentx001"
"""Nine letters and digits: some chat templates insist on exactly that."""

_CALL = {"id": CALL_ID, "type": "function", "function": {"name": "bash", "arguments": "{}"}}


def message(role: str, content: str) -> dict[str, Any]:
    """A message of our role as the server is sent it; `assistant_call` is an answer that ends in a tool call."""
    if role == "assistant_call":
        return {"role": "assistant", "content": content, "tool_calls": [_CALL]}
    if role == "tool":
        return {"role": "tool", "tool_call_id": CALL_ID, "content": content}
    return {"role": role, "content": content}


def _frame(role: str) -> tuple[bytes, bytes]:
    head, tail = msgspec.json.encode(message(role, "\0")).split(b"\\u0000")
    return head, tail


_ROLES = ("system", "user", "assistant", "assistant_call", "tool")
MESSAGE_HEAD: dict[str, bytes] = {role: _frame(role)[0] for role in _ROLES}
MESSAGE_TAIL: dict[str, bytes] = {role: _frame(role)[1] for role in _ROLES}
"""Bytes around the content. Words need no escaping in JSON: they are lower-case ASCII and spaces."""
