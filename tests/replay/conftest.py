from __future__ import annotations

from pathlib import Path

import pytest

from replay.corpus import Corpus
from replay.importers import import_traces


@pytest.fixture(scope="session")
def weka(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The shared recorded corpus, imported once."""
    source = shared / "data" / "weka" / "weka-traces.tar.zst"
    if not source.is_file():
        pytest.skip(f"no recorded corpus at {source}")
    output = tmp_path_factory.mktemp("weka") / "corpus.parquet"
    import_traces(source, output, format_name="weka", strict=True)
    return Corpus.load(output)
