"""Public failures, as journal rows: what the figures must say of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.records import MISSING, Flag, Status
from results.redact import cut, redact
from tests.results.rows import MS, Run


def approx(value: float) -> Any:
    return pytest.approx(value, abs=1e-6)


def test_p05_an_answer_cut_off_while_reasoning(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[60 + 5 * k for k in range(100)], first_text_ns=MISSING)
    summary = run.finish()
    (row,) = run.rows()
    assert row["ttft_s"] == approx(0.060)
    assert row["ttft_text_s"] is None
    assert (row["status"], row["finish_reason"], row["output_tokens"]) == ("ok", "length", 100)
    assert summary["latency"]["ttft_s"]["n"] == 1


def test_p08_answers_without_a_token_do_not_pull_the_median(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for k in range(40):
        if k < 30:
            run.request(sent=k, chunks=[], status=Status.STREAM_ERROR, flags=Flag.EMPTY, error="empty answer")
        else:
            run.request(sent=k, chunks=[200])
    summary = run.finish()
    assert summary["latency"]["ttft_s"]["n"] == 10
    assert summary["latency"]["ttft_s"]["p50"] == approx(0.2)
    assert summary["requests"]["by_status"] == {"ok": 10, "stream_error": 30}
    assert {row["ttft_s"] for row in run.rows()} == {None, 0.2}


def test_p10_p11_tokens_per_chunk_are_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for client in range(4):
        run.request(sent=client, chunks=[100 + 32 * k for k in range(8)], output_tokens=32, first_chunk_tokens=4)
    summary = run.finish()
    assert summary["tokens"]["per_chunk"]["mean"] == approx(4)
    assert summary["latency"]["tpot_s"]["p50"] == approx(0.008)
    assert summary["latency"]["itl_s"]["p50"] == approx(0.032)
    assert summary["interactivity"]["itl"]["p50"] == approx(125)
    assert any("chunks held 4.0 tokens" in warning for warning in summary["warnings"])
    # One unit for every rate, tokens, and no peak beside the mean that could be of events.
    assert summary["throughput"]["output_tok_s"] == approx(4 * 32 / summary["steady_s"])
    assert "peak" not in str(summary)


def test_p09_chunks_that_came_in_one_segment_are_no_speed(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[200] * 16, done=3200, flags=Flag.COALESCED)
    run.request(sent=1, chunks=[200], output_tokens=16, done=3200)
    summary = run.finish()
    assert [row["tpot_s"] for row in run.rows()] == [None, None]
    assert summary["latency"]["full_response_itl_s"]["n"] == 0
    for name in ("itl", "full_response"):
        assert set(summary["interactivity"][name].values()) == {None}
        assert summary["reasons"][f"interactivity.{name}"]


def test_c11_a_truncated_answer_is_in_no_latency(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[10 * k for k in range(40)], status=Status.TRUNCATED, output_tokens=MISSING, error="ended early")
    for k in range(9):
        run.request(sent=k, chunks=[100, 110])
    summary = run.finish()
    assert summary["latency"]["e2e_s"]["n"] == 9
    assert summary["latency"]["itl_s"]["n"] == 9
    assert summary["requests"]["failed"] == 1
    assert summary["requests"]["error_rate"] == approx(0.1)
    assert summary["valid"]  # the limit is to be exceeded
    assert any("1 requests failed (10.00 %)" in warning for warning in summary["warnings"])


@pytest.mark.parametrize("status", [Status.TRUNCATED, Status.STREAM_ERROR])
def test_p37_p38_p49_the_tokens_of_a_broken_answer_are_in_no_rate(tmp_path: Path, status: Status) -> None:
    """They are kept in its row, with the server's own count where it said one as it went."""
    run = Run(tmp_path)
    run.request(chunks=[100, 1000], output_tokens=20)
    run.request(sent=1, chunks=[50, 100, 150], output_tokens=3000, status=status, error="oom (500)")
    summary = run.finish()
    assert summary["throughput"]["output_tok_s"] == pytest.approx(20 / summary["steady_s"], rel=1e-3)
    assert summary["tokens"]["output"]["n"] == summary["tokens"]["delivered_share"]["n"] == 1
    broken = run.rows()[1]
    assert (broken["output_tokens"], broken["output_chunks"], broken["error"]) == (3000, 3, "oom (500)")


