from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from collectors.dialect import Mapper, Sample, map_page
from collectors.exposition import Page, PageParser
from collectors.metrics_sink import combine
from collectors.tables import dialects, vocabulary
from tests.collectors.pages import said

H = ("sum", "count")


def read(text: str) -> Page:
    return PageParser().parse(text.encode())


def samples(text: str) -> list[Sample]:
    page = read(text)
    return map_page(page).samples(page)


def value(found: list[Sample], name: str, part: str = "", **labels: str) -> float:
    """Sum of a canonical series; fails where it is missing."""
    kept = [s.value for s in found if s.name == name and s.part == part and labels.items() <= dict(s.labels).items()]
    assert kept, f"missing: {name} {part} {labels}"
    return math.fsum(kept)


def has(found: list[Sample], name: str) -> bool:
    return any(s.name == name for s in found)


VLLM_HISTOGRAMS = {
    "ttft_seconds": "time_to_first_token_seconds",
    "itl_seconds": "inter_token_latency_seconds",
    "tpot_seconds": "request_time_per_output_token_seconds",
    "e2e_seconds": "e2e_request_latency_seconds",
    "queue_seconds": "request_queue_time_seconds",
    "prefill_seconds": "request_prefill_time_seconds",
    "decode_seconds": "request_decode_time_seconds",
}
# Canonical name and labels, and where on the page the same number stands.
VLLM: list[tuple[str, dict[str, str], str, dict[str, str]]] = [
    ("prefix_cache_queries", {"tier": "device"}, "vllm:prefix_cache_queries_total", {}),
    ("prefix_cache_hits", {"tier": "device"}, "vllm:prefix_cache_hits_total", {}),
    ("prefix_cache_queries", {"tier": "external"}, "vllm:external_prefix_cache_queries_total", {}),
    ("prefix_cache_hits", {"tier": "external"}, "vllm:external_prefix_cache_hits_total", {}),
    ("prompt_tokens", {}, "vllm:prompt_tokens_total", {}),
    (
        "prompt_tokens_by_source",
        {"source": "computed"},
        "vllm:prompt_tokens_by_source_total",
        {"source": "local_compute"},
    ),
    *[
        (
            "prompt_tokens_by_source",
            {"source": ours},
            "vllm:prompt_tokens_cached_by_source_total",
            {"source": theirs},
        )
        for ours, theirs in {"device": "device", "host": "host", "external": "external_unspecified"}.items()
    ],
    ("cached_prompt_tokens", {}, "vllm:prompt_tokens_cached_total", {}),
    ("generation_tokens", {}, "vllm:generation_tokens_total", {}),
    ("requests_finished", {}, "vllm:request_success_total", {}),
    ("requests_finished", {"reason": "length"}, "vllm:request_success_total", {"finished_reason": "length"}),
    ("requests_running", {}, "vllm:num_requests_running", {}),
    ("requests_waiting", {}, "vllm:num_requests_waiting", {}),
    ("requests_preempted", {}, "vllm:num_preemptions_total", {}),
    ("kv_usage", {"tier": "device"}, "vllm:kv_cache_usage_perc", {}),
]
SGLANG: list[tuple[str, dict[str, str], str, dict[str, str]]] = [
    ("prefix_cache_queries", {"tier": "device"}, "sglang:prompt_tokens_total", {}),
    ("prefix_cache_hits", {"tier": "device"}, "sglang:cached_tokens_total", {"cache_source": "device"}),
    ("prompt_tokens", {}, "sglang:prompt_tokens_total", {}),
    ("prompt_tokens_by_source", {"source": "computed"}, "sglang:realtime_tokens_total", {"mode": "prefill_compute"}),
    ("prompt_tokens_by_source", {"source": "device"}, "sglang:cached_tokens_total", {"cache_source": "device"}),
    ("cached_prompt_tokens", {}, "sglang:cached_tokens_total", {}),
    ("generation_tokens", {}, "sglang:generation_tokens_total", {}),
    ("requests_finished", {}, "sglang:num_requests_total", {}),
    ("requests_running", {}, "sglang:num_running_reqs", {}),
    ("requests_waiting", {}, "sglang:num_queue_reqs", {}),
    ("requests_retracted_now", {}, "sglang:num_retracted_reqs", {}),
    ("kv_usage", {"tier": "device"}, "sglang:token_usage", {}),
    ("kv_used_tokens", {"tier": "device"}, "sglang:kv_used_tokens", {}),
    ("kv_pool_tokens", {"tier": "device"}, "sglang:max_total_num_tokens", {}),
    ("kv_pool_blocks", {}, "sglang:num_pages", {}),
    ("kv_block_tokens", {}, "sglang:page_size", {}),
    ("context_length", {}, "sglang:context_len", {}),
]
SGLANG_HISTOGRAMS = {
    "ttft_seconds": "time_to_first_token_seconds",
    "itl_seconds": "inter_token_latency_seconds",
    "tpot_seconds": "request_time_per_output_token_seconds",
    "e2e_seconds": "e2e_request_latency_seconds",
    "queue_seconds": "queue_time_seconds",
}
DYNAMO: list[tuple[str, dict[str, str], str, dict[str, str]]] = [
    ("prompt_tokens", {}, "dynamo_frontend_input_sequence_tokens_sum", {}),
    ("cached_prompt_tokens", {}, "dynamo_frontend_cached_tokens_sum", {}),
    ("generation_tokens", {}, "dynamo_frontend_output_tokens_total", {}),
    ("requests_finished", {"reason": "success"}, "dynamo_frontend_requests_total", {"status": "success"}),
    ("requests_running", {}, "dynamo_frontend_inflight_requests", {}),
    ("requests_waiting", {}, "dynamo_frontend_queued_requests", {}),
    ("kv_block_tokens", {}, "dynamo_frontend_model_kv_cache_block_size", {}),
    ("kv_pool_blocks", {"per": "worker"}, "dynamo_frontend_model_total_kv_blocks", {}),
]
DYNAMO_HISTOGRAMS = {
    "ttft_seconds": "time_to_first_token_seconds",
    "itl_seconds": "inter_token_latency_seconds",
    "e2e_seconds": "request_duration_seconds",
}
WORKER_HISTOGRAMS = {
    "ttft_seconds": "time_to_first_token_seconds",
    "itl_seconds": "inter_token_latency_seconds",
    "e2e_seconds": "e2e_request_latency_seconds",
}


