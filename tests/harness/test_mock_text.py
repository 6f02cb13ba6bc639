from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.mock_text import WORDS, Answer, Prompt, token_id, token_starts, token_text

TOKEN = re.compile(r" ?[A-Za-z]+|[0-9]{1,3}|.", re.DOTALL | re.ASCII)


def answer(tokens: int) -> Answer:
    return Answer(bytes(range(tokens)), "length")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet=st.one_of(st.sampled_from("aZq  019\n,é漢🙂"), st.characters(codec="utf-8"))))
@example("")
@example("a")
@example("  a b  c")
@example("1234567 89x12")
@example("é a漢b 🙂c")
def test_tokens_are_those_of_the_rule(text: str) -> None:
    data = text.encode()
    bounds = [*token_starts(data).tolist(), len(data)]
    assert [data[a:b].decode() for a, b in pairwise(bounds)] == TOKEN.findall(text)


def test_a_word_is_one_token_with_and_without_its_space() -> None:
    assert len(Prompt.of_text(b"abc")) == len(Prompt.of_text(b" abc")) == 1
    assert token_id(b"abc") != token_id(b" abc")


def test_markers_are_tokens_of_their_own() -> None:
    pieces = Prompt.of_text(b"\xfeuser\n hello \xff\xfeassistant\n").pieces()
    texts = [token_text(piece) for piece in pieces]
    assert texts == ["<|start|>", "user", "\n", " hello", " ", "<|end|>", "<|start|>", "assistant", "\n"]


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_the_next_turn_finds_the_keys_of_prompt_and_answer(block_size: int) -> None:
    first = Prompt.of_text(b"\xfeuser\n one two three 1234 \xff\xfeassistant\n")
    said = answer(20)
    keys = first.block_keys(said, block_size)
    assert len(keys) == (len(first) + 20) // block_size
    following = Prompt.of_text(first.data + said.text() + b"\xff\xfeuser\n more\xff\xfeassistant\n")
    assert following.block_keys(answer(1), block_size)[: len(keys)] == keys


def test_keys_differ_from_the_first_different_token_on() -> None:
    a = Prompt.of_text(b" a b c d e f").block_keys(answer(2), 2)
    b = Prompt.of_text(b" a b c x e f").block_keys(answer(2), 2)
    assert [x == y for x, y in zip(a, b, strict=True)] == [True, False, False, False]


def test_prompts_of_ids_share_blocks() -> None:
    keys = Prompt.of_ids([1, 2, 3, 4, 5]).block_keys(answer(1), 2)
    assert Prompt.of_ids([1, 2, 3, 4, 6, 7]).block_keys(answer(1), 2)[:2] == keys[:2]
    assert Prompt.of_ids([1, 2, 4, 4, 6, 7]).block_keys(answer(1), 2)[1] != keys[1]


def test_answer_words_are_one_token_each() -> None:
    assert len(set(WORDS)) == 256
    assert len(Prompt.of_text(b"".join(WORDS))) == 256


def draw(prompt: bytes, seed: int = 0, *, shortest: int = 0, longest: int = 1_000, mean: float | None = 50.0) -> Answer:
    return Answer.draw(Prompt.of_text(prompt), seed, shortest=shortest, longest=longest, mean=mean)


def test_answers_follow_from_prompt_and_seed() -> None:
    assert draw(b" a") == draw(b" a")
    assert len({draw(b" a").picks, draw(b" b").picks, draw(b" a", 1).picks}) == 3


def test_answer_lengths() -> None:
    lengths = [len(draw(b"%d" % i).picks) for i in range(400)]
    assert sum(lengths) / 400 == pytest.approx(50, rel=0.15)
    assert {draw(b"%d" % i).finish_reason for i in range(20)} == {"stop"}
    assert len(draw(b" a", mean=None).picks) == 1_000
    assert draw(b" a", mean=None).finish_reason == "length"
    bounded = [draw(b"%d" % i, shortest=10, longest=20) for i in range(50)]
    assert {len(a.picks) for a in bounded} <= set(range(10, 21))
    assert all((len(a.picks) == 20) == (a.finish_reason == "length") for a in bounded)