@pytest.mark.parametrize("usage", [0, 1, 2])
def test_c12_usage_that_the_chunks_contradict(tmp_path: Path, usage: int) -> None:
    run = Run(tmp_path)
    run.request(chunks=[100 + 10 * k for k in range(100)], output_tokens=usage, flags=Flag.USAGE_MISMATCH)
    summary = run.finish()
    (row,) = run.rows()
    assert (row["output_tokens"], row["output_chunks"]) == (usage, 100)
    assert "usage_mismatch" in row["flags"]
    assert row["tpot_s"] is None
    assert summary["interactivity"]["e2e_normalised"]["p50"] is None
    assert any("more content chunks than the usage" in warning for warning in summary["warnings"])


def test_c14_p23_reasoning_is_part_of_the_output(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[100, 1098], output_tokens=500, reasoning_tokens=420)
    summary = run.finish()
    (row,) = run.rows()
    assert (row["output_tokens"], row["reasoning_tokens"]) == (500, 420)
    assert row["tpot_s"] == approx(0.998 / 499)
    assert summary["tokens"]["output"]["mean"] == 500
    assert summary["tokens"]["reasoning"]["mean"] == 420


def test_p99_a_straggler_moves_neither_the_window_nor_its_rates(tmp_path: Path) -> None:
    """One answer every 100 ms for a minute, each 1 s and 10 tokens long, and one of 300 s that begins within."""
    run = Run(tmp_path, duration_s=60, steady_end_ns=60_000 * MS)
    for k in range(590):
        run.request(sent=100 * k, chunks=[100 * (j + 1) for j in range(10)])
    run.request(sent=59_000, chunks=[500, 300_000], output_tokens=3000)
    throughput = run.finish()["throughput"]
    share = 3000 * 500 / 299_500  # of the straggler's tokens: half a second of its decoding
    assert throughput["output_tok_s"] == pytest.approx((5900 + share) / 60, rel=1e-6)
    assert throughput["requests_s"] == pytest.approx(590 / 60)
    assert throughput["whole_run"]["output_tok_s"] == pytest.approx(8900 / 359, rel=1e-6)
    assert throughput["whole_run"]["requests_s"] == pytest.approx(591 / 359)


def test_the_window_of_a_killed_run_is_the_planned_one(tmp_path: Path) -> None:
    run = Run(tmp_path, duration_s=10)
    run.request(sent=9000, chunks=[500, 4500], output_tokens=100)
    assert run.finish()["steady_s"] == approx(10)


def test_a_run_that_was_over_early_was_not_idle(tmp_path: Path) -> None:
    run = Run(tmp_path, duration_s=600)
    run.request(sent=0, chunks=[1000, 4000], output_tokens=100)
    run.tree(ended=5000)
    summary = run.finish(steady_end_ns=600_000 * MS)
    assert summary["steady_s"] == approx(5)
    assert summary["throughput"]["output_tok_s"] == approx(20)
    assert summary["jobs"]["per_hour"] == approx(720)


def test_one_full_worker_among_idle_ones_is_a_bottleneck(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[2000])
    for worker, used in enumerate((490, 10, 10, 10)):
        run.client(t=1000, worker=worker, cpu_ns=used * MS)
        run.request(worker=worker)
    summary = run.finish()
    assert summary["client"]["cpu_util"] == {"mean": approx(0.26), "max": approx(0.98)}
    assert not summary["valid"]
    assert "98 % of its core" in summary["invalid_reasons"][0]


