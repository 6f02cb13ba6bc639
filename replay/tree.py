"""One session tree made ready for replay: its steps, what each waits for, and how each prompt is cut into messages.

**Positions.** A prompt of N tokens is a tape of positions 0..N. The recorded block ids say which word stands at each
position. The server's chat template takes some positions (its constant part first, then its tokens around every
message); the words of those positions are skipped, not shifted. So a prompt counts exactly what the trace recorded,
and two prompts agree exactly as far as their recorded blocks do.

**Messages never change.** A request inherits the messages of the earlier request with which it shares the longest
prefix and appends: the previous answer as an assistant message, the rest as a user or tool message. Only where the
trace itself leaves the old prefix is a message cut again, from its own start and in its own role, so that the part
before the divergence stays the same text.

**Partial tail blocks.** Tokens after the last whole block have no id of their own. They take their words from the block
that grows over them in the next turn of the lane, so the next prompt continues the same text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from replay.causes import TreeRules, link
from replay.chat_shape import ChatShape
from replay.corpus import Corpus
from replay.prefix import SeenBlocks, block_at, common_blocks
from replay.tree_types import Message, Step, Tree

__all__ = ["ASSISTANT", "ASSISTANT_CALL", "SYSTEM", "TOOL", "USER", "Message", "Step", "Tree", "compile_tree"]

SYSTEM, USER, ASSISTANT, ASSISTANT_CALL, TOOL = "system", "user", "assistant", "assistant_call", "tool"


def compile_tree(corpus: Corpus, session: int, rows: Sequence[int], shape: ChatShape, rules: TreeRules) -> Tree:
    """Make the kept `rows` of a session (any order) into a tree. Raises ValueError on empty `rows`."""
    steps = _read_steps(corpus, rows)
    if not steps:
        raise ValueError("a tree needs at least one request")
    link(corpus, steps, rules)
    _resolve_tails(steps)
    system_tokens = _system_tokens(corpus, steps[0].row)
    cutter = _Cutter(
        corpus, steps, shape, tools=rules.tools and shape.tool is not None and shape.assistant_call is not None
    )
    seen = SeenBlocks()
    for step in steps:
        cutter.cut(step, seen)
        seen.add(step.runs, step.whole_blocks, step.index)
    dependents: list[list[int]] = [[] for _ in steps]
    for step in steps:
        for cause in step.after:
            dependents[cause].append(step.index)
    first = steps[0]
    head = min(system_tokens // first.block_size, first.whole_blocks)
    key = (int(corpus.tool_tokens[first.row]), int(corpus.system_tokens[first.row]))
    return Tree(session, tuple(steps), tuple(map(tuple, dependents)), first.runs, head, key)


def _read_steps(corpus: Corpus, rows: Sequence[int]) -> list[Step]:
    """Steps in the order in which the trace sent them."""
    if not rows:
        return []
    low, high = min(rows), max(rows) + 1
    # Whole columns at once: looking up single elements of an array is what would take the time here.
    start_s, api_s = corpus.start_s[low:high].tolist(), corpus.api_s[low:high].tolist()
    lane, turn = corpus.lane[low:high].tolist(), corpus.turn[low:high].tolist()
    inputs, outputs = corpus.input_tokens[low:high].tolist(), corpus.output_tokens[low:high].tolist()
    sizes, offsets = corpus.block_size[low:high].tolist(), corpus.run_offset[low : high + 1].tolist()
    firsts = corpus.run_first[offsets[0] : offsets[-1]].tolist()
    counts = corpus.run_count[offsets[0] : offsets[-1]].tolist()
    kinds = corpus.input_kinds[low:high].tolist()
    steps = []
    for index, row in enumerate(sorted(rows, key=lambda row: (start_s[row - low], row))):
        k = row - low
        begin, end = offsets[k] - offsets[0], offsets[k + 1] - offsets[0]
        api = api_s[k]
        steps.append(
            Step(
                index=index,
                row=row,
                lane=lane[k],
                recorded_lane=lane[k],
                turn=turn[k],
                start_s=start_s[k],
                end_s=start_s[k] + (0.0 if math.isnan(api) else api),
                runs=list(zip(firsts[begin:end], counts[begin:end], strict=True)),
                whole_blocks=min(inputs[k] // sizes[k], sum(counts[begin:end])),
                block_size=sizes[k],
                recorded_input=inputs[k],
                output_tokens=max(1, outputs[k]),
                by_human=_by_human(corpus, kinds[k]),
            )
        )
    return steps


def _by_human(corpus: Corpus, kinds: int) -> bool:
    """Whether a turn's new input is a person's: text, and no tool's result."""
    known = corpus.input_kind_sets[kinds] if 0 <= kinds < len(corpus.input_kind_sets) else ()
    return "text" in known and "tool_result" not in known


def _resolve_tails(steps: list[Step]) -> None:
    """Give every partial tail the block that continues it in the next turn of its lane."""
    following: dict[int, Step] = {}
    for step in sorted(steps, key=lambda step: (step.lane, step.turn), reverse=True):
        after = following.get(step.lane)
        following[step.lane] = step
        if after is None or not step.tail_tokens:
            continue
        whole = step.whole_blocks
        if after.whole_blocks >= whole and common_blocks(step.runs, after.runs, whole) == whole:
            step.tail_block = block_at(after.runs, whole) if after.whole_blocks > whole else after.tail_block