def check(text: str, rows: list[Any], histograms: dict[str, str], prefix: str) -> list[Sample]:
    found = samples(text)
    for name, labels, source, filters in rows:
        assert value(found, name, **labels) == said(text, source, **filters), (name, labels)
    for name, source in histograms.items():
        for part in H:
            assert value(found, name, part) == pytest.approx(said(text, f"{prefix}{source}_{part}"), rel=1e-12), name
        infinite = said(text, f"{prefix}{source}_bucket", le="+Inf")
        assert value(found, name, "bucket", le="+Inf") == infinite == value(found, name, "count")
    return found


@pytest.mark.parametrize("page", ["vllm-0.32.0", "vllm-0.32.0-preempted", "vllm-0.32.0-external-tier"])
def test_vllm_pages_say_the_same_in_the_vocabulary(shared: Path, page: str) -> None:
    text = (shared / "data" / "metrics" / f"{page}.txt").read_text()
    found = check(text, VLLM, VLLM_HISTOGRAMS, "vllm:")
    sources = value(found, "prompt_tokens_by_source")
    assert sources == value(found, "prompt_tokens")  # every prompt token has one source
    assert value(found, "kv_pool_tokens") == value(found, "kv_pool_blocks") * value(found, "kv_block_tokens")
    assert {s.dialect for s in found} == {"vllm"}
    assert has(found, "kv_block_lifetime_seconds") == ("preempted" in page)


