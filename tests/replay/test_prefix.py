from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replay.prefix import SeenBlocks, block_at, common_blocks

Ids = list[int]


def to_runs(ids: Ids) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for block in ids:
        if runs and runs[-1][0] + runs[-1][1] == block:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs


ids_lists = st.lists(st.integers(0, 6), max_size=12)


def naive_common(a: Ids, b: Ids) -> int:
    shared = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        shared += 1
    return shared


@given(ids_lists, ids_lists, st.integers(0, 12))
def test_common_blocks_is_the_common_prefix(a: Ids, b: Ids, limit: int) -> None:
    assert common_blocks(to_runs(a), to_runs(b), limit) == min(limit, naive_common(a, b))


@given(ids_lists, st.integers(0, 14))
def test_block_at_is_indexing(ids: Ids, position: int) -> None:
    assert block_at(to_runs(ids), position) == (ids[position] if position < len(ids) else None)


@st.composite
def cumulative_prompts(draw: st.DrawFn) -> list[Ids]:
    """Prompts as a trie gives them: an id stands for its whole prefix."""
    names: dict[tuple[int, ...], int] = {}
    prompts = []
    for _ in range(draw(st.integers(1, 6))):
        path = tuple(draw(st.lists(st.integers(0, 1), max_size=8)))
        prompts.append([names.setdefault(path[: k + 1], len(names)) for k in range(len(path))])
    return prompts


@given(cumulative_prompts())
def test_seen_blocks_is_an_infinite_prefix_cache(prompts: list[Ids]) -> None:
    seen = SeenBlocks()
    cached: set[tuple[int, ...]] = set()
    for owner, ids in enumerate(prompts):
        expected = 0
        while expected < len(ids) and tuple(ids[: expected + 1]) in cached:
            expected += 1
        shared, who = seen.prefix(to_runs(ids), len(ids))
        assert shared == expected
        if expected:
            first = next(k for k, other in enumerate(prompts) if other[:expected] == ids[:expected])
            assert who == first
        seen.add(to_runs(ids), len(ids), owner)
        cached |= {tuple(ids[: k + 1]) for k in range(len(ids))}


def test_an_id_at_another_position_is_not_seen() -> None:
    seen = SeenBlocks()
    seen.add([(5, 3)], 3, 0)
    assert seen.prefix([(6, 2)], 2) == (0, -1)
    assert seen.prefix([(5, 2)], 2) == (2, 0)


def test_limit_bounds_what_is_remembered() -> None:
    seen = SeenBlocks()
    seen.add([(1, 10)], 4, 0)
    assert seen.prefix([(1, 10)], 10) == (4, 0)
    assert seen.prefix([(1, 10)], 2) == (2, 0)