def _system_tokens(corpus: Corpus, row: int) -> int:
    return max(0, int(corpus.tool_tokens[row])) + max(0, int(corpus.system_tokens[row]))


def common_tokens(a: Step, b: Step) -> int:
    """Tokens of their recorded prompts that `a` and `b` share, partial tails included."""
    shared = common_blocks(a.runs, b.runs, min(a.whole_blocks, b.whole_blocks))
    tokens = shared * a.block_size
    id_a, size_a = _block_or_tail(a, shared)
    id_b, size_b = _block_or_tail(b, shared)
    return tokens + min(size_a, size_b) if id_a is not None and id_a == id_b else tokens


def _block_or_tail(step: Step, position: int) -> tuple[int | None, int]:
    if position < step.whole_blocks:
        return block_at(step.runs, position), step.block_size
    return step.tail_block, step.tail_tokens


class _Cutter:
    """Cuts the prompts of one tree into messages."""

    def __init__(self, corpus: Corpus, steps: list[Step], shape: ChatShape, *, tools: bool) -> None:
        self.corpus = corpus
        self.steps = steps
        self.shape = shape
        self.tools = tools
        self.cost = {
            SYSTEM: shape.system,
            USER: shape.user,
            ASSISTANT: shape.assistant,
            ASSISTANT_CALL: shape.assistant_call or 0,
            TOOL: shape.tool or 0,
        }
        # One more, so that an unknown kind (-1) is none.
        self.tool_kinds = np.array([*("tool_result" in kinds for kinds in corpus.input_kind_sets), False])

    def cut(self, step: Step, seen: SeenBlocks) -> None:
        """Set the step's planned input, its messages and the step it extends."""
        step.input_tokens = max(step.recorded_input, self.shape.shortest)
        _, owner = seen.prefix(step.runs, step.whole_blocks)
        base = self._base(step, owner)
        if base is not None and base.last is not None:
            common = common_tokens(base, step)
            if common >= base.recorded_input and step.input_tokens >= base.input_tokens:
                step.extends = base.index
                step.last = self._extend(step, base)
            else:
                step.last = self._recut(step, base.last, common)
        if step.last is None:
            step.last = self._fresh(step, _system_tokens(self.corpus, step.row))

    def _base(self, step: Step, owner: int) -> Step | None:
        """The earlier step with the longest common prefix; the previous turn of the lane wins a tie."""
        candidates = [self.steps[cause] for cause in step.after if self.steps[cause].index < step.index]
        if owner >= 0:
            candidates.append(self.steps[owner])
        return max(candidates, key=lambda other: common_tokens(other, step), default=None)

    def _message(self, previous: Message | None, role: str, end: int, step: Step, answers: int = -1) -> Message:
        start = previous.end if previous is not None else self.shape.constant
        depth = previous.depth + 1 if previous is not None else 0
        return Message(previous, depth, role, start, end, start + self.cost[role], step.index, answers)

    def _fresh(self, step: Step, system_tokens: int) -> Message:
        """A first prompt: the tools and the system prompt, then everything else as the user's."""
        end = step.input_tokens
        room = end - self.cost[USER] - 1
        system_end = min(system_tokens, room)
        if self.shape.takes_system and system_end - self.shape.constant > self.cost[SYSTEM]:
            return self._message(self._message(None, SYSTEM, system_end, step), USER, end, step)
        return self._message(None, USER, end, step)

    def _extend(self, step: Step, base: Step) -> Message:
        """Append the previous answer and what came after it; too little room: the last message grows instead."""
        last = base.last
        assert last is not None
        tool = self.tools and bool(self.tool_kinds[self.corpus.input_kinds[step.row]])
        answer, rest = (ASSISTANT_CALL, TOOL) if tool else (ASSISTANT, USER)
        room = step.input_tokens - last.end - self.cost[answer] - self.cost[rest] - 1
        if room < 1:
            return self._message(last.previous, last.role, step.input_tokens, step)
        words = min(base.output_tokens, room)
        middle = self._message(last, answer, last.end + self.cost[answer] + words, step, base.index)
        return self._message(middle, rest, step.input_tokens, step)

    def _recut(self, step: Step, last: Message, common: int) -> Message | None:
        """Keep the messages that are wholly common; cut the one at the divergence again, from the same start."""
        straddling: Message | None = last
        while straddling is not None and straddling.previous is not None and straddling.start > common:
            straddling = straddling.previous
        end = step.input_tokens
        while straddling is not None:
            role, previous = straddling.role, straddling.previous
            if role in (USER, TOOL):
                if end - straddling.start > self.cost[role]:
                    return self._message(previous, role, end, step)
            elif role == SYSTEM:
                return None
            else:
                rest = TOOL if role == ASSISTANT_CALL else USER
                middle_end = min(straddling.end, end - self.cost[rest] - 1)
                if middle_end - straddling.start > self.cost[role]:
                    middle = self._message(previous, role, middle_end, step)
                    return self._message(middle, rest, end, step)
            straddling = previous
        return None