def test_sglang_page_says_the_same_in_the_vocabulary(shared: Path) -> None:
    text = (shared / "data" / "metrics" / "sglang-0.5.23.txt").read_text()
    found = check(text, SGLANG, SGLANG_HISTOGRAMS, "sglang:")
    for part in H:
        stage = said(text, f"sglang:per_stage_req_latency_seconds_{part}", stage="prefill_forward")
        assert value(found, "prefill_seconds", part) == stage
    assert not has(found, "requests_preempted")  # the page has the momentary gauge only
    assert not has(found, "spec_accept_length")  # 0 where nothing is speculated


@pytest.mark.parametrize(
    "page", ["frontend", "frontend-over-sglang", "mocker-frontend-disagg", "mocker-frontend-kvpressure"]
)
def test_dynamo_frontends_say_the_same_in_the_vocabulary(shared: Path, page: str) -> None:
    text = (shared / "data" / "metrics" / f"dynamo-1.6.1-{page}.txt").read_text()
    found = check(text, DYNAMO, DYNAMO_HISTOGRAMS, "dynamo_frontend_")
    assert map_page(read(text)).role == "frontend"
    router = "dynamo_component_router_kv_{}_cached_prefix_tokens_total"
    phase = "prefill" if "disagg" in page else "aggregated"
    for ours, theirs in {"best": "best_eligible", "selected": "selected"}.items():
        assert value(found, f"router_{ours}_cached_tokens") == said(text, router.format(theirs), phase=phase)
    length = said(text, "dynamo_frontend_model_context_length")
    assert has(found, "context_length") == (length > 0)  # 0 there means that nobody registered one


def test_dynamo_disaggregated_requests_are_not_counted_twice(shared: Path) -> None:
    text = (shared / "data" / "metrics" / "dynamo-1.6.1-mocker-frontend-disagg.txt").read_text()
    assert said(text, "dynamo_component_router_requests_total") == 82
    assert said(text, "dynamo_component_router_input_sequence_tokens_sum") == 2 * 69_814
    found = samples(text)
    assert value(found, "requests_finished") == 41
    assert value(found, "prompt_tokens") == 69_814


@pytest.mark.parametrize(
    ("page", "prefix", "engine"),
    [
        ("mocker-worker0-agg-split", "vllm:", "vllm"),
        ("mocker-worker1-agg-split", "vllm:", "vllm"),
        ("mocker-decode-disagg", "vllm:", "vllm"),
        ("mocker-worker-trtllm-engine", "trtllm:", "trtllm"),
    ],
)
def test_dynamo_workers_speak_their_engines_dialect(shared: Path, page: str, prefix: str, engine: str) -> None:
    text = (shared / "data" / "metrics" / f"dynamo-1.6.1-{page}.txt").read_text()
    rows: list[Any] = [
        ("kv_usage", {"tier": "device"}, f"{prefix}kv_cache_usage_perc", {}),
        ("requests_running", {}, f"{prefix}num_requests_running", {}),
        ("requests_waiting", {}, f"{prefix}num_requests_waiting", {}),
        ("requests_preempted", {}, f"{prefix}num_preemptions_total", {}),
        ("requests_finished", {}, "dynamo_component_requests_total", {"dynamo_endpoint": "generate"}),
    ]
    found = check(text, rows, WORKER_HISTOGRAMS, prefix)
    assert {d.engine for d in map_page(read(text)).dialects} == {engine, "dynamo-worker"}
    # gpu_cache_usage_perc beside kv_cache_usage_perc is the same gauge under its old name.
    assert len([s for s in found if s.name == "kv_usage"]) == 1


def test_a_prefill_worker_is_told_by_its_component(shared: Path) -> None:
    text = (shared / "data" / "metrics" / "dynamo-1.6.1-mocker-prefill-disagg.txt").read_text()
    mapped = map_page(read(text))
    assert mapped.role == "prefill"
    assert value(samples(text), "requests_finished") == said(
        text, "dynamo_component_requests_total", dynamo_endpoint="generate"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm:kv_cache_usage_perc", 0.4),
        ("vllm:gpu_cache_usage_perc", 0.4),
        ("vllm_kv_cache_usage_perc", 0.4),
        ("vllm:something_else", None),
    ],
)
def test_p102_a_renamed_gauge_is_the_same_and_a_lost_one_is_missing(name: str, expected: float | None) -> None:
    found = samples(f'vllm:num_requests_running 1\n{name}{{engine="0"}} 0.4\n')
    assert [s.value for s in found if s.name == "kv_usage"] == ([] if expected is None else [expected])


