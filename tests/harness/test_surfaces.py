"""Runs over every API route, with recorded and with live histories, against the simulated endpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replay.surface import SURFACES
from tests.harness.test_run import QUICK, agentx, only_run, rows_of, simulated, summary_of

ALONE = ("--sessions", "2", "--concurrency", "1", *QUICK)


@pytest.mark.parametrize("assistant", ["recorded", "live"])
@pytest.mark.parametrize("surface", list(SURFACES))
def test_prompts_are_exact_and_hits_are_the_theory(tmp_path: Path, surface: str, assistant: str) -> None:
    """One live session and a cache that fits: every prompt counts what was planned, and every hit was foretold."""
    with simulated() as url:
        done = agentx(
            "run", "--endpoint", url, "--surface", surface, "--assistant", assistant, *ALONE, "--out", str(tmp_path)
        )
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    rows = rows_of(run)
    assert {row["status"] for row in rows} == {"ok"}
    assert [row["input_tokens"] for row in rows] == [row["planned_input_tokens"] for row in rows]
    assert [row["output_tokens"] for row in rows] == [row["planned_output_tokens"] for row in rows]
    assert [row["cached_tokens"] for row in rows] == [row["theoretical_cached_tokens"] for row in rows]
    live = summary_of(run)["requests"]["live_history"]
    assert live == 0 if assistant == "recorded" else live >= len(rows) / 2


def test_live_histories_need_someone_to_count(tmp_path: Path) -> None:
    with simulated() as url:
        done = agentx("run", "--endpoint", url, "--assistant", "live", "--tokenizer", "usage", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "--tokenizer DIR" in done.stderr


def test_find_max_leaves_every_run_and_the_answer(tmp_path: Path) -> None:
    """Every live session makes the steps of this endpoint 5 ms longer."""
    fixed = ("--scenario", "fixed", "--isl", "64", "--osl", "12", "--duration", "1s", "--concurrency", "2")
    with simulated(decode_request_s=0.005) as url:
        done = agentx(
            *("run", "--endpoint", url, *fixed, "--quiet", "--json", "--out", str(tmp_path)),
            *("--find-max", "tpot_p50<18ms,error_rate<1%"),
        )
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    answer = json.loads((folder / "find-max.json").read_bytes())
    assert json.loads(done.stdout) == answer
    assert answer["ended"] == "found"
    highest, fails = answer["highest_concurrency"], answer["lowest_that_fails"]
    assert 1 < highest == fails - 1 < 8
    for level in answer["levels"]:
        summary = summary_of(Path(level["run_dir"]))
        assert summary["concurrency"] == level["concurrency"]
        assert summary["latency"]["tpot_s"]["p50"] == level["verdict"]["values"]["tpot_p50"]
        assert level["verdict"]["holds"] == (level["concurrency"] <= highest)


def test_find_max_refuses_what_it_can_not_vary(tmp_path: Path) -> None:
    done = agentx("run", "--mock", "--rate", "6", "--find-max", "ttft_p90<2s", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "leave out --rate" in done.stderr
