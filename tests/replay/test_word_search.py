"""Words that are one token each are found by few counts, and no other words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.tokens import LocalCounter, find_words
from replay.usage import Unmeasurable
from replay.word_search import MINIMUM_WORDS, WANTED_WORDS, TextSums, single_tokens, vocabulary_words
from replay.wordlist import candidates
from tests.replay.token_server import foreign_tokenizer


class Costs:
    """Counts by what each word costs with a space ahead and on a line of its own."""

    name = "costs"

    def __init__(self, costs: dict[str, tuple[int, int]]) -> None:
        self.costs = costs
        self.counts = 0

    def count_text(self, text: str) -> int:
        self.counts += 1
        first, *lines = text.split("\n")
        spaced = sum(self.costs.get(word, (1, 1))[0] for word in first.split())
        return 7 + spaced + sum(1 + self.costs.get(word, (1, 1))[1] for word in lines)


WORDS = candidates()[0]


@given(st.dictionaries(st.sampled_from(WORDS), st.tuples(st.integers(1, 5), st.integers(1, 4)), max_size=200))
def test_no_bad_word_passes_and_good_ones_of_fair_groups_do(costs: dict[str, tuple[int, int]]) -> None:
    counter = Costs(costs)
    bad = {word for word, cost in costs.items() if cost != (1, 1)}
    texts = TextSums(counter)
    found = single_tokens(texts, WORDS)
    assert not bad & set(found)
    assert found == [word for word in WORDS if word in set(found)]
    excess = [sum(sum(costs.get(word, (1, 1))) - 2 for word in WORDS[k : k + 16]) for k in range(0, len(WORDS), 16)]
    fair = [word for k, word in enumerate(WORDS) if excess[k // 16] <= 16 and word not in bad]
    assert found == fair[: len(found)]
    assert len(found) >= min(MINIMUM_WORDS, len(fair))
    assert counter.counts <= 48 + 5 or len(found) < MINIMUM_WORDS + 16


def test_one_bad_word_in_every_group_costs_few_counts() -> None:
    counter = Costs(dict.fromkeys(WORDS[3::16], (2, 1)))
    assert len(single_tokens(TextSums(counter), WORDS)) >= WANTED_WORDS
    assert counter.counts <= 30


def test_groups_that_are_not_worth_it_cost_one_count_each() -> None:
    counter = Costs(dict.fromkeys(WORDS[:160], (2, 2)))
    assert single_tokens(TextSums(counter), WORDS)[0] == WORDS[160]
    assert counter.counts == 2 + 10 + 8


def test_half_of_the_words_will_do_when_counting_takes_long() -> None:
    bad = [word for low in range(0, len(WORDS), 16) for word in WORDS[low : low + 16 : 2]]
    counter = Costs(dict.fromkeys(bad, (2, 1)))
    assert MINIMUM_WORDS <= len(single_tokens(TextSums(counter), WORDS)) < WANTED_WORDS
    assert counter.counts < 48 + 5


@pytest.mark.parametrize("excess", [(1, 2), (2, 2), (3, 2), (5, 4)])
def test_no_text_is_longer_than_a_small_context(excess: tuple[int, int]) -> None:
    class Limited(Costs):
        def count_text(self, text: str) -> int:
            assert super().count_text(text) < 2_048
            return super().count_text(text)

    counter = Limited(dict.fromkeys(WORDS[5::16], excess))
    assert len(single_tokens(TextSums(counter), WORDS)) >= MINIMUM_WORDS


def test_words_of_a_vocabulary_stand_there_with_and_without_a_space() -> None:
    vocabulary = [
        "abcd",
        "Ġabcd",
        "Ġonly",
        "bare",
        "▁eight",
        "eight",
        " seven",
        "seven",
        "ĠUpper",
        "Upper",
        "Ġab",
        "ab",
    ]
    assert vocabulary_words(vocabulary) == [["eight", "seven"], ["abcd"]]


def test_words_that_merge_with_their_neighbour_are_noticed() -> None:
    class Joining(Costs):
        def count_text(self, text: str) -> int:
            # Not with its neighbour in our list, where the group's own count would show it.
            return super().count_text(text) - len(re.findall(" self (?!name)", text))

    with pytest.raises(Unmeasurable, match=r"400 one-token words are 39\d tokens by costs"):
        find_words(Joining({}))


def test_a_tokenizer_without_our_words_is_refused_with_the_numbers() -> None:
    everything = {word: (3, 2) for group in candidates() for word in group}
    with pytest.raises(Unmeasurable, match="only 0 words are one token by costs, 64 are needed") as caught:
        find_words(Costs(everything))
    assert "--tokenizer DIR" in str(caught.value)


def test_a_directory_lends_its_own_words_where_ours_do_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pytest.importorskip("tokenizers")
    counter = LocalCounter.load(foreign_tokenizer(tmp_path / "foreign"))
    table = find_words(counter)
    assert len(table.words) == WANTED_WORDS
    assert table.words[0] == " bhmr"
    assert counter.count_text("".join(table.words)) == WANTED_WORDS
