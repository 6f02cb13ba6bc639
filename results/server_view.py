"""The server's side of a run's summary: where input tokens came from, and whether both sides count the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from results.findings import Finding, Severity
from results.reconcile import ClientSums, Increase, findings, reconcile
from results.records import MISSING, Status
from results.token_origin import Evidence, token_origin

SHARES = ("device", "host", "external", "cold", "lost", "lost_evicted", "lost_routing", "lost_mismatch")
_UNREAD = "no metrics page of the server was read over the whole run"


@dataclass(slots=True)
class ServerView:
    """What the collectors saw: `increases` of the server's counters from `from_ns` (ns since the run's start) on."""

    notes: list[str] = field(default_factory=list)
    from_ns: int = 0
    increases: list[Increase] | None = None
    warm_up: list[Increase] | None = None
    """The same from the run's start to `from_ns`; None where there was no warm-up."""
    intervals: list[tuple[int, int, list[Increase]]] = field(default_factory=list)
    """(from, to, increases) of each part of the measured time; ns since the run's start."""
    evidence: Evidence = field(default_factory=Evidence)
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """`shares` are fractions of the input by origin (None: unknown), `reasons` by key of summary.json."""

    shares: dict[str, float | None]
    section: dict[str, Any] | None
    reasons: dict[str, str]
    findings: list[Finding]


def summarise_server(view: ServerView | None, rows: np.ndarray) -> ServerSummary:
    """Compare the answers to the requests sent from the view's start on with the server's counters."""
    notes = [] if view is None else view.notes
    if view is None or view.increases is None:
        why = "; ".join(notes) or _UNREAD
        reasons = {f"cache.{name}": why for name in SHARES} | {"server": why}
        return ServerSummary(dict.fromkeys(SHARES), None, reasons, [])
    sent = rows[rows["sent_ns"] >= view.from_ns]
    compared = reconcile(client_sums(sent), view.increases)
    origin = _origin(sent, view.increases, view.evidence)
    shares = {name: origin["fractions"].get(name) for name in SHARES}
    why_each: dict[str, str] = origin["why"]
    reasons = {f"cache.{name}": why_each.get(name, _UNREAD) for name in SHARES if shares[name] is None}
    section = {**view.summary, "reconciled": compared, "origin": origin, "notes": notes}
    section["origin_by_interval"] = [_part(rows, *interval, view.evidence) for interval in view.intervals]
    if view.warm_up is not None:
        earlier = rows[(rows["sent_ns"] != MISSING) & (rows["sent_ns"] < view.from_ns)]
        section["origin_of_warmup"] = _origin(earlier, view.warm_up, view.evidence)
    found = [Finding("server_note", Severity.WARNING, note) for note in notes]
    return ServerSummary(shares, section, reasons, [*findings(compared), *found])


def _part(rows: np.ndarray, start: int, end: int, increases: list[Increase], evidence: Evidence) -> dict[str, Any]:
    """The origin of the input of requests sent in one interval; what was under way at its ends blurs its edges."""
    origin = _origin(rows[(rows["sent_ns"] >= start) & (rows["sent_ns"] < end)], increases, evidence)
    del origin["why"]  # the whole run's says it
    return {"start_ns": start, "end_ns": end, **origin}


def _origin(rows: np.ndarray, increases: list[Increase], evidence: Evidence) -> dict[str, Any]:
    theory = rows["theoretical_cached_tokens"][rows["status"] == Status.OK]
    theoretical = int(theory[theory != MISSING].sum(dtype=np.int64)) if len(theory) else None
    return token_origin(client_sums(rows), theoretical, increases, evidence)


def client_sums(rows: np.ndarray) -> ClientSums:
    """Sums over the requests answered well."""
    ok = rows[rows["status"] == Status.OK]
    return ClientSums(
        requests=len(ok),
        input_tokens=_sum(ok["input_tokens"]),
        output_tokens=_sum(ok["output_tokens"]),
        cached_tokens=_sum(ok["cached_tokens"]),
        without_usage=int((ok["input_tokens"] == MISSING).sum()),
        unfinished=len(rows) - len(ok),
    )


def _sum(values: np.ndarray) -> int | None:
    known = values[values != MISSING]
    return int(known.sum(dtype=np.int64)) if len(known) else None
