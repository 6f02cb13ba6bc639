"""Runs copied to another place: whole or not at all to its readers, and no failure of a store harms the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from results.dataset import read
from results.errors import UserError
from results.redact import redact, url_secrets
from results.upload import Destination
from tests.harness.sweep.sweeps import configuration, ended, sweep, write
from tests.harness.test_run import QUICK, agentx, only_run, simulated

fsspec = pytest.importorskip("fsspec")

SUMMARY = '{"schema": 1, "run_id": "A", "valid": true}'
FILES = {"summary.json": SUMMARY, "run.json": '{"schema": 1, "run_id": "A"}', "worker.log": "PAR1", "a/b": "deep"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "runs" / "A"
    (directory / "a").mkdir(parents=True)
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return directory


@pytest.fixture
def memory() -> Iterator[Any]:
    """An object store in this process."""
    store = fsspec.filesystem("memory")
    yield store
    if store.exists("/bucket"):
        store.rm("/bucket", recursive=True)


def below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_gets_every_file_of_the_run(run: Path, tmp_path: Path, scheme: str) -> None:
    target = Destination.parse(f"{scheme}{tmp_path}/there")
    assert target.has("A") is False
    assert target.send(run) is None
    assert below(tmp_path / "there" / "A") == below(run)
    assert target.has("A") is True


def test_an_object_store_gets_every_file_and_the_copy_is_read_as_a_run(run: Path, memory: Any) -> None:
    target = Destination.parse("memory://bucket/runs/")
    assert target.has("A") is False
    assert target.send(run) is None
    assert {name: memory.cat_file(f"/bucket/runs/A/{name}").decode() for name in FILES} == FILES
    assert target.has("A") is True
    assert [one.run_id for one in read("memory://bucket/runs").runs] == ["A"]
    (run / "run.json").write_text('{"schema": 1, "run_id": "A", "status": "finished"}')
    assert target.send(run) is None  # over what is there
    assert b"finished" in memory.cat_file("/bucket/runs/A/run.json")


def test_a_copy_that_breaks_off_is_not_taken_for_a_run(run: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put = memory.put_file

    def short(local: str, remote: str, **more: Any) -> None:
        if local.endswith("worker.log"):
            raise ConnectionResetError("the store\nwent away from u:s3cret-word")
        put(local, remote, **more)

    monkeypatch.setattr(memory, "put_file", short)
    target = Destination.parse("memory://bucket/runs")
    failure = target.send(run)
    assert failure is not None
    assert failure.startswith("--upload memory://bucket/runs failed: the store went away")
    assert target.has("A") is False
    with pytest.raises(UserError, match="no finished run there"):
        read("memory://bucket/runs")
    monkeypatch.undo()
    assert target.send(run) is None
    assert target.has("A") is True


def test_ctrl_c_ends_the_copy_and_not_the_program(run: Path, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory, "put_file", stopped)
    assert Destination.parse("memory://bucket/runs").send(run) == "--upload memory://bucket/runs failed: stopped"


def test_the_copy_by_hand_works_as_it_is_printed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "plain place").mkdir()
    words = Destination.parse(str(tmp_path / "plain place")).by_hand(run)
    assert subprocess.run(words, shell=True, check=False).returncode == 0
    assert below(tmp_path / "plain place" / "A") == below(run)
    words = Destination.parse(f"simplecache::file://{tmp_path}/far").by_hand(run)
    words = words.replace("simplecache::", "").replace("python3", sys.executable, 1)
    assert subprocess.run(words, shell=True, check=False).returncode == 0
    assert below(tmp_path / "far" / "A") == below(run)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuchscheme://bucket/x", "--upload nosuchscheme://bucket/x: "),
        ("s3://bucket/x?token=CANARY", "--upload s3://bucket/x has a query"),
        ("nosuchscheme://u:CANARY@ARY@h/x", "--upload nosuchscheme://…@h/x: "),
        ("ftp://u:CANARY@127.0.0.1:1/x", "--upload ftp://…@127.0.0.1:1/x: "),
    ],
)
def test_what_can_not_be_used_is_said_without_its_credentials(url: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        Destination.parse(url)
    assert str(error.value).startswith(words)
    assert "ARY" not in str(error.value)
    assert "\n" not in str(error.value)


def test_passwords_of_a_url_are_known_as_written_and_decoded() -> None:
    secrets = url_secrets("ftp://me:p%40ss@host/x")
    assert redact("530 p@ss for ftp://me:p%40ss@host/x", secrets) == "530 … for ftp://…@host/x"
    assert url_secrets("s3://[") == ()


def test_a_run_is_copied_and_a_failure_harms_neither_run_nor_exit_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with simulated() as url:
        options = ("run", "--endpoint", url, "--sessions", "1", "--concurrency", "1", "--idle", "0s", *QUICK)
        sent = agentx(*options, "--out", str(tmp_path / "a"), "--upload", str(tmp_path / "there"))
        failed = agentx(
            *(*options, "--quiet", "--out", str(tmp_path / "b"), "--upload", str(tmp_path / "file" / "below"))
        )
        refused = agentx(*options, "--out", str(tmp_path / "c"), "--upload", "nosuchscheme://x/y")
    assert sent.returncode == 0, sent.stderr
    directory = only_run(tmp_path / "a")
    assert below(only_run(tmp_path / "there")) == below(directory)
    assert f"copied to {tmp_path}/there/{directory.name}" in sent.stderr
    assert failed.returncode == 0, failed.stderr
    assert failed.stderr.count("\n") == 1
    assert f"the run is in {only_run(tmp_path / 'b')}; copy it with `cp -r " in failed.stderr
    assert refused.returncode == 2  # before anything was sent
    assert not (tmp_path / "c").exists()


REFUSING = """
import sys
import fsspec
from fsspec.implementations.memory import MemoryFileSystem

