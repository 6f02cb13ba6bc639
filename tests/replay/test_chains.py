"""Agents found in flat traces: extensions, seams, spawns and side calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from replay.chains import Recorded, find_chains
from tests.replay.corpora import runs_of

BIG = 100_000


def request(
    start: float, ids: Sequence[int], *, end: float | None = None, model: int = 0, tokens: int = BIG, out: int = 5000
) -> Recorded:
    return Recorded(start, start + 1 if end is None else end, model, runs_of(ids), len(ids), tokens, out)


def parted(*requests: Recorded) -> list[list[int]]:
    return [chain.requests for chain in find_chains(requests)]


def test_a_growing_prompt_is_one_agent() -> None:
    assert parted(request(0, [1, 2]), request(2, [1, 2, 3]), request(4, [1, 2, 3, 4])) == [[0, 1, 2]]


def test_interleaved_prompts_are_two_agents_and_the_second_forked_off_the_first() -> None:
    chains = find_chains(
        [
            request(0, [1, 2, 3]),
            request(2, [1, 2, 9]),
            request(4, [1, 2, 3, 4]),  # somebody comes back to the longer prompt: request 1 was another agent
            request(6, [1, 2, 9, 10]),
        ]
    )
    assert [c.requests for c in chains] == [[0, 2], [1, 3]]
    assert (chains[1].parent, chains[1].fork, chains[1].depth) == (0, 0, 2)


def test_an_edit_nobody_comes_back_from_is_the_same_agent() -> None:
    assert parted(request(0, [1, 2, 3, 4]), request(2, [1, 2, 9]), request(4, [1, 2, 9, 10])) == [[0, 1, 2]]


def test_of_two_edits_the_deeper_one_goes_on_and_the_other_is_an_agent() -> None:
    found = parted(request(0, [1, 2, 3, 4, 5]), request(2, [1, 8]), request(4, [1, 2, 3, 9]))
    assert found == [[0, 2], [1]]


def test_what_began_before_the_longer_prompt_was_answered_is_another_agent() -> None:
    assert parted(request(0, [1, 2, 3], end=10), request(5, [1, 2, 9]), request(12, [1, 2, 9, 10])) == [[0], [1, 2]]


def test_an_extension_while_the_answer_is_running_is_another_agent() -> None:
    assert parted(request(0, [1, 2], end=10), request(5, [1, 2, 3])) == [[0], [1]]


def test_another_model_is_another_agent_even_on_the_whole_prompt() -> None:
    assert parted(request(0, [1, 2]), request(2, [1, 2, 3], model=1), request(4, [1, 2, 7])) == [[0, 2], [1]]


@pytest.mark.parametrize(("gap", "shared", "merged"), [(3700, 1, False), (3700, 3, True), (100, 1, True)])
def test_a_late_resume_with_little_in_common_is_another_session(gap: float, shared: int, merged: bool) -> None:
    late = [*[1, 2, 3, 4][:shared], 99]
    assert (len(parted(request(0, [1, 2, 3, 4]), request(1 + gap, late))) == 1) is merged


def test_nothing_in_common_is_another_agent_without_a_fork() -> None:
    chains = find_chains([request(0, [1, 2]), request(2, [50, 51]), request(4, [1, 2, 3])])
    assert [c.requests for c in chains] == [[0, 2], [1]]
    assert (chains[1].parent, chains[1].depth) == (-1, 0)


def test_requests_without_blocks_stay_with_the_main_agent() -> None:
    assert parted(request(0, []), request(2, [1, 2]), request(4, []), request(6, [1, 2, 3])) == [[0, 1, 2, 3]]


def test_single_small_or_foreign_calls_are_auxiliary_and_agents_are_not() -> None:
    chains = find_chains(
        [
            request(0, [1, 2, 3]),
            request(2, [1, 2, 9]),
            request(3, [70], tokens=500),
            request(4, [1, 2, 3, 4]),
            request(5, [80, 81]),
            request(6, [80, 81, 82]),
            request(7, [1, 60], model=2),
        ]
    )
    kinds = {tuple(c.requests): c.auxiliary for c in chains}
    assert kinds == {(0, 3): False, (1,): False, (2,): True, (4, 5): False, (6,): True}


def test_a_digest_of_a_large_context_is_auxiliary() -> None:
    short = Recorded(2, 3, 0, runs_of([1, 2, 9]), 3, BIG, 300)
    chains = find_chains([request(0, [1, 2, 3]), short, request(4, [1, 2, 3, 4])])
    assert [c.auxiliary for c in chains] == [False, True]


TURNS = [request(2, [1, 2]), request(4, [1, 2, 3]), request(6, [1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("ids", "out", "whose"),
    [
        ([70, 3], 64, [[0, 1, 2, 3]]),  # a title: short, begins like no other
        ([70, 71], 5000, [[0, 1, 2, 3]]),  # long, but nothing of it ever comes again
        ([70, 3], 65, [[0], [1, 2, 3]]),  # long, and a block of it comes again
        ([1, 9], 64, [[0], [1, 2, 3]]),  # begins like the others
    ],
)
def test_what_opens_a_session_and_is_never_continued_is_the_main_agents(
    ids: list[int], out: int, whose: list[list[int]]
) -> None:
    first = request(0, ids, end=10, out=out)  # still running when the second begins: no seam can join them
    assert parted(first, *TURNS) == whose


def test_only_one_request_can_be_a_preamble() -> None:
    both = [request(0, [70], out=5), request(1, [80], out=5)]
    assert parted(*both, *TURNS) == [[0, 1], [2, 3, 4]]


def test_side_calls_are_told_by_the_main_agent_and_not_by_its_preamble() -> None:
    title = request(0, [70], model=9, out=5)
    chains = find_chains([title, *TURNS, request(8, [50], model=9)])
    assert [(c.requests, c.auxiliary) for c in chains] == [([0, 1, 2, 3], False), ([4], True)]
