from __future__ import annotations

import fcntl
import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest

from replay import stamps
from replay.corpus import Corpus
from replay.importers import ImportReport, import_traces


@pytest.fixture(scope="session")
def weka_import(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ImportReport]:
    """The shared recorded corpus, imported once for all test processes: the file, and what the importer says."""
    source = shared / "data" / "weka" / "weka-traces.tar.zst"
    if not source.is_file():
        pytest.skip(f"no recorded corpus at {source}")
    mine = tmp_path_factory.getbasetemp()
    folder = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "weka"
    folder.mkdir(exist_ok=True)
    output, said = folder / "corpus.parquet", folder / "report.pickle"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            report = import_traces(source, output, format_name="weka", strict=True)
            said.write_bytes(pickle.dumps(report))
        return output, pickle.loads(said.read_bytes())


@pytest.fixture(scope="session")
def weka(weka_import: tuple[Path, ImportReport]) -> Corpus:
    return Corpus.load(weka_import[0])


@pytest.fixture(scope="session", autouse=True)
def kernel_stamps_on() -> Iterator[None]:
    """Linux turns receive stamps on in a deferred job when the first socket asks, and off after the last.

    A test whose socket is the only one may send before that job has run on a busy machine. A run's connections are open
    long before its clock starts.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        stamps.enable(holder)
        sleep(0.1)
        yield
