"""Real vLLM: what we record is what it counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.environments import tiny_model
from tests.servers.replays import check_exact, check_hits, replay
from tests.servers.servers import Server, vllm_server

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with vllm_server(tmp_path_factory.mktemp("vllm")) as running:
        yield running


COUNTERS = {
    "input_tokens": "vllm:prompt_tokens_total",
    "cached_tokens": "vllm:prefix_cache_hits_total",
    "output_tokens": "vllm:generation_tokens_total",
}


@pytest.mark.parametrize(
    ("concurrency", "options"),
    [
        (1, ("--sessions", "6", "--max-context", "26k")),
        (4, ("--sessions", "12", "--max-context", "20k", "--tokenizer", "usage", "--messages", "plain")),
        (1, ("--sessions", "3", "--max-context", "20k", "--surface", "completions")),
        (1, ("--sessions", "3", "--max-context", "20k", "--surface", "messages")),
    ],
)
def test_records_equal_the_servers_own_counters(
    server: Server, recorded_corpus: Path, tmp_path: Path, concurrency: int, options: tuple[str, ...]
) -> None:
    before = {column: server.total(name) for column, name in COUNTERS.items()}
    finished = server.total("vllm:request_success_total")
    run = replay(
        server.url, recorded_corpus, tmp_path / "runs", "--concurrency", str(concurrency), "--time-scale", "0", *options
    )
    # The Messages route has no field that forces a length.
    check_exact(run, forced="messages" not in options)
    if concurrency == 1:
        check_hits(run)
    probe = run.manifest["endpoint"]["probe"]
    grown = {column: server.total(name) - before[column] for column, name in COUNTERS.items()}
    assert grown["input_tokens"] == run.sum("input_tokens") + probe["prompt_tokens"]
    assert grown["output_tokens"] == run.sum("output_tokens") + probe["output_tokens"]
    assert server.total("vllm:request_success_total") - finished == len(run.requests) + probe["requests"]
    assert grown["cached_tokens"] == run.sum("cached_tokens") + probe["cached_tokens"]


def test_the_server_says_what_it_is(server: Server, recorded_corpus: Path, tmp_path: Path) -> None:
    run = replay(
        server.url,
        recorded_corpus,
        tmp_path / "runs",
        "--sessions",
        "1",
        "--max-context",
        "18k",
        "--concurrency",
        "1",
        "--time-scale",
        "0",
    )
    endpoint = run.manifest["endpoint"]
    assert endpoint["model"] == "tiny"
    assert endpoint["max_model_len"] == 65_536
    assert endpoint["block_size"] == 128
    assert endpoint["token_counts_from"] == "server (/tokenize)"
    assert endpoint["request_fields"]["ignore_eos"]
    assert endpoint["request_fields"]["min_tokens"]
    assert endpoint["chat_template_tokens"]["tool"] is not None


@pytest.mark.parametrize("surface", ["chat", "completions"])
def test_live_histories_are_exact(server: Server, recorded_corpus: Path, tmp_path: Path, surface: str) -> None:
    """What the model said is the history of the next prompt: planned sizes hold; as ids, its tokens are cache hits."""
    run = replay(
        server.url,
        recorded_corpus,
        tmp_path / "runs",
        *("--concurrency", "1", "--sessions", "3", "--max-context", "20k", "--time-scale", "0"),
        # Without pauses there is no time to ask the server how long its answer is.
        *("--assistant", "live", "--surface", surface, "--tokenizer", str(tiny_model())),
    )
    check_exact(run)
    check_hits(run)
    assert run.summary["requests"]["live_history"] >= 0.5 * len(run.requests)
