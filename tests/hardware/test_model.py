from __future__ import annotations

import dataclasses
from collections import deque
from itertools import pairwise
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.engine.cache import chain_keys
from hardware.engine.model import Engine, Request
from hardware.engine.profiles import PROFILES, Profile

SMALL = PROFILES["small"]
TINY = Profile(
    block_size=4,
    cache_blocks=16,
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    step_s=0.010,
    prefill_tokens_s=1_000.0,
    decode_request_s=0.001,
    kv_tokens_s=100_000.0,
)


def request(
    prompt: int,
    output: int,
    *,
    at: float = 0.0,
    session: str = "",
    shared: int = 0,
    size: int = SMALL.block_size,
) -> Request:
    """A request whose first `shared` tokens are the same in every session, and the rest its session's own."""
    blocks = (prompt + output) // size
    keys = chain_keys(f"{'' if (i + 1) * size <= shared else session}:{i}".encode() for i in range(blocks))
    return Request(session, prompt, output, keys, at)


class Run:
    """Requests served in virtual time, as each arrives; `times` holds the token times of each."""

    def __init__(self, engine: Engine, requests: list[Request]) -> None:
        self.times: dict[Request, list[float]] = {r: [] for r in requests}
        self.most_used = 0
        pending = deque(sorted(requests, key=lambda r: r.arrival_s))
        now = 0.0
        while True:
            while pending and pending[0].arrival_s <= now:
                engine.submit(pending.popleft())
            end = engine.begin(now)
            assert engine.cache.used + engine.cache.idle <= engine.cache.capacity
            self.most_used = max(self.most_used, engine.cache.used)
            if end is not None:
                assert end > now
                step = engine.finish()
                now = step.end_s
                for r in step.emitted:
                    self.times[r].append(now)
            elif pending:
                now = pending[0].arrival_s
            else:
                break

    def ttft(self, r: Request) -> float:
        return self.times[r][0] - r.arrival_s

    def tpot(self, r: Request) -> float:
        return (self.times[r][-1] - self.times[r][0]) / (len(self.times[r]) - 1)


def test_small_profile_is_what_it_says() -> None:
    cold = request(20_000, 101, session="a")
    run = Run(Engine(SMALL), [cold])
    assert run.ttft(cold) == pytest.approx(0.4, rel=0.1)
    assert 1 / run.tpot(cold) == pytest.approx(100, rel=0.1)


def test_step_time_is_the_formula() -> None:
    engine = Engine(TINY)
    first, second = request(10, 3, session="a", size=4), request(5, 1, at=0.001, session="b", size=4)
    run = Run(engine, [first, second])
    prefill = 0.010 + 10 / 1_000 + 10 / 100_000
    mixed = 0.010 + 5 / 1_000 + 0.001 + (11 + 5) / 100_000
    decode = 0.010 + 0.001 + 12 / 100_000
    assert run.times[first] == pytest.approx([prefill, prefill + mixed, prefill + mixed + decode])
    assert run.times[second] == pytest.approx([prefill + mixed])


def test_decode_slows_and_throughput_grows_with_concurrency() -> None:
    tpot, throughput = [], []
    for streams in (1, 8, 64):
        requests = [request(2_000, 100, session=str(i)) for i in range(streams)]
        run = Run(Engine(SMALL), requests)
        tpot.append(mean(run.tpot(r) for r in requests))
        throughput.append(streams * 100 / max(times[-1] for times in run.times.values()))
    assert tpot[0] * 1.1 < tpot[1]
    assert tpot[1] * 2 < tpot[2]
    assert throughput[0] * 3 < throughput[1] < throughput[2]


def test_first_tokens_wait_for_the_prefills_before_them() -> None:
    requests = [request(16_000, 2, session=str(i)) for i in range(8)]
    run = Run(Engine(SMALL), requests)
    ttfts = sorted(run.ttft(r) for r in requests)
    assert ttfts[-1] > 6 * ttfts[0]


def test_decode_slows_with_context() -> None:
    short, long = request(1_000, 50, session="a"), request(200_000, 50, session="b")
    slow, quick = Run(Engine(SMALL), [long]).tpot(long), Run(Engine(SMALL), [short]).tpot(short)
    assert slow - quick == pytest.approx(199_000 / SMALL.kv_tokens_s, rel=0.01)


def conversations(cache_blocks: int) -> Engine:
    """Ten sessions of five growing turns, taken in turns: 10 * 5,000 tokens at the end."""
    engine = Engine(dataclasses.replace(SMALL, cache_blocks=cache_blocks, max_model_len=64 * 128))
    requests = [
        request(1_000 * (turn + 1), 20, at=10.0 * turn + session, session=str(session))
        for turn in range(5)
        for session in range(10)
    ]
    Run(engine, requests)
    return engine


