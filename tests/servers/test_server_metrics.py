"""Real vLLM and the real Dynamo: every canonical series is there and is what the page says, and through a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic_ns

import httpx
import pyarrow.parquet as pq
import pytest

from collectors.fingerprint import fingerprint
from collectors.server import ServerMetrics
from collectors.targets import Target, discover
from results.metrics_table import write_metrics
from results.reconcile import ClientSums, findings, reconcile, total
from results.token_origin import token_origin
from tests.collectors.test_dialect import DYNAMO, DYNAMO_HISTOGRAMS, VLLM, VLLM_HISTOGRAMS, check
from tests.servers import servers
from tests.servers.servers import Server, dynamo_server, vllm_server


async def ask(url: str, prompts: list[str], tokens: int = 8) -> ClientSums:
    """Answered one after the other; what their usage adds up to."""
    given = answered = cached = 0
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for prompt in prompts:
            body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
            usage = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()["usage"]
            given += usage["prompt_tokens"]
            answered += usage["completion_tokens"]
            cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return ClientSums(len(prompts), given, answered, cached)


def text_of(name: str) -> str:
    return " ".join(f"{name}{number}" for number in range(600))


@asynccontextmanager
async def up(folder: Path) -> AsyncIterator[Server]:
    """vLLM, started and ended in a thread: the scraper goes on meanwhile."""
    stack = ExitStack()
    try:
        yield await asyncio.to_thread(stack.enter_context, vllm_server(folder))
    finally:
        await asyncio.to_thread(stack.close)


async def found(server: Server) -> list[Target]:
    async with httpx.AsyncClient() as client:
        return (await discover(f"{server.url}/v1", client)).targets


def started(tmp_path: Path, targets: list[Target]) -> ServerMetrics:
    (tmp_path / "journal").mkdir()
    t0 = monotonic_ns()
    return ServerMetrics(targets, tmp_path / "journal", clock=lambda: monotonic_ns() - t0, interval_s=0.25)


@pytest.mark.vllm
def test_vllm_through_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = servers.free_port()
    monkeypatch.setattr(servers, "free_port", lambda: port)

    async def case() -> None:
        async with up(tmp_path) as server:
            metrics = started(tmp_path, await found(server))
            await metrics.start()
            await metrics.edge("run_start")
            first = await ask(server.url, [text_of("a"), text_of("a"), text_of("b")])
            await metrics.edge("before")
            check(httpx.get(f"{server.url}/metrics").text, VLLM, VLLM_HISTOGRAMS, "vllm:")
            gains = metrics.increases("run_start", "before")
            assert not findings(reconcile(first, gains)), gains
            origin = token_origin(first, first.cached_tokens, gains, metrics.evidence())
            assert origin["tokens"]["device"] == first.cached_tokens
            seen = fingerprint(samples=metrics.samples(), infos=metrics.infos(), engines=metrics.engines())
            assert seen["block_size"]["value"] == 128
            assert seen["kv_pool_tokens"]["value"] > 1_000_000
        async with up(tmp_path) as server:
            second = await ask(server.url, [text_of("c")])
            await metrics.edge("run_end")
            summary = await metrics.stop()
        gains = metrics.increases("run_start", "run_end")
        assert first.input_tokens is not None
        assert second.input_tokens is not None
        assert total(gains, "prompt_tokens") == first.input_tokens + second.input_tokens
        assert summary["targets"][0]["restarts"] == 1, summary["targets"]
        assert summary["targets"][0]["vanished"] == 1

    asyncio.run(case())
    assert write_metrics(tmp_path, "r")
    names = pq.read_table(tmp_path / "metrics.parquet", columns=["canonical"]).column("canonical").unique().to_pylist()
    assert 'prefix_cache_hits{tier="device"}' in names


@pytest.mark.dynamo
def test_dynamo_frontend_with_two_workers(tmp_path: Path) -> None:
    async def case() -> None:
        with dynamo_server(tmp_path) as server:
            metrics = started(tmp_path, await found(server))
            await metrics.start()
            await metrics.edge("run_start")
            sums = await ask(server.url, [text_of("a"), text_of("b"), text_of("a"), text_of("b")])
            await metrics.edge("run_end")
            summary = await metrics.stop()
            check(httpx.get(f"{server.url}/metrics").text, DYNAMO, DYNAMO_HISTOGRAMS, "dynamo_frontend_")
        gains = metrics.increases("run_start", "run_end")
        assert not findings(reconcile(sums, gains)), gains
        assert sums.cached_tokens
        assert total(gains, "router_selected_cached_tokens") == sums.cached_tokens
        assert summary["targets"][0]["role"] == "frontend"
        assert "a frontend's page only" in summary["notes"][0]
        origin = token_origin(sums, sums.cached_tokens, gains, metrics.evidence())
        assert origin["tokens"]["lost"] == 0
        assert origin["tokens"]["device"] is None

    asyncio.run(case())