def test_client_samples_outside_the_window_do_not_count(tmp_path: Path) -> None:
    run = Run(tmp_path, steady_start_ns=5000 * MS, steady_end_ns=6000 * MS)
    run.request(sent=5000, chunks=[2000])
    for t in (1000, 5500, 6500):
        busy = t != 5500
        run.client(t=t, cpu_ns=busy * 500 * MS, loop_lag_p99_ns=MS + busy * 80 * MS, loop_lag_max_ns=2 * MS)
    client = run.finish()["client"]
    assert client["cpu_util"]["max"] == 0
    assert client["loop_lag_s"] == {"p99": approx(0.001), "max": approx(0.002)}


def test_nothing_in_the_window_is_no_rate(tmp_path: Path) -> None:
    summary = Run(tmp_path, duration_s=60).finish(steady_end_ns=60_000 * MS)
    assert summary["steady_s"] == 0
    assert summary["throughput"]["output_tok_s"] is None
    reasons = summary["reasons"]
    assert reasons["throughput.output_tok_s"] == "nothing happened in the window"
    assert reasons["throughput.whole_run"] == "nothing happened in the window"
    assert reasons["cache.achieved"] == "no request of the steady window was answered well"


def nulls(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(value, dict):
        return [null for name, member in value.items() for null in nulls(member, (*path, name))]
    return [path] if value is None else []


@pytest.mark.parametrize("kind", ["nothing", "failures", "one chunk", "no usage", "empty window", "plain"])
def test_p124_every_null_has_its_reason(tmp_path: Path, kind: str) -> None:
    run = Run(tmp_path, scenario="closed-loop")
    unknown: dict[str, Any] = dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens"), MISSING)
    if kind == "failures":
        run.request(chunks=[], status=Status.HTTP_ERROR, http_status=500, error="HTTP 500")
    elif kind == "one chunk":
        run.request(chunks=[10])
    elif kind == "no usage":
        run.request(chunks=[10, 20], **unknown)
    elif kind == "empty window":
        run.header["steady_start_ns"] = run.header["steady_end_ns"] = 10**12
        run.request(chunks=[10, 20])
    elif kind == "plain":
        run.request(chunks=[10, 20], cached_tokens=0, theoretical_cached_tokens=0)
    summary = run.finish()
    reasons = summary["reasons"]
    assert all(isinstance(reason, str) and reason != "not known" for reason in reasons.values()), reasons
    unexplained = [p for p in nulls(summary) if not any(".".join(p[:n]) in reasons for n in range(1, len(p) + 1))]
    assert unexplained == []
    explained = [key for key in reasons if not any(".".join(p).startswith(key) for p in nulls(summary))]
    assert explained == []


def test_sums_over_a_session_are_null_when_an_answer_does_not_say(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(session=0, chunks=[100, 110], cached_tokens=64)
    run.request(session=0, sent=200, chunks=[100, 110], cached_tokens=MISSING)
    run.request(session=1, chunks=[100, 110], cached_tokens=64)
    run.request(session=1, sent=200, chunks=[], status=Status.TIMEOUT, input_tokens=MISSING, output_tokens=MISSING)
    for session in (0, 1):
        run.tree(ended=1000, session=session)
    run.finish()
    first, second = run.rows("sessions")
    assert (first["input_tokens"], first["output_tokens"], first["cached_tokens"]) == (20, 4, None)
    assert (second["input_tokens"], second["output_tokens"], second["cached_tokens"]) == (10, 2, 64)
    assert (second["ok_requests"], second["failed_requests"]) == (1, 1)


def test_a_gap_that_ends_beyond_the_offsets_range_is_unknown(tmp_path: Path) -> None:
    run = Run(tmp_path)
    beyond = (2**32 - 1) / 10_000
    run.request(chunks=[100, 110, beyond, beyond], last_token_ns=900_000 * MS, flags=Flag.SATURATED_OFFSET)
    summary = run.finish()
    (row,) = run.rows()
    assert row["itl_max_s"] == approx(0.010)
    assert summary["latency"]["itl_s"]["n"] == 1
    assert row["e2e_s"] == approx(900)


def test_a_clock_that_stepped_back_gives_no_negative_gap(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[100, 120, 110, 130])
    assert run.finish()["latency"]["itl_s"]["mean"] == approx((0.020 + 0 + 0.020) / 3)


def test_p122_a_secret_the_server_repeats_in_words_is_blotted_out(tmp_path: Path) -> None:
    text = "Incorrect API key provided: CANARY-1, pass CANARY-2 as Cookie: CANARY-3"
    assert "CANARY" not in redact(text, ("CANARY-1", "", "CANARY-2"))
    assert redact("the model `m` does not exist") == "the model `m` does not exist"
    run = Run(tmp_path)
    run.request()
    summary = run.finish(invalid_reasons=["last error: Bearer CANARY"])
    assert "CANARY" not in str(summary)


def test_an_error_is_cut_between_characters() -> None:
    assert cut("ä" * 100, 191) == ("ä" * 95).encode()
    assert cut("short", 191) == b"short"
    assert cut("\ud800", 10) == b"?"


def test_a_long_error_is_one_line_of_at_most_192_bytes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(chunks=[], status=Status.HTTP_ERROR, error="<html>\r\n\x00\x1b[31m" + "ü€" * 200)
    run.finish()
    (row,) = run.rows()
    assert row["error"].startswith("<html> [31mü€")
    assert 188 <= len(row["error"].encode()) <= 192
    assert not any(ord(character) < 32 for character in row["error"])


def test_prompts_counted_otherwise_than_planned_are_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request(input_tokens=13, planned_input_tokens=10)
    run.request(sent=1, input_tokens=10, planned_input_tokens=10)
    (warning,) = [w for w in run.finish()["warnings"] if "counted differently" in w]
    assert "1 of 2 prompts" in warning
    assert "up to 3 tokens" in warning


@pytest.mark.parametrize(
    ("header", "words"),
    [({"interrupted": True}, "interrupted"), ({"invalid_reasons": ["worker 1 died"]}, "worker 1 died")],
)
def test_what_the_header_says_makes_the_run_invalid(tmp_path: Path, header: dict[str, Any], words: str) -> None:
    run = Run(tmp_path)
    run.request()
    summary = run.finish(**header)
    assert not summary["valid"]
    assert any(words in reason for reason in summary["invalid_reasons"])


@pytest.mark.parametrize(("limit", "valid"), [(0.19, False), (0.2, True)])
def test_the_failure_limit_is_the_header_s(tmp_path: Path, limit: float, valid: bool) -> None:
    run = Run(tmp_path, error_rate_limit=limit)
    for k in range(5):
        run.request(sent=k, status=Status.TIMEOUT if k == 0 else Status.OK)
    run.request(sent=6, status=Status.CANCELLED)
    summary = run.finish()
    assert summary["valid"] is valid
    assert summary["requests"]["cancelled"] == 1
    assert summary["requests"]["error_rate"] == approx(0.2)


def test_throughput_per_accelerator(tmp_path: Path) -> None:
    run = Run(tmp_path, num_gpus=8)
    run.request(chunks=[100, 1000], output_tokens=80)
    throughput = run.finish()["throughput"]
    assert throughput["per_gpu"]["output_tok_s"] == approx(throughput["output_tok_s"] / 8)
    assert throughput["per_gpu"]["cached_input_tok_s"] is None


def test_many_requests_keep_their_order_and_ids_over_workers(tmp_path: Path) -> None:
    run = Run(tmp_path)
    sent = np.random.default_rng(1).permutation(200)
    for k, moment in enumerate(sent.tolist()):
        run.request(sent=moment, worker=k % 3, chunks=[1, 2 + k])
    run.finish()
    rows = run.rows()
    assert [row["sent_ns"] for row in rows] == [k * MS for k in range(200)]
    for row in rows:
        _, worker, seq = row["request_id"].split("-")
        assert int(worker) == int(seq) % 3 == row["worker"]
        assert row["itl_max_s"] == pytest.approx((1 + int(seq)) / 1e3, rel=1e-5)
