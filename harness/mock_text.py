"""The simulated endpoint's language: its tokenizer, its chat template and the words it answers with.

A token is a run of ASCII letters with one space before it if there is one, up to three digits, or any other
single character. The chat template is, per message, `<|start|>`, role, newline, content, `<|end|>` (4 tokens
and the content), and `<|start|>`, `assistant`, newline (3 tokens) where the answer begins. A tool call is
`<|call|>`, name, newline, arguments, `<|return|>` after the content; tool definitions are one system message
with their JSON.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hardware.engine.cache import chain_keys

# Bytes that UTF-8 never uses: no content can imitate a marker.
START, END, CALL, RETURN = b"\xfe", b"\xff", b"\xfd", b"\xfc"
_MARKERS = {START: "<|start|>", END: "<|end|>", CALL: "<|call|>", RETURN: "<|return|>"}
ANSWER_START = START + b"assistant\n"

_TAIL, _LETTER, _SPACE, _DIGIT, _OTHER = range(5)
VOCABULARY = 1 << 31
_ID_BYTES = 8


def _class(byte: int) -> int:
    character = chr(byte)
    if byte < 128:
        return (
            _LETTER
            if character.isalpha()
            else _DIGIT
            if character.isdigit()
            else _SPACE
            if character == " "
            else _OTHER
        )
    return _TAIL if byte < 0xC0 else _OTHER


_CLASSES = bytes(_class(byte) for byte in range(256))


def token_starts(data: bytes) -> np.ndarray:
    """Offset of every token in UTF-8 text (int64)."""
    classes = np.frombuffer(data.translate(_CLASSES), dtype=np.uint8)
    starts = classes >= _SPACE
    letters = classes == _LETTER
    # A letter continues what a letter or a space before it has begun.
    starts[:1] |= letters[:1]
    starts[1:] |= letters[1:] & ((classes[:-1] == _TAIL) | (classes[:-1] > _SPACE))
    digits = np.flatnonzero(classes == _DIGIT)
    if len(digits):
        order = np.arange(len(digits))
        first = np.where(np.diff(digits, prepend=-2) > 1, order, 0)
        starts[digits] = (order - np.maximum.accumulate(first)) % 3 == 0
    return np.flatnonzero(starts)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt: its bytes, and where its tokens start."""

    data: bytes
    starts: np.ndarray
    by_ids: bool = False
    """Given as token ids: `data` is these, of 8 bytes each, and so is an answer when it is appended."""

    @classmethod
    def of_text(cls, data: bytes) -> Prompt:
        """Prompt of UTF-8 text and markers."""
        return cls(data, token_starts(data))

    @classmethod
    def of_ids(cls, ids: list[int]) -> Prompt:
        """Prompt given as token ids; it shares cached blocks with other prompts given as ids only."""
        return cls(np.array(ids, dtype="<i8").tobytes(), np.arange(len(ids)) * _ID_BYTES, by_ids=True)

    def __len__(self) -> int:
        return len(self.starts)

    def pieces(self) -> list[bytes]:
        """The tokens themselves."""
        bounds = [*self.starts.tolist(), len(self.data)]
        return [self.data[a:b] for a, b in pairwise(bounds)]

    def ids(self) -> list[int]:
        """The ids of the tokens."""
        if self.by_ids:
            ids: list[int] = np.frombuffer(self.data, dtype="<i8").tolist()
            return ids
        return [token_id(piece) for piece in self.pieces()]

    def block_keys(self, answer: Answer, block_size: int) -> list[int]:
        """Cache keys of all full blocks of prompt and answer, as the next turn will find them."""
        said = np.array(answer.ids(), dtype="<i8").tobytes() if self.by_ids else answer.text()
        width = _ID_BYTES if self.by_ids else WORD_BYTES
        ends = len(self.data) + np.arange(len(answer.picks) + 1) * width
        bounds = np.concatenate([self.starts, ends])[::block_size].tolist()
        data = self.data + said
        return chain_keys(data[a:b] for a, b in pairwise(bounds))


def token_id(piece: bytes) -> int:
    """Stable id of a token: the CRC-32 of its bytes, 31 bits of it."""
    return zlib.crc32(piece) % VOCABULARY


def token_text(piece: bytes) -> str:
    """A token as people read it."""
    return _MARKERS.get(piece) or piece.decode("utf-8", "replace")


WORDS: tuple[bytes, ...] = tuple(
    f" {a}{b}{c}{d}".encode() for a in "bdgk" for b in "aeio" for c in "lmnr" for d in "aeiu"
)
"""256 words: any byte is one, and each is one token."""
WORD_BYTES = len(WORDS[0])
WORD_IDS: tuple[int, ...] = tuple(token_id(word) for word in WORDS)


@dataclass(frozen=True, slots=True)
class Answer:
    """What will be generated: one word per byte of `picks`."""

    picks: bytes
    finish_reason: str
    thought: int = 0
    """So many of its first words are reasoning."""

    @classmethod
    def draw(cls, prompt: Prompt, seed: int, *, shortest: int, longest: int, mean: float | None) -> Answer:
        """Same prompt and seed, same answer. It ends after `mean` tokens on average; None: not by itself."""
        rng = random.Random(zlib.crc32(prompt.data) ^ (seed << 32))
        length = longest
        if mean is not None:
            length = min(longest, max(shortest, 1 + int(rng.expovariate(1 / mean))))
        return cls(rng.randbytes(length), "length" if length == longest else "stop")

    def text(self) -> bytes:
        """The whole answer."""
        return b"".join([WORDS[pick] for pick in self.picks])

    def ids(self) -> list[int]:
        """The ids of its tokens."""
        return [WORD_IDS[pick] for pick in self.picks]
