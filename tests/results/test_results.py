"""From journal rows to figures: every definition once, with the value it must give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records import Flag, Phase, Status, TreeEnd
from results.stats import distribution, percentile, reciprocals
from tests.results.rows import Run


def approx(value: float) -> Any:
    return pytest.approx(value, abs=1e-6)


def test_latencies_of_a_plain_answer(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(sent=50, due=20, chunks=[100, 110, 130], done=900, output_tokens=3)
    summary = run.finish()
    (row,) = run.rows()
    assert row["ttft_s"] == approx(0.100)
    assert row["e2e_s"] == approx(0.130)  # C07: to the last token, not to the end of the response
    assert row["done_ns"] == 900_000_000
    assert row["tpot_s"] == approx(0.015)
    assert (row["itl_p50_s"], row["itl_max_s"]) == (approx(0.015), approx(0.020))
    assert row["send_lag_s"] == approx(0.030)
    assert row["request_id"] == "run-0-0"
    assert summary["latency"]["ttft_s"]["p50"] == approx(0.100)
    assert summary["latency"]["ttft_from_due_s"]["p50"] == approx(0.130)
    assert summary["latency"]["itl_s"]["n"] == 2
    assert summary["latency"]["full_response_itl_s"]["p50"] == approx((0.900 - 0.150) / 2)


def test_p10_several_tokens_per_chunk_do_not_inflate_time_per_token(tmp_path: Path) -> None:
    run = Run(tmp_path)
    chunks = [100 + 32 * k for k in range(8)]
    run.request(chunks=chunks, output_tokens=32)
    run.request(chunks=chunks, output_tokens=32, first_chunk_tokens=4)
    run.finish()
    plain, continuous = run.rows()
    assert plain["tpot_s"] == approx(0.224 / 31)
    assert continuous["tpot_s"] == approx(0.008)
    assert plain["itl_p50_s"] == approx(0.032)


def test_p09_c06_an_answer_in_one_chunk_has_no_time_per_token(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[200], output_tokens=16)
    summary = run.finish()
    (row,) = run.rows()
    assert row["ttft_s"] == approx(0.2)
    assert row["tpot_s"] is None
    assert row["itl_p50_s"] is None
    assert summary["latency"]["tpot_s"] == {**dict.fromkeys(("mean", "p50", "p75", "p90", "p95", "p99", "std")), "n": 0}
    assert summary["reasons"]["latency.tpot_s"]


def test_p13_one_and_two_tokens(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[100])
    run.request(chunks=[100, 112])
    run.finish()
    one, two = run.rows()
    assert one["tpot_s"] is None
    assert two["tpot_s"] == approx(0.012)


def test_unknown_counts_are_null_never_zero(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(input_tokens=-1, output_tokens=-1, cached_tokens=-1)
    summary = run.finish()
    (row,) = run.rows()
    assert row["input_tokens"] is row["output_tokens"] is row["cached_tokens"] is None
    assert summary["cache"]["achieved"] is None
    assert summary["reasons"]["cache.achieved"]
    assert summary["throughput"]["input_tok_s"] is None
    assert summary["throughput"]["total_tok_s"] is None
    assert summary["throughput"]["cached_input_tok_s"] is None


def test_p51_a_server_that_refuses_most_work_is_not_fast(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for k in range(10):
        if k % 10 < 7:
            run.request(sent=k, chunks=[], status=Status.HTTP_ERROR, http_status=503, error="HTTP 503")
        else:
            run.request(sent=k, chunks=[500])
    summary = run.finish()
    assert summary["requests"] | {"by_status": None} == {
        "sent": 10,
        "ok": 3,
        "failed": 7,
        "cancelled": 0,
        "context_overflow": 0,
        "live_history": 0,
        "reasoning_dropped": 0,
        "recorded_instead": 0,
        "error_rate": approx(0.7),
        "by_status": None,
    }
    assert summary["latency"]["ttft_s"]["n"] == 3
    assert not summary["valid"]
    assert "70.0 % of the requests failed" in summary["invalid_reasons"][0]


def test_warm_up_is_in_no_figure(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(sent=-500, chunks=[9000], phase=Phase.WARMUP)
    run.request(sent=0, chunks=[100])
    summary = run.finish()
    assert summary["latency"]["ttft_s"]["p50"] == approx(0.1)
    assert summary["requests"]["sent"] == 1
    assert {row["phase"] for row in run.rows()} == {"warmup", "steady"}


def test_p99_throughput_counts_what_lies_in_the_window(tmp_path: Path) -> None:
    """Window 0..10 s; one answer decodes from 5 s to 15 s, a straggler's first token comes after the end."""
    run = Run(tmp_path, steady_end_ns=10_000_000_000)
    run.request(sent=4000, chunks=[1000, 11_000], output_tokens=100, input_tokens=500, cached_tokens=400)
    run.request(sent=9000, chunks=[5000, 6000], output_tokens=100, input_tokens=900, cached_tokens=0)
    summary = run.finish()
    throughput = summary["throughput"]
    assert throughput["output_tok_s"] == approx(100 * 0.5 / 10)
    assert throughput["input_tok_s"] == approx(50)
    assert throughput["cached_input_tok_s"] == approx(40)
    assert throughput["computed_input_tok_s"] == approx(10)
    assert throughput["total_tok_s"] == approx(55)
    assert summary["steady_s"] == approx(10)
    assert summary["latency"]["ttft_s"]["n"] == 2  # both were sent in the window


