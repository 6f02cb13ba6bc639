"""A session tree while it is replayed: its conversations and what an infinite cache would hold of it."""

from __future__ import annotations

from replay.messages import Frames
from replay.prefix import SeenBlocks, common_blocks
from replay.prompt import Conversation, TreeText
from replay.spoken import Spoken
from replay.tree import ASSISTANT, ASSISTANT_CALL
from replay.tree_types import Step, Tree
from replay.words import Phrasebook


class LiveTree:
    """State of one live tree; belongs to one worker."""

    __slots__ = (
        "_conversations",
        "_frames",
        "_left",
        "_seen",
        "_sent",
        "_share_head",
        "_spoken",
        "_text",
        "granularity",
        "number",
        "tree",
    )

    def __init__(
        self,
        tree: Tree,
        number: int,
        book: Phrasebook,
        run_salt: str,
        tree_salt: str,
        shared_prefix: str,
        server_block: int | None,
        frames: Frames,
        *,
        keeps_answers: bool = False,
    ) -> None:
        self.tree = tree
        self.number = number
        """How often the corpus had been gone through before (`pass` in the records)."""
        self.granularity = server_block or tree.steps[0].block_size
        self._text = TreeText(book, tree, run_salt, tree_salt, shared=shared_prefix)
        self._frames = frames
        self._spoken: dict[int, Spoken | None] | None = {} if keeps_answers else None
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
        if self._spoken is not None:
            tokens = min(tokens, self._recorded_until(step))
        if step.extends in self._sent:
            tokens = max(tokens, self.tree.steps[step.extends].input_tokens + self._generated(step.extends))
        self._seen.add(step.runs, step.whole_blocks, 0)
        self._sent.add(step.index)
        tokens = min(tokens, step.input_tokens - 1)
        return tokens // self.granularity * self.granularity

    def _recorded_until(self, step: Step) -> int:
        """Position up to which the recorded blocks say what prompts have in common: not where an answer is cut anew,
        whose recorded words no earlier prompt had."""
        message, fresh = step.last, None
        while message is not None and message.tape == step.index:
            message, fresh = message.previous, message
        replaced = fresh is not None and fresh.answers < 0 and fresh.role in (ASSISTANT, ASSISTANT_CALL)
        return fresh.start if fresh is not None and replaced else step.input_tokens

    def _generated(self, step: int) -> int:
        """Tokens of the answer to `step` that a cache holds: all but the last, which was never computed."""
        spoken = self._spoken.get(step) if self._spoken is not None else None
        return max(0, spoken.tokens - 1) if spoken is not None and spoken.cacheable else 0

    def has_shared_head(self, step: Step) -> bool:
        """Whether the prompt begins with the whole head that other sessions have too."""
        blocks = self.tree.head_blocks if self._share_head else 0
        return 0 < blocks == common_blocks(self.tree.head_runs, step.runs, min(blocks, step.whole_blocks))

    def said(self, step: Step, spoken: Spoken) -> None:
        """Keep the answer to `step` for the prompts that follow, unless one already had the recorded words."""
        if self._spoken is not None:
            self._spoken.setdefault(step.index, spoken)

    def heard(self, step: Step) -> Spoken | None:
        """What the server really said where the prompt of `step` has its newest answer; None: recorded words."""
        answers = _newest_answer(step)
        return self._spoken.get(answers) if self._spoken is not None else None

    def missed(self, step: Step) -> bool:
        """Whether that answer was to be the server's own and could not be used (or was not there yet)."""
        answers = _newest_answer(step)
        return self._spoken is not None and answers in self._spoken and self._spoken[answers] is None

    def speaks(self, step: Step) -> bool:
        """Whether the newest answer in the prompt of `step` is what the server really said."""
        return self.heard(step) is not None

    def render(self, step: Step) -> Conversation:
        """The lane's own conversation with the messages of `step`, valid until its next turn."""
        conversation = self._conversations.get(step.lane)
        if conversation is None:
            conversation = self._conversations[step.lane] = Conversation(self._frames, self._spoken)
        conversation.advance(step, self._text)
        return conversation

    def finished(self, step: Step) -> None:
        """The answer to `step` is over: a lane that has no more turns gives its memory back."""
        self._left[step.lane] -= 1
        if self._left[step.lane] == 0:
            self._conversations.pop(step.lane, None)


def _newest_answer(step: Step) -> int:
    """The step whose answer is the newest in the prompt; -1: none, or one that is no step's whole answer."""
    message = step.last
    while message is not None and message.role not in (ASSISTANT, ASSISTANT_CALL):
        message = message.previous
    return message.answers if message is not None else -1
