"""Real runs keep the public rules, as a separate program sees it; damaged copies of them are found out."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import replay
from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving
from tests.replay import rules_checker

CORPUS = Path(replay.__file__).with_name("data") / "builtin.parquet"
Rows = list[dict[str, Any]]


def replay_with(out: Path, *arguments: str) -> Path:
    """The directory of a run against a fast simulated endpoint."""
    profile = dataclasses.replace(FAST, block_size=64, cache_blocks=65_536, max_model_len=262_144, kv_tokens_s=1e12)
    with serving(MockConfig(profile, "quick", None)) as port:
        endpoint = ("--endpoint", f"http://127.0.0.1:{port}", "--out", str(out))
        command = [sys.executable, "-P", "-m", "agentx", "run", *endpoint, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False, env={**os.environ})
    assert done.returncode in (0, 1), done.stderr
    (directory,) = out.iterdir()
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole sessions that follow each other on six slots, with pauses."""
    limits = ("--max-context", "60k", "--concurrency", "6", "--duration", "12s", "--time-scale", "0.002")
    return replay_with(tmp_path_factory.mktemp("whole"), *limits)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The public scenario, shortened: starts in mid-session, primers, warm-up turns."""
    limits = ("--concurrency", "3", "--duration", "8s", "--time-scale", "0.01")
    return replay_with(tmp_path_factory.mktemp("public"), "--scenario", "agentx", *limits)


def damaged(run: Path, out: Path, change: Callable[[Rows], None]) -> list[str]:
    """What the checker says of a copy of `run` whose requests went through `change`."""
    shutil.copytree(run, out)
    table = pq.read_table(out / "requests.parquet")
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), out / "requests.parquet")
    return rules_checker.violations(out, CORPUS)


def test_the_checker_imports_nothing_of_ours() -> None:
    source = Path(rules_checker.__file__).read_text()
    ours = ("agentx", "harness", "replay", "results", "collectors", "hardware")
    assert not any(f"import {name}" in source or f"from {name}" in source for name in ours)


def test_whole_sessions_keep_the_rules(whole: Path) -> None:
    assert rules_checker.violations(whole, CORPUS) == []
    run = rules_checker.Run(whole, CORPUS)
    assert len(run.instances) > 2, "no slot was recycled: the run shows too little"
    assert any(row["lane_id"] != "main" for row in run.requests), "no sub-agent ran: the run shows too little"


def test_the_public_scenario_keeps_the_rules(public: Path) -> None:
    assert rules_checker.violations(public, CORPUS) == []
    run = rules_checker.Run(public, CORPUS)
    assert any(instance.primers for instance in run.instances)
    assert {row["phase"] for row in run.requests} >= {"warmup", "steady"}


@pytest.mark.parametrize("name", ["whole", "public"])
def test_hit_rates_are_those_of_the_summary(name: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(name)
    cache = json.loads((directory / "summary.json").read_bytes())["cache"]
    rates = rules_checker.hit_rates(directory, CORPUS)
    assert rates["run"] == pytest.approx(cache["theoretical"], abs=1e-9)
    assert rates["tree"] == pytest.approx(cache["theoretical_tree"], abs=1e-9)


def test_a_run_of_recorded_traces_keeps_the_rules(weka_import: tuple[Path, Any], tmp_path: Path) -> None:
    corpus = weka_import[0]
    limits = ("--max-context", "100k", "--concurrency", "4", "--duration", "8s", "--time-scale", "0.01")
    run = replay_with(tmp_path / "runs", "--corpus", str(corpus), "--scenario", "agentx", *limits)
    assert rules_checker.violations(run, corpus) == []
    assert len(rules_checker.Run(run, corpus).requests) > 20, "the run shows too little"


def second_turn(rows: Rows) -> dict[str, Any]:
    return next(row for row in rows if row["lane_id"] == "main" and row["turn"] == 1 and row["phase"] == "steady")


def test_a_request_before_its_cause_is_found(whole: Path, tmp_path: Path) -> None:
    def early(rows: Rows) -> None:
        row = second_turn(rows)
        first = next(
            other
            for other in rows
            if (other["session_id"], other["pass"], other["lane_id"], other["turn"])
            == (row["session_id"], row["pass"], "main", 0)
        )
        row["sent_ns"] = (first["sent_ns"] + first["done_ns"]) // 2

    found = damaged(whole, tmp_path / "run", early)
    assert any(line.startswith("causes: ") for line in found)


def test_a_pause_cut_short_is_found(whole: Path, tmp_path: Path) -> None:
    run = rules_checker.Run(whole, CORPUS)

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["session_id"], row["pass"], row["lane_id"], row["turn"]

    def too_soon(rows: Rows) -> None:
        sent = {key(row): row for row in rows}
        for row in rows:
            before = sent.get((*key(row)[:3], row["turn"] - 1))
            recorded = run.by_key[rules_checker.key(row)]
            # Twenty recorded seconds are 40 ms here: far beyond what the checker lets pass.
            if (
                before is not None
                and recorded["start_s"] - rules_checker.recorded_end(run.by_key[rules_checker.key(before)]) > 20
            ):
                before["done_ns"] = row["sent_ns"]
                return
        raise AssertionError("no pause of 20 s in the run")

    assert any(line.startswith("pauses: ") for line in damaged(whole, tmp_path / "run", too_soon))


def test_a_tree_too_many_is_found(whole: Path, tmp_path: Path) -> None:
    def other_slot(rows: Rows) -> None:
        for row in rows:
            if row["slot"] == 0:
                row["slot"] = 7 + row["turn"] % 2

    assert any(line.startswith("slots: ") for line in damaged(whole, tmp_path / "run", other_slot))


@pytest.mark.parametrize("column", ["planned_input_tokens", "input_tokens", "planned_output_tokens", "output_tokens"])
def test_a_changed_token_count_is_found(whole: Path, tmp_path: Path, column: str) -> None:
    def one_more(rows: Rows) -> None:
        rows[len(rows) // 2][column] += 1

    assert any(line.startswith("tokens: ") for line in damaged(whole, tmp_path / "run", one_more))


@pytest.mark.parametrize("column", ["theoretical_cached_tokens", "theoretical_tree_cached_tokens"])
def test_a_changed_hit_is_found(whole: Path, tmp_path: Path, column: str) -> None:
    def one_block_more(rows: Rows) -> None:
        rows[len(rows) // 2][column] += 64

    assert any(line.startswith("prefixes: ") for line in damaged(whole, tmp_path / "run", one_block_more))


def test_a_warm_up_request_in_the_measured_part_is_found(public: Path, tmp_path: Path) -> None:
    def late(rows: Rows) -> None:
        end = max(row["done_ns"] for row in rows)
        next(row for row in rows if row["phase"] == "warmup")["done_ns"] = end

    assert any(line.startswith("phases: ") for line in damaged(public, tmp_path / "run", late))


def test_a_start_outside_the_shares_is_found(public: Path, tmp_path: Path) -> None:
    shutil.copytree(public, tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_bytes())
    record["scenario"]["rules"]["start_min"] = record["scenario"]["rules"]["start_max"] = 0.99
    path.write_text(json.dumps(record))
    assert any(line.startswith("starts: ") for line in rules_checker.violations(tmp_path / "run", CORPUS))


def test_a_request_sent_twice_is_found(whole: Path, tmp_path: Path) -> None:
    found = damaged(whole, tmp_path / "run", lambda rows: rows.append(rows[0]))
    assert any(line.startswith("known: ") for line in found)


def test_a_run_without_requests_is_found(whole: Path, tmp_path: Path) -> None:
    assert damaged(whole, tmp_path / "run", list.clear) == ["known: no request of the corpus was sent"]