def test_hit_rates_are_weighted_by_tokens(tmp_path: Path) -> None:
    """C29, C37: 10 % of a long prompt and 90 % of a short one are not 50 %."""
    run = Run(tmp_path)
    run.request(input_tokens=1000, planned_input_tokens=1000, cached_tokens=100, theoretical_cached_tokens=100)
    run.request(input_tokens=100, planned_input_tokens=100, cached_tokens=90, theoretical_cached_tokens=90)
    summary = run.finish()
    assert summary["cache"]["achieved"] == approx(190 / 1100)
    assert summary["cache"]["theoretical"] == approx(190 / 1100)


def test_p95_hits_that_the_run_cannot_have_caused_are_an_alarm(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(input_tokens=1000, planned_input_tokens=1000, cached_tokens=900, theoretical_cached_tokens=0)
    assert any("another run's cache" in warning for warning in run.finish()["warnings"])


def test_a_shared_head_counts_from_the_second_session_on(tmp_path: Path) -> None:
    heads = {"key": [5, 5, 6], "tokens": [640, 640, 640]}
    run = Run(tmp_path, heads=heads, cache_block=128)
    shared: dict[str, Any] = {
        "flags": int(Flag.SHARED_HEAD),
        "planned_input_tokens": 5000,
        "theoretical_cached_tokens": 0,
    }
    run.request(sent=30, session=1, worker=1, **shared)
    run.request(sent=20, session=2, worker=0, **shared)
    run.request(sent=10, session=0, worker=0, **shared)
    run.finish()
    assert [(r["session_id"], r["theoretical_cached_tokens"]) for r in run.rows()] == [
        ("s0", 0),
        ("s2", 0),
        ("s1", 640),
    ]


def test_c39_short_answers_are_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[100, 110], planned_output_tokens=1000, output_tokens=900)
    assert any("10.0 % shorter than planned" in warning for warning in run.finish()["warnings"])


@pytest.mark.parametrize(
    ("late_ms", "cpu_ns", "words"),
    [(200, 0, "left 200 ms late"), (0, 490_000_000, "98 % of its core"), (0, 0, None)],
)
def test_a_client_that_was_the_bottleneck_makes_the_run_invalid(
    tmp_path: Path, late_ms: float, cpu_ns: int, words: str | None
) -> None:
    run = Run(tmp_path)
    run.request(sent=1000, due=1000 - late_ms)
    run.client(t=500, cpu_ns=cpu_ns)
    run.client(t=1000, cpu_ns=cpu_ns)
    summary = run.finish()
    assert summary["client"]["saturated"] is (words is not None)
    assert summary["valid"] is (words is None)
    if words:
        assert words in summary["invalid_reasons"][0]


