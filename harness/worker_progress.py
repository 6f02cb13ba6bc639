"""A worker's running totals, reported to the parent twice a second."""

from __future__ import annotations

from typing import Any

import msgspec

from replay.exchange import Exchange
from results.records import Status
from results.redact import beginning, redact


class Progress(msgspec.Struct):
    """Running totals, and the latencies that ended since the last report."""

    ok: int = 0
    failed: int = 0
    in_flight: int = 0
    trees_live: int = 0
    trees_ended: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cached_of: int = 0
    drain_cancelled: int = 0
    unsent: int = 0
    warmup_failed: int = 0
    failing: bool = False
    stalled: bool = False
    disk_full: bool = False
    address: str = ""
    last_error: str | None = None
    ttft_ms: list[float] = []
    itl_ms: list[float] = []
    """The mean gap of each answer: enough for a live view, the summary pools the gaps themselves."""

    def take(self) -> dict[str, Any]:
        """A report; the latency lists start anew."""
        report: dict[str, Any] = msgspec.to_builtins(self)
        self.ttft_ms, self.itl_ms = [], []
        return report

    def count(self, exchange: Exchange, status: Status, secrets: tuple[str, ...]) -> None:
        """Add an answer that is over."""
        self.in_flight -= 1
        if status is Status.OK:
            self._count_ok(exchange)
        elif status is not Status.CANCELLED:
            self.failed += 1
            self.last_error = redact(beginning(exchange.error or ""), secrets)

    def _count_ok(self, exchange: Exchange) -> None:
        stream = exchange.stream
        self.ok += 1
        self.input_tokens += stream.input_tokens or 0
        self.output_tokens += stream.output_tokens or 0
        if stream.cached_tokens is not None:
            self.cached_tokens += stream.cached_tokens
            self.cached_of += stream.input_tokens or 0
        if stream.first_token_ns >= 0:
            self.ttft_ms.append(round((stream.first_token_ns - exchange.sent_ns) / 1e6, 3))
            if stream.output_chunks > 1:
                gap = (stream.last_token_ns - stream.first_token_ns) / (stream.output_chunks - 1)
                self.itl_ms.append(round(gap / 1e6, 3))

    @property
    def finished(self) -> int:
        """Answers that ended well or badly, the cancelled ones apart."""
        return self.ok + self.failed
