"""The parent's side of the worker processes: start them, talk to them, notice when one dies."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness.worker_config import WorkerConfig
from results.errors import UserError

ProgressHandler = Callable[[int, dict[str, Any]], None]

_READY_S = 60.0


class WorkerDied(Exception):
    """A worker process ended without being told to."""


class WorkerPool:
    """Worker processes in their own process session, so that the terminal's Ctrl-C reaches only the parent."""

    def __init__(
        self, configs: list[WorkerConfig], on_progress: ProgressHandler, on_warm: Callable[[int], None]
    ) -> None:
        self._configs = configs
        self._on_progress = on_progress
        self._on_warm = on_warm
        self._processes: list[asyncio.subprocess.Process] = []
        self._done: set[int] = set()

    async def start(self) -> None:
        """Start all and wait until each has its connections open; UserError when one can't."""
        for config in self._configs:
            log = Path(config.journal_dir) / f"w{config.worker}.log"
            with log.open("wb") as stderr:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    "harness.worker",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
            self._processes.append(process)
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(config) + b"\n")
        for worker in range(len(self._processes)):
            message = await asyncio.wait_for(self._next_message(worker), _READY_S)
            if message is None:
                raise WorkerDied(self._last_words(worker))
            if "error" in message:
                raise UserError(message["error"], remedy=message["remedy"], exit_code=message["exit_code"])

    def tell(self, command: str) -> None:
        """Send one command line to every worker that is still there."""
        for process in self._processes:
            if process.returncode is None and process.stdin is not None and not process.stdin.is_closing():
                process.stdin.write(command.encode() + b"\n")

    async def wait(self) -> None:
        """Pass progress on until every worker is done; WorkerDied when one ends otherwise."""
        async with asyncio.TaskGroup() as tasks:
            for worker in range(len(self._processes)):
                tasks.create_task(self._follow(worker))

    async def _follow(self, worker: int) -> None:
        while (message := await self._next_message(worker)) is not None:
            if "progress" in message:
                self._on_progress(worker, message["progress"])
            elif "warm" in message:
                self._on_warm(int(message["warm"]))
            elif "done" in message:
                self._done.add(worker)
        await self._processes[worker].wait()
        if worker not in self._done:
            raise WorkerDied(self._last_words(worker))

    async def _next_message(self, worker: int) -> dict[str, Any] | None:
        stdout = self._processes[worker].stdout
        assert stdout is not None
        line = await stdout.readline()
        return msgspec.json.decode(line, type=dict[str, Any]) if line else None

    def _last_words(self, worker: int) -> str:
        log = Path(self._configs[worker].journal_dir) / f"w{worker}.log"
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return f"worker {worker} died: {lines[-1] if lines else 'no message'}"

    async def close(self) -> None:
        """End what is left: closing its standard input tells a worker to leave."""
        for process in self._processes:
            if process.returncode is None:
                assert process.stdin is not None
                process.stdin.close()
        for process in self._processes:
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                process.kill()
                await process.wait()