def test_the_jobs_view(tmp_path: Path) -> None:
    run = Run(tmp_path, steady_end_ns=20_000_000_000)
    run.request(sent=0, chunks=[1000, 2000], session=0)  # 2 s in flight
    run.request(sent=1000, chunks=[1000, 3000], session=0, lane=1)  # beside it: 1..4 s
    run.request(sent=8000, chunks=[500, 1000], session=0)  # 8..9 s
    run.request(sent=0, chunks=[1000], session=1)
    run.tree(ended=10_000, session=0)
    run.tree(ended=25_000, session=1)
    run.tree(ended=5_000, session=2, end=TreeEnd.CUT_OFF)
    summary = run.finish()
    jobs = summary["jobs"]
    assert jobs["completed"] == 1  # the second was finished after the window, the third was cut off
    assert jobs["per_hour"] == approx(180)
    assert jobs["latency_s"]["p50"] == approx(10)
    assert jobs["tool_time_share"] == approx(0.5)  # 5 of 10 s nothing was in flight
    assert jobs["prefill_time_share"] == approx(0.5 * 2.5 / (2.5 + 3.5))
    assert jobs["decode_time_share"] == approx(0.5 * 3.5 / (2.5 + 3.5))
    first = run.rows("sessions")[0]
    assert (first["tool_s"], first["prefill_s"], first["ok_requests"]) == (approx(5), approx(2.5), 3)


def test_chunks_are_kept_on_demand(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[100, 110], worker=0)
    run.request(chunks=[7], worker=1)
    run.finish()
    assert run.rows("chunks") == [
        {"request_id": "run-0-0", "offset_ns": 100_000_000},
        {"request_id": "run-0-0", "offset_ns": 110_000_000},
        {"request_id": "run-1-1", "offset_ns": 7_000_000},
    ]


def test_p124_p136_nothing_at_all_is_still_a_strict_summary(tmp_path: Path) -> None:
    run = Run(tmp_path)
    summary = run.finish()
    assert not summary["valid"]
    text = (run.directory / "summary.json").read_text()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in summary.json")) == summary
    assert pq.read_table(run.directory / "requests.parquet").num_rows == 0


def test_p122_errors_hold_no_keys(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(
        status=Status.HTTP_ERROR,
        error="401 for Bearer CANARY1\nsee http://user:CANARY2@host/?api_key=CANARY3 "
        "and sk-CANARY4CANARY4 password: CANARY5",
    )
    run.finish()
    (row,) = run.rows()
    assert "CANARY" not in row["error"]
    assert "\n" not in row["error"]
    assert "401" in row["error"]


def test_p132_a_speed_is_the_reciprocal_of_a_latency_percentile() -> None:
    latency = distribution(np.arange(10, 101, 10) / 1e3)
    assert latency["p90"] == approx(0.091)
    assert reciprocals(latency)["p90"] == approx(1 / 0.091)
    assert percentile([10, 20, 30], 50) == 20


def test_the_contract_s_columns_are_there(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request()
    run.finish()
    names = set(pq.read_schema(run.directory / "requests.parquet").names)
    contract = [
        "run_id",
        "phase",
        "session_id",
        "lane_id",
        "turn",
        "pass",
        "worker",
        "request_id",
        "scheduled_ns",
        "sent_ns",
        "headers_ns",
        "first_token_ns",
        "last_token_ns",
        "done_ns",
        "send_lag_s",
        "ttft_s",
        "e2e_s",
        "tpot_s",
        "itl_p50_s",
        "itl_p99_s",
        "itl_max_s",
        "planned_input_tokens",
        "planned_output_tokens",
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "cached_tokens",
        "theoretical_cached_tokens",
        "output_chunks",
        "finish_reason",
        "http_status",
        "status",
        "error",
        "timestamps",
    ]
    assert set(contract) <= names


def reference_percentiles(offsets: list[list[int]]) -> list[tuple[float, float, float] | None]:
    out: list[tuple[float, float, float] | None] = []
    for row in offsets:
        gaps = np.diff(np.array(row)) * 1e-7
        out.append(None if not len(gaps) else (percentile(gaps, 50), percentile(gaps, 99), float(gaps.max())))
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5000), max_size=8)), max_size=8))
def test_gap_statistics_equal_a_plain_computation(answers: list[tuple[int, list[int]]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        plain = []
        for k, (worker, gaps) in enumerate(answers):
            offsets = [1000, *(1000 + np.cumsum(gaps)).tolist()] if gaps else [1000]
            plain.append(offsets)
            run.request(sent=k, chunks=[o / 10_000 for o in offsets], worker=worker)
        run.finish()
        for row, expected in zip(run.rows(), reference_percentiles(plain), strict=True):
            got = (row["itl_p50_s"], row["itl_p99_s"], row["itl_max_s"])
            assert got == (None, None, None) if expected is None else got == pytest.approx(expected, rel=1e-5, abs=1e-9)
