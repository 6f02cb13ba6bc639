"""The real Dynamo frontend with its KV router and two mock engines: what we record is what it counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.replays import check_exact, check_hits, replay
from tests.servers.servers import Server, dynamo_server

pytestmark = pytest.mark.dynamo


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with dynamo_server(tmp_path_factory.mktemp("dynamo")) as running:
        yield running


COUNTERS = {
    "input_tokens": "dynamo_frontend_input_sequence_tokens_sum",
    "cached_tokens": "dynamo_frontend_cached_tokens_sum",
    "output_tokens": "dynamo_frontend_output_tokens_total",
}


@pytest.mark.parametrize(
    ("concurrency", "options"),
    [
        (1, ("--sessions", "12", "--max-context", "40k")),
        (8, ("--sessions", "40", "--max-context", "60k", "--messages", "plain")),
    ],
)
def test_records_equal_the_frontends_own_counters(
    server: Server, recorded_corpus: Path, tmp_path: Path, concurrency: int, options: tuple[str, ...]
) -> None:
    before = {column: server.total(name) for column, name in COUNTERS.items()}
    finished = server.total("dynamo_frontend_requests_total", status="success")
    run = replay(
        server.url, recorded_corpus, tmp_path / "runs", "--concurrency", str(concurrency), "--time-scale", "0", *options
    )
    check_exact(run)
    if concurrency == 1:
        check_hits(run)
    probe = run.manifest["endpoint"]["probe"]
    grown = {column: server.total(name) - before[column] for column, name in COUNTERS.items()}
    assert grown["input_tokens"] == run.sum("input_tokens") + probe["prompt_tokens"]
    assert grown["output_tokens"] == run.sum("output_tokens") + probe["output_tokens"]
    assert grown["cached_tokens"] == run.sum("cached_tokens") + probe["cached_tokens"]
    assert (
        server.total("dynamo_frontend_requests_total", status="success") - finished
        == len(run.requests) + probe["requests"]
    )


def test_the_frontend_says_what_it_is(server: Server, recorded_corpus: Path, tmp_path: Path) -> None:
    run = replay(
        server.url,
        recorded_corpus,
        tmp_path / "runs",
        "--sessions",
        "2",
        "--max-context",
        "30k",
        "--concurrency",
        "2",
        "--time-scale",
        "0",
    )
    endpoint = run.manifest["endpoint"]
    assert endpoint["block_size"] == 64
    assert endpoint["token_counts_from"] == "usage"
    assert endpoint["prompt_sizes_doubt"] is None