@pytest.mark.parametrize("infix", ["", "gpu_"])
@pytest.mark.parametrize("suffix", ["", "_total"])
@pytest.mark.parametrize("typed", [True, False])
def test_c34_prefix_counters_under_any_of_their_names(infix: str, suffix: str, typed: bool) -> None:
    text = ""
    for what, count in {"queries": 200, "hits": 150}.items():
        name = f"vllm:{infix}prefix_cache_{what}"
        declared = f"# TYPE {name}{suffix} counter\n" if typed else ""
        text += f'{declared}{name}{suffix}{{engine="0"}} {count}\n# TYPE {name}_created gauge\n{name}_created 1.7e9\n'
    found = samples(text)
    assert value(found, "prefix_cache_queries", tier="device") == 200
    assert value(found, "prefix_cache_hits", tier="device") == 150
    assert len(found) == 2


def test_c34_both_names_at_once_count_once() -> None:
    text = "".join(
        f"# TYPE {n} counter\n{n} 7\n" for n in ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits")
    )
    assert value(samples(text), "prefix_cache_hits") == 7


def test_the_first_releases_counted_blocks_and_said_so() -> None:
    text = (
        "# HELP vllm:gpu_prefix_cache_hits_total GPU prefix cache hits, in terms of number of cached blocks.\n"
        "# TYPE vllm:gpu_prefix_cache_hits_total counter\nvllm:gpu_prefix_cache_hits_total 10\n"
    )
    config = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    assert value(samples(text + config), "prefix_cache_hits") == 160
    page = read(text)
    assert not map_page(page).samples(page)
    assert "unknown size" in map_page(page).notes[0]


def test_c35_a_missing_series_is_missing_and_never_zero() -> None:
    found = samples("# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total 5\n")
    assert {s.name for s in found} == {"prompt_tokens"}


def test_c36_fields_that_appear_later_are_taken() -> None:
    parser, mapper = PageParser(), Mapper()
    first = parser.parse(b"vllm:num_requests_running 1\n")
    assert {s.name for s in mapper.map(first).samples(first)} == {"requests_running"}
    later = parser.parse(b"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\n")
    assert {s.name for s in mapper.map(later).samples(later)} == {"requests_running", "kv_usage"}
    assert mapper.map(parser.parse(b"vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n")) is mapper.map(later)


def test_p104_ranks_are_summed_where_a_sum_has_a_meaning() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{e}"}} {running}\nvllm:kv_cache_usage_perc{{engine="{e}"}} {usage}\n'
        for e, running, usage in ((0, 3, 0.2), (1, 5, 0.6))
    )
    found = samples(text)
    gauges = {key: (combined, largest) for key, combined, largest in combine(found)}
    assert gauges["requests_running"][0] == 8
    mean, largest = gauges['kv_usage{tier="device"}']
    assert mean == pytest.approx(0.4)
    assert largest == 0.6
    assert {s.series.label("engine") for s in found if s.name == "kv_usage"} == {"0", "1"}


def test_p104_tensor_parallel_ranks_say_the_same_once() -> None:
    text = "".join(
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}",pid="{100 + tp}"}} {4 + dp}\n'
        for dp in (0, 1)
        for tp in (2 * dp, 2 * dp + 1)
    )
    assert sorted(s.value for s in samples(text)) == [4, 5]


def test_an_unknown_engine_is_raw_only_and_said_so() -> None:
    page = read("acme_tokens_total 5\n")
    mapped = map_page(page)
    assert not mapped.dialects
    assert not mapped.links
    assert mapped.role == "unknown"
    assert "raw series only" in mapped.notes[0]


