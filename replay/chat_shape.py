"""What the server's chat template adds to the words: a constant, and so many tokens per message of a role.

Only sums can be seen from outside (a prompt always begins with the constant and a user message, and always adds an
answer together with what follows it), so the split within a sum is a convention; every prompt's total is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from replay.messages import message
from replay.usage import Refused, Unmeasurable
from results.errors import EXIT_ENDPOINT

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
    reasoning: int | None = None
    """For an assistant message's reasoning beside its words; None: not measured, dropped, or not at a constant cost."""
    reasoning_field: str = "reasoning_content"
    takes_system: bool = True
    """False: the server refuses system messages, and `system` is 0."""
    source: str = ""
    note: str = ""

    @property
    def shortest(self) -> int:
        """Tokens of the shortest prompt there is: a user message of one word."""
        return self.constant + self.user + 1

    def tokens(self, roles: Sequence[tuple[str, int]]) -> int:
        """Prompt tokens of (role, words) messages."""
        return self.constant + sum((getattr(self, role) or 0) + words for role, words in roles)


class _Probe:
    """Counts made-up conversations."""

    def __init__(self, counter: TokenCounter, table: WordTable) -> None:
        self._counter = counter
        self._words = table.words

    def count(self, roles: Sequence[tuple[str, int]]) -> int | None:
        """Prompt tokens of (role, words) messages as the server counts them; None when it refuses them."""
        shift = 0
        messages = []
        for role, size in roles:
            words = [self._words[(shift + k) % len(self._words)] for k in range(size)]
            messages.append(message(role, "".join(words)))
            shift += size
        try:
            return self._counter.count_messages(messages)
        except Refused:
            return None

    def must_count(self, roles: Sequence[tuple[str, int]]) -> int:
        """The same. Raises Unmeasurable when the server refuses."""
        counted = self.count(roles)
        if counted is None:
            raise _unmeasurable(f"the server refuses messages of {', '.join(role for role, _ in roles)}")
        return counted


def measure_shape(counter: TokenCounter, table: WordTable, *, tools: bool = True) -> ChatShape:
    """Measure the template with about ten tiny prompts, and check the result on longer ones.

    Raises Unmeasurable when user and assistant messages do not have a constant cost.
    """
    probe = _Probe(counter, table)
    u, a, s = ("user", _W), ("assistant", _W), ("system", _W)
    one = probe.must_count([u])
    turn = probe.must_count([u, a, u]) - one - 2 * _W
    twice = probe.count([u, u])
    user = twice - one - _W if twice is not None else turn // 2
    with_system = probe.count([s, u])
    shape = ChatShape(
        constant=one - user - _W,
        system=0 if with_system is None else with_system - one - _W,
        user=user,
        assistant=turn - user,
        takes_system=with_system is not None,
        source=counter.name,
        note="" if with_system is not None else "no system messages: sent as user messages; ",
    )
    longer = [("user", 24), ("assistant", 3), ("user", 60), ("assistant", 40), ("user", 1)]
    if with_system is not None:
        longer.insert(0, ("system", 30))
    counted = probe.must_count(longer)
    if counted != shape.tokens(longer):
        raise _unmeasurable(f"a prompt of {shape.tokens(longer)} tokens was counted as {counted}")
    return _with_tools(probe, shape) if tools else shape


def measure_reasoning(counter: TokenCounter, table: WordTable, shape: ChatShape) -> ChatShape:
    """Add what the reasoning of an earlier answer costs, if the template keeps it in every place at one cost."""
    for field in ("reasoning_content", "reasoning"):
        costs = _reasoning_costs(counter, table, shape, field)
        if len(costs) == 1 and (cost := costs.pop()) is not None and cost >= 0:
            return replace(shape, reasoning=cost, reasoning_field=field)
    return replace(shape, note=f"{shape.note}the chat template does not keep reasoning at a constant cost: dropped")


def _reasoning_costs(counter: TokenCounter, table: WordTable, shape: ChatShape, field: str) -> set[int | None]:
    """Tokens beyond the words themselves, in all places that were tried."""
    words = table.words
    places = [["user", "assistant", "user"]]
    if shape.tool is not None:
        places.append(["user", "assistant_call", "tool"])
    costs: set[int | None] = set()
    for roles in places:
        for size in (_W, 5 * _W):
            messages = [message(role, "".join(words[:_W])) for role in roles]
            messages[1][field] = "".join(words[k % len(words)] for k in range(size))
            try:
                counted = counter.count_messages(messages)
            except Refused:
                return {None}
            costs.add(counted - shape.tokens([(role, _W) for role in roles]) - size)
    return costs


def _with_tools(probe: _Probe, shape: ChatShape) -> ChatShape:
    """Add tool messages, if the template takes them at a constant cost."""
    u, a, call, tool = ("user", _W), ("assistant", _W), ("assistant_call", _W), ("tool", _W)
    counted = probe.count([u, call, tool])
    if counted is None:
        return _without_tools(shape, "no tool messages")
    pair = counted - shape.tokens([u]) - 2 * _W
    full = replace(shape, tool=shape.user, assistant_call=pair - shape.user)
    for longer in ([u, call, ("tool", 40), ("assistant_call", 1), tool], [u, call, tool, a, ("user", 9), call, tool]):
        if probe.count(longer) != full.tokens(longer):
            return _without_tools(shape, "tool messages have no constant cost")
    return full


def _without_tools(shape: ChatShape, why: str) -> ChatShape:
    return replace(shape, note=f"{shape.note}{why}: sent as user messages")


def _unmeasurable(why: str) -> Unmeasurable:
    return Unmeasurable(
        f"the chat template can't be measured: {why}",
        remedy="prompt sizes would not be what the trace recorded; use another chat template",
        exit_code=EXIT_ENDPOINT,
    )
