"""From block keys to text: words that are one token each, in phrases of eight, gathered with one table look-up.

A *tape* is a sequence of words; block i of it (`block_size` words) follows from a 64-bit key alone, so the same
block is the same text on every machine. Every word of a table has the same length and is exactly one token wherever it
stands, so any slice of a tape has as many tokens as words, and its bytes are a slice of fixed-width cells.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PHRASE_WORDS = 8
PHRASES = 16_384
"""14 bits a phrase: two blocks agree by chance in their first 16 tokens once in 2**28, in 64 tokens once in 2**112."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


_WORD, _ID = re.compile(" [a-z]+"), re.compile(", *[0-9]+")


@dataclass(frozen=True, slots=True)
class WordTable:
    """Words of one tokenizer: each begins with a space and is one token with and without it; all of one length.

    Or their token ids as the cells of a JSON list: a comma, and the number padded to one length (`of_ids`).
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        widths = {len(word) for word in self.words}
        # Nothing that JSON would have to escape.
        if len(widths) != 1 or not any(all(form.fullmatch(word) for word in self.words) for form in (_WORD, _ID)):
            raise ValueError("a word table needs lower-case ASCII words of one length, each with its leading space")
        if len(set(self.words)) != len(self.words):
            raise ValueError("a word table must not repeat words")

    @classmethod
    def of_ids(cls, ids: Sequence[int]) -> WordTable:
        """The table whose words are token ids. Raises ValueError on ids that repeat."""
        digits = len(str(max(ids)))
        return cls(tuple(f",{number:{digits}d}" for number in ids))

    @property
    def width(self) -> int:
        """Bytes per word, the space included."""
        return len(self.words[0])

    @property
    def digest(self) -> str:
        """Identity of the table: 16 hex digits."""
        return hashlib.sha256("".join(self.words).encode()).hexdigest()[:16]


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Steele, Lea and Flood's SplitMix64 finaliser (OOPSLA 2014) over a uint64 array."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


def salt64(*parts: str | int | bytes) -> int:
    """A 64-bit salt from any parts; different tuples of parts give different salts."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = type(part).__name__.encode() + b":" + (part if isinstance(part, bytes) else str(part).encode())
        digest.update(len(data).to_bytes(4, "little") + data)
    return int.from_bytes(digest.digest(), "little")


def block_keys(salt: int, ids: np.ndarray) -> np.ndarray:
    """Key of each block id (int64 in, uint64 out, same shape) under `salt`."""
    return splitmix64(splitmix64(ids.astype(np.uint64)) ^ np.uint64(salt))


class Phrasebook:
    """16,384 distinct phrases of eight words, drawn from a table with a seed."""

    def __init__(self, table: WordTable, seed: int = 0) -> None:
        """Raises ValueError when the table has too few words for so many phrases."""
        if len(table.words) ** PHRASE_WORDS < 2 * PHRASES:
            raise ValueError(f"{len(table.words)} words do not make {PHRASES} phrases")
        self.table = table
        words = np.array([word.encode() for word in table.words], dtype=f"S{table.width}")
        # PCG64's raw stream is fixed across numpy versions; Generator.integers is not promised to be.
        raw = np.random.PCG64(seed)
        picks = np.empty((0, PHRASE_WORDS), dtype=np.uint64)
        radix = np.uint64(len(words)) ** np.arange(PHRASE_WORDS, dtype=np.uint64)
        while len(picks) < PHRASES:
            drawn = raw.random_raw(2 * PHRASES * PHRASE_WORDS).reshape(-1, PHRASE_WORDS) % np.uint64(len(words))
            both = np.concatenate([picks, drawn])
            # A phrase as one number; numbers may wrap, then a phrase too many is dropped, never one too few.
            _, first = np.unique(both @ radix, return_index=True)
            picks = both[np.sort(first)]
        cells = words[picks[:PHRASES]]
        self._phrases = np.ascontiguousarray(cells).view(f"V{PHRASE_WORDS * table.width}").reshape(-1)

    def render(self, keys: np.ndarray, first: int, count: int, block_size: int) -> bytes:
        """Words [first, first + count) of the tape whose block i is given by `keys[i]` (uint64).

        Raises ValueError when the tape is too short.
        """
        if first < 0 or count < 0 or first + count > len(keys) * block_size:
            raise ValueError(f"words {first}..{first + count} of a tape of {len(keys)} blocks of {block_size}")
        low, high = first // block_size, -(-(first + count) // block_size)
        per_block = -(-block_size // PHRASE_WORDS)
        steps = np.arange(per_block, dtype=np.uint64) * _GOLDEN
        picks = splitmix64(keys[low:high, None] + steps) & np.uint64(PHRASES - 1)
        cells = self._phrases.take(picks.astype(np.intp))
        width = self.table.width
        row = per_block * PHRASE_WORDS * width
        text = cells.view("u1").reshape(high - low, row)
        if block_size % PHRASE_WORDS:
            text = np.ascontiguousarray(text[:, : block_size * width])
        start = (first - low * block_size) * width
        return text.reshape(-1)[start : start + count * width].tobytes()
