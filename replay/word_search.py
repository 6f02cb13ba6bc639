"""Which words are one token each, found by few counts: a group at a time, and bad groups weighed like coins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.tokens import TextCounter

WANTED_WORDS = 128
MINIMUM_WORDS = 64
_GROUP = 16
_MAX_WEIGHT = 600
"""Repetitions in one weighed text: with three tokens each it still fits a context of 2,048."""
_ENOUGH_COUNTS = 48
"""After so many counts the minimum will do: each may be a request of 50 ms."""
_VOCABULARY_WORD = re.compile("[ Ġ▁]([a-z]{4,5})")


class TextSums:
    """Counts of a counter without its constant, which BOS, the chat template or a first space may be."""

    def __init__(self, counter: TextCounter) -> None:
        self.name = counter.name
        self.counts = 0
        self._counter = counter
        once = " the of and to in"
        self._constant = 0
        self._constant = 2 * self.count(once) - self.count(once + once)

    def count(self, text: str) -> int:
        """Tokens of a text that begins with a space. Raises Refused."""
        self.counts += 1
        return self._counter.count_text(text) - self._constant

    def excess(self, words: Sequence[str], base: int = 1) -> int:
        """Tokens beyond one per word, those of word k taken base**k times.

        Each word stands there with a space ahead and, on a line of its own, without: one count for both. Excesses can't
        hide each other, since neither a word nor a line end is less than one token.
        """
        weights: list[int] = [base**k for k in range(len(words))]
        spaced = "".join(f" {word}" * weight for word, weight in zip(words, weights, strict=True))
        lines = "".join(f"\n{word}" * weight for word, weight in zip(words, weights, strict=True))
        return self.count(spaced + lines) - 3 * sum(weights)


def single_tokens(texts: TextSums, words: Sequence[str]) -> list[str]:
    """The first WANTED_WORDS of `words` that are one token; fewer when counting takes too long."""
    good: list[str] = []
    for low in range(0, len(words), _GROUP):
        if len(good) >= (WANTED_WORDS if texts.counts < _ENOUGH_COUNTS else MINIMUM_WORDS):
            break
        good += _good_of(texts, words[low : low + _GROUP])
    return good


def _good_of(texts: TextSums, group: Sequence[str]) -> list[str]:
    """Words of `group` that are one token each.

    One count tells whether all are. If not, a few weighed counts tell each word's excess, as the digits of a number. A
    group with more excess than words is not worth them.
    """
    left = texts.excess(group)
    if left == 0:
        return list(group)
    if not 0 < left <= len(group):
        return []
    # A word of n letters is 2n - 1 tokens too many at most: a token per byte, the one space included.
    base = min(left, 2 * len(group[0]) - 1) + 1
    size = 1
    while (base ** (size + 1) - 1) // (base - 1) <= _MAX_WEIGHT:
        size += 1
    good: list[str] = []
    for low in range(0, len(group), size):
        part = group[low : low + size]
        weighed = texts.excess(part, base) if left > 0 else 0
        digits = [weighed // base**k % base for k in range(len(part))]
        left -= sum(digits)
        good += [word for word, digit in zip(part, digits, strict=True) if digit == 0]
    return good


def vocabulary_words(vocabulary: Sequence[str]) -> list[list[str]]:
    """Words that stand in a vocabulary with and without a space, by length, the more numerous length first."""
    tokens = set(vocabulary)
    found = [match[1] for token in vocabulary if (match := _VOCABULARY_WORD.fullmatch(token)) and match[1] in tokens]
    groups = [[word for word in dict.fromkeys(found) if len(word) == size] for size in (4, 5)]
    return sorted(groups, key=len, reverse=True)
