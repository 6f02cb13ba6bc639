"""Dominance by its definition, on hand-made sets and on random ones."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.frontier import Better, Corner, Spot, frontier

HIGHER, LOWER = Better.HIGHER, Better.LOWER


def test_p130_ties_duplicates_and_nan() -> None:
    places = {"a": (10, 5), "b": (10, 4), "c": (8, 5), "d": (9, 6), "e": (9, 6), "f": (math.nan, 7)}
    found = frontier([Spot(name, *xy) for name, xy in places.items()], HIGHER, HIGHER)
    assert found.corners == (Corner(9, 6, ("d", "e")), Corner(10, 5, ("a",)))
    assert sorted(found.dominated) == ["b", "c"]
    assert found.excluded == ("f",)


def test_one_point_none_and_unknown_places() -> None:
    assert frontier([], HIGHER, LOWER).corners == ()
    found = frontier([Spot("a", 1, 2), Spot("b", None, 2), Spot("c", 1, math.inf)], LOWER, HIGHER)
    assert [corner.names for corner in found.corners] == [("a",)]
    assert found.excluded == ("b", "c")


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40),
    st.sampled_from(list(product(Better, Better))),
)
def test_a_point_is_on_it_exactly_when_nothing_dominates_it(
    places: list[tuple[int, int]], better: tuple[Better, Better]
) -> None:
    def dominates(a: tuple[int, int], b: tuple[int, int]) -> bool:
        gains = [(p - q) * (1 if side is HIGHER else -1) for p, q, side in zip(a, b, better, strict=True)]
        return min(gains) >= 0 and max(gains) > 0

    found = frontier([Spot(str(k), *place) for k, place in enumerate(places)], *better)
    on_it = {name for corner in found.corners for name in corner.names}
    assert on_it == {str(k) for k, b in enumerate(places) if not any(dominates(a, b) for a in places)}
    assert on_it | set(found.dominated) == {str(k) for k in range(len(places))}
    xs = [corner.x for corner in found.corners]
    assert xs == sorted(set(xs))


@pytest.mark.parametrize("better", list(product(Better, Better)))
def test_the_better_corner_of_each_chart(better: tuple[Better, Better]) -> None:
    square = [Spot(f"{x}{y}", x, y) for x in (0, 1) for y in (0, 1)]
    (corner,) = frontier(square, *better).corners
    assert (corner.x, corner.y) == tuple(float(side is HIGHER) for side in better)