def test_hit_rate_falls_as_the_cache_shrinks() -> None:
    engines = [conversations(blocks) for blocks in (1_000, 500, 250, 128)]
    rates = [engine.hit_tokens / engine.queried_tokens for engine in engines]
    ideal = sum((turn * 1_000 + 19) // 64 * 64 for turn in range(1, 5)) / 15_000  # 19 answer tokens are computed
    assert rates[0] == pytest.approx(ideal, abs=0.001)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[1] + 0.05
    assert rates[-1] == 0.0
    assert engines[0].cache.evictions == 0 < engines[1].cache.evictions


def test_answers_are_cached_for_the_next_turn() -> None:
    engine = Engine(TINY)
    first = request(9, 12, session="a", size=4)
    Run(engine, [first])
    # 21 tokens, of which the last was sampled and never computed: 5 full blocks.
    following = request(23, 1, session="a", size=4)
    Run(engine, [following])
    assert following.cached_tokens == 20


def test_the_last_prompt_token_is_always_computed() -> None:
    engine = Engine(TINY)
    Run(engine, [request(16, 1, session="a", size=4)])
    again = request(16, 1, session="a", size=4)
    run = Run(engine, [again])
    assert again.cached_tokens == 12
    assert len(run.times[again]) == 1


def test_shared_beginnings_hit_across_sessions() -> None:
    engine = Engine(TINY)
    Run(engine, [request(20, 1, session="a", shared=8, size=4)])
    other = request(20, 1, session="b", shared=8, size=4)
    Run(engine, [other])
    assert other.cached_tokens == 8
    assert (engine.queried_tokens, engine.hit_tokens) == (40, 8)


def test_out_of_blocks_the_youngest_waits_and_all_finish() -> None:
    engine = Engine(TINY)
    old, young = request(20, 30, session="a", size=4), request(20, 30, session="b", size=4)
    run = Run(engine, [old, young])
    assert old.preemptions == 0
    assert young.preemptions > 0
    assert engine.preemptions == young.preemptions
    assert [len(times) for times in run.times.values()] == [30, 30]
    assert engine.queried_tokens == 40, "a second admission is not a second query"
    assert engine.cache.used == 0


def test_who_lost_its_blocks_comes_before_who_never_had_any() -> None:
    engine = Engine(TINY)
    old, young, new = (request(n, 30, session=s, size=4) for n, s in ((20, "a"), (20, "b"), (34, "c")))
    run = Run(engine, [old, young, new])
    assert young.preemptions > 0
    assert new.admitted_s is not None
    assert new.admitted_s >= run.times[young][-1]


def test_places_in_the_batch_are_limited() -> None:
    engine = Engine(dataclasses.replace(TINY, max_num_seqs=2, cache_blocks=64))
    requests = [request(4, 10, session=str(i), size=4) for i in range(6)]
    run = Run(engine, requests)
    starts = [r.admitted_s for r in requests]
    assert starts[0] == starts[1] == 0.0
    assert starts[2] is not None
    assert starts[2] >= run.times[requests[0]][-1]
    assert starts[4] is not None
    assert starts[4] >= run.times[requests[2]][-1]


def test_a_request_that_never_fits_is_refused_and_one_that_just_fits_is_served() -> None:
    engine = Engine(TINY)
    with pytest.raises(ValueError, match="exceed max_model_len 64"):
        engine.submit(request(60, 5, session="a", size=4))
    with pytest.raises(ValueError, match="at least one token"):
        engine.submit(request(0, 5, session="a", size=4))
    whole = request(60, 4, session="a", size=4)
    run = Run(engine, [request(20, 5, session="b", size=4), whole])
    assert len(run.times[whole]) == 4
    assert run.most_used == 16


def test_an_arrival_during_a_late_step_is_not_admitted_in_the_past() -> None:
    engine = Engine(TINY)
    engine.submit(request(4, 3, session="a", size=4))
    end = engine.begin(0.0)
    assert end is not None
    engine.finish()
    late = request(4, 1, at=end + 0.001, session="b", size=4)
    engine.submit(late)
    engine.begin(end)
    assert late.admitted_s is None
    assert [r.request_id for r in engine.finish().emitted] == ["a"]


def test_cancel_frees_blocks_at_once() -> None:
    engine = Engine(dataclasses.replace(TINY, max_num_seqs=2))
    running, staying, waiting = (request(8, 20, session=s, size=4) for s in "abc")
    for r in (running, staying, waiting):
        engine.submit(r)
    engine.begin(0.0)
    used = engine.cache.used
    engine.cancel(running)
    engine.cancel(waiting)
    engine.cancel(waiting)
    assert engine.cache.used == used // 2
    assert [r.request_id for r in engine.finish().emitted] == ["b"], "a cancelled request gets no token"
    assert not engine.waiting
    assert engine.running == [staying]


def test_an_idle_engine_has_nothing_to_do() -> None:
    assert Engine(TINY).begin(1.0) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_model_len": 65}, "does not fit"),
        ({"max_num_seqs": 17}, "room for one token"),
        ({"cache_blocks": 0}, "at least 1"),
    ],
)
def test_profiles_that_can_not_be_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(TINY, **change)


arrivals = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(0, 30), st.sampled_from("abc")),
    min_size=1,
    max_size=12,
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(arrivals)
def test_every_request_finishes_and_no_token_comes_before_its_prefill(
    wanted: list[tuple[int, int, int, str]],
) -> None:
    engine = Engine(TINY)
    requests = [
        request(prompt, output, at=at / 100, session=session, shared=8, size=4)
        for prompt, output, at, session in wanted
    ]
    run = Run(engine, requests)
    for r, times in run.times.items():
        assert r.done
        assert len(times) == r.output_tokens
        assert all(a < b for a, b in pairwise(times))
        assert r.admitted_s is not None
        assert r.admitted_s >= r.arrival_s
        to_compute = r.prompt_tokens - r.cached_tokens
        assert to_compute >= 1
        assert times[0] >= r.admitted_s + TINY.step_s + to_compute / TINY.prefill_tokens_s
    assert engine.cache.used == 0
    assert not engine.running
    assert not engine.waiting
    assert engine.queried_tokens == sum(r.prompt_tokens for r in requests)
    assert engine.hit_tokens == sum(r.cached_tokens for r in requests)
