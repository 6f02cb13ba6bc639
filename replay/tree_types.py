"""The vocabulary of a compiled session tree."""

from __future__ import annotations

from dataclasses import dataclass

from replay.prefix import Runs


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; the chain through `previous` is the whole prompt. Positions are in tokens."""

    previous: Message | None
    depth: int
    role: str
    start: int
    end: int
    text_start: int
    tape: int
    """Index of the step whose blocks give the words [text_start, end)."""
    answers: int = -1
    """Index of the step whose whole answer it stands for, -1 when none."""


@dataclass(slots=True)
class Step:
    """One request of the tree."""

    index: int
    row: int
    lane: int
    """The stream it belongs to: the recorded lane, or a chain found in it."""
    turn: int
    start_s: float
    end_s: float
    runs: Runs
    whole_blocks: int
    block_size: int
    recorded_input: int
    output_tokens: int
    recorded_lane: int = -1
    by_human: bool = False
    """A person began this turn: nothing but their message is new, no tool's result."""
    input_tokens: int = 0
    """Planned: what the server is to count. Differs from the record only where the template alone is longer."""
    tail_block: int | None = None
    """Id that gives the words of the partial tail; None: a text of its own."""
    anchor: int = -1
    """Step from whose live end `delay_s` counts; -1: from the start of the tree."""
    after: tuple[int, ...] = ()
    """All steps that must have ended before, the anchor among them."""
    delay_s: float = 0.0
    extends: int = -1
    """Step whose whole prompt this one continues, -1 when none."""
    last: Message | None = None

    @property
    def tail_tokens(self) -> int:
        """Tokens after the last whole block."""
        return self.recorded_input - self.whole_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class Start:
    """Where in its recording a tree begins: the moment, what lies before it, and what is sent to prime the cache."""

    moment_s: float
    done: frozenset[int]
    """Steps before the moment: never sent, except as primers."""
    primers: tuple[int, ...]
    """The last step before the moment of every stream that goes on after it."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A compiled session tree. `dependents[i]` are the steps that wait for step i."""

    session: int
    steps: tuple[Step, ...]
    dependents: tuple[tuple[int, ...], ...]
    head_runs: Runs
    head_blocks: int
    """Leading blocks (tools and system prompt) that the trace shares with other sessions of the same sizes."""
    head_key: tuple[int, int]
    start: Start | None = None
    """None: from its first request."""
