"""The hit-rate curve against a cache that really evicts."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.corpus import Corpus, builtin_path
from replay.corpus_stats import infinite_cache_hits
from replay.stack_distance import LruDistances, hit_curve, request_order
from tests.replay.corpora import row, runs_of, write_corpus


class LruCache:
    """The obvious one: a dict in order of use, the tail of a prompt used before its head."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, ids: list[int]) -> int:
        hits = 0
        while hits < len(ids) and ids[hits] in self.blocks:
            hits += 1
        for block in reversed(ids):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.size:
            self.blocks.popitem(last=False)
        return hits


prompts = st.lists(st.lists(st.integers(0, 12), unique=True, min_size=1, max_size=8), min_size=1, max_size=25)


@settings(max_examples=150)
@given(prompts, st.integers(1, 14))
def test_hits_are_those_of_a_cache_that_evicts(prompts: list[list[int]], size: int) -> None:
    cache, distances = LruCache(size), LruDistances(len(prompts))
    for ids in prompts:
        hits, worst = 0, -1
        for distance, count in distances.use(runs_of(ids), len(ids)):
            for k in range(count):
                worst = max(worst, distance + k)
                hits += worst < size
        assert cache.use(ids) == hits


def test_the_curve_of_the_shipped_corpus_is_that_of_caches_of_each_size() -> None:
    corpus = Corpus.load(builtin_path())
    curve = hit_curve(corpus, concurrency=4)
    for size in (50, 400, 3000, 10**7):
        cache = LruCache(size)
        hits = 0
        for r, session in request_order(corpus, 4):
            low, high = int(corpus.run_offset[r]), int(corpus.run_offset[r + 1])
            runs = zip(corpus.run_first[low:high].tolist(), corpus.run_count[low:high].tolist(), strict=True)
            ids = [(session << 32) + k for first, count in runs for k in range(first, first + count)]
            whole = int(corpus.input_tokens[r] // corpus.block_size[r])
            hits += cache.use(ids[:whole]) * int(corpus.block_size[r])
        assert curve.hit_rate(size) == pytest.approx(hits / curve.tokens, abs=1e-12)


def test_an_endless_cache_hits_what_the_infinite_theory_says(weka: Corpus) -> None:
    curve = hit_curve(weka)
    _, _, tokens = infinite_cache_hits(weka)
    assert int(curve.hit_tokens[-1]) == tokens
    assert all(curve.hit_tokens[1:] >= curve.hit_tokens[:-1])


def test_sessions_share_no_blocks_even_where_their_ids_are_equal(tmp_path: Path) -> None:
    rows = [row(session_id=name, turn=0, start_s=0, input_tokens=128, output_tokens=1, ids=[1, 2]) for name in "ab"]
    corpus = write_corpus(tmp_path / "c.parquet", [[rows[0]], [rows[1]]])
    assert hit_curve(corpus).hit_rate(100) == 0.0
