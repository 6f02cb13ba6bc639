"""A lane's conversation as bytes that only ever grow.

The JSON of the messages lives in one `bytearray` per lane. A turn appends what is new and sends a view of the whole;
nothing is encoded or copied again. Words come from `Phrasebook` by block key, so that a block is the same text in every
prompt of the run and on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from replay.messages import Frames
from replay.prefix import Runs
from replay.spoken import Spoken
from replay.tree import Message, Step, Tree
from replay.words import Phrasebook, block_keys, salt64


class TreeText:
    """The words of one session tree. Trees get different words, but for the head that they share by the rules."""

    __slots__ = ("_head_ids", "_head_keys", "_salt", "_tail_salt", "book", "tree")

    def __init__(self, book: Phrasebook, tree: Tree, run_salt: str, tree_salt: str, *, shared: str) -> None:
        """`shared`: sessions have heads in common where their sizes are equal (`trace`), always (`all`), or `none`."""
        self.book = book
        self.tree = tree
        self._salt = salt64(run_salt, tree_salt)
        self._tail_salt = salt64(run_salt, tree_salt, "tail")
        blocks = 0 if shared == "none" else tree.head_blocks
        self._head_ids = expand(tree.head_runs, 0, blocks)
        head_salt = salt64(run_salt, "head", *(tree.head_key if shared == "trace" else ()))
        self._head_keys = block_keys(head_salt, np.arange(blocks, dtype=np.int64))

    def words(self, step: Step, first: int, end: int) -> bytes:
        """Text of the tape positions [first, end) of `step`."""
        size = step.block_size
        low, high = first // size, -(-end // size)
        return self.book.render(self._keys(step, low, high), first - low * size, end - first, size)

    def _keys(self, step: Step, low: int, high: int) -> np.ndarray:
        whole = step.whole_blocks
        # Past the last whole block stands the block that grows there, if it is known; else a text of the step's own.
        known = whole + 1 if step.tail_block is not None and high > whole else whole
        ids = expand(step.runs, low, min(high, whole), room=max(0, known - max(low, whole)))
        if step.tail_block is not None and low <= whole < high:
            ids[-1] = step.tail_block
        keys = block_keys(self._salt, ids)
        shared = min(high, whole, len(self._head_ids)) - low
        if shared > 0:
            same = ids[:shared] == self._head_ids[low : low + shared]
            keys[:shared] = np.where(same, self._head_keys[low : low + shared], keys[:shared])
        if high > known:
            own = (step.row << 20) + np.arange(max(low, known), high, dtype=np.int64) - whole
            keys = np.concatenate([keys, block_keys(self._tail_salt, own)])
        return keys


def expand(runs: Runs, low: int, high: int, room: int = 0) -> np.ndarray:
    """Ids of the blocks at positions [low, high) as int64, with `room` unset places behind them."""
    out = np.empty(max(0, high - low) + room, dtype=np.int64)
    position = filled = 0
    for first, count in runs:
        start, stop = max(low, position), min(high, position + count)
        if start < stop:
            ids = first + (start - position)
            count_here = stop - start  # a turn adds a few blocks, for which a range beats making an array
            span = range(ids, ids + count_here) if count_here < 32 else np.arange(ids, ids + count_here)
            out[filled : filled + count_here] = span
            filled += stop - start
        position += count
        if position >= high:
            break
    return out


class Conversation:
    """The messages of one lane, encoded. `body` may be viewed while a request is in flight, not while it grows.

    Where the tree's `spoken` has an answer, the message that stands for it holds what was really said. The message
    after it begins so many words later (or earlier) that every prompt stays as long as it was planned.
    """

    __slots__ = ("_ends", "_excess", "_frames", "_messages", "_spoken", "body")

    def __init__(self, frames: Frames, spoken: dict[int, Spoken | None] | None = None) -> None:
        """`spoken`: answers by the index of their step, the tree's own; None where histories are as recorded."""
        self._frames = frames
        self._spoken = spoken
        self.body = bytearray()
        self._messages: list[Message] = []
        self._ends: list[int] = []
        self._excess: list[int] = []

    @property
    def excess(self) -> int:
        """Tokens of the prompt beyond its plan: where a spoken answer was longer than all that followed it."""
        return self._excess[-1] if self._excess else 0

    def advance(self, step: Step, text: TreeText) -> int:
        """Make `body` the messages of `step`; returns the bytes written anew.

        Messages kept from before are not touched. Raises BufferError while a view of `body` is alive.
        """
        fresh: list[Message] = []
        message = step.last
        while message is not None and not self._holds(message):
            fresh.append(message)
            message = message.previous
        fresh.reverse()
        keep = message.depth + 1 if message is not None else 0
        del self._messages[keep:], self._ends[keep:], self._excess[keep:]
        kept_bytes = self._ends[-1] if self._ends else 0
        del self.body[kept_bytes:]
        for low, high in _same_tape(fresh):
            self._append(fresh[low:high], text)
        return len(self.body) - kept_bytes

    def _append(self, messages: list[Message], text: TreeText) -> None:
        """Add messages whose words stand on one tape: rendered in one piece, what the template covers left out."""
        width, body, frames = text.book.table.width, self.body, self._frames
        starts = [message.text_start for message in messages] if self._spoken is None else self._starts(messages)
        first = min(starts)
        words = memoryview(text.words(text.tree.steps[messages[0].tape], first, messages[-1].end))
        for message, start in zip(messages, starts, strict=True):
            role = message.role
            body += frames.lead(message.previous.role if message.previous is not None else None, role)
            body += frames.head[role]
            spoken = self._said(message)
            body += words[(start - first) * width : (message.end - first) * width] if spoken is None else spoken.encoded
            body += frames.tail[role]
            self._messages.append(message)
            self._ends.append(len(body))
            self._excess.append(self.excess + message.text_start + self._shift(message) - start)

    def _starts(self, messages: list[Message]) -> list[int]:
        """Where the words of each message begin, one word at least being left to it."""
        return [min(message.text_start + self._shift(message), message.end - 1) for message in messages]

    def _shift(self, message: Message) -> int:
        """Words by which the spoken answer before `message` is longer than the recorded one."""
        answer = message.previous
        spoken = self._said(answer) if answer is not None else None
        return 0 if answer is None or spoken is None else spoken.tokens - (answer.end - answer.text_start)

    def _said(self, message: Message) -> Spoken | None:
        """What really was said where `message` stands. Once one prompt had the recorded words, all have."""
        if self._spoken is None or message.answers < 0:
            return None
        return self._spoken.setdefault(message.answers, None)

    def _holds(self, message: Message) -> bool:
        return message.depth < len(self._messages) and self._messages[message.depth] is message


def _same_tape(messages: list[Message]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive messages with one tape."""
    low = 0
    for high in range(1, len(messages) + 1):
        if high == len(messages) or messages[high].tape != messages[low].tape:
            yield low, high
            low = high
