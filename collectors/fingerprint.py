"""What was serving: seen on the endpoint's routes and metrics pages, or stated by the user and marked so.

Pure: everything fetched is passed in. Each entry is `{value, origin: seen | stated, source}`; where the user states
what the endpoint shows otherwise, what was seen stands and the statement is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from collectors.dialect import Sample
from collectors.exposition import Series
from collectors.tables import dialects
from results.errors import UserError

_CONFIG_FLAGS = {
    "block_size": "block_size",
    "cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "prefix_caching",
    "gpu_memory_utilization": "memory_fraction",
    "kv_offloading_backend": "kv_offload_backend",
    "kv_offloading_size": "kv_offload_gib",
    "num_cpu_blocks": "host_blocks",
    "sliding_window": "sliding_window",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "expert_parallel_size": "expert_parallel",
    "gpu_count": "gpus",
    "gpu_type": "gpu",
    "max_model_len": "context_length",
    "quantization": "quantization",
    "dtype": "dtype",
    "spec_method": "speculation",
    "spec_num_tokens": "speculation_tokens",
    "enable_block_reuse": "prefix_caching",
    "page_size": "block_size",
}
"""Labels of `*_config_info` gauges (vLLM, TensorRT-LLM), and our names for them; pools are summed over replicas."""

_SERVER_INFO = {
    "version": "version",
    "model_path": "model",
    "served_model_name": "served_model",
    "context_length": "context_length",
    "tp_size": "tensor_parallel",
    "dp_size": "data_parallel",
    "pp_size": "pipeline_parallel",
    "ep_size": "expert_parallel",
    "page_size": "block_size",
    "max_total_num_tokens": "kv_pool_tokens",
    "max_total_tokens": "kv_pool_tokens",
    "mem_fraction_static": "memory_fraction",
    "kv_cache_dtype": "kv_cache_dtype",
    "disable_radix_cache": "prefix_caching_disabled",
    "enable_hierarchical_cache": "hierarchical_cache",
    "hicache_ratio": "hierarchical_cache_ratio",
    "hicache_storage_backend": "kv_offload_backend",
    "quantization": "quantization",
    "dtype": "dtype",
    "speculative_algorithm": "speculation",
    "speculative_num_draft_tokens": "speculation_tokens",
    "disaggregation_mode": "disaggregation",
    "schedule_policy": "schedule_policy",
    "attention_backend": "attention_backend",
}
"""Keys of SGLang's /server_info, and our names for them."""

_UNSET = frozenset({"", "none", "null", "auto"})
_SAMPLED = {
    "kv_pool_tokens": "kv_pool_tokens",
    "kv_pool_blocks": "kv_pool_blocks",
    "kv_block_tokens": "block_size",
    "context_length": "context_length",
}


def fingerprint(
    *,
    samples: Sequence[Sample] = (),
    infos: Sequence[Series] = (),
    engines: Iterable[str] = (),
    models: Mapping[str, Any] | None = None,
    server_info: Mapping[str, Any] | None = None,
    version: Mapping[str, Any] | None = None,
    routes: Iterable[str] = (),
    stated: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Everything known of the server.

    `samples` and `infos` (the `*_config_info` series) of its metrics pages, `engines` their dialects; `models` the
    JSON of /v1/models, `server_info` of SGLang's route, `version` of vLLM's /version; `routes` the paths of
    /openapi.json; `stated` of `parse_stated`.
    """
    seen: dict[str, dict[str, Any]] = {}

    def put(key: str, value: Any, source: str) -> None:
        if value is not None and str(value).lower() not in _UNSET and key not in seen:
            seen[key] = {"value": value, "origin": "seen", "source": source}

    titles = [dialects()[engine].title for engine in engines]
    if titles:
        put("engine", " + ".join(dict.fromkeys(titles)), "metrics names")
    _from_models(models or {}, put)
    put("version", (version or {}).get("version"), "/version")
    for key, name in _SERVER_INFO.items():
        put(name, _plain((server_info or {}).get(key)), "/server_info")
    for series in infos:
        for label, text in series.labels:
            if label in _CONFIG_FLAGS:
                put(_CONFIG_FLAGS[label], _plain(text), series.name)
    _from_samples(samples, put)
    known = sorted(set(routes))
    if known:
        put("routes", known, "/openapi.json")
    return _with_stated(seen, stated or {})


def _from_models(models: Mapping[str, Any], put: Any) -> None:
    cards = models.get("data")
    for card in cards if isinstance(cards, list) else []:
        if isinstance(card, dict) and card.get("id"):
            put("served_model", card["id"], "/v1/models")
            put("model", card.get("root") or card["id"], "/v1/models")
            put("context_length", card.get("max_model_len"), "/v1/models")


def _from_samples(samples: Sequence[Sample], put: Any) -> None:
    for name, key in _SAMPLED.items():
        found = [s for s in samples if s.name == name and dict(s.labels).get("tier", "device") == "device"]
        found = [s for s in found if "per" not in dict(s.labels)] or found
        if not found:
            continue
        values = [s.value for s in found]
        summed = name in ("kv_pool_tokens", "kv_pool_blocks")
        if summed or len(set(values)) == 1:
            put(key, _plain(sum(values) if summed else values[0]), found[0].series.name)
    blocks = [s.value for s in samples if s.name == "kv_pool_blocks" and "per" not in dict(s.labels)]
    sizes = {s.value for s in samples if s.name == "kv_block_tokens"}
    if blocks and len(sizes) == 1:
        put("kv_pool_tokens", _plain(sum(blocks) * sizes.pop()), "blocks times block size")


def _plain(value: Any) -> Any:
    """Numbers and booleans out of a label's text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if value in ("True", "False"):
        return value == "True"
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else number


def _with_stated(seen: dict[str, dict[str, Any]], stated: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    for key, text in stated.items():
        value = _plain(text)
        entry = seen.get(key)
        if entry is None:
            seen[key] = {"value": value, "origin": "stated", "source": "--serving"}
        elif entry["value"] != value:
            entry["stated"] = value
    return seen


def parse_stated(items: Sequence[str]) -> dict[str, str]:
    """`--serving key=value` as a dict; an item without `=` is a YAML or JSON file of such keys.

    UserError names an item without a key or a value, a key given twice, and a file that can't be used.
    """
    found: dict[str, str] = {}
    pairs = [pair for item in items for pair in ([item] if "=" in item else _pairs_of(Path(item)))]
    for item in pairs:
        key, mark, value = (part.strip() for part in item.partition("="))
        if not (key and mark and value):
            raise UserError(f"--serving {item}", remedy="write it as key=value, for example tensor_parallel=8")
        if found.setdefault(key, value) != value:
            raise UserError(f"--serving {key} is given twice: {found[key]} and {value}", remedy="give it once")
    return found


def _pairs_of(path: Path) -> list[str]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        remedy = "write it as key=value, or name a file of keys"
        raise UserError(f"--serving {path}: {error.strerror}", remedy=remedy) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--serving {path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict) or any(isinstance(value, dict | list) for value in document.values()):
        raise UserError(f"--serving {path}: not a mapping of keys to plain values")
    return [f"{key}={value}" for key, value in document.items()]


def contradictions(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was stated and seen otherwise, one line each."""
    return [
        f"--serving {key}={entry['stated']}, but {entry['source']} says {entry['value']}"
        for key, entry in found.items()
        if "stated" in entry
    ]
