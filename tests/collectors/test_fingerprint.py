from __future__ import annotations

from pathlib import Path

import pytest

from collectors.dialect import map_page
from collectors.exposition import PageParser
from collectors.fingerprint import contradictions, fingerprint, parse_stated
from results.errors import UserError


def of(shared: Path, page: str, **more: object) -> dict[str, dict[str, object]]:
    parsed = PageParser().parse((shared / "data" / "metrics" / f"{page}.txt").read_bytes())
    mapped = map_page(parsed)
    engines = [d.engine for d in mapped.dialects]
    infos = [series for series in parsed.series if series.name.endswith("_config_info")]
    return fingerprint(samples=mapped.samples(parsed), infos=infos, engines=engines, **more)  # type: ignore[arg-type]


def test_vllm_by_its_page_and_routes(shared: Path) -> None:
    models = {"data": [{"id": "tiny", "root": "org/tiny", "max_model_len": 32_768}]}
    found = of(shared, "vllm-0.32.0-preempted", models=models, version={"version": "0.32.0"}, routes=["/tokenize"])
    values = {key: entry["value"] for key, entry in found.items()}
    assert values["engine"] == "vLLM"
    assert values["version"] == "0.32.0"
    assert values["model"] == "org/tiny"
    assert values["served_model"] == "tiny"
    assert values["context_length"] == 32_768
    assert values["kv_pool_tokens"] == 38_400
    assert values["kv_pool_blocks"] == 300
    assert values["block_size"] == 128
    assert values["prefix_caching"] is True
    assert values["memory_fraction"] == 0.92
    assert "sliding_window" not in values  # None is no value
    assert "kv_cache_dtype" not in values  # nor is auto
    assert {entry["origin"] for entry in found.values()} == {"seen"}
    assert found["kv_pool_tokens"]["source"] == "vllm:cache_config_info"


def test_sglang_by_its_page_and_server_info(shared: Path) -> None:
    found = of(shared, "sglang-0.5.23", server_info={"version": "0.5.23", "tp_size": 2, "model_path": "/m"})
    values = {key: entry["value"] for key, entry in found.items()}
    assert (values["engine"], values["version"], values["tensor_parallel"]) == ("SGLang", "0.5.23", 2)
    assert (values["kv_pool_tokens"], values["block_size"], values["context_length"]) == (131_072, 1, 65_536)


def test_dynamo_frontend_says_what_a_worker_registered(shared: Path) -> None:
    found = of(shared, "dynamo-1.6.1-frontend")
    assert found["engine"]["value"] == "Dynamo"
    assert found["block_size"]["value"] == 64
    assert found["kv_pool_blocks"]["value"] == 8_192
    assert "kv_pool_tokens" not in found  # one worker's blocks are not the stack's pool
    assert "context_length" not in found


def test_trtllm_config_gauges_say_the_parallel_shape() -> None:
    page = PageParser().parse(b"""trtllm_parallel_config_info{tensor_parallel_size="8",gpu_count="8"} 1
trtllm_model_config_info{model="org/m",max_model_len="8192",quantization="None",dtype="bfloat16"} 1
""")
    values = {key: entry["value"] for key, entry in fingerprint(infos=page.series).items()}
    assert values == {"tensor_parallel": 8, "gpus": 8, "context_length": 8_192, "dtype": "bfloat16"}


def test_stated_values_are_marked_and_what_was_seen_stands() -> None:
    stated = parse_stated(["tensor_parallel=8", "version=0.31.0", "gpu=H200 NVL", "offload=a=b"])
    found = fingerprint(version={"version": "0.32.0"}, stated=stated)
    assert found["tensor_parallel"] == {"value": 8, "origin": "stated", "source": "--serving"}
    assert found["offload"]["value"] == "a=b"
    assert found["version"]["value"] == "0.32.0"
    assert contradictions(found) == ["--serving version=0.31.0, but /version says 0.32.0"]


@pytest.mark.parametrize("bad", [["novalue"], ["=x"], ["a="], ["a=1", "a=2"]])
def test_a_bad_statement_is_named(bad: list[str]) -> None:
    with pytest.raises(UserError, match="--serving"):
        parse_stated(bad)


@pytest.mark.parametrize("models", [{}, {"data": None}, {"data": ["x"]}, {"data": [{}]}])
def test_odd_model_lists_are_no_error(models: dict[str, object]) -> None:
    assert fingerprint(models=models) == {}
