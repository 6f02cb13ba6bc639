"""What the server's chat template adds to the words: a constant, and so many tokens per message of a role.

Only sums can be seen from outside (a prompt always begins with the constant and a user message, and always adds an
answer together with what follows it), so the split within a sum is a convention; every prompt's total is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.messages import message
from results.errors import EXIT_ENDPOINT, UserError

if TYPE_CHECKING:
    from replay.tokens import TokenCounter
    from replay.words import WordTable

_W = 8
"""Words in each probing message."""


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Prompt tokens = constant + the sum over messages of (the role's tokens + words).

    `system` may be negative: it replaces a default system prompt that the template would put in.
    """

    constant: int
    system: int
    user: int
    assistant: int
    tool: int | None = None
    """None: the template takes no tool messages, or not at a constant cost."""
    assistant_call: int | None = None
    source: str = ""
    note: str = ""

    def tokens(self, roles: Sequence[tuple[str, int]]) -> int:
        """Prompt tokens of (role, words) messages."""
        return self.constant + sum((getattr(self, role) or 0) + words for role, words in roles)


class _Probe:
    """Counts made-up conversations."""

    def __init__(self, counter: TokenCounter, table: WordTable) -> None:
        self._counter = counter
        self._words = table.words

    def count(self, roles: Sequence[tuple[str, int]]) -> int:
        """Prompt tokens of (role, words) messages, as the server counts them."""
        shift = 0
        messages = []
        for role, size in roles:
            words = [self._words[(shift + k) % len(self._words)] for k in range(size)]
            messages.append(message(role, "".join(words)))
            shift += size
        return self._counter.count_messages(messages)

    def accepts(self, roles: Sequence[tuple[str, int]]) -> int | None:
        """The count, or None when the server refuses the messages."""
        from replay.tokens import Refused

        try:
            return self.count(roles)
        except Refused:
            return None


def measure_shape(counter: TokenCounter, table: WordTable, *, tools: bool = True) -> ChatShape:
    """Measure the template with about ten tiny prompts, and check the result on longer ones.

    Unmeasurable when user and assistant messages do not have a constant cost.
    """
    probe = _Probe(counter, table)
    u, a, s = ("user", _W), ("assistant", _W), ("system", _W)
    one = probe.accepts([u])
    if one is None:
        raise _not_linear("the server refuses a single user message")
    turn = probe.count([u, a, u]) - one - 2 * _W
    twice = probe.accepts([u, u])
    user = twice - one - _W if twice is not None else max(0, turn // 2)
    with_system = probe.accepts([s, u])
    shape = ChatShape(
        constant=one - user - _W,
        system=0 if with_system is None else with_system - one - _W,
        user=user,
        assistant=turn - user,
        source=counter.name,
        note="" if with_system is not None else "no system role; ",
    )
    longer = [("user", 24), ("assistant", 3), ("user", 60), ("assistant", 40), ("user", 1)]
    if with_system is not None:
        longer.insert(0, ("system", 30))
    counted = probe.count(longer)
    if counted != shape.tokens(longer):
        raise _not_linear(f"a prompt of {shape.tokens(longer)} tokens was counted as {counted}")
    return _with_tools(probe, shape, u, a) if tools else shape


def _with_tools(probe: _Probe, shape: ChatShape, u: tuple[str, int], a: tuple[str, int]) -> ChatShape:
    """Add tool messages, if the template takes them at a constant cost."""
    call, tool = ("assistant_call", _W), ("tool", _W)
    counted = probe.accepts([u, call, tool])
    if counted is None:
        return _noted(shape, "no tool messages")
    pair = counted - shape.tokens([u]) - 2 * _W
    full = ChatShape(
        shape.constant,
        shape.system,
        shape.user,
        shape.assistant,
        shape.user,
        pair - shape.user,
        shape.source,
        shape.note,
    )
    for longer in ([u, call, ("tool", 40), ("assistant_call", 1), tool], [u, call, tool, a, ("user", 9), call, tool]):
        if probe.accepts(longer) != full.tokens(longer):
            return _noted(shape, "tool messages have no constant cost")
    return full


def _noted(shape: ChatShape, note: str) -> ChatShape:
    return ChatShape(
        shape.constant,
        shape.system,
        shape.user,
        shape.assistant,
        source=shape.source,
        note=f"{shape.note}{note}: sent as user messages",
    )


def _not_linear(why: str) -> UserError:
    from replay.tokens import Unmeasurable

    return Unmeasurable(
        f"the chat template can't be measured: {why}",
        remedy="prompt sizes would not be what the trace recorded; use another chat template",
        exit_code=EXIT_ENDPOINT,
    )
