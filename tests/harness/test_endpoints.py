"""One run against several endpoints: who got what, and that they must be alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any

import numpy as np
import pytest

from harness.probe_all import parse_endpoints
from replay.transport import add_counters
from results.errors import UserError
from tests.harness.sweep.sweeps import ROOT
from tests.harness.test_run import QUICK, agentx, command, only_run, rows_of, simulated, summary_of, truth_of

PLAIN = ("--idle", "0s", "--power", "none", "--quiet")


def latencies(rows: list[dict[str, Any]], endpoint: int | None = None) -> list[float]:
    return [
        row["ttft_s"]
        for row in rows
        if row["phase"] == "steady" and row["status"] == "ok" and endpoint in (None, row["endpoint"])
    ]


def test_trees_stay_on_their_endpoint_and_figures_are_pooled(tmp_path: Path) -> None:
    out, truths = tmp_path / "runs", [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with simulated(truths[0]) as first, simulated(truths[1]) as second:
        ends = ("--endpoint", first, "--endpoint", second)
        size = ("--concurrency", "5", "--workers", "2", "--duration", "3s")
        done = agentx("run", *ends, *size, *QUICK, *PLAIN, "--out", str(out))
        assert done.returncode == 0, done.stderr
    directory = only_run(out)
    rows, summary = rows_of(directory), summary_of(directory)
    for number, truth in enumerate(truths):
        mine = {row["request_id"] for row in rows if row["endpoint"] == number}
        assert mine
        assert mine <= truth_of(truth).keys()
    trees: dict[tuple[str, int], set[int]] = {}
    for row in rows:
        trees.setdefault((row["session_id"], row["pass"]), set()).add(row["endpoint"])
    assert all(len(ends) == 1 for ends in trees.values())
    parts = summary["endpoints"]
    assert [part["url"] for part in parts] == [first, second]
    assert sum(part["requests"]["sent"] for part in parts) == summary["requests"]["sent"]
    for number, part in enumerate(parts):
        assert part["latency"]["ttft_s"]["p90"] == pytest.approx(np.percentile(latencies(rows, number), 90))
        assert 0 < part["cache"]["achieved"] <= part["cache"]["theoretical"] + 1e-9
    assert summary["latency"]["ttft_s"]["p90"] == pytest.approx(np.percentile(latencies(rows), 90))
    total = sum(part["throughput"]["output_tok_s"] for part in parts)
    assert total == pytest.approx(summary["throughput"]["output_tok_s"])
    manifest = json.loads((directory / "run.json").read_bytes())
    assert [one["url"] for one in manifest["endpoints"]] == [first, second]
    assert all(one["probe"]["requests"] > 0 for one in manifest["endpoints"])
    pages = {row["target"] for row in rows_of(directory, "metrics")}
    assert {page.rpartition("/metrics")[0] for page in pages} == {first, second}


def test_an_endpoint_that_dies_has_the_errors_and_the_other_none(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with simulated() as first, ExitStack() as short:
        second = short.enter_context(simulated())
        ends = ("--endpoint", first, "--endpoint", second)
        size = ("--concurrency", "4", "--workers", "1", "--duration", "20s")
        with subprocess.Popen(command("run", *ends, *size, *QUICK, *PLAIN, "--out", str(out))) as process:
            while not list(out.glob("*/journal/w*.requests")):
                sleep(0.05)
            sleep(2.0)
            short.close()
            assert process.wait(40) == 1
    directory = only_run(out)
    alive, dead = summary_of(directory)["endpoints"]
    assert alive["requests"]["failed"] == 0
    assert alive["requests"]["ok"] > 0
    assert dead["requests"]["failed"] > 0
    assert {row["endpoint"] for row in rows_of(directory) if row["status"] not in ("ok", "cancelled")} == {1}


@contextmanager
def own_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """URL of a simulated endpoint in a process of its own, to be killed."""
    words = [sys.executable, "-P", "-m", "tests.harness.sweep.fast_server", "good", "0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().split()[-1]}", process
        finally:
            process.kill()


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_endpoint_killed_with_kill_9_harms_no_other(tmp_path: Path, goes_on: bool) -> None:
    out, rules = tmp_path / "runs", tmp_path / "rules.yaml"
    rules.write_text("base: closed-loop\n" + "failed_limit: 1.0\n" * goes_on)
    with own_process() as (first, _), own_process() as (second, doomed):
        ends = ("--endpoint", first, "--endpoint", second, "--scenario", str(rules))
        size = ("--concurrency", "4", "--workers", "2", "--duration", "7s", "--drain", "3s")
        began = monotonic()
        with subprocess.Popen(command("run", *ends, *size, *QUICK, *PLAIN, "--out", str(out))) as process:
            while sum(path.stat().st_size > 0 for path in out.glob("*/journal/w*.requests")) < 2:
                assert monotonic() - began < 20
                sleep(0.05)
            sleep(1.0)
            doomed.kill()
            killed_ns = monotonic_ns()
            code = process.wait(7 + 3 + 10)
    directory = only_run(out)
    summary, rows = summary_of(directory), rows_of(directory)
    alive, dead = (part["requests"] for part in summary["endpoints"])
    assert alive["failed"] == 0
    assert 0 < dead["failed"] == summary["requests"]["failed"]
    failed = {row["status"] for row in rows if row["endpoint"] == 1} - {"ok", "cancelled"}
    assert failed <= {"connect_error", "stream_error", "truncated"}, failed
    t0 = json.loads((directory / "run.json").read_bytes())["clock"]["t0_monotonic_ns"]
    after = [row["sent_ns"] for row in rows if row["endpoint"] == 0 and row["sent_ns"] > killed_ns - t0]
    if goes_on:
        assert code == 0
        assert max(after) > 6.5e9  # the other one was asked to the end of the measured part
        assert {row["status"] for row in rows if row["endpoint"] == 0} == {"ok"}
    else:
        assert code == 1
        assert "stopped early: more than 10 % of the requests failed" in summary["invalid_reasons"][0]
        assert summary["endpoints"][1]["url"] == second


def test_endpoints_that_differ_are_refused_in_one_line(tmp_path: Path) -> None:
    with simulated() as first, simulated(max_model_len=32_768) as second:
        ends = ("--endpoint", first, "--endpoint", second)
        done = agentx("run", *ends, *QUICK, *PLAIN, "--duration", "1s", "--out", str(tmp_path / "runs"))
    assert done.returncode == 3
    assert f"--endpoint {second} has another context length than {first}: 32768, not 65536" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_endpoint_given_twice_is_refused() -> None:
    with pytest.raises(UserError, match="given twice"):
        parse_endpoints(("http://h:1", "http://h:1/v1"), api_key=None, ca_file=None, insecure=False)


def test_counters_of_transports_add_up_and_the_backlog_is_the_largest() -> None:
    assert add_counters([{"reads": 1, "backlog_max_bytes": 5}, {"reads": 2, "backlog_max_bytes": 3}]) == {
        "reads": 3,
        "backlog_max_bytes": 5,
    }
