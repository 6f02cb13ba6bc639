"""A session tree while it is replayed: its conversations and what an infinite cache would hold of it."""

from __future__ import annotations

from replay.prefix import SeenBlocks, common_blocks
from replay.prompt import Conversation, TreeText
from replay.tree_types import Step, Tree
from replay.words import Phrasebook


class LiveTree:
    """State of one live tree; belongs to one worker."""

    __slots__ = ("_conversations", "_left", "_seen", "_sent", "_share_head", "_text", "granularity", "number", "tree")

    def __init__(
        self,
        tree: Tree,
        number: int,
        book: Phrasebook,
        run_salt: str,
        tree_salt: str,
        shared_prefix: str,
        server_block: int | None,
    ) -> None:
        self.tree = tree
        self.number = number
        """How often the corpus had been gone through before (`pass` in the records)."""
        self.granularity = server_block or tree.steps[0].block_size
        self._text = TreeText(book, tree, run_salt, tree_salt, shared=shared_prefix)
        self._share_head = shared_prefix != "none"
        self._seen = SeenBlocks()
        self._sent: set[int] = set()
        self._conversations: dict[int, Conversation] = {}
        self._left: dict[int, int] = {}
        past = tree.start.done if tree.start is not None else frozenset()
        for step in tree.steps:
            if step.index not in past:
                self._left[step.lane] = self._left.get(step.lane, 0) + 1

    def theoretical_cached(self, step: Step) -> int:
        """Tokens of this prompt that an infinite prefix cache would serve, given what this tree really sent before.

        In whole blocks of the server's cache (of the trace where the server does not say its block size); the last
        token of a prompt is always computed. Marks the step as sent.
        """
        blocks, _ = self._seen.prefix(step.runs, step.whole_blocks)
        tokens = blocks * step.block_size
        if step.extends in self._sent:
            tokens = max(tokens, self.tree.steps[step.extends].input_tokens)
        self._seen.add(step.runs, step.whole_blocks, 0)
        self._sent.add(step.index)
        tokens = min(tokens, step.input_tokens - 1)
        return tokens // self.granularity * self.granularity

    def has_shared_head(self, step: Step) -> bool:
        """Whether the prompt begins with the whole head that other sessions have too."""
        blocks = self.tree.head_blocks if self._share_head else 0
        return 0 < blocks == common_blocks(self.tree.head_runs, step.runs, min(blocks, step.whole_blocks))

    def render(self, step: Step) -> bytearray:
        """The encoded messages of `step`: the lane's own buffer, valid until its next turn."""
        conversation = self._conversations.get(step.lane)
        if conversation is None:
            conversation = self._conversations[step.lane] = Conversation()
        conversation.advance(step, self._text)
        return conversation.body

    def finished(self, step: Step) -> None:
        """The answer to `step` is over: a lane that has no more turns gives its memory back."""
        self._left[step.lane] -= 1
        if self._left[step.lane] == 0:
            self._conversations.pop(step.lane, None)
