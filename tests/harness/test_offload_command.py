"""`agentx offload` on runs against the simulated endpoint, with a large cache and with a small one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving


def agentx(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-P", "-m", "agentx", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    out = tmp_path_factory.mktemp("runs")
    load = ("--sessions", "3", "--concurrency", "3", "--time-scale", "0", "--max-context", "14k", "--quiet")
    for name, blocks in (("large", 100_000), ("small", 1_024)):
        profile = replace(FAST, cache_blocks=blocks, max_model_len=16_384)
        with serving(MockConfig(profile=profile, model="served")) as port:
            agentx("run", "--endpoint", f"http://127.0.0.1:{port}", *load, "--out", out / name)
    return out / "large", out / "small"


def test_more_cache_gains_hits(runs: tuple[Path, Path]) -> None:
    large, small = runs
    common = ("offload", large, "--without", small, "--include-invalid")
    (row,) = json.loads(agentx(*common, "--gb", "50", "--gpus", "2", "--price", "3", "--json")[0])
    summaries: list[dict[str, Any]] = [
        json.loads(next(folder.glob("*/summary.json")).read_bytes()) for folder in (small, large)
    ]
    hits = [summary["cache"]["achieved"] for summary in summaries]
    rates = [summary["throughput"]["total_tok_s"] for summary in summaries]
    assert hits[1] > hits[0]
    assert row["hit_rate_points"]["gain"] == pytest.approx(100 * (hits[1] - hits[0]))
    assert row["per_gb"]["hit_rate_points"] == pytest.approx(2 * (hits[1] - hits[0]))
    assert row["usd_per_hour"] == pytest.approx(6 * (rates[1] / rates[0] - 1))
    assert row["differences"] == []
    out, _ = agentx(*common)
    assert "gained by the tier" in out
    assert "per_gb: the tier's size is neither in the run's serving metadata nor given (--gb)" in out


def test_errors_are_a_line_with_the_remedy(runs: tuple[Path, Path], tmp_path: Path) -> None:
    large, small = runs
    _, err = agentx("offload", large, "--without", tmp_path / "none", code=2)
    assert err.count("\n") == 1
    (folder,) = small.iterdir()
    other = tmp_path / "other"
    other.mkdir()
    summary, manifest = (json.loads((folder / name).read_bytes()) for name in ("summary.json", "run.json"))
    manifest["corpus"]["digest"] = "another"
    (other / "summary.json").write_text(json.dumps(summary))
    (other / "run.json").write_text(json.dumps(manifest))
    _, err = agentx("offload", large, "--without", other, "--include-invalid", code=2)
    assert "differ in corpus: " in err
    assert "--allow-mixed" in err
    (row,) = json.loads(agentx("offload", large, "--without", other, "--include-invalid", "--allow-mixed", "--json")[0])
    assert row["differences"]
