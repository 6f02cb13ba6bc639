from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, chat, serving

LABELS = {"engine": "0", "model_name": "m"}


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels, those that every series has left out."""
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k not in LABELS))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_counters_say_what_happened() -> None:
    with serving(MockConfig(FAST, "m")) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
        cached = 0
        bodies: list[dict[str, Any]] = [
            chat(100, max_tokens=10, ignore_eos=True),
            chat(100, max_tokens=10, ignore_eos=True),
            chat(50, "other", max_tokens=1),
        ]
        for body in bodies:
            said = http.post("/v1/chat/completions", json=body).raise_for_status().json()
            cached += said["usage"]["prompt_tokens_details"]["cached_tokens"]
        http.post("/v1/chat/completions", json=chat(9_000))
        response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    page = samples(response.text)

    def value(name: str, **labels: str) -> float:
        return page[f"vllm:{name}", tuple(sorted(labels.items()))]

    assert cached == 96
    assert value("prefix_cache_queries_total") == value("prompt_tokens_total") == 250
    assert value("prefix_cache_hits_total") == value("prompt_tokens_cached_total") == cached
    assert value("prompt_tokens_by_source_total", source="local_compute") == 250 - cached
    assert value("prompt_tokens_by_source_total", source="local_cache_hit") == cached
    assert value("generation_tokens_total") == 21
    assert value("request_success_total", finished_reason="length") == 3
    assert value("num_requests_running") == value("num_requests_waiting") == value("kv_cache_usage_perc") == 0
    assert value("inter_token_latency_seconds_count") == 18
    assert value("request_time_per_output_token_seconds_count") == 2
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_decode_time"):
        assert value(f"{name}_seconds_count") == 3
        assert value(f"{name}_seconds_bucket", le="+Inf") == 3
    assert value("request_prompt_tokens_bucket", le="50.0") == 1
    assert value("request_prompt_tokens_sum") == 250
    assert value("request_prefill_kv_computed_tokens_sum") == 250 - cached
    info = next(labels for name, labels in page if name == "vllm:cache_config_info")
    assert {("block_size", "16"), ("num_gpu_blocks", "2048")} <= set(info)
    assert re.search(r'^vllm:cache_config_info\{[^}]*\bblock_size="16"', response.text, re.MULTILINE)


def shape(page: str) -> dict[str, tuple[str, str, frozenset[tuple[str, ...]], frozenset[str]]]:
    """Type, help text, label names and bucket bounds of every family."""
    return {
        family.name: (
            family.type,
            family.documentation,
            frozenset(tuple(sorted(sample.labels)) for sample in family.samples),
            frozenset(sample.labels["le"] for sample in family.samples if "le" in sample.labels),
        )
        for family in text_string_to_metric_families(page)
    }


def test_families_are_those_of_a_real_vllm(shared: Path) -> None:
    recorded = shape((shared / "data/metrics/vllm-0.32.0.txt").read_text())
    with serving(MockConfig(FAST, "m")) as port:
        ours = shape(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    config = ours.pop("vllm:cache_config_info")
    assert config[:2] == recorded["vllm:cache_config_info"][:2]
    # The parser reads `_created` twins as gauges of their own; they are on both pages.
    assert len(ours) > 20
    assert "vllm:prefix_cache_hits" in ours
    assert ours == {name: recorded[name] for name in ours if name in recorded}
