from __future__ import annotations

from pathlib import Path

import pytest

from harness.sweep.load import load_sweep
from harness.sweep.server import check_placeholders
from results.errors import UserError

GOOD = """\
name: study
points: [1, 8, 64]
scenarios:
- {name: fast, time_scale: 0.5}
- {name: real}
configurations:
- name: disaggregated
  endpoint: http://127.0.0.1:8000
  serving:
    model: deepseek-v4
    engine: dynamo-vllm
    image: vllm/vllm-openai:v0.27.1
    hardware: gb300
    precision: fp4
    nodes: 4
    disaggregation:
      prefill: {workers: 2, tp: 8, ep: 8, dp_attention: true}
      decode: {workers: 1, tp: 16, ep: 16, dp_attention: true}
      kv_transfer: nixl
    router: {name: dynamo-router, version: 1.6.1}
    speculative: {method: mtp, tokens: 3, acceptance_length: 2.49}
    kv_offload: {kind: dram, backend: mooncake, version: 0.3.12.post1}
"""


def load(tmp_path: Path, text: str) -> UserError:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        list(map(check_placeholders, load_sweep(path).configurations))
    return caught.value


def test_everything_that_is_recorded_of_a_disaggregated_stack_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD)
    sweep = load_sweep(path)
    serving = sweep.configurations[0].serving
    assert serving.accelerator_count == 2 * 8 + 16
    assert serving.disaggregation is not None
    assert serving.disaggregation.prefill.dp_attention
    assert serving.router is not None
    assert serving.router.version == "1.6.1"
    assert [scenario.name for scenario in sweep.scenarios] == ["fast", "real"]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("    nodes: 4", "    nodez: 4", 15, "did you mean 'nodes'?"),
        ("kv_transfer: nixl", "kv_mover: nixl", 19, "unknown key 'kv_mover'"),
        ("points: [1, 8, 64]", "points: [1, 8, 0]", 2, "expected `int` >= 1"),
        ("points: [1, 8, 64]", "points: [1, 8, 8]", 1, "a concurrency twice"),
        ("points: [1, 8, 64]", "points: sometimes", 2, "sometimes"),
        ("precision: fp4", "precision: fp5", 14, "invalid enum value 'fp5'"),
        ("tp: 8, ep: 8", "tp: 8, ep: 64", 17, "ep 64 is more than the 16 accelerators"),
        ("tokens: 3, ", "", 21, "needs `tokens`"),
        ("version: 1.6.1", "version: 1.6", 20, "expected `str | null`, got `float`"),
        ("name: disaggregated", "name: ../../etc", 7, "matching regex"),
        ("- {name: real}", "- {name: Fast}", 1, "scenario fast is there twice"),
        ("hardware: gb300", "hardware: gb300\n    hardware: b300", 14, "there twice"),
        ("    nodes: 4", "    nodes: [4", 16, "not YAML"),
        ("endpoint: http://127.0.0.1:8000", "points: auto", 7, "needs one of `recipe`, `server` or `endpoint`"),
        ("endpoint: http://127.0.0.1:8000", "endpoint: http://u:canary@h:8000", 7, "endpoint holds a credential"),
        ("time_scale: 0.5", "time_scale: .nan", 4, "time_scale"),
        ("time_scale: 0.5", "rules: agentix", 4, "agentix: unknown; choose closed-loop, agentx"),
        ("time_scale: 0.5", "rules: mine.yaml", 4, "mine.yaml: No such file"),
        ("time_scale: 0.5", "duration: soon", 4, "'soon' is not a duration"),
        ("backend: mooncake, ", "", 22, "needs `backend`"),
    ],
)
def test_a_mistake_is_refused_with_file_and_line(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    assert old in GOOD
    error = load(tmp_path, GOOD.replace(old, new))
    assert f"sweep.yaml:{line}: " in str(error), error
    assert says in str(error), error
    assert "canary" not in str(error)


@pytest.mark.parametrize("text", ["", "[]", "- 1", "a: &x [*x]\n", "name: \x00", "\tname: x", "{" * 2000])
def test_a_file_that_is_no_sweep_is_one_line(tmp_path: Path, text: str) -> None:
    assert "\n" not in str(load(tmp_path, text))


def test_a_small_file_that_unfolds_to_millions_of_values_is_refused(tmp_path: Path) -> None:
    levels = [f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "use fewer aliases" in str(load(tmp_path, "\n".join(["k0: &a0 [x, x]", *levels])))


def test_a_placeholder_that_nothing_fills_is_refused(tmp_path: Path) -> None:
    text = """\
name: s
configurations:
- name: a
  serving: {model: m, engine: vllm}
  server: {commands: {server: [vllm, serve, "{model}", --port, "{port}", --x, "{kv_bytes}", --json, '{"a":{"b":1}}']}}
"""
    assert "needs {kv_bytes}, which nothing says" in str(load(tmp_path, text))
