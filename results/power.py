"""The `power` part of summary.json: joules and watts of a window, per device and in sum. Pure.

Per device the energy counter is used where there is one, else the power averaged by the device, else instant power,
else what was stated. Devices are summed, never averaged; one that several sources see is counted once; sources of
different scope (accelerators, processors, whole machines) are never added to each other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from results.energy import MISMATCH, WRONG_UNIT, Energy, from_counter, from_watts
from results.power_journal import PowerLog, Series
from results.stats import ratio

SCOPES = ("accelerator", "given", "node", "cpu")
"""By precedence: the first that was read gives the main figures."""

_KINDS = ("counter", "average", "instant", "assumed")
_UNIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-", re.IGNORECASE)
_FIGURES = ("watts_mean", "joules", "joules_per_output_token", "joules_per_total_token", "joules_per_job", "idle_watts")


@dataclass(frozen=True, slots=True)
class PowerSummary:
    """`figures` is summary.json's `power`; `reasons` by full key for what is null in it; `warnings` for the run."""

    figures: dict[str, Any]
    reasons: dict[str, str]
    warnings: list[str] = field(default_factory=list)


def summarise_power(
    log: PowerLog | None,
    start_ns: int,
    end_ns: int,
    *,
    output_tokens: float | None,
    total_tokens: float | None,
    jobs: int | None,
) -> PowerSummary:
    """Power in [start_ns, end_ns), times since the run's start.

    `output_tokens`, `total_tokens` (prompt and output) and `jobs` are those of the same window, None where unknown.
    """
    if log is None or not any(series.kind for series in log.series):
        return _nothing(_why_nothing(log))
    warnings = _source_warnings(log)
    devices: dict[str, list[_Device]] = {}
    for scope in SCOPES:
        found = [_Device(*item, log, start_ns, end_ns) for item in _by_device(log, scope).items()]
        if found:
            devices[scope] = found
            warnings += [text for device in found for text in device.warnings]
    scope = next(iter(devices))
    main = devices[scope]
    seconds = (end_ns - start_ns) * 1e-9
    reasons: dict[str, str] = {}
    joules = _sum(log, main, "energy", reasons, "joules")
    idle = _sum(log, main, "idle", reasons, "idle_watts") if log.idle else None
    if log.idle is None:
        reasons["power.idle_watts"] = "no idle baseline was measured before the run"
    figures = {
        "watts_mean": None if joules is None else ratio(joules, seconds),
        "joules": joules,
        "joules_per_output_token": _per(joules, output_tokens, "joules_per_output_token", "output tokens", reasons),
        "joules_per_total_token": _per(joules, total_tokens, "joules_per_total_token", "tokens", reasons),
        "joules_per_job": _per(joules, jobs, "joules_per_job", "finished jobs", reasons),
        "idle_watts": idle,
        "source": "+".join(sorted({f"{d.source}:{d.kind}" for d in main})),
        "scope": scope,
        "window_ns": [start_ns, end_ns],
        "devices": [device.row(seconds) for group in devices.values() for device in group],
    }
    if joules is None:
        reasons["power.watts_mean"] = reasons["power.joules"]
    if scope == "cpu":
        warnings.append("power is that of the processors only: no accelerator and no whole machine was read")
    if any(device.kind == "assumed" for device in main):
        warnings.append("power is assumed, not measured: joules follow from the watts that were stated")
    return PowerSummary(figures, reasons, warnings)


def _nothing(reason: str) -> PowerSummary:
    return PowerSummary({**dict.fromkeys(_FIGURES), "source": None}, {"power": reason})


def _why_nothing(log: PowerLog | None) -> str:
    if log is None:
        return "no power source was read"
    reasons = [str(event.get("reason")) for event in log.events if event.get("reason")]
    return "; ".join(dict.fromkeys(reasons)) or "no power source was found"


def _source_warnings(log: PowerLog) -> list[str]:
    warnings = []
    for event in log.events:
        if event["event"] == "ended" and event.get("failed"):
            text = f"power source {event['source']}: {event['failed']} of {event['reads']} reads failed"
            warnings.append(f"{text}: {event.get('reason')}")
    ended = {event["source"] for event in log.events if event["event"] == "ended"}
    warnings += [
        f"power source {event['source']} failed: {event.get('reason')}"
        for event in log.events
        if event["event"] == "failed" and event["source"] not in ended
    ]
    if log.torn:
        warnings.append(f"{log.torn} power readings were cut by a crash")
    return warnings


