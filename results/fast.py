"""What faster decoding is worth: each session's time by cause, and its speed-up at any decode speed.

Only decoding (first to last token) gets faster; prefill, queue, tools and people stay as they were measured. A session
is a tree: where its agents overlap, how much of the decoding is on the way to its end depends on what waited for what,
of which a run keeps the times only. So a saving is a pair of bounds, equal for a session of one lane (there it is
Amdahl's law: 1 / (1 - f + f / k) for a decode share f and k times the decode speed):

- *high*: a request may have waited for any request of its tree that had ended; the one that saved most is followed.
- *low*: it waited for its lane's previous turn, and, without a pause, for everything that had ended. A lane's first
  turn waited for the latest turn of every other lane; that an earlier one began it is not considered.

Pure: columns in, figures out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from results.derive import NS

CAUSES = ("decode", "prefill", "tool", "human", "rest")
"""Where a session's time goes.

`prefill` is up to the first token, queue included; `tool` all the time that nothing of the session was in flight and no
person's turn came next; `rest` an answer's end after its last token, and failed requests.
"""
QUEUE_REASON = "part of prefill: needs the server's queue times by request, which no engine tells"


@dataclass(frozen=True, slots=True)
class Session:
    """A session tree that was replayed whole. Times are ns since the run's start, shape (requests,) by send time."""

    started_ns: int
    ended_ns: int
    lane: np.ndarray
    """Any number that tells the lanes apart."""
    sent_ns: np.ndarray
    first_ns: np.ndarray
    """First token; `done_ns` where there was none."""
    last_ns: np.ndarray
    done_ns: np.ndarray
    ok: np.ndarray
    human: np.ndarray
    """A person began this turn."""
    output_tokens: np.ndarray
    """float64, NaN where the server does not say."""

    @property
    def wall_ns(self) -> int:
        """From the session's start to its end."""
        return self.ended_ns - self.started_ns

    @property
    def decode_ns(self) -> np.ndarray:
        """First to last token of each request; 0 where it failed or came in one piece."""
        return np.where(self.ok, self.last_ns - self.first_ns, 0)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A figure that lies from `low` to `high`."""

    low: float
    high: float


def sessions_of(requests: dict[str, Any], trees: dict[str, Any]) -> list[Session]:
    """The sessions that were finished, begun from their start, and whose last request was sent in the steady window.

    Arguments are columns of requests.parquet and sessions.parquet as lists. What was never sent takes no time.
    """
    members: dict[tuple[str, int], list[int]] = {}
    known = [
        sent is not None and done is not None
        for sent, done in zip(requests["sent_ns"], requests["done_ns"], strict=True)
    ]
    for row, key in enumerate(zip(requests["session_id"], requests["pass"], strict=True)):
        if known[row]:
            members.setdefault(key, []).append(row)
    out = []
    for row, key in enumerate(zip(trees["session_id"], trees["pass"], strict=True)):
        mine = sorted(members.get(key, ()), key=requests["sent_ns"].__getitem__)
        whole = trees["end"][row] == "completed" and not trees["partial"][row]
        if (
            whole
            and mine
            and requests["phase"][mine[-1]] == "steady"
            and trees["ended_ns"][row] > trees["started_ns"][row]
        ):
            out.append(_session(requests, mine, trees["started_ns"][row], trees["ended_ns"][row]))
    return out


def _session(requests: dict[str, Any], rows: list[int], started: int, ended: int) -> Session:
    def column(name: str) -> list[Any]:
        return [requests[name][row] for row in rows]

    sent, done = np.array(column("sent_ns")), np.array(column("done_ns"))
    first = [d if f is None else f for f, d in zip(column("first_token_ns"), done.tolist(), strict=True)]
    last = [f if t is None else t for t, f in zip(column("last_token_ns"), first, strict=True)]
    return Session(
        min(started, int(sent[0])),
        max(ended, int(done.max())),
        np.unique(np.array(column("lane_id")), return_inverse=True)[1],
        sent,
        np.array(first),
        np.array(last),
        done,
        np.array([status == "ok" for status in column("status")]),
        np.array(["human_turn" in (flags or ()) for flags in column("flags")]),
        np.array([np.nan if count is None else count for count in column("output_tokens")], dtype=np.float64),
    )


def time_by_cause(session: Session) -> dict[str, float]:
    """Seconds of each of `CAUSES`; they add up to the session's wall time.

    Of a moment with several requests in flight each has an equal part.
    """
    parts = {
        "prefill": (session.sent_ns, np.where(session.ok, session.first_ns, session.sent_ns)),
        "decode": (session.first_ns, session.first_ns + session.decode_ns),
        "rest": (np.where(session.ok, session.last_ns, session.sent_ns), session.done_ns),
    }
    edges = np.unique(
        np.concatenate([[session.started_ns, session.ended_ns], *(end for pair in parts.values() for end in pair)])
    )
    length = np.diff(edges)
    active = {name: _running(edges, start, end) for name, (start, end) in parts.items()}
    total = sum(active.values(), np.zeros(len(length)))
    out = {name: float((length * count / np.maximum(total, 1)).sum()) * NS for name, count in active.items()}
    # A moment of silence belongs to whoever ended it.
    following = np.searchsorted(session.sent_ns, edges[:-1])
    by_human = np.append(session.human, False)[following] & (edges[:-1] > session.sent_ns[0])
    silent = total == 0
    out["human"] = float(length[silent & by_human].sum()) * NS
    out["tool"] = float(length[silent & ~by_human].sum()) * NS
    return {name: out[name] for name in CAUSES}


def _running(edges: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many of the spans [start, end) cover each interval between two edges."""
    step = np.zeros(len(edges))
    np.add.at(step, np.searchsorted(edges, start), 1)
    np.add.at(step, np.searchsorted(edges, end), -1)
    return np.cumsum(step)[:-1]


