"""The other end of `agentx collect`: an agent's readings, moved onto this machine's clock."""

from __future__ import annotations

from collections import Counter
from time import monotonic_ns
from typing import Any

from collectors.network import Exchange, OffsetEstimator
from collectors.power.http import Page
from collectors.power.source import Device, Kind, Sample, Scope, SourceError, number


class RemoteSource:
    """Polls an agent. Every reading the agent has taken since the last poll comes, each at its own time."""

    name = "agent"
    scope = Scope.ACCELERATOR

    def __init__(self, url: str, token: str | None) -> None:
        self.problems: Counter[str] = Counter()
        self.clock = OffsetEstimator()
        self._url = url.rstrip("/")
        self._token = token
        self._page: Page | None = None
        self._boot: str | None = None
        self._next: int | None = None

    def devices(self) -> list[Device]:
        """Devices of the agent's last readings; SourceError when there is no agent, or the token is wrong."""
        self.close()
        self._page = Page(token=self._token)
        found = {}
        for row in self._poll(-1):
            sample = self._sample(row)
            if sample is not None:
                found[sample.device.id] = sample.device
        if not found:
            raise SourceError(f"{self._url}: the agent reads no device")
        return list(found.values())

    def sample(self) -> list[Sample]:
        """Readings since the last call."""
        samples = [self._sample(row) for row in self._poll(self._next or 0)]
        return [sample for sample in samples if sample is not None]

    def close(self) -> None:
        """Close the connection."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _poll(self, after: int) -> list[dict[str, Any]]:
        if self._page is None:
            raise SourceError(f"{self._url}: not open")
        sent = monotonic_ns()
        document = self._page.json(f"{self._url}/samples?after={after}")
        received = monotonic_ns()
        if not isinstance(document, dict) or not isinstance(document.get("boot"), str):
            raise SourceError(f"{self._url}: not an agentx agent")
        try:
            if self._boot not in (None, document["boot"]):
                # Another process, perhaps another machine: its clock and its numbering start anew.
                self.clock.clear()
                self._next = 0
                self.problems[f"{self._url}: the agent was started anew"] += 1
            self._boot = document["boot"]
            self.clock.add(Exchange(sent, int(document["now_ns"]), received))
            if after >= 0 or self._next is None:  # opened again: what was taken meanwhile is still to come
                self._next = int(document["next"])
            for reason in document.get("problems") or ():
                self.problems[str(reason)] += 1
            rows: list[dict[str, Any]] = list(document["samples"])
        except (KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{self._url}: not an answer of this version's agent") from error
        return rows

    def _sample(self, row: dict[str, Any]) -> Sample | None:
        offset = self.clock.offset_ns
        try:
            kind = None if row["kind"] is None else Kind(row["kind"])
            memory = row["memory_bytes"]
            return Sample(
                Device(str(row["device"]), str(row["name"])),
                kind,
                row["field"],
                watts=number(row["watts"]),
                joules=number(row["joules_counter"]),
                utilisation=number(row["utilisation"]),
                memory_bytes=None if memory is None else int(memory),
                host=str(row["host"]),
                t_ns=int(row["t_ns"]) - (offset or 0),
                scope=Scope(row["scope"]),
                source=f"agent/{row['source']}",
            )
        except (KeyError, TypeError, ValueError):
            self.problems[f"{self._url}: a reading this version does not understand"] += 1
            return None