def _by_device(log: PowerLog, scope: str) -> dict[str, dict[str, dict[str, list[int]]]]:
    """Device → source → kind → series numbers; devices without power of their own are left out."""
    found: dict[str, dict[str, dict[str, list[int]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for number, series in enumerate(log.series):
        if series.scope == scope and series.kind:
            found[_identity(series)][series.source][series.kind].append(number)
    return found


def _identity(series: Series) -> str:
    """A UUID is the same device wherever it is seen; other names only on the same machine."""
    return series.device.lower() if _UNIQUE.search(series.device) else f"{series.host}/{series.device}"


class _Device:
    """One device's energy: every kind it was read by, and the one that counts."""

    def __init__(
        self, identity: str, sources: dict[str, dict[str, list[int]]], log: PowerLog, start: int, end: int
    ) -> None:
        self.source, kinds = self._choose(sources, log, start, end)
        numbers = [number for of_kind in kinds.values() for number in of_kind]
        self.series = log.series[numbers[0]]
        self.label = self.series.device if _UNIQUE.search(self.series.device) else identity
        self.by_kind = {kind: _energy(log, kinds[kind], kind, start, end) for kind in _KINDS if kind in kinds}
        self.warnings: list[str] = []
        usable = dict(self.by_kind)
        self._compare(usable)
        self.kind = next((kind for kind, energy in usable.items() if energy.joules is not None), next(iter(usable)))
        self.energy = usable[self.kind]
        self.field = "+".join(sorted({log.series[n].field or "?" for n in kinds[self.kind]}))
        self.idle = self._idle(log, kinds)

    @staticmethod
    def _choose(
        sources: dict[str, dict[str, list[int]]], log: PowerLog, start: int, end: int
    ) -> tuple[str, dict[str, list[int]]]:
        """The source with the most of the window, the first named among equals."""

        def coverage(kinds: dict[str, list[int]]) -> float:
            return max(round(_energy(log, n, kind, start, end).coverage, 2) for kind, n in kinds.items())

        best = max(sources, key=lambda source: coverage(sources[source]))
        return best, sources[best]

    def _compare(self, usable: dict[str, Energy]) -> None:
        """Counter against the integral of watts; a counter in another unit is not used."""
        counter = self.by_kind.get("counter")
        other = next((k for k in ("average", "instant") if k in usable and usable[k].joules), None)
        if counter is None or counter.joules is None or other is None:
            return
        integral = usable[other].joules
        assert integral is not None
        factor = counter.joules / integral
        said = f"{self.label}: the energy counter says {counter.joules:,.0f} J, {other} power {integral:,.0f} J"
        if not 1 / WRONG_UNIT <= factor <= WRONG_UNIT:
            self.warnings.append(f"{said}: the counter is not in the unit it claims and is not used")
            del usable["counter"]
        elif abs(factor - 1) > MISMATCH:
            self.warnings.append(f"{said} ({100 * (factor - 1):+.0f} %)")

    def _idle(self, log: PowerLog, kinds: dict[str, list[int]]) -> Energy:
        if log.idle is None:
            return Energy(None, 0.0, reason="no idle baseline was measured before the run")
        start, end = log.idle
        idle = _energy(log, kinds[self.kind], self.kind, start, end)
        if idle.joules is None:
            return idle
        return Energy(idle.joules / ((end - start) * 1e-9), idle.coverage)

    def row(self, seconds: float) -> dict[str, Any]:
        """The device's line of the table in summary.json."""
        joules = self.energy.joules
        row: dict[str, Any] = {
            "device": self.series.device,
            "name": self.series.name,
            "host": self.series.host,
            "scope": self.series.scope,
            "source": self.source,
            "kind": self.kind,
            "field": self.field,
            "joules": joules,
            "watts_mean": None if joules is None else ratio(joules, seconds),
            "idle_watts": self.idle.joules,
            "joules_by_kind": {kind: energy.joules for kind, energy in self.by_kind.items()},
            "coverage": self.energy.coverage,
            "resets": self.energy.resets,
            "gaps": self.energy.gaps,
        }
        return row if joules is not None else {**row, "reason": self.energy.reason}


def _energy(log: PowerLog, numbers: list[int], kind: str, start: int, end: int) -> Energy:
    rows = log.rows[np.isin(log.rows["series"], numbers)]
    if kind == "counter":
        return from_counter(rows["t_ns"], rows["joules"], start, end)
    return from_watts(rows["t_ns"], rows["watts"], start, end)


def _sum(log: PowerLog, devices: list[_Device], part: str, reasons: dict[str, str], figure: str) -> float | None:
    """The sum over all devices; None when one of them is not known."""
    energies: list[Energy] = [getattr(device, part) for device in devices]
    values = [energy.joules for energy in energies if energy.joules is not None]
    if len(values) == len(devices):
        return float(sum(values))
    missing = [(d, e) for d, e in zip(devices, energies, strict=True) if e.joules is None]
    device, energy = missing[0]
    causes = [
        problem
        for event in log.events
        for problem in event.get("problems", ())
        if problem.startswith(f"{device.series.device}:")
    ]
    said = f"{len(missing)} of {len(devices)} devices: {device.label}: {energy.reason}"
    reasons[f"power.{figure}"] = "; ".join([said, *causes[:2]])
    return None


def _per(joules: float | None, count: float | None, figure: str, what: str, reasons: dict[str, str]) -> float | None:
    if joules is None:
        reasons[f"power.{figure}"] = reasons["power.joules"]
        return None
    if not count:
        reasons[f"power.{figure}"] = f"no {what} in the window" if count == 0 else f"the number of {what} is not known"
        return None
    return joules / count
