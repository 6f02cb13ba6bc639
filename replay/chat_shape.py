"""What the server's chat template adds to the words: a constant, and so many tokens per message of a role."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Prompt tokens = constant + the sum over messages of (the role's tokens + words)."""

    constant: int
    system: int
    user: int
    assistant: int
    tool: int | None = None
    """None: the template takes no tool messages, or not with a constant cost."""
    assistant_call: int | None = None
    source: str = ""
    note: str = ""
