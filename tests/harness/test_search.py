"""The search for the highest concurrency, against servers that are functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.search import CEILING, RESOLUTION, Search


def run_search(start: int, capacity: int) -> tuple[Search, list[int]]:
    search, tried = Search(start), []
    while (level := search.next) is not None:
        tried.append(level)
        search.tell(level, held=level <= capacity)
    return search, tried


@given(st.integers(1, 2_000), st.integers(0, CEILING))
def test_the_answer_is_within_the_resolution(start: int, capacity: int) -> None:
    search, tried = run_search(start, capacity)
    assert search.holds <= capacity
    assert capacity - search.holds <= max(1, RESOLUTION * capacity)
    assert len(tried) == len(set(tried)) <= 32


def test_small_answers_are_exact() -> None:
    for capacity in range(20):
        assert run_search(8, capacity)[0].holds == capacity


def test_nothing_holds() -> None:
    assert run_search(8, 0)[1] == [8, 4, 2, 1]
