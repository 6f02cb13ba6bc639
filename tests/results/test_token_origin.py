from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.reconcile import ClientSums, Increase
from results.token_origin import Evidence, token_origin

PARTS = ("lost_evicted", "lost_routing", "lost_mismatch")


def gain(name: str, value: float, role: str = "worker", **labels: str) -> Increase:
    return Increase(name, value, role, role, "vllm", labels)


def client(given: int | None = 1_000, cached: int | None = 700, output: int = 50, requests: int = 10) -> ClientSums:
    return ClientSums(requests, given, output, cached)


def origin(theory: int | None = 900, server: list[Increase] | None = None, **options: Any) -> dict[str, Any]:
    who = options.pop("client", client())
    return token_origin(who, theory, server or [], Evidence(**options))


def test_input_is_cold_achieved_or_lost() -> None:
    found = origin()
    tokens = found["tokens"]
    assert (tokens["cold"], tokens["achieved"], tokens["lost"]) == (100, 700, 200)
    assert found["fractions"]["lost"] == 0.2
    assert tokens["cold"] + tokens["achieved"] + tokens["lost"] == found["input_tokens"]


def test_without_evidence_the_parts_of_the_loss_are_none_with_the_reason() -> None:
    found = origin()
    assert [found["tokens"][p] for p in PARTS] == [None, None, None]
    assert "pool's size is not known" in found["why"]["lost_evicted"]
    assert "unknown number of replicas" in found["why"]["lost_routing"]
    assert "concurrency 1" in found["why"]["lost_mismatch"]


def test_a_pool_that_holds_all_lost_nothing_to_eviction_and_the_rest_is_mismatch() -> None:
    found = origin(replicas=1, pool_tokens=10_000.0, block_tokens=16.0)
    assert [found["tokens"][p] for p in PARTS] == [0, 0, 200]
    assert "holds all 510 computed" in found["why"]["lost_evicted"]
    assert "the rest" in found["why"]["lost_mismatch"]


def test_a_small_pool_and_a_clean_run_at_one_leave_eviction() -> None:
    sampled = gain("kv_block_lifetime_seconds", 12, part="count")
    found = origin(server=[sampled], replicas=1, pool_tokens=300.0, mismatch_at_one=0.01)
    assert found["tokens"]["lost_mismatch"] == pytest.approx(9)
    assert found["tokens"]["lost_evicted"] == pytest.approx(191)
    assert "12 evictions were sampled" in found["why"]["lost_evicted"]


def test_an_engine_that_counts_evictions_and_counted_none() -> None:
    found = origin(server=[gain("kv_evicted_tokens", 0)], replicas=1)
    assert found["tokens"]["lost_evicted"] == 0
    assert found["tokens"]["lost_mismatch"] == 200


def test_what_routing_lost_is_the_routers_to_say() -> None:
    router = [
        gain("router_best_cached_tokens", 880, "frontend"),
        gain("router_selected_cached_tokens", 760, "frontend"),
    ]
    found = origin(server=router, replicas=3)
    assert found["tokens"]["lost_routing"] == 120
    assert "best eligible 880, selected 760" in found["why"]["lost_routing"]
    assert found["tokens"]["lost_evicted"] is None
    found = origin(server=router, replicas=3, mismatch_at_one=0.0)
    assert found["tokens"]["lost_evicted"] == 80


def test_several_replicas_without_a_router_stay_unknown() -> None:
    found = origin(replicas=2, pool_tokens=1e6)
    assert found["tokens"]["lost_routing"] is None
    assert "2 replicas" in found["why"]["lost_routing"]


def test_tiers_are_the_servers_to_say() -> None:
    server = [
        gain("prompt_tokens", 1_000),
        gain("prompt_tokens_by_source", 300, source="computed"),
        gain("prompt_tokens_by_source", 500, source="device"),
        gain("prompt_tokens_by_source", 150, source="host"),
        gain("prompt_tokens_by_source", 50, source="disk"),
        gain("prompt_tokens_by_source", 0, source="external"),
    ]
    found = origin(server=server)
    assert [found["fractions"][t] for t in ("device", "host", "external")] == [0.5, 0.15, 0.05]
    assert "add up" not in found["why"]["device"]
    found = origin(server=server, client=client(cached=900))
    assert "its tiers add up to 700, the answers say 900" in found["why"]["device"]


def test_c35_tiers_that_nobody_counts_are_none() -> None:
    found = origin(server=[gain("prefix_cache_hits", 700, tier="device")])
    assert found["tokens"]["device"] == 700
    assert found["tokens"]["host"] is None
    assert "no page counts" in found["why"]["host"]


def test_more_hits_than_this_run_could_cause_are_said() -> None:
    found = origin(theory=500)
    assert found["tokens"]["lost"] == 0
    assert found["tokens"]["cold"] == 300
    assert "200 more tokens" in found["why"]["lost"]


def test_usage_that_says_zero_where_dynamo_knows_better() -> None:
    router = [
        gain("router_selected_cached_tokens", 640, "frontend"),
        gain("router_best_cached_tokens", 640, "frontend"),
    ]
    found = origin(server=router, client=client(cached=0))
    assert found["tokens"]["achieved"] == 640
    assert "upper bound" in found["why"]["achieved"]


@pytest.mark.parametrize("missing", ["given", "cached", "theory"])
def test_unknown_stays_none(missing: str) -> None:
    who = client(given=None if missing == "given" else 1_000, cached=None if missing == "cached" else 700)
    found = origin(theory=None if missing == "theory" else 900, client=who)
    assert None in (found["tokens"]["cold"], found["tokens"]["lost"])
    assert all(value is None or value >= 0 for value in found["fractions"].values())


TOKENS = st.integers(0, 10**9)


REPLICAS = st.one_of(st.none(), st.integers(1, 4))
POOL = st.one_of(st.none(), st.floats(1, 1e10))
AT_ONE = st.one_of(st.none(), st.floats(0, 1))


@given(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, REPLICAS, POOL, AT_ONE)
def test_parts_never_exceed_the_whole(
    cold: int,
    theory: int,
    cached: int,
    best: int,
    less: int,
    replicas: int | None,
    pool: float | None,
    at_one: float | None,
) -> None:
    cached = min(cached, theory)
    router = [gain("router_best_cached_tokens", best, "frontend")]
    router.append(gain("router_selected_cached_tokens", max(0, best - less), "frontend"))
    who = client(cold + theory, cached)
    found = token_origin(who, theory, router, Evidence(replicas, pool, None, at_one))["tokens"]
    assert found["cold"] + max(found["achieved"], theory) == cold + theory
    for name in PARTS:
        assert found[name] is None or 0 <= found[name] <= found["lost"] + 1e-6
