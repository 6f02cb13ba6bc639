"""A tape is the same everywhere: any slice has as many tokens as words, and follows from block keys alone."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.tokens import common_words
from replay.words import PHRASE_WORDS, PHRASES, Phrasebook, WordTable, block_keys, salt64
from tests.replay.token_server import REAL, count_of

MASK = (1 << 64) - 1
BOOK = Phrasebook(common_words())
WIDTH = BOOK.table.width

keys_lists = st.lists(st.integers(0, MASK), min_size=1, max_size=12)
block_sizes = st.sampled_from([1, 7, 8, 16, 64, 100])


def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


ALL_PHRASES = BOOK._phrases.view(f"S{8 * WIDTH}").tolist()


def tape(keys: list[int], block_size: int) -> bytes:
    """The definition, one phrase at a time."""
    out = b""
    for key in keys:
        block = b""
        for j in range(-(-block_size // PHRASE_WORDS)):
            block += ALL_PHRASES[splitmix64((key + j * 0x9E3779B97F4A7C15) & MASK) % PHRASES]
        out += block[: block_size * WIDTH]
    return out


def array(keys: list[int]) -> np.ndarray:
    return np.array(keys, dtype=np.uint64)


@given(keys_lists, block_sizes, st.data())
def test_a_slice_is_a_slice_of_the_tape(keys: list[int], block_size: int, data: st.DataObject) -> None:
    words = len(keys) * block_size
    first = data.draw(st.integers(0, words))
    count = data.draw(st.integers(0, words - first))
    whole = tape(keys, block_size)
    assert BOOK.render(array(keys), first, count, block_size) == whole[first * WIDTH : (first + count) * WIDTH]


@given(keys_lists, block_sizes)
def test_a_growing_prompt_keeps_its_text(keys: list[int], block_size: int) -> None:
    texts = [BOOK.render(array(keys), 0, count, block_size) for count in range(0, len(keys) * block_size + 1, 5)]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


@given(st.integers(0, MASK), keys_lists, block_sizes)
def test_a_key_is_the_same_text_wherever_it_stands(key: int, before: list[int], block_size: int) -> None:
    alone = BOOK.render(array([key]), 0, block_size, block_size)
    behind = BOOK.render(array([*before, key]), len(before) * block_size, block_size, block_size)
    assert alone == behind


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=25, deadline=None)
@given(keys=keys_lists, data=st.data())
def test_a_slice_has_as_many_tokens_as_words(name: str, keys: list[int], data: st.DataObject) -> None:
    count_tokens = count_of(name)
    first = data.draw(st.integers(0, len(keys) * 64))
    count = data.draw(st.integers(0, len(keys) * 64 - first))
    text = BOOK.render(array(keys), first, count, 64).decode()
    assert count_tokens(text) == count
    # Some templates trim what they put in.
    assert count_tokens(text.strip()) == count


@pytest.mark.parametrize("name", REAL)
def test_a_long_prompt_has_exactly_its_tokens(name: str) -> None:
    keys = block_keys(7, np.arange(1_600))
    for count in (64, 1_001, 100_032):
        assert count_of(name)(BOOK.render(keys, 0, count, 64).decode()) == count


def test_phrases_are_distinct_and_of_the_tables_words() -> None:
    assert len(set(ALL_PHRASES)) == PHRASES
    assert {ALL_PHRASES[5][i : i + WIDTH].decode() for i in range(0, 8 * WIDTH, WIDTH)} <= set(BOOK.table.words)


def test_phrases_stay_distinct_with_few_words() -> None:
    small = Phrasebook(WordTable((" one", " two", " six", " ten")))
    assert len(set(small._phrases.tolist())) == PHRASES


def test_too_few_words_are_refused_instead_of_drawing_for_ever() -> None:
    with pytest.raises(ValueError, match="3 words do not make 16384 phrases"):
        Phrasebook(WordTable((" one", " two", " six")))


def test_text_is_the_same_on_every_machine_and_in_every_version() -> None:
    table = WordTable(tuple(f" {a}{b}" for a in "bcdfghjk" for b in "aeioulmn"))
    text = Phrasebook(table).render(block_keys(salt64("run", 1), np.arange(40)), 3, 2_500, 64)
    digest = hashlib.sha256(text).hexdigest()
    assert digest == "b00ba6c2c9230557cd4c74fb9e1580c8395d50baba354af736bcadda96c7519d"


def test_another_seed_or_table_is_another_text() -> None:
    keys = block_keys(1, np.arange(4))
    other = WordTable(BOOK.table.words[::-1])
    texts = {book.render(keys, 0, 256, 64) for book in (BOOK, Phrasebook(BOOK.table, seed=1), Phrasebook(other))}
    assert len(texts) == 3
    assert BOOK.table.digest != other.digest


def test_a_tape_that_is_too_short_is_said() -> None:
    keys = block_keys(1, np.arange(2))
    with pytest.raises(ValueError, match=r"words 100\.\.129 of a tape of 2 blocks of 64"):
        BOOK.render(keys, 100, 29, 64)
    with pytest.raises(ValueError, match="words -1"):
        BOOK.render(keys, -1, 2, 64)


@given(st.integers(0, MASK), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_block_keys_are_the_mix_of_salt_and_id(salt: int, ids: list[int]) -> None:
    expected = [splitmix64(splitmix64(one & MASK) ^ salt) for one in ids]
    assert block_keys(salt, np.array(ids, dtype=np.int64)).tolist() == expected


def test_salts_differ_when_any_part_does() -> None:
    parts: list[tuple[str | int | bytes, ...]] = [
        ("ab", "c"), ("a", "bc"), ("abc",), ("a", "b", "c"), (1,), ("1",), (b"1",), (b"str:1",), (12,), (1, 2), ()
    ]  # fmt: skip
    assert len({salt64(*each) for each in parts}) == len(parts)
    assert salt64("run", 3) == salt64("run", 3) < 2**64


@pytest.mark.parametrize(
    "words", [(), ("word",), (" two", " four"), (" Ab",), (' a"',), (" é",), (" one", " one"), ("  ab",), (" ab\n",)]
)
def test_a_table_takes_only_words_that_fit(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="a word table"):
        WordTable(words)
