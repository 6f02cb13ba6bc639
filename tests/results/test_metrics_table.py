from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from results.metrics_table import ROW, MetricsJournal, SeriesRow, write_metrics


def series(name: str, canonical: str | None = None) -> SeriesRow:
    return SeriesRow("http://h/metrics", "worker", name, (("engine", "0"),), "counter", canonical, 1.0)


def filled(run_dir: Path) -> MetricsJournal:
    (run_dir / "journal").mkdir()
    journal = MetricsJournal(run_dir / "journal")
    numbers = np.array([journal.series(series("a", "prompt_tokens")), journal.series(series("b"))])
    edge = journal.edge("steady_start", 5)
    journal.add(10, numbers, np.array([1.0, np.nan]), edge=edge)
    journal.add(20, numbers, np.array([1.0, np.nan]))
    journal.add(30, numbers, np.array([2.0, np.nan]))
    return journal


def test_changes_and_baselines_are_rows(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.add(40, np.array([0, 1]), np.array([2.0, np.nan]), edge=journal.edge("steady_end", 35))
    assert journal.close()
    assert write_metrics(tmp_path, "r") == 5
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.column("t_ns").to_pylist() == [10, 10, 30, 40, 40]
    assert table.column("value").to_pylist() == [1, None, 2, 2, None]
    assert table.column("edge").to_pylist() == ["steady_start", "steady_start", None, "steady_end", "steady_end"]
    assert table.column("phase").to_pylist() == ["steady", "steady", "steady", None, None]
    assert table.column("canonical").to_pylist()[:2] == ["prompt_tokens", None]
    assert json.loads(table.schema.metadata[b"agentx.metrics"])["changed_only"] is True


@pytest.mark.parametrize("rest", range(ROW.itemsize))
def test_a_row_cut_by_a_crash_is_dropped(tmp_path: Path, rest: int) -> None:
    journal = filled(tmp_path)
    journal.flush()  # and then the process is killed
    rows = tmp_path / "journal" / "metrics.rows"
    whole = rows.read_bytes()
    rows.write_bytes(whole[: 2 * ROW.itemsize + rest])
    assert write_metrics(tmp_path, "r") == 2


def test_a_series_line_cut_by_a_crash_costs_the_rows_that_need_it(tmp_path: Path) -> None:
    filled(tmp_path).close()
    index = tmp_path / "journal" / "metrics.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(lines[0] + lines[1][:-5])
    assert write_metrics(tmp_path, "r") == 2
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert set(table.column("name").to_pylist()) == {"a"}


def test_a_journal_without_rows_is_an_empty_table_and_none_is_none(tmp_path: Path) -> None:
    assert write_metrics(tmp_path, "r") is None
    (tmp_path / "journal").mkdir()
    MetricsJournal(tmp_path / "journal").close()
    assert write_metrics(tmp_path, "r") == 0
    assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 0


def test_rows_wait_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("results.metrics_table.os.write", full)
        assert not journal.flush()
    assert journal.close()
    assert write_metrics(tmp_path, "r") == 3
