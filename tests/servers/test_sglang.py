"""Real SGLang (CPU, stand-in kernels): what we record is what it counts, over its own route too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.replays import check_exact, check_hits, replay
from tests.servers.servers import Server, sglang_server

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def server(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kernels = shared / "tools" / "sglang" / "shim"
    if not kernels.is_dir():
        pytest.skip(f"no stand-in kernels at {kernels}")
    with sglang_server(tmp_path_factory.mktemp("sglang"), kernels) as running:
        yield running


COUNTERS = {"input_tokens": "sglang:prompt_tokens_total", "output_tokens": "sglang:generation_tokens_total"}


@pytest.mark.parametrize("options", [(), ("--surface", "generate"), ("--surface", "generate", "--assistant", "live")])
def test_records_equal_the_servers_own_counters(
    server: Server, recorded_corpus: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    before = {column: server.total(name) for column, name in COUNTERS.items()}
    run = replay(
        server.url,
        recorded_corpus,
        tmp_path / "runs",
        *("--concurrency", "1", "--sessions", "3", "--max-context", "20k", "--time-scale", "0", *options),
    )
    check_exact(run)
    check_hits(run)
    probe = run.manifest["endpoint"]["probe"]
    grown = {column: server.total(name) - before[column] for column, name in COUNTERS.items()}
    assert grown["input_tokens"] == run.sum("input_tokens") + probe["prompt_tokens"]
    assert grown["output_tokens"] == run.sum("output_tokens") + probe["output_tokens"]
    assert run.summary["server"]["targets"][0]["restarts"] == 0
    assert run.summary["cache"]["device"] == pytest.approx(run.summary["cache"]["achieved"], abs=1e-6)
    live = run.summary["requests"]["live_history"]
    assert live >= 0.5 * len(run.requests) if "live" in options else live == 0
