from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hardware.engine.cache import Lease, PrefixCache, chain_keys


def fill(cache: PrefixCache, keys: list[int]) -> Lease:
    """Compute and publish a whole prompt."""
    lease = cache.admit(keys, len(keys))
    assert lease is not None
    for key in keys[len(lease.keys) :]:
        cache.publish(lease, key)
    return lease


def test_equal_keys_mean_equal_prefixes() -> None:
    first, second = chain_keys([b"a", b"b", b"c"]), chain_keys([b"a", b"x", b"c"])
    assert chain_keys([b"a", b"b"]) == first[:2]
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert first[2] != second[2], "the same contents after another prefix are another block"


def test_a_released_prefix_is_found_again() -> None:
    cache = PrefixCache(8)
    cache.release(fill(cache, [1, 2, 3]))
    assert (cache.used, cache.idle) == (0, 3)
    lease = cache.admit([1, 2, 3, 4], 4)
    assert lease is not None
    assert lease.keys == [1, 2, 3]
    assert (cache.used, cache.idle) == (4, 0)


def test_least_recently_used_goes_first_and_a_prefix_outlives_its_tail() -> None:
    cache = PrefixCache(6)
    cache.release(fill(cache, [1, 2, 3]))
    cache.release(fill(cache, [11, 12, 13]))
    cache.release(fill(cache, [1, 2, 3]))
    lease = cache.admit([21, 22], 2)
    assert lease is not None
    assert cache.evictions == 2
    assert cache.resident([11, 12, 13]) == 1, "the older prompt lost its tail"
    assert cache.resident([1, 2, 3]) == 3


def test_blocks_in_use_are_never_evicted() -> None:
    cache = PrefixCache(4)
    held = fill(cache, [1, 2, 3])
    assert cache.admit([9, 8], 2) is None, "one free block is not enough for two"
    assert cache.resident([1, 2, 3]) == 3
    assert cache.extend(held)
    assert not cache.extend(held)


def test_a_request_larger_than_the_cache_changes_nothing() -> None:
    cache = PrefixCache(4)
    cache.release(fill(cache, [1, 2, 3]))
    assert cache.admit([1, 2, 3, 4, 5], 5) is None
    assert (cache.used, cache.idle, cache.evictions) == (0, 3, 0)
    assert cache.resident([1, 2, 3]) == 3


def test_idle_hits_do_not_count_as_room() -> None:
    cache = PrefixCache(4)
    cache.release(fill(cache, [1, 2]))
    other = cache.admit([], 1)
    assert other is not None
    assert cache.admit([1, 2], 4) is None, "2 hits + 2 fresh do not fit beside 1 held"
    assert cache.admit([1, 2], 3) is not None


def test_a_block_computed_twice_is_one_key() -> None:
    cache = PrefixCache(8)
    first, second = cache.admit([1], 1), cache.admit([1], 1)
    assert first is not None
    assert second is not None
    cache.publish(first, 1)
    cache.publish(second, 1)
    assert (first.keys, second.keys, second.private) == ([1], [], 1)
    assert cache.used == 2
    cache.release(first)
    cache.release(second)
    assert (cache.used, cache.idle) == (0, 1)


def test_clear_forgets_what_nobody_holds() -> None:
    cache = PrefixCache(8)
    held = fill(cache, [1, 2])
    cache.release(fill(cache, [11, 12]))
    cache.clear()
    assert cache.resident([11]) == 0
    assert cache.resident([1, 2]) == 2
    cache.release(held)
    assert cache.idle == 2


def test_no_cache_without_blocks() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        PrefixCache(0)


def prompt(family: int, blocks: int) -> list[int]:
    """Four families of prompts that share their first `family` blocks with family 3."""
    return [position if position < family else 100 * (family + 1) + position for position in range(blocks)]


class CacheMachine(RuleBasedStateMachine):
    """Any sequence of operations leaves a cache that could exist in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(12)
        self.held: list[tuple[Lease, list[int]]] = []
        self.published: set[int] = set()

    @rule(family=st.integers(0, 3), blocks=st.integers(1, 15))
    def admit(self, family: int, blocks: int) -> None:
        keys = prompt(family, blocks)
        hits = keys[: self.cache.resident(keys)]
        in_use = {key for lease, _ in self.held for key in lease.keys}
        room = 12 - self.cache.used - len(set(hits) - in_use)
        lease = self.cache.admit(keys, blocks)
        assert (lease is not None) == (blocks - len(hits) <= room)
        if lease is not None:
            assert lease.keys == hits
            assert lease.blocks == blocks
            assert set(hits) <= self.published, "a hit on what was never computed"
            self.held.append((lease, keys[len(hits) :]))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def compute_a_block(self, which: int) -> None:
        lease, todo = self.held[which % len(self.held)]
        if todo:
            key = todo.pop(0)
            self.cache.publish(lease, key)
            self.published.add(key)
            assert self.cache.resident([key]) == 1

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def extend(self, which: int) -> None:
        lease, _ = self.held[which % len(self.held)]
        room = self.cache.used < 12
        assert self.cache.extend(lease) == room

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def release(self, which: int) -> None:
        lease, _ = self.held.pop(which % len(self.held))
        kept = list(lease.keys)
        self.cache.release(lease)
        assert self.cache.resident(kept) == len(kept)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        assert self.cache.idle == 0

    @invariant()
    def never_above_capacity(self) -> None:
        assert self.cache.used + self.cache.idle <= 12

    @invariant()
    def use_is_what_leases_hold(self) -> None:
        keys = {key for lease, _ in self.held for key in lease.keys}
        assert self.cache.used == len(keys) + sum(lease.private for lease, _ in self.held)
        assert all(self.cache.resident([key]) for key in keys)
        findable = sum(self.cache.resident([key]) for key in self.published)
        assert findable == len(keys) + self.cache.idle, "a block is findable exactly while it is there"


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestCacheMachine = CacheMachine.TestCase
