"""Reads every source at a steady interval, each from a thread of its own; failures become events, never exceptions."""

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic_ns
from typing import Any, Protocol

from collectors.power.source import Sample, Source, SourceError
from results.power_journal import Series

Clock = Callable[[], int]


class Sink(Protocol):
    """Where readings go: the run's journal, or the memory of the agent."""

    def row(
        self,
        t_ns: int,
        series: Series,
        *,
        watts: float | None,
        joules: float | None,
        utilisation: float | None,
        memory_bytes: int | None,
    ) -> None:
        """One reading."""
        ...

    def event(self, name: str, **facts: Any) -> None:
        """Something that happened."""
        ...

    def flush(self) -> bool:
        """Keep what was given."""
        ...


class SourceSampler:
    """One source's thread. `clock`: nanoseconds, the same for all that writes to `sink`."""

    def __init__(self, source: Source, sink: Sink, *, interval_s: float = 1.0, clock: Clock = monotonic_ns) -> None:
        self.source = source
        self.reads = self.failed = self.late = 0
        """Reads tried, reads that gave nothing, and ticks left out because a read took longer than the interval."""
        self.reason: str | None = None
        self._sink = sink
        self._interval_ns = round(interval_s * 1e9)
        self._clock = clock
        self._host = socket.gethostname()
        self._stop = Event()
        self._open = True
        self._streak = 0
        self._thread = Thread(target=self._run, name=f"power {source.name}", daemon=True)

    def start(self) -> None:
        """Begin; the source must be open."""
        self._thread.start()

    def stop(self) -> None:
        """Take a last reading and end (without waiting)."""
        self._stop.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False when the source hangs, which is then left behind and said."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.reason = "a read did not come back"
            self.failed += 1
        reason = self.reason or next(iter(self.source.problems), None)
        self._sink.event(
            "ended", source=self.source.name, t_ns=self._clock(), reads=self.reads, failed=self.failed,
            late=self.late, reason=reason, problems=dict(self.source.problems.most_common(20)),
        )  # fmt: skip
        self._sink.flush()
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = self._clock()
        while True:
            stopping = self._stop.is_set()
            self._read()
            if stopping:
                break
            behind = (self._clock() - due) // self._interval_ns
            self.late += behind
            due += (behind + 1) * self._interval_ns
            self._stop.wait(max(0.0, (due - self._clock()) * 1e-9))
        self.source.close()

    def _read(self) -> None:
        self.reads += 1
        try:
            if not self._open:
                self.source.devices()
                self._open = True
            before = self._clock()
            samples = self.source.sample()
            now = (before + self._clock()) // 2
        except SourceError as error:
            self._failed(str(error))
        except Exception as error:  # a source is foreign code; its surprises are reasons like any other
            self._failed(f"{type(error).__name__}: {error}")
        else:
            self._back()
            for sample in samples:
                self._keep(now, sample)
        self._sink.flush()

    def _keep(self, now: int, sample: Sample) -> None:
        series = Series(
            source=sample.source or self.source.name,
            scope=str(sample.scope or self.source.scope),
            device=sample.device.id,
            name=sample.device.name,
            kind=None if sample.kind is None else str(sample.kind),
            field=sample.field,
            host=sample.host or self._host,
        )
        self._sink.row(
            now if sample.t_ns is None else sample.t_ns,
            series,
            watts=sample.watts,
            joules=sample.joules,
            utilisation=sample.utilisation,
            memory_bytes=sample.memory_bytes,
        )

    def _failed(self, reason: str) -> None:
        self.failed += 1
        self._streak += 1
        self.reason = reason
        self._open = False  # open it again at the next tick
        if self._streak == 1:
            self._sink.event("failed", source=self.source.name, t_ns=self._clock(), reason=reason)

    def _back(self) -> None:
        if self._streak:
            self._sink.event("back", source=self.source.name, t_ns=self._clock(), missed=self._streak)
            self._streak = 0
