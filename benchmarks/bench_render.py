"""Rendering 100,000 tokens of prompt text: the gather of whole phrases against drawing and joining single words.

usage: python -m benchmarks.bench_render
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter

import numpy as np

from replay.tokens import common_words
from replay.words import Phrasebook, block_keys, splitmix64

TOKENS = 100_000
REPEATS = 25


def word_by_word(words: list[bytes], keys: np.ndarray, block_size: int) -> bytes:
    """As many words, each drawn by a hash of its block and position (vectorised) and joined on its own."""
    hashes = splitmix64(keys[:, None] + np.arange(block_size, dtype=np.uint64))
    return b"".join([words[pick] for pick in (hashes.ravel()[:TOKENS] % np.uint64(len(words))).tolist()])


def milliseconds(render: Callable[[], bytes]) -> float:
    start = perf_counter()
    text = render()
    taken = (perf_counter() - start) * 1e3
    if text.count(b" ") != TOKENS:
        raise AssertionError("not the text that was asked for")
    return taken


def main() -> None:
    """Print medians of REPEATS runs in turn, by block size."""
    table = common_words()
    book = Phrasebook(table)
    words = [word.encode() for word in table.words]
    print("| block size | phrases, ms | words, ms | ratio |")
    print("| --- | --- | --- | --- |")
    for size in (16, 64, 512):
        keys = block_keys(1, np.arange(-(-TOKENS // size)))

        def ours(keys: np.ndarray = keys, size: int = size) -> bytes:
            return book.render(keys, 0, TOKENS, size)

        def naive(keys: np.ndarray = keys, size: int = size) -> bytes:
            return word_by_word(words, keys, size)

        pairs = [(milliseconds(ours), milliseconds(naive)) for _ in range(REPEATS)]
        mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"| {size} | {mine:.2f} | {other:.2f} | {other / mine:.0f} |")


if __name__ == "__main__":
    main()
