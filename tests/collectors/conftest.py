from __future__ import annotations

from pathlib import Path

import pytest

from tests.collectors.native_smi import build


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libnvidia-ml.so.1 and libamd_smi.so of our own."""
    return build(tmp_path_factory.mktemp("native"))
