"""A naive client on httpx, the stack that most load generators stand on: what its CPU costs for the same work."""

from __future__ import annotations

import asyncio
import json
import sys
from time import process_time

import httpx


async def main(port: int, streams: int, requests: int, tokens: int) -> None:
    """Print CPU seconds per 100k chunks as JSON."""
    left = iter(range(requests))
    body = {"model": "mock", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "x" * 800}]}
    chunks = 0

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal chunks
        for _ in left:
            async with client.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        delta = json.loads(line[6:])["choices"]
                        chunks += bool(delta and delta[0]["delta"].get("content"))

    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client, asyncio.TaskGroup() as tasks:
        started = process_time()
        for _ in range(streams):
            tasks.create_task(one(client))
    print(json.dumps({"cpu_per_100k": (process_time() - started) / chunks * 1e5}))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:5])))
