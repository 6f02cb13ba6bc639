"""The steady window, the scenario's limits, stages, and intervals that respect sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from results.records import Flag, Status, TreeEnd
from results.steady import mser5
from tests.results.rows import Run

MINUTE = 60_000


def test_mser5_cuts_the_transient_and_nothing_else() -> None:
    rng = np.random.default_rng(1)
    steady = 100 + rng.normal(0, 2, 200)
    assert mser5(steady) in range(60)
    ramp = np.concatenate([np.linspace(0, 100, 50), steady])
    assert mser5(ramp) in range(40, 80)


def test_mser5_says_when_a_series_is_short_or_never_steady() -> None:
    assert mser5(np.ones(20)) is None
    assert mser5(np.linspace(0, 1000, 200) ** 2) is None


def test_steady_auto_leaves_the_ramp_out_of_every_figure(tmp_path: Path) -> None:
    run = Run(tmp_path, steady="auto", duration_s=200.0)
    for second in range(200):
        count = 1 if second < 40 else 20
        for _ in range(count):
            # slow while the server is cold
            run.request(sent=second * 1000, chunks=[900 if second < 40 else 100], input_tokens=10, output_tokens=50)
    summary = run.finish(steady_end_ns=200 * 10**9)
    assert summary["latency"]["ttft_s"]["p99"] == pytest.approx(0.1)
    assert 130 <= summary["steady_s"] <= 165
    phases = [row["phase"] for row in run.rows()]
    assert phases[0] == "warmup"
    assert phases[-1] == "steady"


def test_a_run_that_never_was_warm_measured_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, steady_start_ns=None, duration_s=10.0)
    run.request(phase=0)
    summary = run.finish()
    assert summary["requests"]["sent"] == 0
    assert summary["steady_s"] == 0
    assert not summary["valid"]


def test_warm_up_rows_enter_no_figure(tmp_path: Path) -> None:
    run = Run(tmp_path, steady_start_ns=10**10, duration_s=10.0)
    run.request(sent=1000, chunks=[5000], phase=0)
    run.request(sent=11_000, chunks=[100])
    summary = run.finish()
    assert summary["latency"]["ttft_s"]["n"] == 1
    assert summary["requests"]["sent"] == 1


def test_too_many_context_overflows_are_not_valid(tmp_path: Path) -> None:
    run = Run(tmp_path, overflow_limit=0.01, error_rate_limit=0.1)
    for k in range(50):
        run.request(sent=k * 10)
    run.request(sent=600, chunks=[], status=Status.CONTEXT_OVERFLOW)
    summary = run.finish()
    assert any("2.0 % of the requests were longer" in reason for reason in summary["invalid_reasons"])


@pytest.mark.parametrize(("last_s", "valid"), [(900, False), (960, True)])
def test_a_server_that_fell_silent_before_the_end_is_not_valid(tmp_path: Path, last_s: int, valid: bool) -> None:
    run = Run(tmp_path, duration_s=1000.0, coverage=0.95)
    run.request(sent=0)
    run.request(sent=last_s * 1000 - 100, chunks=[100])
    assert run.finish(steady_end_ns=10**12)["valid"] is valid


def test_stages_have_their_own_figures(tmp_path: Path) -> None:
    stages = [{"concurrency": 1, "duration_s": 10.0}, {"concurrency": 4, "duration_s": 10.0}]
    run = Run(tmp_path, stages=stages, duration_s=20.0)
    run.request(sent=1000, chunks=[100])
    run.request(sent=11_000, chunks=[300])
    first, second = run.finish()["stages"]
    assert (first["concurrency"], second["concurrency"]) == (1, 4)
    assert first["latency"]["ttft_s"]["p50"] == pytest.approx(0.1)
    assert second["latency"]["ttft_s"]["p50"] == pytest.approx(0.3)


def clustered(tmp_path: Path, name: str, trees: int, turns: int) -> list[float]:
    """Interval of the mean TTFT; all turns of a tree have the tree's own level."""
    rng = np.random.default_rng(5)
    run = Run(tmp_path / name, session_ids=[f"s{k}" for k in range(trees)])
    for tree in range(trees):
        level = float(rng.normal(500, 100))
        run.tree(ended=5000, session=tree, end=TreeEnd.COMPLETED)
        for _ in range(turns):
            run.request(chunks=[level], session=tree)
    found: list[float] = run.finish()["intervals"]["latency.ttft_s.mean"]
    return found


def test_an_interval_does_not_shrink_with_turns_that_say_the_same(tmp_path: Path) -> None:
    few, many = clustered(tmp_path, "few", 20, 1), clustered(tmp_path, "many", 20, 30)
    assert many[1] - many[0] == pytest.approx(few[1] - few[0], rel=0.25)
    more = clustered(tmp_path, "more", 180, 1)
    assert more[1] - more[0] < 0.5 * (few[1] - few[0])
    assert few[0] < 0.5 < few[1]


def test_few_sessions_have_no_interval_and_it_is_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.tree(ended=1000)
    run.request()
    found = run.finish()["intervals"]
    assert "latency.ttft_s.p90" not in found
    assert "1 session trees" in found["reason"]
    assert found["throughput.output_tok_s"] is None


def test_time_of_people_and_of_tools_are_told_apart(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(sent=0, chunks=[500], done=1000)
    run.request(sent=3000, chunks=[500], done=4000)  # a tool took 2 s
    run.request(sent=9000, chunks=[500], done=10_000, flags=int(Flag.HUMAN_TURN))  # a person took 5 s
    run.tree(ended=10_000, end=TreeEnd.COMPLETED)
    jobs = run.finish()["jobs"]
    assert jobs["human_time_share"] == pytest.approx(0.5)
    assert jobs["tool_time_share"] == pytest.approx(0.2)
    assert jobs["prefill_time_share"] == pytest.approx(0.3)
    assert jobs["per_hour_per_user"] == pytest.approx(360)


def test_a_tree_that_began_mid_session_is_no_finished_job(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request()
    run.tree(ended=100, end=TreeEnd.COMPLETED, partial=1)
    assert run.finish()["jobs"]["completed"] == 0
