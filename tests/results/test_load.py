"""`agentx.load`: many runs as pandas DataFrames."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agentx
from results.errors import UserError
from results.records import MISSING
from tests.results.rows import Run

pandas = pytest.importorskip("pandas")
pytest.importorskip("duckdb")


def two_runs(folder: Path) -> None:
    for concurrency in (1, 4):
        run = Run(folder / str(concurrency), run_id=f"run{concurrency}", concurrency=concurrency)
        for sent in (50, 0):
            run.request(sent=sent, chunks=[100, 110], cached_tokens=MISSING)
        run.finish(interrupted=concurrency == 4)


def test_runs_below_a_folder_are_one_table(tmp_path: Path) -> None:
    two_runs(tmp_path)
    frame = agentx.load(tmp_path).requests
    assert frame["run_id"].tolist() == ["run1", "run1", "run4", "run4"]
    assert frame["concurrency"].tolist() == [1, 1, 4, 4]
    assert frame["valid"].tolist() == [True, True, False, False]
    assert frame["sent_ns"].tolist() == [0, 50_000_000] * 2
    assert frame["ttft_s"].tolist() == pytest.approx([0.1] * 4)
    assert frame["input_tokens"].dtype == pandas.Int64Dtype()
    assert frame["cached_tokens"].isna().all()


def test_every_table_and_sql_are_frames(tmp_path: Path) -> None:
    two_runs(tmp_path)
    found = agentx.load(str(tmp_path / "1"), tmp_path / "4")
    assert found.runs[["run_id", "concurrency", "requests_sent"]].to_numpy().tolist() == [
        ["run1", 1, 2],
        ["run4", 4, 2],
    ]
    assert found.runs["valid"].dtype == pandas.BooleanDtype()
    assert found.chunks["run_id"].tolist() == ["run1"] * 4 + ["run4"] * 4
    assert found.sessions.empty
    assert "wall_s" in found.sessions
    assert found.client.empty
    assert found.power.empty
    assert found.metrics.empty
    answer = found.sql("SELECT sum(output_tokens) AS n, 0.25 AS share FROM requests")
    assert answer["n"].tolist() == [8]
    assert answer["n"].dtype == pandas.Int64Dtype()
    assert answer["share"].tolist() == [0.25]
    with pytest.raises(UserError, match=r"^SQL: "):
        found.sql("SELECT nothing FROM runs")


def test_no_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no finished run"):
        agentx.load(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^runs: no finished run there: no such folder"):
        agentx.load()


def test_a_broken_summary_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request()
    run.finish()
    (run.directory / "summary.json").write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match=f"{run.directory}: not a readable run"):
        agentx.load(tmp_path)


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    two_runs(tmp_path)
    broken = tmp_path / "4" / "run" / "requests.parquet"
    broken.write_bytes(b"PAR1 nonsense")
    found = agentx.load(tmp_path)
    with pytest.warns(UserWarning, match=f"{broken} can't be read"):
        assert found.requests["run_id"].tolist() == ["run1", "run1"]
    with pytest.raises(UserError, match=f"{broken} can't be read"):
        _ = agentx.load(tmp_path / "4").requests


def test_a_run_that_can_not_be_used_is_warned_of_and_hides_no_other(tmp_path: Path) -> None:
    two_runs(tmp_path)
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "run.json").write_text(json.dumps({"run_id": "k", "scenario": {"name": "s"}}))
    with pytest.warns(UserWarning, match="killed: not finished"):
        found = agentx.load(tmp_path)
    assert found.runs.set_index("run_id").loc["k", ["status", "scenario"]].tolist() == ["unfinished", "s"]
    assert len(found.requests) == 4
