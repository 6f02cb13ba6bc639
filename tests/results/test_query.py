"""SQL over run directories: what can be asked, what an older or broken run answers, and what SQL must not reach."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from results.dataset import RunFiles, scan
from results.errors import UserError
from results.query import VIEWS, Database
from results.run_columns import COLUMNS, FIGURES, INTERVALS, WANTED, runs_table
from results.run_tables import TABLES, schema_of
from tests.results.rows import Run

pytest.importorskip("duckdb")


def finished(folder: Path, run_id: str = "run", requests: int = 3, **header: Any) -> Path:
    run = Run(folder, run_id=run_id, **header)
    for k in range(requests):
        run.request(sent=10 * k, chunks=[100, 120 + k], cached_tokens=5)
    run.tree(ended=900)
    run.client(t=500)
    run.finish()
    return run.directory


def rows(database: Database, sql: str) -> list[tuple[Any, ...]]:
    return list(database.ask(sql).rows)


def database(*paths: Path | str) -> Database:
    return Database(scan(*paths, summary=WANTED))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_each_table_has_the_rows_of_all_runs(tmp_path: Path) -> None:
    finished(tmp_path / "1", "a", requests=2)
    finished(tmp_path / "2", "b", requests=5)
    found = database(tmp_path)
    for name, expected in (("runs", [1, 1]), ("requests", [2, 5]), ("sessions", [1, 1]), ("chunks", [4, 10])):
        sql = f"SELECT run_id, count(*) FROM {name} GROUP BY run_id ORDER BY run_id"
        assert rows(found, sql) == [("a", expected[0]), ("b", expected[1])], name
    assert rows(found, "SELECT count(*) FROM client") == [(2,)]
    for name in ("metrics", "power"):  # no run has the file: no row, and the columns are known
        assert rows(found, f"SELECT run_id, t_ns FROM {name}") == []
    joined = "SELECT DISTINCT r.concurrency, q.status FROM requests q JOIN runs r USING (run_id)"
    assert rows(found, joined) == [(1, "ok")]
    assert set(VIEWS) == {"runs", *TABLES}


def test_figures_are_columns_by_their_key(tmp_path: Path) -> None:
    directory = finished(tmp_path)
    summary = json.loads((directory / "summary.json").read_text())
    sql = (
        "SELECT latency_ttft_s_p90, interactivity_e2e_normalised_p90, throughput_output_tok_s, cache_achieved,"
        " requests_ok, jobs_completed, client_saturated, steady_s FROM runs"
    )
    assert rows(database(directory), sql) == [
        (
            summary["latency"]["ttft_s"]["p90"],
            summary["interactivity"]["e2e_normalised"]["p90"],
            summary["throughput"]["output_tok_s"],
            summary["cache"]["achieved"],
            summary["requests"]["ok"],
            summary["jobs"]["completed"],
            False,
            summary["steady_s"],
        )
    ]


CONTRACT = {
    "run_id", "valid", "scenario", "concurrency", "duration_s", "steady_s", "invalid_reasons", "warnings",
    "requests_sent", "requests_ok", "requests_failed", "requests_cancelled", "requests_context_overflow",
    "requests_error_rate", "latency_full_response_itl_s_p99", "latency_itl_s_n", "latency_e2e_s_std",
    "interactivity_itl_p50", "throughput_per_gpu_total_tok_s", "throughput_computed_input_tok_s",
    "tokens_cached_mean", "cache_lost_routing", "jobs_latency_s_p50", "jobs_prefill_time_share",
    "power_joules_per_output_token", "power_source", "client_send_lag_s_p99", "client_cpu_util_max",
    "client_saturated",
}  # fmt: skip


def test_p139_no_column_is_lost_and_all_are_there_whatever_the_runs_know(tmp_path: Path) -> None:
    """A column dropped or renamed breaks who reads it: these names are the public ones."""
    assert COLUMNS.keys() >= CONTRACT
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"run_id": "old", "throughput": {"new_figure": 1}}))
    (row,) = runs_table(scan(tmp_path)).to_pylist()
    known = {name for name, value in row.items() if value is not None}
    assert known == {"run_id", "folder"}


def test_p139_every_figure_is_a_key_that_is_written(tmp_path: Path) -> None:
    """A key renamed where it is written would leave its column null for ever."""
    run = Run(tmp_path)
    for tree in range(10):
        run.request(sent=100 * tree, chunks=[10, 20, 30], session=tree % 3, pass_=tree // 3)
        run.tree(ended=100 * tree + 50, session=tree % 3, pass_=tree // 3)
    summary = run.finish(steady_end_ns=30_000_000_000)
    assert keys(summary).keys() >= {(*group, name) for group, names in FIGURES.items() for name in names}
    assert summary["intervals"].keys() >= set(INTERVALS)


def keys(document: dict[str, Any], before: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found: dict[tuple[str, ...], Any] = {}
    for name, value in document.items():
        found |= keys(value, (*before, name)) if isinstance(value, dict) else {(*before, name): value}
    return found


def test_p139_an_older_and_a_later_file_answer_together(tmp_path: Path) -> None:
    old, new = finished(tmp_path / "1", "old"), finished(tmp_path / "2", "new")
    table = pq.read_table(old / "requests.parquet")
    pq.write_table(table.drop_columns(["theoretical_tree_cached_tokens", "timestamps"]), old / "requests.parquet")
    table = pq.read_table(new / "requests.parquet")
    narrow = table.set_column(table.column_names.index("turn"), "turn", table["turn"].cast(pa.int32()))
    pq.write_table(narrow.append_column("extra", pa.array(["x"] * len(table))), new / "requests.parquet")
    sql = "SELECT DISTINCT run_id, timestamps, extra FROM requests ORDER BY run_id"
    assert rows(database(tmp_path), sql) == [("new", "kernel", "x"), ("old", None, None)]
    assert rows(database(old), "SELECT DISTINCT timestamps FROM requests") == [(None,)]  # also when all files are old
    assert rows(database(tmp_path), "SELECT sum(turn) FROM requests") == [(6,)]
    odd = table.set_column(table.column_names.index("turn"), "turn", pa.array([["x"]] * len(table)))
    pq.write_table(odd, new / "requests.parquet")
    with pytest.raises(UserError, match=r"requests\.parquet: the runs' files do not fit together"):
        database(tmp_path).ask("SELECT * FROM requests")


def test_passing_over_keys_that_are_no_columns_loses_none(tmp_path: Path) -> None:
    directory = finished(tmp_path, requests=20)
    whole, wanted = scan(directory), scan(directory, summary=WANTED)
    assert runs_table(wanted).equals(runs_table(whole))
    (run,) = scan(directory, summary=WANTED)
    assert isinstance(run, RunFiles)
    assert "by_status" not in run.summary["requests"]
    change(directory / "summary.json", latency=[])  # not of the wanted shape: read in full
    assert runs_table(scan(directory, summary=WANTED)).equals(runs_table(scan(directory)))


def test_known_columns_are_those_that_are_written(tmp_path: Path) -> None:
    directory = finished(tmp_path)
    for name in ("requests", "sessions", "client"):
        written = pq.read_schema(directory / f"{name}.parquet").names
        assert schema_of(name).names == [*written, "folder"]
    assert schema_of("chunks").names == ["run_id", "request_id", "offset_ns", "folder"]


def test_values_of_a_wrong_type_are_null_and_spoil_no_column(tmp_path: Path) -> None:
    good, bad = finished(tmp_path / "1", "good"), finished(tmp_path / "2", "bad")
    change(bad / "summary.json", valid="yes", concurrency=2.5, steady_s="5", duration_s=float("nan"), latency=[1])
    change(bad / "summary.json", warnings="none", throughput={"output_tok_s": "many", "requests_s": float("inf")})
    change(bad / "summary.json", requests={"sent": 2**70}, intervals={"cache.achieved": [1]}, reasons=3)
    manifest = {"run_id": "bad", "scenario": [], "clock": {"start": {"utc": "yesterday"}}, "seed": "x"}
    (bad / "run.json").write_text(json.dumps(manifest))
    first, second = runs_table(scan(good, bad)).to_pylist()
    assert first["valid"] is True
    assert first["latency_ttft_s_n"] == 3
    assert second["run_id"] == "bad"
    for name in (
        "valid", "concurrency", "steady_s", "duration_s", "latency_ttft_s_p90", "warnings", "seed", "started_utc",
        "throughput_output_tok_s", "throughput_requests_s", "requests_sent", "cache_achieved_low", "reasons",
    ):  # fmt: skip
        assert second[name] is None, name


def test_runs_that_can_not_be_used_are_rows_with_a_problem(tmp_path: Path) -> None:
    finished(tmp_path / "good", "good")
    broken = finished(tmp_path / "broken", "broken")
    (broken / "summary.json").write_text("{")
    found = database(tmp_path)
    said = rows(found, "SELECT status, problem FROM runs WHERE problem IS NOT NULL")
    assert [status for status, _ in said] == ["unreadable"]
    assert found.notes == [f"{broken}: {said[0][1]}"]
    assert rows(found, "SELECT DISTINCT run_id FROM requests") == [("good",)]
    with pytest.raises(UserError, match=r"no finished run there: .*broken.*summary\.json"):
        database(tmp_path / "broken")


def test_copies_are_told_apart_by_their_folder(tmp_path: Path) -> None:
    shutil.copytree(finished(tmp_path / "1"), tmp_path / "copy")
    found = database(tmp_path)
    assert found.notes == ["2 runs have the run_id run: `folder` tells them apart"]
    sql = "SELECT count(*), count(DISTINCT folder) FROM requests JOIN runs USING (folder)"
    assert rows(found, sql) == [(6, 2)]


def test_the_run_id_is_that_of_the_directory_and_finds_its_file(tmp_path: Path) -> None:
    """Also in chunks.parquet, which has none of its own, and in a copy that was given another."""
    shutil.copytree(finished(tmp_path / "1", "a"), tmp_path / "copy")
    change(tmp_path / "copy" / "summary.json", run_id="b")
    found = database(tmp_path)
    for name, expected in (("requests", 3), ("chunks", 6)):
        assert rows(found, f"SELECT count(*) FROM {name} WHERE run_id = 'b'") == [(expected,)]
        assert rows(found, f"SELECT DISTINCT run_id FROM {name} ORDER BY 1") == [("a",), ("b",)]


def test_odd_names_of_folders_are_only_names(tmp_path: Path) -> None:
    finished(tmp_path / "a'b [1]* ?" / "%20 #é", "odd")
    assert rows(database(tmp_path), "SELECT run_id, count(*) FROM requests GROUP BY 1") == [("odd", 3)]


def test_a_name_that_is_no_text_is_shown_and_hides_nothing(tmp_path: Path) -> None:
    finished(tmp_path / "runs" / "good", "good")
    folder = tmp_path / "runs" / os.fsdecode(b"caf\xe9")
    finished(tmp_path / "odd", "odd").parent.rename(folder)
    found = database(tmp_path)
    assert rows(found, "SELECT folder FROM runs WHERE run_id = 'odd'") == [(f"{tmp_path}/runs/caf\\udce9/run",)]
    assert rows(found, "SELECT DISTINCT run_id FROM requests") == [("good",)]  # Arrow opens no file of such a name
    assert found.notes[0].startswith(f"{tmp_path}/runs/caf\\udce9/run/requests.parquet can't be read: ")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM read_parquet('{run}/requests.parquet')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY runs TO '{folder}/out.csv'",
        "COPY (SELECT 1) TO '{run}/requests.parquet' (FORMAT parquet)",
        "EXPLAIN ANALYZE COPY runs TO '{folder}/out.csv'",
        "ATTACH '{folder}/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "EXPORT DATABASE '{folder}/out'",
        "CREATE VIEW requests AS SELECT 1",
        "DROP VIEW runs",
    ],
)
def test_sql_reaches_nothing_but_the_runs(tmp_path: Path, sql: str) -> None:
    run = finished(tmp_path / "1")
    (tmp_path / "secret.csv").write_text("key\nsk-123\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UserError, match=r"^SQL: ") as error:
        list(database(run).ask(sql.format(secret=tmp_path / "secret.csv", run=run, folder=tmp_path)).rows)
    assert "\n" not in str(error.value)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT ttft FROM requests", "ttft_s"),
        ("SELECT * FROM nothing", "tables: runs, requests, sessions"),
        ("SELECT throughput.output_tok_s FROM runs", "throughput_…; DESCRIBE runs"),
        ("SELECT 1; SELECT 2", "2 statements; give one"),
        ("", "0 statements"),
        ("SELECT CAST(status AS INT) FROM requests", "Could not convert"),
    ],
)
def test_wrong_sql_is_one_line(tmp_path: Path, sql: str, said: str) -> None:
    found = database(finished(tmp_path))
    with pytest.raises(UserError) as error:
        list(found.ask(sql).rows)
    assert str(error.value).startswith("SQL: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    "sql",
    [
        "DESCRIBE requests",
        "SUMMARIZE sessions",
        "FROM runs",
        "WITH a AS (SELECT 1) FROM a",
        "EXPLAIN SELECT * FROM requests",
        "SELECT COLUMNS('latency_.*') FROM runs",
    ],
)
def test_every_kind_of_question_is_answered(tmp_path: Path, sql: str) -> None:
    found = database(finished(tmp_path))
    assert rows(found, sql)
    assert found.table(sql).num_rows


def test_columns_of_one_name_are_told_apart(tmp_path: Path) -> None:
    found = database(finished(tmp_path))
    answer = found.ask("SELECT a.run_id, b.run_id, 1 AS run_id_1 FROM runs a, runs b")
    assert answer.columns == ["run_id", "run_id_2", "run_id_1"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    finished(tmp_path / "x" / "1", "a", requests=2)
    finished(tmp_path / "x" / "2", "b", requests=5)
    memory.put(str(tmp_path / "x"), "/bucket/x", recursive=True)
    yield "memory://bucket/x"
    memory.rm("/bucket", recursive=True)


def test_object_stores_are_asked_like_folders_and_beside_them(store: str, tmp_path: Path) -> None:
    sql = "SELECT run_id, count(*), any_value(folder) LIKE 'memory:%' FROM requests GROUP BY run_id ORDER BY run_id"
    assert rows(database(store), sql) == [("a", 2, True), ("b", 5, True)]
    finished(tmp_path / "here", "c", requests=1)
    assert rows(database(store, tmp_path / "here"), sql)[2] == ("c", 1, False)


def test_p126_very_large_texts_are_cut_at_the_source_and_read_in_few_rows_at_a_time(tmp_path: Path) -> None:
    run = Run(tmp_path / "1", run_id="cut")
    for _ in range(20):
        run.request(error="Bearer sk-12345678 " + "x " * 5_000_000 + "\n")
    run.finish()
    assert (run.directory / "requests.parquet").stat().st_size < 100_000
    ((error,),) = rows(database(run.directory), "SELECT DISTINCT error FROM requests")
    assert error.startswith("Bearer … x x x")
    assert len(error.encode()) in (191, 192)

    foreign = finished(tmp_path / "2", "foreign", requests=1)
    table = pq.read_table(foreign / "requests.parquet").drop_columns(["error"])
    table = pa.concat_tables([table] * 40)
    huge = pa.array(["y" * 2_000_000] * 40, pa.large_string())
    pq.write_table(table.append_column("error", huge), foreign / "requests.parquet", row_group_size=4)
    found = database(tmp_path)
    before = pa.total_allocated_bytes()
    answer = iter(found.ask("SELECT run_id, error FROM requests WHERE run_id = 'foreign'").rows)
    assert len(next(answer)[1]) == 2_000_000
    assert rows(found, "SELECT count(*), max(length(error)) FROM requests") == [(60, 2_000_000)]
    assert pa.total_allocated_bytes() - before < 200_000_000


def test_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    directory = finished(tmp_path, requests=50)
    values = pq.read_table(directory / "requests.parquet")["e2e_s"].to_numpy()
    sql = "SELECT quantile_cont(e2e_s, 0.9), count(*) FILTER (WHERE phase = 'steady' AND status = 'ok') FROM requests"
    ((p90, count),) = rows(database(directory), sql)
    assert p90 == pytest.approx(float(np.percentile(values, 90)))
    assert count == 50