def saved_s(session: Session, factor: float, chosen: np.ndarray | None = None) -> Bounds:
    """Seconds by which the session would end earlier, decoding `factor` times as fast (inf: in no time).

    `chosen` is a mask of the requests that get faster; None: all.
    """
    own = session.decode_ns * (1 - 1 / factor)
    if chosen is not None:
        own = np.where(chosen, own, 0.0)
    low, high = _low(session, own), _high(session, own)
    last = int(session.done_ns.argmax())
    # The new end is that of the request that then ends last, which may be another one.
    least = float((session.done_ns[last] - session.done_ns + low).min())
    return Bounds(max(0.0, least) * NS, max(0.0, least, float(high[last])) * NS)


def _high(session: Session, own: np.ndarray) -> np.ndarray:
    """At most how much earlier each request would end."""
    saved = np.zeros(len(own))
    best = 0.0
    for row, ended in enumerate(_newly_ended(session)):
        best = max([best, *saved[ended].tolist()])
        saved[row] = best + own[row]
    return saved


def _low(session: Session, own: np.ndarray) -> np.ndarray:
    """At least how much earlier each request would end."""
    saved = np.zeros(len(own))
    barrier = np.inf
    newest: dict[int, int] = {}
    for row, ended in enumerate(_newly_ended(session)):
        for before in ended:
            barrier = min(barrier, float(saved[before] - session.done_ns[before]))
            newest[int(session.lane[before])] = before
        mine = newest.get(int(session.lane[row]))
        anchors = [mine] if mine is not None else list(newest.values())
        earliest = min((float(saved[anchor]) for anchor in anchors), default=0.0)
        saved[row] = max(0.0, min(earliest, barrier + float(session.sent_ns[row]))) + own[row]
    return saved


def _newly_ended(session: Session) -> Iterator[list[int]]:
    """For each request those that ended before it was sent, and not before the one before it was, by their ends."""
    order = np.argsort(session.done_ns, kind="stable")
    taken = 0
    for row, upto in enumerate(np.searchsorted(session.done_ns[order], session.sent_ns, side="right").tolist()):
        ready = [before for before in order[taken:upto].tolist() if before < row]
        # What was sent with this request and took no time is nobody's cause.
        taken = upto
        yield ready


def speed_up(session: Session, factor: float) -> Bounds:
    """How many times as fast the whole session is with `factor` times the decode speed."""
    wall, saved = session.wall_ns * NS, saved_s(session, factor)
    return Bounds(*(wall / (wall - gain) if gain < wall else float("inf") for gain in (saved.low, saved.high)))


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """p10, p50, p90 over sessions, never over percentiles; null without any, and where the percentile is infinite."""
    out: dict[str, float | None] = dict.fromkeys(("p10", "p50", "p90"))
    if len(values):
        with np.errstate(invalid="ignore"):
            found = np.percentile(np.asarray(values, dtype=np.float64), (10, 50, 90))
        out = {name: float(v) if np.isfinite(v) else None for name, v in zip(out, found, strict=True)}
    return out


def bounds_of(pairs: Sequence[Bounds]) -> dict[str, dict[str, float | None]]:
    """The distributions of both bounds."""
    return {"low": spread([pair.low for pair in pairs]), "high": spread([pair.high for pair in pairs])}


def summed(pairs: Iterator[Bounds]) -> Bounds:
    """Bounds of a sum."""
    known = list(pairs)
    return Bounds(sum(pair.low for pair in known), sum(pair.high for pair in known))
