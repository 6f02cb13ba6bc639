"""Which number of live sessions to try next when the highest that holds an objective is wanted. Pure.

Doubling from the start until one fails (halving until one holds), then bisection. It takes for granted what load does:
a number above one that fails fails too. A run that says otherwise is noise, which no search can see.
"""

from __future__ import annotations

from dataclasses import dataclass

CEILING = 65_536
RESOLUTION = 0.05
"""Bisection ends when the gap is this share of the answer, or one session."""


@dataclass(slots=True)
class Search:
    """State of one search; `holds` is the highest number known to hold, `fails` the lowest known to fail."""

    start: int
    holds: int = 0
    fails: int = CEILING + 1

    @property
    def next(self) -> int | None:
        """The number to try; None when the answer is known well enough."""
        if not self.holds and self.fails > CEILING:
            return self.start
        if self.fails > CEILING:
            return min(2 * self.holds, CEILING) if self.holds < CEILING else None
        if self.fails - self.holds <= max(1, int(RESOLUTION * self.holds)):
            return None
        return self.fails // 2 if not self.holds else (self.holds + self.fails) // 2

    def tell(self, tried: int, *, held: bool) -> None:
        """What came of a try."""
        if held:
            self.holds = max(self.holds, tried)
        else:
            self.fails = min(self.fails, tried)
