"""`agentx fast` on a run against the simulated endpoint, and the examples of its documentation."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving


def agentx(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-P", "-m", "agentx", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    load = ("--sessions", "3", "--concurrency", "3", "--time-scale", "0", "--max-context", "14k", "--quiet")
    with serving(MockConfig(profile=replace(FAST, max_model_len=16_384), model="served")) as port:
        agentx("run", "--endpoint", f"http://127.0.0.1:{port}", *load, "--out", out)
    (directory,) = out.iterdir()
    return directory


def test_a_run_s_figures_agree_with_its_summary(run: Path) -> None:
    (row,) = json.loads(agentx("fast", run, "--include-invalid", "--hour-usd", "100", "--json")[0])
    summary: dict[str, Any] = json.loads((run / "summary.json").read_bytes())
    assert row["sessions"] == summary["jobs"]["completed"] > 0
    assert row["overlapping_sessions"] == 0
    trees = pq.read_table(run / "sessions.parquet").to_pylist()
    done = [tree for tree in trees if tree["end"] == "completed" and not tree["partial"]]
    assert row["output_tokens"] == sum(tree["output_tokens"] for tree in done)
    assert row["hours"] * 3600 == pytest.approx(sum(tree["wall_s"] for tree in done))
    spent = sum(tree["decode_s"] for tree in done) / sum(tree["wall_s"] for tree in done)
    assert row["time_share"]["decode"]["all"] == pytest.approx(spent)
    # One lane each: Amdahl by session.
    expected = sorted(1 / (1 - tree["decode_s"] / tree["wall_s"] / 2) for tree in done)
    assert row["by_factor"][0]["speed_up"]["low"]["p50"] == pytest.approx(expected[len(expected) // 2])
    assert row["by_factor"][0]["by_price"][0]["plan"]["all_batch"]["hours"]["low"] == pytest.approx(row["hours"])


def test_what_is_printed(run: Path) -> None:
    out, err = agentx("fast", run, "--include-invalid", "--speed-up", "3", "--hour-usd", "90", "--fast-price", "300")
    assert err == ""
    assert "3×" in out
    assert "turns" in out
    assert "time_share.queue: part of prefill" in out


def test_errors_are_a_line_with_the_remedy(run: Path, tmp_path: Path) -> None:
    _, err = agentx("fast", run, "--include-invalid", "--speed-up", "0.5", code=2)
    assert err == "agentx: --speed-up 0.5; give a finite number above 1\n"
    _, err = agentx("fast", tmp_path / "none", code=2)
    assert err.count("\n") == 1
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "summary.json").write_text('{"schema": 1, "valid": true, "run_id": "b"}')
    _, err = agentx("fast", broken, code=2)
    assert "requests.parquet: can't be read" in err
    assert err.count("\n") == 1
