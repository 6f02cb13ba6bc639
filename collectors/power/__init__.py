"""Power and energy of what serves, read while a run goes on.

What a run does with it:

    meter = PowerMeter(journal_dir, options.power, local=is_local(endpoint.host))
    meter.start()                     # before anything is sent; UserError when a named source can't be read
    meter.measure_idle(5.0)           # model loaded, nothing asked: the idle baseline
    ...                               # the run
    meter.stop()
    manifest["power"] = meter.report()

and, where the result files are made (also by `agentx recover`):

    log = results.power_journal.write_power(run_dir, run_id, header["t0_monotonic_ns"])     # power.parquet
    power = results.power.summarise_power(log, start_ns, end_ns, output_tokens=..., total_tokens=..., jobs=...)
    # summary["power"] = power.figures; reasons and warnings join the summary's

Importing this package imports no vendor library.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any

from collectors.power.choose import CHOICES, Opened, is_local, open_sources
from collectors.power.sampler import Clock, SourceSampler
from collectors.power.source import Device, Kind, Sample, Scope, Source, SourceError
from results.power_journal import PowerWriter

__all__ = [
    "CHOICES", "TOKEN_VARIABLE", "Device", "Kind", "PowerMeter", "Sample", "Scope", "Source", "SourceError", "is_local",
]  # fmt: skip

TOKEN_VARIABLE = "AGENTX_COLLECT_TOKEN"
_JOIN_S = 8.0
"""How long a read may take to come back at the end: longer than a timeout of HTTP."""


class PowerMeter:
    """Reads the chosen sources once per interval from threads of their own, into the run's journal.

    `choices` as in `--power` (see `CHOICES`); `local`: the endpoint is on this machine. `clock` must be
    CLOCK_MONOTONIC in nanoseconds (the journal keeps absolute times, so that readings before the run's start count).
    """

    def __init__(
        self,
        journal: Path,
        choices: Sequence[str] = ("auto",),
        *,
        local: bool = True,
        interval_s: float = 1.0,
        clock: Clock = monotonic_ns,
        token: str | None = None,
    ) -> None:
        self._journal = journal
        self._choices = choices
        self._local = local
        self._interval_s = interval_s
        self._clock = clock
        self._token = token or os.environ.get(TOKEN_VARIABLE)
        self._opened = Opened()
        self._samplers: list[SourceSampler] = []
        self._writer: PowerWriter | None = None
        self._lost = False

    def start(self) -> None:
        """Open the sources and begin to read. UserError when a named source can't be read; `auto` never fails."""
        self._opened = open_sources(self._choices, local=self._local, token=self._token)
        if not self._opened.sources and not self._opened.absent:
            return  # --power none
        self._writer = PowerWriter(self._journal)
        for name, reason in self._opened.absent:
            self._writer.event("absent", source=name, reason=reason)
        self._writer.flush()
        for source, _ in self._opened.sources:
            sampler = SourceSampler(source, self._writer, interval_s=self._interval_s, clock=self._clock)
            self._samplers.append(sampler)
            sampler.start()

    def measure_idle(self, seconds: float) -> None:
        """Wait, and note this time as the one in which nothing was asked of the server; nothing without a source."""
        if self._writer is None or not self._samplers or seconds <= 0:
            return
        start = self._clock()
        sleep(seconds)
        self._writer.event("idle", start_ns=start, end_ns=self._clock())
        self._writer.flush()

    def stop(self) -> None:
        """Take the last readings and end; a source that hangs is left behind and said. Safe to call twice."""
        if self._writer is None:
            return
        for sampler in self._samplers:
            sampler.stop()
        deadline = monotonic() + _JOIN_S
        ended = [sampler.join(max(0.0, deadline - monotonic())) for sampler in self._samplers]
        if all(ended):  # else a thread may write yet
            self._lost = not self._writer.close()
        self._writer = None

    def report(self) -> dict[str, Any]:
        """What was read, for run.json: sources with devices, reads and failures; what was looked for and not found."""
        return {
            "interval_s": self._interval_s,
            "sources": [
                {
                    "name": source.name,
                    "scope": str(source.scope),
                    "devices": [{"id": device.id, "name": device.name} for device in devices],
                    "reads": sampler.reads,
                    "failed": sampler.failed,
                    "late": sampler.late,
                    "reason": sampler.reason,
                }
                for (source, devices), sampler in zip(self._opened.sources, self._samplers, strict=True)
            ],
            "readings_lost": self._lost,  # the disk was full
            "absent": [{"name": name, "reason": reason} for name, reason in self._opened.absent],
        }

    def __enter__(self) -> PowerMeter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
