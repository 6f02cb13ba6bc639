"""What survives a crash, a full disk and a damaged file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.errors import UserError
from results.journal import JournalWriter, read_header, read_journal
from results.records import CLIENT, REQUEST, TREE
from results.recover import recover
from tests.results.rows import Run

KINDS = ("requests", "chunks", "trees", "client")
ROOT = Path(__file__).resolve().parent.parent.parent


def written(folder: Path) -> Run:
    run = Run(folder)
    for k in range(5):
        run.request(sent=k, chunks=[10, 20 + k], worker=k % 2)
    run.tree(ended=100)
    run.client(t=50)
    run.close()
    (run.directory / "run.json").write_text(json.dumps({"run_id": "run", "status": "running"}))
    return run


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    run = written(tmp_path)
    first, second = read_journal(run.journal)
    assert first.requests["sent_ns"].tolist() == [0, 2_000_000, 4_000_000]
    assert second.requests["seq"].tolist() == [1, 3]
    assert first.chunks.tolist() == [100_000, 200_000, 100_000, 220_000, 100_000, 240_000]
    assert first.requests["chunk_start"].tolist() == [0, 2, 4]


def test_recover_gives_what_a_normal_end_gives(tmp_path: Path) -> None:
    run = written(tmp_path)
    summary = recover(run.directory)
    assert summary is not None
    assert summary["requests"]["ok"] == 5
    assert not summary["valid"]
    assert "killed: 5 requests were recovered" in summary["invalid_reasons"][0]
    assert not run.journal.exists()
    assert json.loads((run.directory / "run.json").read_bytes())["status"] == "recovered"
    assert recover(run.directory) is None


def test_recover_names_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run\.json"):
        recover(tmp_path)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.tuples(st.sampled_from(KINDS), st.integers(0, 1)), st.floats(0, 1), min_size=1))
def test_files_cut_anywhere_cost_at_most_the_cut_rows(cuts: dict[tuple[str, int], float]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = written(Path(folder))
        rows = {("requests", 0): 3, ("requests", 1): 2}
        for (kind, worker), share in cuts.items():
            path = run.journal / f"w{worker}.{kind}"
            keep = int(path.stat().st_size * share)
            os.truncate(path, keep)
            if kind == "requests":
                rows[kind, worker] = keep // REQUEST.itemsize
        summary = recover(run.directory)
        assert summary is not None
        assert summary["requests"]["ok"] == sum(rows.values())


def test_a_request_keeps_the_chunks_that_are_there(tmp_path: Path) -> None:
    run = written(tmp_path)
    path = run.journal / "w0.chunks"
    os.truncate(path, path.stat().st_size - 3)
    (part, _) = read_journal(run.journal)
    assert part.requests["chunk_count"].tolist() == [2, 2, 1]
    assert part.torn == 2  # the cut offset, and the request it belonged to
    summary = recover(run.directory)
    assert summary is not None
    assert summary["latency"]["itl_s"]["n"] == 4
    assert any("2 journal rows were cut" in warning for warning in summary["warnings"])


@pytest.mark.parametrize(("kind", "dtype"), [("requests", REQUEST), ("trees", TREE), ("client", CLIENT)])
def test_rows_are_packed_as_the_types_say(tmp_path: Path, kind: str, dtype: np.dtype[Any]) -> None:
    writer = JournalWriter(tmp_path, 0)
    values = {name: 100 + k for k, name in enumerate(dtype.names or ()) if name != "error"}
    row = {"pass_" if name == "pass" else name: value for name, value in values.items()}
    if kind == "requests":
        writer.request(error="why", **row)
    elif kind == "trees":
        writer.tree(**row)
    else:
        writer.client(**row)
    assert writer.close()
    (read,) = np.fromfile(tmp_path / f"w0.{kind}", dtype)
    assert {name: int(read[name]) for name in values} == values
    assert kind != "requests" or read["error"] == b"why"


def test_a_run_that_still_goes_on_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.recover.LAST_WORDS_S", 0.0)
    run = Run(tmp_path)
    run.request()
    run.writer().flush()
    (run.directory / "run.json").write_text(json.dumps({"run_id": "run", "status": "running"}))
    with pytest.raises(UserError, match="still goes on"):
        recover(run.directory)
    assert len(read_journal(run.journal)[0].requests) == 1
    run.close()
    assert recover(run.directory) is not None


def test_no_room_for_the_results_keeps_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("results.store.pq.write_table", full)
        with pytest.raises(UserError, match=r"No space left.*agentx recover"):
            recover(run.directory)
    summary = recover(run.directory)
    assert summary is not None
    assert summary["requests"]["ok"] == 5


def test_a_crash_while_the_journal_is_removed_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("results.store.shutil.rmtree", lambda *_, **__: (run.directory / "no such file").unlink())
        with pytest.raises(FileNotFoundError):
            recover(run.directory)
    assert not run.journal.exists()
    assert recover(run.directory) is None
    assert sorted(path.name for path in run.directory.iterdir()) == [
        "client.parquet",
        "requests.parquet",
        "run.json",
        "sessions.parquet",
        "summary.json",
    ]
    manifest = json.loads((run.directory / "run.json").read_bytes())
    assert manifest["status"] == "finished"
    assert manifest["valid"] is False
    assert len(run.rows()) == 5


def test_what_holds_neither_journal_nor_results_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UserError, match=r"no summary\.json"):
        recover(tmp_path)
    (tmp_path / "run.json").write_text('{"status": "runn')
    with pytest.raises(UserError, match=r"run\.json: "):
        recover(tmp_path)


def test_recover_on_the_command_line(tmp_path: Path) -> None:
    run = written(tmp_path)

    def agentx(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentx", "recover", *arguments, str(run.directory)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    first, again = agentx("--json"), agentx("--json")
    assert (first.returncode, again.returncode) == (0, 0)
    assert json.loads(first.stdout) == json.loads(again.stdout)
    assert "nothing to recover" in again.stderr
    assert "nothing to recover" in agentx().stdout


def test_a_journal_without_a_worker_s_chunks_keeps_its_requests(tmp_path: Path) -> None:
    run = written(tmp_path)
    (run.journal / "w0.chunks").unlink()
    summary = recover(run.directory)
    assert summary is not None
    assert summary["requests"]["ok"] == 5


def test_a_missing_header_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"header\.json"):
        read_header(tmp_path)


def test_a_full_disk_loses_nothing_that_fits_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.request(chunks=[1, 2])
    real, full = os.write, True

    def write(fd: int, data: bytes) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("results.journal.os.write", write)
    assert run.writer().flush() is False
    assert (run.journal / "w0.requests").stat().st_size == 0
    run.request(sent=1, chunks=[3])
    full = False
    assert run.writer().flush() is True
    (part,) = read_journal(run.journal)
    assert part.requests["seq"].tolist() == [0, 1]
    assert part.chunks.tolist() == [10_000, 20_000, 30_000]


def test_no_request_is_written_before_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.request(chunks=[1, 2])
    real, calls = os.write, iter(range(9))

    def write(fd: int, data: bytes) -> int:
        if next(calls) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("results.journal.os.write", write)
    assert run.writer().flush() is False
    (part,) = read_journal(run.journal)
    assert (len(part.requests), len(part.chunks), part.torn) == (0, 0, 0)
    assert run.writer().close() is True


def test_partial_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)
    run.request(chunks=[1, 2, 3])
    real = os.write
    monkeypatch.setattr("results.journal.os.write", lambda fd, data: real(fd, bytes(data[:7])))
    run.close()
    (part,) = read_journal(run.journal)
    assert len(part.requests) == 1
    assert len(part.chunks) == 3


def test_a_second_writer_appends(tmp_path: Path) -> None:
    for _ in range(2):
        writer = JournalWriter(tmp_path, 3)
        writer.chunks(np.array([1], "<u4"))
        writer.close()
    assert (tmp_path / "w3.chunks").stat().st_size == 8
    shutil.rmtree(tmp_path)