class Refusing(MemoryFileSystem):
    protocol = "refusing"
    def put_file(self, local, remote, **more):
        raise PermissionError(f"403 for user with CANARY-pass at {remote}")

fsspec.register_implementation("refusing", Refusing)
sys.argv = ["agentx", *sys.argv[1:]]
from harness.cli.common import entry
if __name__ == "__main__":
    entry()
"""


def test_p122_no_credential_of_the_store_reaches_an_artifact_or_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "refusing.py"
    script.write_text(REFUSING)
    store = "refusing://me:CANARY-pass@host/x"
    with simulated() as url:
        words = ("--sessions", "1", "--concurrency", "1", "--idle", "0s", *QUICK, "--out", str(tmp_path / "runs"))
        done = subprocess.run(
            [sys.executable, str(script), "run", "--endpoint", url, *words, "--upload", store],
            capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--upload refusing://…@host/x failed: 403 for user with … at refusing://…@host/x" in done.stderr
    assert "CANARY" not in done.stdout + done.stderr
    for path in (tmp_path / "runs").rglob("*"):
        assert path.is_dir() or b"CANARY" not in path.read_bytes(), path


def test_a_sweep_copies_point_by_point_and_tries_again_what_failed(tmp_path: Path) -> None:
    file, out, there = write(tmp_path, configuration("a"), points="[1, 2]"), tmp_path / "runs", tmp_path / "there"
    there.write_text("not a folder yet")
    failed = sweep(str(file), "--out", str(out), "--upload", str(there), "--quiet")
    assert failed.returncode == 0, failed.stderr
    assert failed.stderr.count("the same command tries again") == 3  # each point, and once more at the end
    assert {line["status"] for line in ended(out).values()} == {"done"}
    there.unlink()
    again = sweep(str(file), "--out", str(out), "--upload", f"file://{there}")
    assert again.returncode == 0, again.stderr
    assert below(there / "s" / "runs") == below(out / "s" / "runs")
    assert len(list((there / "s" / "runs").glob("*/serving.json"))) == 2
    before = {path: path.stat().st_mtime_ns for path in there.rglob("*")}
    assert sweep(str(file), "--out", str(out), "--upload", str(there)).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in there.rglob("*")} == before
