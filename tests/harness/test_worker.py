"""A worker's clock: phases begin at their instant or just after, never before."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import harness.worker
from harness.worker import Worker


class EarlyLoop:
    """Fires every timer a tenth of a millisecond early, as a loop does that rounds to whole ones."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.waits: list[int] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self.waits.append(round(delay_s * 1e9))
        self.now_ns += max(self.waits[-1] - 100_000, 60_000)
        call(*arguments)


@pytest.mark.parametrize(("at_ns", "waits"), [(5_000_000, [5_000_000, 100_000, 40_000]), (0, []), (-5, [])])
def test_a_phase_does_not_begin_when_a_timer_fires_early(
    at_ns: int, waits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, begun = EarlyLoop(), []
    worker = object.__new__(Worker)
    monkeypatch.setattr(Worker, "_now", lambda _: loop.now_ns)
    monkeypatch.setattr(worker, "loop", loop, raising=False)
    worker._not_before(at_ns, lambda: begun.append(loop.now_ns))
    assert (len(begun), loop.waits) == (1, waits)
    assert begun[0] >= at_ns


def test_no_sample_is_taken_once_the_journal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick that came in the last milliseconds of a worker found closed files, and the run said: disk full."""
    happened: list[str] = []

    def close() -> bool:
        happened.append("closed")
        return True

    parts: dict[str, Any] = {
        "_timer": None,
        "_phase_timer": None,
        "_end_timer": None,
        "watch": SimpleNamespace(stop=lambda: None),
        "transports": [],
        "_answers": deque(),
        "journal": SimpleNamespace(close=close),
        "progress": SimpleNamespace(disk_full=False),
        "_sample": lambda: happened.append("sample"),
        "report": lambda: None,
    }
    worker = object.__new__(Worker)
    for name, part in parts.items():
        monkeypatch.setattr(worker, name, part, raising=False)
    monkeypatch.setattr(harness.worker, "TICK_S", 0.01)

    async def end() -> None:
        monkeypatch.setattr(worker, "loop", asyncio.get_running_loop(), raising=False)
        worker._tick()
        await asyncio.sleep(0.03)
        worker.close()
        await asyncio.sleep(0.03)

    asyncio.run(end())
    assert happened.count("sample") >= 3
    assert happened[-1] == "closed"
