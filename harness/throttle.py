"""Limits on what is sent: requests a second, input tokens a minute. What waits here is late, and the records say so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from asyncio_throttle.throttler import Throttler

from replay.scenario import Scenario
from replay.scheduler import Send

TOKEN_UNIT = 1000
"""Input tokens are counted in thousands, rounded up."""


class Throttle:
    """Passes sends on in their order, each when the limits allow."""

    def __init__(
        self,
        requests_per_s: float | None,
        tokens_per_min: float | None,
        tokens: Callable[[Send], int],
        send: Callable[[Send], None],
    ) -> None:
        self._tokens = tokens
        self._send = send
        self._waiting: deque[Send] = deque()
        self._some = asyncio.Event()
        self._requests: Throttler | None = None
        self._units: Throttler | None = None
        if requests_per_s is not None:
            # Below one a second the period grows instead: the library counts whole requests.
            period = max(1.0, 1.0 / requests_per_s)
            self._requests = Throttler(max(1, int(requests_per_s * period)), period, retry_interval=0.002)
        if tokens_per_min is not None:
            self._units = Throttler(max(1, int(tokens_per_min / TOKEN_UNIT)), 60.0, retry_interval=0.01)

    @classmethod
    def of(
        cls, scenario: Scenario, workers: int, tokens: Callable[[Send], int], send: Callable[[Send], None]
    ) -> Throttle | None:
        """The limits of a scenario, shared evenly between the workers; None when there are none."""
        rate, volume = scenario.max_requests_per_s, scenario.max_input_tokens_per_min
        if rate is None and volume is None:
            return None
        return cls(rate and rate / workers, volume and volume / workers, tokens, send)

    def put(self, send: Send) -> None:
        """Send when it is allowed."""
        self._waiting.append(send)
        self._some.set()

    def take_all(self) -> list[Send]:
        """What has not been sent; it will not be."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    async def run(self) -> None:
        """Pass on until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                if self._requests is not None:
                    async with self._requests:
                        pass
                if self._units is not None and self._waiting:
                    for _ in range(-(-self._tokens(self._waiting[0]) // TOKEN_UNIT)):
                        async with self._units:
                            pass
                if self._waiting:
                    self._send(self._waiting.popleft())
