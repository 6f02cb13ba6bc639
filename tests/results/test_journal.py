"""What survives a crash, a full disk and a damaged file."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.errors import UserError
from results.journal import JournalWriter, read_header, read_journal
from results.records import REQUEST
from results.recover import recover
from tests.results.rows import Run


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
@given(st.sampled_from(["requests", "chunks", "trees", "client"]), st.integers(0, 1), st.floats(0, 1))
def test_a_file_cut_anywhere_costs_at_most_the_cut_row(kind: str, worker: int, share: float) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        run = written(Path(folder))
        path = run.journal / f"w{worker}.{kind}"
        size = path.stat().st_size
        keep = int(size * share)
        os.truncate(path, keep)
        whole = (3, 2)[worker]
        expected = keep // REQUEST.itemsize if kind == "requests" else whole
        summary = recover(run.directory)
        assert summary is not None
        assert summary["requests"]["ok"] == expected + (3, 2)[1 - worker]


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
    run.request(sent=1, chunks=[3])
    full = False
    assert run.writer().flush() is True
    (part,) = read_journal(run.journal)
    assert part.requests["seq"].tolist() == [0, 1]
    assert part.chunks.tolist() == [10_000, 20_000, 30_000]


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
