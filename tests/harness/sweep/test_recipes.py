from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.sweep.load import load_recipe, load_sweep, recipe_names
from harness.sweep.schema import Configuration
from harness.sweep.server import check_placeholders, fill
from results.errors import UserError
from tests.servers.recipe_flags import RECORD, used

MACHINES = ("h200", "b200", "b300", "gb200", "gb300", "vr200", "mi355x", "tpuv7")


def configure(folder: Path, recipe: str, serving: str = "model: org/m", more: str = "") -> Configuration:
    path = folder / "sweep.yaml"
    path.write_text(f"name: s\nconfigurations:\n- name: a\n  recipe: {recipe}\n  serving: {{{serving}}}\n{more}")
    configuration = load_sweep(path).configurations[0]
    check_placeholders(configuration)
    return configuration


def command(configuration: Configuration, process: str = "server") -> str:
    return " ".join(fill(configuration, Path("folder")).commands[process])


def test_there_are_recipes_for_every_machine() -> None:
    names = recipe_names()
    assert {"cpu-vllm", "dynamo-mocker", *(f"{machine}-vllm" for machine in MACHINES)} <= set(names)
    assert {f"{m}-{e}" for m in MACHINES[:6] for e in ("sglang", "dynamo-vllm", "dynamo-vllm-disagg")} <= set(names)
    assert "tpuv7-sglang" not in names


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_starts_from_a_model_alone(tmp_path: Path, name: str) -> None:
    image = ", image: vllm/vllm-openai:v0.27.1" if name.endswith("docker") else ""
    configuration = configure(tmp_path, name, f"model: org/m{image}")
    filled = fill(configuration, tmp_path)
    words = [word for words in filled.commands.values() for word in words]
    assert "org/m" in words
    assert str(filled.port) in words
    recipe, _ = load_recipe(name, tmp_path)
    serving = configuration.serving
    assert serving.hardware == ("cpu" if recipe.accelerators_per_node is None else name.split("-")[0])
    assert serving.accelerator_count == (recipe.accelerators_per_node or 0)


def test_every_flag_of_a_recipe_is_on_record_as_one_that_its_program_takes() -> None:
    record = json.loads(RECORD.read_text())
    for program, flags in used().items():
        unknown = flags - set(record[program]["flags"])
        assert not unknown, f"{program} {unknown}: python -m tests.servers.recipe_flags"
    unchecked = {program for program, entry in record.items() if entry["version"] is None}
    assert unchecked == {"docker", "trtllm"}
    for name in recipe_names():
        if name.endswith("-trtllm") and "dynamo" not in name:
            assert "not checked here" in load_recipe(name, Path())[0].checked


def test_flags_follow_the_metadata(tmp_path: Path) -> None:
    wide = "model: m, tp: 1, dp: 8, ep: 8, dp_attention: true, speculative: {method: mtp, tokens: 3}"
    offload = ", kv_offload: {kind: dram, backend: native, gigabytes: 1000}"
    words = command(configure(tmp_path, "b200-vllm", wide + offload))
    assert "--tensor-parallel-size 1" in words
    assert "--enable-expert-parallel --data-parallel-size 8" in words
    assert '--speculative-config {"method":"mtp","num_speculative_tokens":3}' in words
    assert "--kv-offloading-size 931" in words  # 1,000 GB in GiB

    narrow = "model: m, tp: 8, dp_attention: true, speculative: {method: mtp, tokens: 3}"
    words = command(configure(tmp_path, "h200-sglang", narrow))
    assert "--attn-dp-size 8" in words
    assert "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in words


def test_prefill_and_decode_have_devices_and_ports_of_their_own(tmp_path: Path) -> None:
    configuration = configure(tmp_path, "gb200-dynamo-vllm-disagg")
    filled = fill(configuration, tmp_path)
    prefill, decode = filled.commands["prefill"], filled.commands["decode"]
    assert "CUDA_VISIBLE_DEVICES=0,1" in prefill
    assert "CUDA_VISIBLE_DEVICES=2,3" in decode
    ports = [next(w for w in words if w.startswith("VLLM_NIXL_SIDE_CHANNEL_PORT")) for words in (prefill, decode)]
    assert len(set(ports)) == 2
    assert filled.env["DYN_FILE_KV"] == f"{tmp_path}/store"


@pytest.mark.parametrize(
    ("recipe", "serving", "says"),
    [
        ("b200-vllm", "speculative: {method: eagle3, tokens: 3}", "no flags for speculative.eagle3"),
        ("tpuv7-vllm", "kv_offload: {kind: dram, backend: mooncake}", "no flags for kv_offload.mooncake"),
        ("b200-vllm", "tp: 16", "has 8 accelerators, the shape needs 16"),
        ("gb200-vllm", "tp: 8, nodes: 2", "no flags for several_nodes"),
        ("gb200-dynamo-vllm-disagg", "disaggregation: {prefill: {workers: 2, tp: 1}}", "no flags for prefill.workers"),
        ("b200-vllm-docker", "tp: 8", "needs {image}, which nothing says"),
        ("b200-atom", "tp: 8", "no recipe for atom on b200"),
        ("b900-vllm", "tp: 8", "no recipe b900-vllm"),
        ("../b200-vllm", "tp: 8", "no recipe ../b200-vllm"),
        ("mine.yaml", "tp: 8", "mine.yaml: No such file"),
    ],
)
def test_metadata_that_the_recipe_does_not_start_is_refused(
    tmp_path: Path, recipe: str, serving: str, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        configure(tmp_path, recipe, f"model: m, {serving}")
    assert says in str(caught.value)
    assert "sweep.yaml:" in str(caught.value) or "placeholder" in says or "{image}" in says


def test_flags_of_one_s_own_may_say_what_the_recipe_can_t(tmp_path: Path) -> None:
    more = '  extra: {server: [--speculative-config, \'{"method":"eagle3"}\']}\n'
    configuration = configure(tmp_path, "b200-vllm", "model: m, speculative: {method: eagle3, tokens: 3}", more)
    assert command(configuration).endswith('{"method":"eagle3"}')


def test_a_recipe_of_one_s_own_lies_beside_the_sweep_and_the_configuration_wins(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "description: mine\nchecked: by me\nserving: {engine: vllm, tp: 2, precision: fp8}\n"
        'server: {commands: {server: [serve, "{model}", --tp, "{tp}", "{kind}"]}, ready_timeout: 1m}\n'
        "variables: {kind: slow}\n"
    )
    more = "  variables: {kind: fast}\n  server: {ready_timeout: 2m}\n"
    configuration = configure(tmp_path, "mine.yaml", "model: m, tp: 4", more)
    assert command(configuration) == "serve m --tp 4 fast"
    assert configuration.server is not None
    assert configuration.server.ready_timeout == "2m"
    assert configuration.serving.precision == "fp8"


def test_a_mistake_in_a_recipe_is_told_with_both_lines(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("description: mine\nchecked: by me\nservin: {}\n")
    with pytest.raises(UserError) as caught:
        configure(tmp_path, "mine.yaml")
    assert "sweep.yaml:4" in str(caught.value)
    assert "mine.yaml:3: unknown key 'servin'" in str(caught.value)
