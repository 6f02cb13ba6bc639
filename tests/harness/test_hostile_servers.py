"""Servers and machines that make a run hard, through the command line: what the run says of each."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.harness.test_run import QUICK, agentx, command, hostile, only_run, rows_of, simulated, summary_of
from tests.harness.test_run_cases import ONE, at_once
from tests.raw_server import Request, Writer, delta, finish, self_signed, usage

PAGE = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 1\n'


def manifest_of(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "run.json").read_bytes())
    return loaded


def test_p51_a_server_that_refuses_most_is_not_fast_but_seven_tenths_failed(tmp_path: Path) -> None:
    """Seven of ten get an instant 503: in the table, in the summary and in the rows alike."""
    count = 0

    async def script(request: Request, writer: Writer) -> None:
        nonlocal count
        count += 1
        if count % 10 < 7:
            await writer.raw(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")
        else:
            await at_once(request, writer)

    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "20", "--sessions", "400", "--workers", "1"),
            *("--out", str(tmp_path), *QUICK),
        )
    assert done.returncode == 1, done.stderr
    run = only_run(tmp_path)
    summary, rows = summary_of(run), rows_of(run)
    ok = sum(row["status"] == "ok" for row in rows)
    failed = sum(row["status"] == "http_error" for row in rows)
    assert ok + failed >= 20
    assert (summary["requests"]["ok"], summary["requests"]["failed"]) == (ok, failed)
    assert summary["requests"]["error_rate"] == pytest.approx(failed / (ok + failed))
    assert summary["requests"]["error_rate"] == pytest.approx(0.7, abs=0.12)
    assert summary["latency"]["ttft_s"]["n"] == summary["latency"]["e2e_s"]["n"] == ok
    assert all(row["ttft_s"] is None for row in rows if row["status"] != "ok")
    assert not summary["valid"]
    assert str(failed) in done.stdout
    assert "not valid" in done.stdout or "failed" in done.stdout


def test_p58_a_certificate_that_is_not_trusted_is_said_at_once_and_both_ways_around_it_work(tmp_path: Path) -> None:
    context, certificate = self_signed()
    with hostile(at_once, tls=context, page=PAGE) as server:
        url = f"https://127.0.0.1:{server.port}"
        begun = monotonic()
        plain = agentx("run", "--endpoint", url, *ONE, "--out", str(tmp_path / "plain"))
        assert monotonic() - begun < 10  # not the minutes of the readiness loop
        trusted = agentx("run", "--endpoint", url, *ONE, "--ca-file", certificate, "--out", str(tmp_path / "ca"))
        blind = agentx("run", "--endpoint", url, *ONE, "--insecure", "--out", str(tmp_path / "blind"))
    assert plain.returncode == 3
    assert "certificate not accepted" in " ".join(plain.stderr.split())
    assert "--ca-file" in plain.stderr
    assert not (tmp_path / "plain").exists()
    for name, done, insecure in (("ca", trusted, False), ("blind", blind, True)):
        assert done.returncode in (0, 1), done.stderr
        run = only_run(tmp_path / name)
        assert {row["status"] for row in rows_of(run)} == {"ok"}
        assert manifest_of(run)["endpoint"]["insecure"] is insecure
        assert summary_of(run)["server"] is not None, "the metrics page could not be read"


def test_p59_a_soft_limit_on_descriptors_is_raised(tmp_path: Path) -> None:
    with hostile(at_once) as server:
        run = command("run", "--endpoint", server.url, "--concurrency", "150", "--sessions", "150", *QUICK)
        limited = f"ulimit -Sn 200 && exec {shlex.join([*run, '--out', str(tmp_path)])}"
        done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert {row["status"] for row in rows_of(only_run(tmp_path))} == {"ok"}


def test_p61_the_address_that_localhost_led_to_is_in_the_manifest(tmp_path: Path) -> None:
    with simulated() as url:
        port = url.rsplit(":", 1)[1]
        done = agentx("run", "--endpoint", f"http://localhost:{port}", *ONE, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1" in manifest_of(only_run(tmp_path))["endpoint"]["address"]


def test_p19_p22_without_usage_every_request_is_there_its_counts_are_unknown_and_no_worker_is_lost(
    tmp_path: Path,
) -> None:
    """Far fewer tokens than were asked for, and nobody counts them: unknown, never the number that was asked for."""

    async def script(request: Request, writer: Writer) -> None:
        await writer.head()
        for _ in range(5):
            await writer.event(delta(content=" x"))
        await writer.event(finish("stop"))
        await writer.event("[DONE]")
        await writer.end()

    shape = ("--scenario", "fixed", "--isl", "64", "--osl", "512")
    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, *shape, "--sessions", "20", "--concurrency", "4", "--workers", "4"),
            *("--json", "--out", str(tmp_path)),
        )
    assert done.returncode in (0, 1), done.stderr
    summary, rows = json.loads(done.stdout), rows_of(only_run(tmp_path))
    assert len(rows) == summary["requests"]["ok"] == 20
    assert {row["worker"] for row in rows} == {0, 1, 2, 3}
    assert {(row["output_tokens"], row["output_chunks"], row["tpot_s"]) for row in rows} == {(None, 5, None)}
    assert {row["planned_output_tokens"] for row in rows} == {512}
    assert summary["throughput"]["output_tok_s"] is None
    assert len([text for text in summary["warnings"] if "without usage" in text]) == 1
    assert not any("died" in reason for reason in summary["invalid_reasons"])


def test_p83_what_the_models_context_leaves_out_is_a_table_and_a_strict_run_stops(tmp_path: Path) -> None:
    with simulated(max_model_len=14_000) as url:
        strict = agentx("run", "--endpoint", url, "--overlong", "fail", "--out", str(tmp_path / "strict"))
        options = ("--duration", "2s", "--concurrency", "1", "--time-scale", "0", "--out", str(tmp_path / "r"))
        done = agentx("run", "--endpoint", url, *options)
    assert strict.returncode == 2, strict.stderr
    assert not (tmp_path / "strict").exists()
    assert done.returncode == 0, done.stderr
    assert "the model takes 14,000 tokens" in done.stderr
    run = only_run(tmp_path / "r")
    plan = manifest_of(run)["plan"]
    assert plan["dropped"]
    for reason, number in plan["dropped"].items():
        assert f"{number:,} {reason}" in done.stderr or f"{number} {reason}" in done.stderr
    assert plan["selection"]["max_context"] == 14_000
    assert plan["digest"][:12] in done.stderr  # of the corpus after the filter
    assert "infinite-cache hits" in done.stderr
    assert max(row["input_tokens"] + row["output_tokens"] for row in rows_of(run)) <= 14_000


async def one_event_is_cut(request: Request, writer: Writer) -> None:
    await writer.head()
    for _ in range(4):
        await writer.event(delta(content=" x"))
    await writer.event('{"choices":[{"delta":')
    for _ in range(4):
        await writer.event(delta(content=" x"))
    await writer.event(finish())
    await writer.event(usage(64, 9, 0))
    await writer.event("[DONE]")
    await writer.end()


@pytest.mark.parametrize("policy", ["keep", "fail"])
def test_p42_an_unreadable_event_is_counted_and_the_scenario_says_what_becomes_of_its_answer(
    tmp_path: Path, policy: str
) -> None:
    (tmp_path / "rules.yaml").write_text(f"base: fixed\nunreadable: {policy}\n")
    rules = ("--scenario", str(tmp_path / "rules.yaml"), "--isl", "64", "--osl", "9")
    with hostile(one_event_is_cut) as server:
        done = agentx(
            *("run", "--endpoint", server.url, *rules, "--sessions", "3", "--concurrency", "1"),
            *("--json", "--out", str(tmp_path / "r")),
        )
    summary, rows = json.loads(done.stdout), rows_of(only_run(tmp_path / "r"))
    assert [row["parse_errors"] for row in rows] == [1, 1, 1]
    assert any("3 answers held an event that could not be decoded" in text for text in summary["warnings"])
    assert manifest_of(only_run(tmp_path / "r"))["scenario"]["rules"]["unreadable"] == policy
    if policy == "keep":
        assert {row["status"] for row in rows} == {"ok"}
        assert summary["valid"]
    else:
        assert {row["status"] for row in rows} == {"stream_error"}
        assert {row["error"] for row in rows} == {"1 events could not be decoded"}
        assert done.returncode == 1


@pytest.mark.parametrize("tokens", [10, 1024])
def test_p44_an_answer_far_below_its_forced_length_failed_and_the_shares_are_told(tmp_path: Path, tokens: int) -> None:
    async def script(request: Request, writer: Writer) -> None:
        body = request.json()
        assert (body["ignore_eos"], body["min_tokens"], body["max_tokens"]) == (True, 1024, 1024)
        await writer.head()
        for _ in range(tokens):
            await writer.event(delta(content=" x"))
        await writer.event(finish("stop"))
        await writer.event(usage(64, tokens, 0))
        await writer.event("[DONE]")
        await writer.end()

    shape = ("--scenario", "fixed", "--isl", "64", "--osl", "1024", "--sessions", "3", "--concurrency", "1")
    with hostile(script) as server:
        done = agentx("run", "--endpoint", server.url, *shape, "--json", "--out", str(tmp_path))
    summary, rows = json.loads(done.stdout), rows_of(only_run(tmp_path))
    assert {row["delivered_share"] for row in rows} == {tokens / 1024}
    shares = summary["tokens"]["delivered_share"]
    assert (shares["n"], shares["p50"]) == (3, pytest.approx(tokens / 1024))
    assert summary["requests"]["ok"] == (3 if tokens == 1024 else 0)
    if tokens < 1024:
        assert {row["error"] for row in rows} == {f"short output: {tokens} of 1024 forced tokens"}
        assert summary["throughput"]["output_tok_s"] in (None, 0)
        assert done.returncode == 1


async def slow_to_begin(request: Request, writer: Writer) -> None:
    await writer.at(700)
    await at_once(request, writer)


def test_p56_a_long_silence_is_no_fault_unless_a_limit_was_given_and_the_row_says_which(tmp_path: Path) -> None:
    with hostile(slow_to_begin) as server:
        patient = agentx("run", "--endpoint", server.url, *ONE, "--out", str(tmp_path / "patient"))
        hasty = agentx(
            *("run", "--endpoint", server.url, *ONE, "--first-byte-timeout", "250ms", "--out", str(tmp_path / "hasty"))
        )
    assert patient.returncode in (0, 1), patient.stderr
    assert {row["status"] for row in rows_of(only_run(tmp_path / "patient"))} == {"ok"}
    limits = manifest_of(only_run(tmp_path / "patient"))["scenario"]["limits"]
    assert (limits["first_byte_s"], limits["between_bytes_s"]) == (None, None)
    assert limits["connect_s"] > 0
    assert hasty.returncode == 1, hasty.stderr
    rows = rows_of(only_run(tmp_path / "hasty"))
    assert {(row["status"], row["error"]) for row in rows} == {("timeout", "no byte of the answer within 0.25 s")}
    assert all(row["ttft_s"] is None for row in rows)
    assert manifest_of(only_run(tmp_path / "hasty"))["scenario"]["limits"]["first_byte_s"] == 0.25
    assert not summary_of(only_run(tmp_path / "hasty"))["valid"]
