from __future__ import annotations

import pytest

from results.findings import Severity
from results.reconcile import ClientSums, Increase, findings, hit_rate, reconcile, total


def gain(name: str, value: float, *, role: str = "worker", dialect: str = "vllm", **labels: str) -> Increase:
    return Increase(name, value, f"http://{role}", role, dialect, labels)


CLIENT = ClientSums(requests=10, input_tokens=100_000, output_tokens=2_000, cached_tokens=90_000)


def test_what_agrees_is_no_warning() -> None:
    server = [
        gain("prompt_tokens", 100_500),
        gain("cached_prompt_tokens", 90_000),
        gain("generation_tokens", 2_000),
        gain("requests_finished", 10, reason="length"),
        gain("requests_finished", 3, reason="abort"),
    ]
    result = reconcile(CLIENT, server)
    assert {result[k]["verdict"] for k in ("prompt_tokens", "cached_tokens", "generation_tokens", "requests")} == {
        "agree"
    }
    assert result["prompt_tokens"]["difference"] == 500
    assert result["prompt_tokens"]["relative"] == pytest.approx(0.005)
    assert not findings(result)


def test_p110_hits_that_disagree_with_usage_are_both_shown() -> None:
    server = [
        gain("prefix_cache_queries", 200_000, tier="device"),
        gain("prefix_cache_hits", 0, tier="device"),
        gain("prompt_tokens", 100_000),
    ]
    result = reconcile(CLIENT, server)
    row = result["cached_tokens"]
    assert (row["client"], row["server"], row["verdict"], row["primary"]) == (90_000, 0, "disagree", "client")
    warning = findings(result)
    assert [w.severity for w in warning] == [Severity.WARNING]
    assert "0 cached tokens" in warning[0].evidence
    assert "90,000" in warning[0].evidence


@pytest.mark.parametrize(("server", "verdict"), [(101_000, "agree"), (101_100, "disagree"), (98_900, "disagree")])
def test_over_one_per_cent_is_a_warning(server: float, verdict: str) -> None:
    assert reconcile(CLIENT, [gain("prompt_tokens", server)])["prompt_tokens"]["verdict"] == verdict


def test_c35_what_nobody_says_is_none_with_the_reason() -> None:
    row = reconcile(ClientSums(1, None, None, None, without_usage=1), [])["prompt_tokens"]
    assert row["server"] is row["client"] is row["difference"] is row["primary"] is None
    assert row["verdict"] == "unknown"
    assert "the answers and the server's pages do not say" in row["reason"]


def test_a_restart_explains_what_is_missing() -> None:
    increase = Increase("prompt_tokens", 60_000, "t", "worker", "vllm", resets=1)
    result = reconcile(CLIENT, [increase])
    assert "restarted" in result["prompt_tokens"]["reason"]
    assert "restarted" in findings(result)[0].remedy


def test_a_frontend_counts_each_request_once_and_is_asked_first() -> None:
    server = [
        gain("prompt_tokens", 100, role="frontend", dialect="dynamo"),
        gain("prompt_tokens", 100, role="prefill"),
        gain("prompt_tokens", 100, role="decode"),
    ]
    assert total(server, "prompt_tokens") == 100
    assert total(server[1:], "prompt_tokens") == 100


def test_apart_prefill_and_decode_each_count_their_own() -> None:
    server = [
        gain("generation_tokens", 10, role="prefill"),  # one token each, thrown away
        gain("generation_tokens", 500, role="worker"),
        gain("requests_finished", 10, role="prefill"),
        gain("requests_finished", 10, role="decode"),
    ]
    assert total(server, "generation_tokens") == 500
    assert total(server, "requests_finished") == 10


def test_lmcache_does_not_count_the_engines_external_hits_again() -> None:
    server = [
        gain("prefix_cache_hits", 60, tier="external"),
        gain("prefix_cache_hits", 60, dialect="lmcache", tier="external"),
    ]
    assert total(server, "prefix_cache_hits", tier="external") == 60
    assert total(server[1:], "prefix_cache_hits", tier="external") == 60


def test_c37_hit_rates_of_pools_are_weighted_by_tokens() -> None:
    pools = [
        gain("prefix_cache_queries", 900, tier="device"),
        gain("prefix_cache_hits", 810, tier="device"),
        gain("prefix_cache_queries", 100, tier="device"),
        gain("prefix_cache_hits", 10, tier="device"),
    ]
    assert hit_rate(pools, "device") == pytest.approx(0.82)
    assert hit_rate(pools, "host") is None
    assert hit_rate([gain("prefix_cache_queries", 0, tier="device"), *pools[1:2]], "device") is None
