from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.servers.replays import import_shared_corpus


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wanted = set(os.environ.get("AGENTX_REAL_SERVERS", "").split(","))
    for item in items:
        for kind in ("vllm", "dynamo", "sglang"):
            if item.get_closest_marker(kind) and kind not in wanted:
                item.add_marker(pytest.mark.skip(reason=f"needs a real server: make test-{kind}"))


@pytest.fixture(scope="session")
def recorded_corpus(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = shared / "data" / "weka" / "weka-traces.tar.zst"
    if not source.is_file():
        pytest.skip(f"no recorded corpus at {source}")
    return import_shared_corpus(source, tmp_path_factory.mktemp("corpus") / "corpus.parquet")
