"""Which sessions are replayed, in which order, and what was left out and why; printed before anything is sent.

Everything here is arithmetic on whole columns: a corpus of 50,000 requests is planned in milliseconds. Trees are
compiled one at a time when their slot needs them (`replay.tree`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

import numpy as np

from replay.corpus import Corpus
from replay.scenario import Scenario
from results.errors import UserError


@dataclass(frozen=True, slots=True)
class Selection:
    """What decides the plan, written whole into run.json."""

    concurrency: int
    seed: int = 42
    max_context: int | None = None
    """Prompt plus answer; what becomes of requests beyond it is `overlong`. None: no limit."""
    sessions: int | None = None
    """End after this many trees; None: go round until the duration is over."""
    overlong: str = "end"
    """`skip`: such a request is left out alone; `end`: its lane ends there; `fail`: nothing is sent at all."""
    order: str = "shuffled"
    """Of the sessions: `shuffled` by the seed, `sequential` as in the corpus, or `recorded`: by their first request."""

    @classmethod
    def of(cls, scenario: Scenario, max_context: int | None = None) -> Selection:
        """What `scenario` selects, within the model's `max_context` where that is shorter."""
        limits = [limit for limit in (scenario.max_context, max_context) if limit is not None]
        live = max([scenario.concurrency, *(stage.concurrency for stage in scenario.stages)])
        limit = min(limits, default=None)
        order = "recorded" if scenario.arrival == "recorded" else scenario.order
        return cls(live, scenario.seed, limit, scenario.sessions, scenario.overlong, order)


@dataclass(frozen=True, slots=True)
class Plan:
    """`order` are corpus session indices; `kept` marks the corpus rows that may be sent (bool, shape (rows,))."""

    selection: Selection
    order: np.ndarray
    kept: np.ndarray
    dropped: dict[str, int]
    """Reason -> count, for sessions and requests left out."""
    requests: int
    input_tokens: int
    output_tokens: int
    longest_context: int
    digest: str

    @classmethod
    def for_worker(cls, selection: Selection, order: np.ndarray, kept: np.ndarray) -> Plan:
        """What a worker needs of the plan; the figures are the parent's."""
        return cls(selection, order, kept, {}, 0, 0, 0, 0, "")

    def rows(self, corpus: Corpus, session: int) -> list[int]:
        """Corpus rows of a session that are sent."""
        low, high = int(corpus.session_row[session]), int(corpus.session_row[session + 1])
        rows: list[int] = (np.flatnonzero(self.kept[low:high]) + low).tolist()
        return rows

    def arrivals_s(self, corpus: Corpus) -> np.ndarray:
        """Recorded start of every session of `order`, in seconds after the first (float64)."""
        starts = _first_starts(corpus)[self.order]
        return np.asarray(starts - starts.min())

    def session_for(self, start: int) -> tuple[int, int] | None:
        """Session and pass of the `start`-th tree of the run (from 0); None when no more are to be started."""
        limit = self.selection.sessions
        if self.selection.order == "recorded":
            limit = min(len(self.order), limit or len(self.order))  # times do not come again
        if limit is not None and start >= limit:
            return None
        return int(self.order[start % len(self.order)]), start // len(self.order)


def shorter(corpus: Corpus, plan: Plan, tokens: int) -> int:
    """How many of the plan's requests have fewer than `tokens` of input, once through its sessions."""
    in_plan = np.zeros(len(corpus.turn), dtype=bool)
    for session in plan.order.tolist():
        in_plan[int(corpus.session_row[session]) : int(corpus.session_row[session + 1])] = True
    return int((plan.kept & in_plan & (corpus.input_tokens < tokens)).sum())


