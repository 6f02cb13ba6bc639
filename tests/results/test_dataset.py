"""Run directories of every kind, found and read as one data set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from results.dataset import DataSet, RunFiles, find_runs, read, scan
from results.errors import UserError
from results.records import SCHEMA_VERSION
from tests.results.rows import Run


def written(folder: Path, **changes: Any) -> Path:
    """The JSON files of a finished run."""
    folder.mkdir(parents=True)
    summary = {"schema": SCHEMA_VERSION, "run_id": folder.name, "valid": True, "scenario": "s", "concurrency": 4}
    manifest = {"schema": SCHEMA_VERSION, "run_id": folder.name, "status": "finished", "corpus": {"digest": "c"}}
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


def names(found: DataSet) -> list[str]:
    return [run.folder.name for run in found.runs]


def why(found: DataSet) -> dict[str, tuple[str, str]]:
    return {run.folder.name: (run.status, run.reason) for run in found.unread}


def test_runs_are_found_at_any_depth_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in ("b/2", "a", "b/1/deep/er", "c/runs/x"):
        written(tmp_path / name)
    written(tmp_path / "a" / "inside")  # a folder of runs below a run
    written(tmp_path / ".trash" / "gone")
    assert names(read(tmp_path)) == ["a", "inside", "er", "2", "x"]
    assert names(read(tmp_path / "b")) == ["er", "2"]
    assert names(read(tmp_path / "a" / "inside")) == ["inside"]


def test_a_run_reached_twice_counts_once(tmp_path: Path) -> None:
    run = written(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "z-link").symlink_to(run)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "dangling").symlink_to(tmp_path / "nothing")
    assert names(read(tmp_path / "runs", run, tmp_path / "runs")) == ["a"]
    assert names(read(run, tmp_path / "runs")) == ["a"]  # nothing new below the second is no error


def test_a_link_to_runs_elsewhere_is_followed(tmp_path: Path) -> None:
    written(tmp_path / "disk" / "a")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "more").symlink_to(tmp_path / "disk")
    assert names(read(tmp_path / "runs")) == ["a"]


def test_copies_are_runs_of_their_own(tmp_path: Path) -> None:
    shutil.copytree(written(tmp_path / "a"), tmp_path / "b")
    assert [run.summary["run_id"] for run in read(tmp_path).runs] == ["a", "a"]


def test_what_can_not_be_used_is_listed_with_the_reason(tmp_path: Path) -> None:
    written(tmp_path / "good")
    half = written(tmp_path / "half")
    (half / "summary.json").write_text('{"schema": 1, "run')
    (written(tmp_path / "list") / "run.json").write_text("[]")
    (written(tmp_path / "empty") / "summary.json").write_text("")
    (written(tmp_path / "bytes") / "run.json").write_bytes(b'{"a": "\xff"}')
    (written(tmp_path / "gone") / "summary.json").unlink()
    folder = written(tmp_path / "folder") / "summary.json"
    folder.unlink()
    folder.mkdir()
    found = read(tmp_path)
    assert names(found) == ["good"]
    said = why(found)
    assert said.pop("gone") == ("unfinished", "not finished: no summary.json and no journal")
    assert said.keys() == {"half", "list", "empty", "bytes", "folder"}
    assert {status for status, _ in said.values()} == {"unreadable"}
    assert "summary.json" in said["half"][1]
    assert "not a JSON object" in said["list"][1]
    assert all("\n" not in str(run) for run in found.unread)


def test_a_killed_run_has_only_its_journal(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.request()
    run.close()
    (run.directory / "run.json").write_text(json.dumps({"schema": 1, "run_id": "run", "status": "running"}))
    (unread,) = read(tmp_path).unread
    assert unread.status == "unfinished"
    assert f"agentx recover {run.directory}" in unread.reason
    assert unread.manifest["run_id"] == "run"
    with pytest.raises(UserError, match=f"no finished run there: {run.directory}: not finished"):
        find_runs(tmp_path)


def test_p139_a_newer_schema_is_refused_in_a_line_and_an_older_one_is_read(tmp_path: Path) -> None:
    old = written(tmp_path / "old")
    for name in ("run.json", "summary.json"):
        document = json.loads((old / name).read_text())
        del document["schema"]
        (old / name).write_text(json.dumps(document | {"a_field_of_other_versions": {"x": [1]}}))
    written(tmp_path / "newer", schema=SCHEMA_VERSION + 1)
    written(tmp_path / "odd", schema="two")
    found = read(tmp_path)
    assert names(found) == ["old"]
    reason = f"summary.json: schema {SCHEMA_VERSION + 1}, this agentx reads up to {SCHEMA_VERSION}: update agentx"
    assert why(found)["newer"] == ("newer", reason)
    assert "schema 'two'" in why(found)["odd"][1]
    with pytest.raises(UserError, match="update agentx") as error:
        find_runs(tmp_path / "newer")
    assert "\n" not in str(error.value)


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    paths = {tmp_path: "", tmp_path / "nothing": ": no such folder", tmp_path / "file": ": not a folder"}
    for path, said in paths.items():
        with pytest.raises(UserError, match=f"^{path}: no finished run there{said}"):
            read(path)


def test_the_point_of_a_sweep_comes_from_the_file_beside(tmp_path: Path) -> None:
    run = written(tmp_path / "a")
    (run / "serving.json").write_text(json.dumps({"point": "tp8-c4", "sweep": "night", "configuration": "tp8"}))
    (found,) = read(tmp_path).runs
    assert found.key == ("tp8-c4",)
    assert found.manifest["sweep"]["configuration"] == "tp8"
    assert found.files == {"run.json", "summary.json", "serving.json"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """Three runs in an object store of the process: one good, one killed, one cut off."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    written(tmp_path / "x" / "good")
    (written(tmp_path / "x" / "y" / "cut") / "summary.json").write_text("{")
    killed = written(tmp_path / "x" / "killed")
    (killed / "summary.json").unlink()
    (killed / "journal").mkdir()
    (killed / "journal" / "w0.requests").write_bytes(b"\x00")
    memory.put(str(tmp_path / "x"), "/bucket/x", recursive=True)
    yield "memory://bucket/x"
    memory.rm("/bucket", recursive=True)


def test_an_object_store_prefix_is_a_data_set(store: str) -> None:
    found = read(store, store + "/good/")
    assert names(found) == ["good"]
    assert isinstance(found.runs[0], RunFiles)
    assert found.runs[0].summary["concurrency"] == 4
    said = why(found)
    assert said["cut"][0] == "unreadable"
    assert said["killed"] == (
        "unfinished", "not finished: only its journal is there; run `agentx recover` on it and copy it again"
    )  # fmt: skip
    with pytest.raises(UserError, match="no finished run there"):
        read("memory://bucket/nothing")


def test_a_store_that_can_not_be_used_is_one_line() -> None:
    pytest.importorskip("fsspec")
    for url in ("nosuchscheme://bucket/x", "s3://"):
        with pytest.raises(UserError) as error:
            read(url)
        assert str(error.value).startswith(url)
        assert "\n" not in str(error.value)


def test_runs_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    written(tmp_path / "a")
    late = written(tmp_path / "b")
    runs = scan(tmp_path)
    assert isinstance(next(runs), RunFiles)
    (late / "summary.json").unlink()
    assert not isinstance(next(runs), RunFiles)
