"""In `assistant: live` runs: from an answer that is over to the words that stand for it in later prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harness.worker_config import WorkerConfig
from replay.exchange import Exchange
from replay.spoken import Spoken, spoken_ids, spoken_text
from replay.tokens import LocalCounter, ServerCounter, TextCounter
from replay.usage import Refused
from results.errors import UserError

Then = Callable[[Spoken | None], None]
"""Takes the answer; None: it can't be used, and the history keeps the recorded words."""


class Voice:
    """Token ids are used as they came. Text is counted first, beside the event loop, while the turn's pause runs."""

    def __init__(self, config: WorkerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_ids = config.body.route.token_ids
        shape = config.shape
        self._reasoning = shape.reasoning if config.scenario.reasoning == "keep" else None
        self._field = shape.reasoning_field
        self._counter = None if self._by_ids else _counter(config)

    def hear(self, exchange: Exchange, then: Then) -> None:
        """Call `then` with the answer, at once or when its text is counted."""
        stream, kept = exchange.stream, exchange.stream.kept
        if self._by_ids:
            then(spoken_ids(stream))
            return
        text = "".join(kept.text) if kept is not None else ""
        if not text:
            then(None)
            return
        thought = "".join(kept.reasoning) if kept is not None else ""
        dropped = bool(thought) and self._reasoning is None
        if dropped:
            thought = ""

        def counted(future: asyncio.Future[int | None]) -> None:
            tokens = future.result()
            if not tokens:
                then(None)
                return
            generated, field = stream.output_tokens, self._field
            then(spoken_text(text, tokens, generated, reasoning=thought, field=field, dropped=dropped))

        self._loop.run_in_executor(None, self._count, text, thought).add_done_callback(counted)

    def _count(self, text: str, thought: str) -> int | None:
        assert self._counter is not None
        try:
            beside = (self._reasoning or 0) + self._counter.count_text(thought) if thought else 0
            return self._counter.count_text(text) + beside
        except (Refused, UserError):
            return None


def _counter(config: WorkerConfig) -> TextCounter:
    source = config.counter
    assert source is not None
    if source.directory is not None:
        counter = LocalCounter.load(source.directory)
        counter.count_text(" ")  # read before threads do
        return counter
    from harness.probe import control_client
    from replay.usage import UsageCounter

    http = control_client(config.endpoints[0])
    return ServerCounter(http, config.body.model, source.route, UsageCounter(http, config.body.model))