def make_plan(corpus: Corpus, selection: Selection) -> Plan:
    """Choose and order; raises UserError when nothing is left to send."""
    kept = np.ones(len(corpus.turn), dtype=bool)
    dropped: dict[str, int] = {}
    if selection.max_context is not None:
        kept, reason = _within_context(corpus, selection)
        dropped[reason] = int((~kept).sum())
    per_session = np.add.reduceat(kept, corpus.session_row[:-1]) if len(kept) else np.zeros(0, int)
    order = np.flatnonzero(per_session)
    if len(order) < len(per_session):
        dropped["sessions with no request within the context limit"] = len(per_session) - len(order)
    if not len(order):
        raise UserError(
            f"no session of the corpus fits --max-context {selection.max_context}",
            remedy="raise it, or choose another corpus",
        )
    if selection.order == "recorded":
        order = _by_first_start(corpus, order)
    if selection.order == "shuffled":
        order = np.random.default_rng(selection.seed).permutation(order)
    if selection.sessions is not None:
        used = np.zeros(len(per_session), dtype=bool)
        used[order[: selection.sessions]] = True
        kept &= np.repeat(used, np.diff(corpus.session_row))
    inputs, outputs = corpus.input_tokens[kept], corpus.output_tokens[kept]
    return Plan(
        selection=selection,
        order=order,
        kept=kept,
        dropped={reason: count for reason, count in dropped.items() if count},
        requests=int(kept.sum()),
        input_tokens=int(inputs.sum()),
        output_tokens=int(outputs.sum()),
        longest_context=int((inputs + outputs).max()),
        digest=_digest(corpus, selection, order, kept),
    )


def _first_starts(corpus: Corpus) -> np.ndarray:
    return np.asarray(np.fmin.reduceat(corpus.start_s, corpus.session_row[:-1]))


def _by_first_start(corpus: Corpus, order: np.ndarray) -> np.ndarray:
    starts = _first_starts(corpus)[order]
    if len(order) > 1 and not np.ptp(starts) > 0:
        raise UserError(
            "the corpus does not say when its sessions began: each begins at its own zero",
            remedy="use --rate SESSIONS_PER_MINUTE for Poisson arrivals",
        )
    return np.asarray(order[np.argsort(starts, kind="stable")])


def _within_context(corpus: Corpus, selection: Selection) -> tuple[np.ndarray, str]:
    """The rows that may be sent by the policy for over-long requests, and what became of the others."""
    limit = selection.max_context
    assert limit is not None
    fits = corpus.input_tokens + corpus.output_tokens <= limit
    if selection.overlong == "fail" and not fits.all():
        raise UserError(
            f"{int((~fits).sum())} requests of the corpus are longer than {limit:,} tokens (--overlong fail)",
            remedy="choose --overlong skip or end, or a model with a longer context",
        )
    if selection.overlong == "skip":
        kept = fits.copy()
        reason = "requests beyond the context limit (they alone)"
    else:
        kept = _before_first_overlong(corpus, fits)
        reason = "requests beyond the context limit (their lane ends there)"
    session, starts = _lanes(corpus)
    _drop_orphans(corpus, session, starts, kept)
    return kept, reason


def _lanes(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Session of every row, and the first row of every lane."""
    session = np.repeat(np.arange(len(corpus.session_ids)), np.diff(corpus.session_row))
    new_lane = np.ones(len(corpus.lane), dtype=bool)
    new_lane[1:] = (session[1:] != session[:-1]) | (corpus.lane[1:] != corpus.lane[:-1])
    return session, np.flatnonzero(new_lane)


def _before_first_overlong(corpus: Corpus, fits: np.ndarray) -> np.ndarray:
    """Rows before the first over-long request of their lane."""
    _, starts = _lanes(corpus)
    lane_of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(fits))))
    over = np.cumsum(~fits)
    before = np.concatenate([[0], over])[starts]
    kept: np.ndarray = over - before[lane_of] == 0
    return kept


def _drop_orphans(corpus: Corpus, session: np.ndarray, starts: np.ndarray, kept: np.ndarray) -> None:
    """Drop sub-agents whose parent turn is not sent. Parents come before their children in row order."""
    ends = np.append(starts[1:], len(kept))
    children = np.flatnonzero(corpus.parent_lane[starts] >= 0)
    for child in children.tolist():
        low, high = int(starts[child]), int(ends[child])
        first, last = (int(row) for row in corpus.session_row[session[low] : session[low] + 2])
        parent = corpus.lane[first:last] == corpus.parent_lane[low]
        spawn = parent & (corpus.turn[first:last] == corpus.spawn_turn[low])
        if spawn.any() and not (spawn & kept[first:last]).any():
            kept[low:high] = False


def _digest(corpus: Corpus, selection: Selection, order: np.ndarray, kept: np.ndarray) -> str:
    digest = hashlib.sha256(corpus.digest.encode())
    digest.update(json.dumps(asdict(selection), sort_keys=True).encode())
    digest.update(order.astype("<i8").tobytes())
    digest.update(np.packbits(kept).tobytes())
    return digest.hexdigest()
