"""`agentx.load`: many runs as one table."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentx
from results.errors import UserError
from results.records import MISSING
from tests.results.rows import Run

pandas = pytest.importorskip("pandas")


def test_runs_below_a_folder_are_one_table(tmp_path: Path) -> None:
    for concurrency in (1, 4):
        run = Run(tmp_path / str(concurrency), run_id=f"run{concurrency}", concurrency=concurrency)
        run.request(chunks=[100, 110], cached_tokens=MISSING)
        run.finish(interrupted=concurrency == 4)
    frame = agentx.load(tmp_path)
    assert frame["run_id"].tolist() == ["run1", "run4"]
    assert frame["concurrency"].tolist() == [1, 4]
    assert frame["valid"].tolist() == [True, False]
    assert frame["ttft_s"].tolist() == pytest.approx([0.1, 0.1])
    assert frame["input_tokens"].dtype == pandas.Int64Dtype()
    assert frame["cached_tokens"].isna().all()


def test_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished run"):
        agentx.load(tmp_path)


@pytest.mark.parametrize("name", ["requests.parquet", "summary.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    run = Run(tmp_path)
    run.request()
    run.finish()
    (run.directory / name).write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match=f"{run.directory}: not a readable run"):
        agentx.load(tmp_path)