def test_units_become_those_of_the_vocabulary() -> None:
    text = (
        "# TYPE vllm:tpu_kv_pull_time_ms histogram\n"
        'vllm:tpu_kv_pull_time_ms_bucket{le="250.0"} 1\nvllm:tpu_kv_pull_time_ms_bucket{le="+Inf"} 2\n'
        "vllm:tpu_kv_pull_time_ms_sum 1500\nvllm:tpu_kv_pull_time_ms_count 2\n"
        "# TYPE vllm:tpu_kv_megabytes_transferred histogram\nvllm:tpu_kv_megabytes_transferred_sum 3\n"
        "vllm:num_requests_running 1\n"
    )
    found = samples(text)
    assert value(found, "kv_transfer_seconds", "sum") == 1.5
    assert value(found, "kv_transfer_seconds", "count") == 2
    assert value(found, "kv_transfer_seconds", "bucket", le="0.25") == 1
    assert value(found, "kv_transfer_seconds", "bucket", le="+Inf") == 2
    assert value(found, "kv_transfer_bytes") == 3 * 2**20
    assert {s.dialect for s in found} == {"tpu-vllm"}  # it extends vllm, which is not told twice
    assert has(found, "requests_running")


def test_vllm_offload_and_transfer_series() -> None:
    old = "# TYPE vllm:kv_offload_total_bytes_total counter\n" + "".join(
        f'vllm:kv_offload_total_bytes_total{{transfer_type="{k}"}} {v}\n'
        for k, v in {"GPU_to_CPU": 10, "CPU_to_GPU": 4}.items()
    )
    new = "vllm:kv_offload_store_bytes_total 10\nvllm:kv_offload_load_bytes_total 4\n"
    for text in (old, new, old + new):
        assert value(samples(text), "kv_offload_bytes", direction="store") == 10
        assert value(samples(text), "kv_offload_bytes", direction="load") == 4


def test_lmcache_beside_its_engine() -> None:
    found = samples("vllm:prompt_tokens_total 9\nlmcache:num_lookup_tokens_total 8\nlmcache:num_lookup_hits_total 6\n")
    assert value(found, "prefix_cache_hits", tier="external") == 6
    assert {s.dialect for s in found} == {"vllm", "lmcache"}


def test_llm_d_under_both_of_its_names() -> None:
    for prefix in ("llm_d_epp_", "inference_objective_"):
        text = f"# TYPE {prefix}input_tokens histogram\n{prefix}input_tokens_sum 70\n{prefix}input_tokens_count 2\n"
        assert value(samples(text), "prompt_tokens") == 70
    assert map_page(read('inference_pool_average_kv_cache_utilization{name="p"} 0.5\n')).role == "frontend"


def test_trtllm_names_of_its_own_page() -> None:
    text = (
        "# TYPE trtllm_prompt_tokens_total counter\ntrtllm_prompt_tokens_total 100\n"
        "# TYPE trtllm_prompt_cached_tokens_total counter\ntrtllm_prompt_cached_tokens_total 60\n"
        "# TYPE trtllm_kv_cache_utilization gauge\ntrtllm_kv_cache_utilization 0.25\n"
        "# TYPE trtllm_kv_cache_reused_blocks_total counter\ntrtllm_kv_cache_reused_blocks_total 6\n"
        'trtllm_cache_config_info{page_size="32"} 1\n'
    )
    found = samples(text)
    assert value(found, "prefix_cache_hits", tier="device") == 60
    assert value(found, "kv_usage", tier="device") == 0.25
    assert value(found, "prefix_cache_block_hits") == 6
    assert value(found, "kv_block_tokens") == 32


def test_every_table_speaks_the_vocabulary() -> None:
    expected = {"dynamo", "dynamo-worker", "llm-d", "lmcache", "sglang", "tpu-vllm", "trtllm", "vllm"}
    assert dialects().keys() == expected
    for dialect in dialects().values():
        assert dialect.title
        assert dialect.enable
        for rule in dialect.rules:
            assert rule.to in vocabulary(), (dialect.engine, rule.to)
            assert rule.names
    assert {t.kind for t in vocabulary().values()} == {"counter", "gauge", "histogram"}
    assert {t.combine for t in vocabulary().values()} == {"sum", "mean", "same"}
