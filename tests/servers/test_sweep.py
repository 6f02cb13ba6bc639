"""Sweeps over real servers: CPU vLLM in two configurations, killed half way and resumed; Dynamo with mock engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from tests.servers.environments import dynamo_environment, tiny_model, tiny_tokenizer, vllm_environment
from tests.servers.recipe_flags import RECORD, declared_by_dynamo, taken_by_dynamo, taken_by_vllm
from tests.servers.servers import OFFLINE

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, **OFFLINE, "PYTHONPATH": str(ROOT)}
RUN = "run: {duration: 6s, drain: 60s, time_scale: 0, max_context: 14k, workers: 1}\n"


def command(file: Path) -> list[str]:
    return [sys.executable, str(ROOT / "agentx.py"), "sweep", str(file), "--out", str(file.parent / "runs"), "--json"]


def last(file: Path, name: str) -> dict[str, dict[str, Any]]:
    """The latest line of the state of every point."""
    path = file.parent / "runs" / name / "state.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return {line["point"]: line for line in map(json.loads, lines)}


def sidecars(folder: Path) -> dict[str, dict[str, Any]]:
    loaded = [json.loads(path.read_bytes()) for path in (folder / "runs").glob("*/serving.json")]
    return {said["point"]: said for said in loaded}


@pytest.mark.vllm
@pytest.mark.timeout(1500)
def test_two_configurations_at_three_concurrencies_killed_half_way_and_resumed(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    vllm = vllm_environment() / "bin" / "vllm"
    small = "  extra: {server: [--num-gpu-blocks-override, 200]}\n"
    configurations = "".join(
        f"- name: {name}\n  recipe: cpu-vllm\n  serving: {{model: {tiny_model()}}}\n"
        f"  variables: {{vllm: {vllm}, max_model_len: 16384}}\n{more}"
        for name, more in (("large", ""), ("small", small))
    )
    file.write_text(f"name: cpu\n{RUN}points: [1, 2, 4]\nconfigurations:\n{configurations}")

    process = subprocess.Popen(command(file), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    deadline = monotonic() + 600
    under_load = "runs/cpu/attempts/large/closed-loop/c4/1/*/journal/header.json"
    while not list(tmp_path.glob(under_load)):
        assert process.poll() is None, last(file, "cpu")
        assert monotonic() < deadline
        sleep(0.1)
    sleep(2)
    process.kill()
    process.wait()
    before = {name: line for name, line in last(file, "cpu").items() if line["status"] == "done"}
    assert set(before) == {"large/closed-loop/c1", "small/closed-loop/c1"}

    done = subprocess.run(command(file), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    curves = json.loads(done.stdout)["curves"]
    points = {point["point"]: point for curve in curves for point in curve["points"]}
    assert len(points) == 6
    assert all(point["valid"] for point in points.values())
    assert points["large/closed-loop/c4"]["attempt"] == 2
    for name, line in before.items():
        assert points[name]["run"] == f"runs/{line['run_id']}", "what was done is not repeated"
        assert points[name]["attempt"] == 1
    said = sidecars(tmp_path / "runs" / "cpu")
    assert len(said) == 6
    pools = {name: side["kv_pool"]["tokens"] for name, side in said.items()}
    assert pools["small/closed-loop/c1"] == 200 * 128
    assert pools["large/closed-loop/c1"] > 1_000_000
    log = (tmp_path / "runs/cpu/attempts/small/closed-loop/c1/1/server.log").read_text()
    assert "KV cache size" in log
    assert not processes_of(tiny_model())


@pytest.mark.dynamo
def test_dynamo_s_frontend_and_engines_are_started_and_stopped_per_point(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    python = dynamo_environment() / "bin" / "python"
    file.write_text(
        f"name: dynamo\n{RUN}points: [1, 2]\nconfigurations:\n- name: two\n  recipe: dynamo-mocker\n"
        f"  serving: {{model: {tiny_tokenizer()}, workers: 2}}\n  variables: {{dynamo_python: {python}}}\n"
    )
    done = subprocess.run(command(file), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = sidecars(tmp_path / "runs" / "dynamo")
    assert set(said) == {"two/closed-loop/c1", "two/closed-loop/c2"}
    assert said["two/closed-loop/c1"]["serving"]["router"]["name"] == "dynamo-router"
    assert not processes_of(tiny_tokenizer())


def processes_of(model: Path) -> list[str]:
    """Command lines of processes that still serve this model."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(model) in text and "pytest" not in text:
            found.append(text)
    return found


@pytest.mark.vllm
def test_the_record_of_flags_is_what_vllm_takes() -> None:
    assert set(json.loads(RECORD.read_text())["vllm"]["flags"]) <= taken_by_vllm()


@pytest.mark.dynamo
def test_the_record_of_flags_is_what_dynamo_takes() -> None:
    record = json.loads(RECORD.read_text())
    for module in ("dynamo.frontend", "dynamo.mocker"):
        assert set(record[module]["flags"]) <= taken_by_dynamo(module)
    assert set(record["dynamo.trtllm"]["flags"]) <= declared_by_dynamo("trtllm")
