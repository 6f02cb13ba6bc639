"""Per-request figures from journal rows: latencies, time per token, gaps between chunks. Pure arithmetic on columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from results.journal import WorkerJournal
from results.records import CHUNK_UNIT_NS, MISSING, REQUEST, Flag, Phase, Status

NS = 1e-9
OFFSET_LIMIT = np.iinfo(np.uint32).max


@dataclass(frozen=True, slots=True)
class Requests:
    """All rows of a run, ordered by send time, with what follows from them. Floats are seconds, NaN is missing."""

    rows: np.ndarray
    worker: np.ndarray
    tree_theory: np.ndarray
    """Tokens an infinite cache per tree would serve; the rows have those of one cache for the whole run."""
    ttft_s: np.ndarray
    ttft_text_s: np.ndarray
    e2e_s: np.ndarray
    tpot_s: np.ndarray
    full_response_itl_s: np.ndarray
    e2e_per_token_s: np.ndarray
    itl_p50_s: np.ndarray
    itl_p99_s: np.ndarray
    itl_max_s: np.ndarray
    gaps_s: np.ndarray
    """Every gap between two content chunks of one answer, all requests together (float32)."""
    gap_row: np.ndarray
    """Which row of `rows` each gap belongs to."""

    def select(self, *, phase: Phase, status: Status) -> np.ndarray:
        """Mask of the rows sent in `phase` that ended as `status`."""
        mask: np.ndarray = (self.rows["phase"] == phase) & (self.rows["status"] == status)
        return mask


def derive(parts: list[WorkerJournal], header: dict[str, Any]) -> Requests:
    """Join the workers' rows and compute what follows from them."""
    rows = np.concatenate([part.requests for part in parts]) if parts else np.zeros(0, REQUEST)
    worker = np.concatenate([np.full(len(p.requests), p.worker, np.int32) for p in parts] or [np.zeros(0, np.int32)])
    gaps, gap_row = _gaps(parts)
    order = np.argsort(rows["sent_ns"], kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    rows, worker = rows[order], worker[order]
    tree_theory = rows["theoretical_cached_tokens"]
    rows = with_shared_heads(rows, header)
    gap_row = place[gap_row]
    p50, p99, top = _gap_statistics(gaps, gap_row, len(rows))
    return Requests(
        rows,
        worker,
        tree_theory,
        ttft_s=span(rows, "sent_ns", "first_token_ns"),
        ttft_text_s=span(rows, "sent_ns", "first_text_ns"),
        e2e_s=span(rows, "sent_ns", "last_token_ns"),
        tpot_s=_tpot(rows),
        full_response_itl_s=_full_response_itl(rows),
        e2e_per_token_s=_e2e_per_token(rows),
        itl_p50_s=p50,
        itl_p99_s=p99,
        itl_max_s=top,
        gaps_s=gaps,
        gap_row=gap_row,
    )


def with_shared_heads(rows: np.ndarray, header: dict[str, Any]) -> np.ndarray:
    """Raise the theoretical hits of prompts whose head another session had sent before; `rows` are in send order.

    A worker knows only its own trees; which session was first over the whole run is known here. Of heads of different
    sizes (all sessions share one text) the longest sent so far is what could be cached.
    """
    heads = header.get("heads")
    which = np.flatnonzero(rows["flags"] & Flag.SHARED_HEAD)
    if not heads or not len(which):
        return rows
    key = np.asarray(heads["key"])[rows["session"][which]]
    tokens = np.asarray(heads["tokens"])[rows["session"][which]]
    before = np.zeros(len(which), dtype=np.int64)
    for one in np.unique(key):
        members = np.flatnonzero(key == one)
        before[members[1:]] = np.maximum.accumulate(tokens[members])[:-1]
    block = header.get("cache_block") or 1
    reach = np.minimum(np.minimum(tokens, before), rows["planned_input_tokens"][which] - 1) // block * block
    rows = rows.copy()
    known = rows["theoretical_cached_tokens"][which]
    rows["theoretical_cached_tokens"][which] = np.maximum(known, reach)
    return rows


def endpoint_of(rows: np.ndarray, header: dict[str, Any]) -> np.ndarray:
    """Index of the endpoint each request went to, in the order of run.json: slots take turns, a tree keeps its slot."""
    return np.asarray(rows["slot"] % max(1, len(header.get("endpoints") or ())))


def span(rows: np.ndarray, start: str, end: str) -> np.ndarray:
    """Seconds between two moments, NaN where either is missing."""
    seconds = (rows[end] - rows[start]) * NS
    seconds[(rows[end] == MISSING) | (rows[start] == MISSING)] = np.nan
    return np.asarray(seconds, dtype=np.float64)


def _tpot(rows: np.ndarray) -> np.ndarray:
    """Time per output token after the first chunk.

    (last - first) / (output tokens - 1); where running usage says how many tokens the first chunk held, its tokens are
    not divided into the time after it. Unknown for fewer than two tokens, and when everything came at one moment.
    """
    first = np.where(rows["first_chunk_tokens"] > 0, rows["first_chunk_tokens"], 1)
    return _per_token(rows, span(rows, "first_token_ns", "last_token_ns"), first)


def _full_response_itl(rows: np.ndarray) -> np.ndarray:
    """(end of the response - first token) / (output tokens - 1); unknown when `_tpot` is."""
    return _per_token(rows, span(rows, "first_token_ns", "done_ns"), 1)


def _e2e_per_token(rows: np.ndarray) -> np.ndarray:
    """(last token - sent) / output tokens; unknown without any."""
    tokens = counted_output(rows)
    tokens[~(tokens > 0)] = np.nan
    return np.asarray(span(rows, "sent_ns", "last_token_ns") / tokens)


def _per_token(rows: np.ndarray, seconds: np.ndarray, first: np.ndarray | int) -> np.ndarray:
    later = counted_output(rows) - first
    # One chunk, or all chunks in one segment: nothing was seen of the decoding, a zero would read as infinite speed.
    unseen = rows["last_token_ns"] <= rows["first_token_ns"]
    later[~(later > 0) | unseen] = np.nan
    return np.asarray(seconds / later)


def counted_output(rows: np.ndarray) -> np.ndarray:
    """Output tokens as float64, NaN where the server did not say or its own chunks contradict it."""
    tokens = as_float(rows, "output_tokens")
    tokens[(rows["flags"] & Flag.USAGE_MISMATCH) != 0] = np.nan
    return tokens


def delivered_share(rows: np.ndarray) -> np.ndarray:
    """Output tokens delivered of those asked for; NaN where the server did not say."""
    asked = rows["planned_output_tokens"].astype(np.float64)
    asked[asked <= 0] = np.nan
    return np.asarray(as_float(rows, "output_tokens") / asked)


def _gaps(parts: list[WorkerJournal]) -> tuple[np.ndarray, np.ndarray]:
    """Gaps in seconds, and the row (in file order over all workers) that each belongs to."""
    gaps, owners, base = [], [], 0
    for part in parts:
        counts = part.requests["chunk_count"].astype(np.int64)
        starts = part.requests["chunk_start"]
        owner = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = np.asarray(part.chunks)[np.repeat(starts, counts) + within]
        same = (owner[1:] == owner[:-1]) & (offsets[1:] != OFFSET_LIMIT)  # at the limit the time is not known
        # int64 first: kernel stamps of two segments may be equal, never decreasing, but a step of the clock can be.
        delta = np.diff(offsets.astype(np.int64))[same]
        gaps.append((np.maximum(delta, 0) * (CHUNK_UNIT_NS * NS)).astype(np.float32))
        owners.append(owner[1:][same] + base)
        base += len(counts)
    if not gaps:
        return np.zeros(0, np.float32), np.zeros(0, np.int64)
    return np.concatenate(gaps), np.concatenate(owners)


def _gap_statistics(gaps: np.ndarray, owner: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median, p99 (linear interpolation) and maximum of each row's gaps; NaN for rows without any."""
    p50, p99, top = (np.full(rows, np.nan) for _ in range(3))
    if not len(gaps):
        return p50, p99, top
    order = np.lexsort((gaps, owner))
    values, owners = gaps[order].astype(np.float64), owner[order]
    first = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
    count = np.diff(np.r_[first, len(owners)])
    which = owners[first]
    for out, q in ((p50, 0.50), (p99, 0.99)):
        position = (count - 1) * q
        low = np.floor(position).astype(np.int64)
        high = np.minimum(low + 1, count - 1)
        a, b = values[first + low], values[first + high]
        out[which] = a + (b - a) * (position - low)
    top[which] = values[first + count - 1]
    return p50, p99, top


def window_share(rows: np.ndarray, start_ns: int, end_ns: int) -> np.ndarray:
    """Share of each answer's output that fell into [start, end): decoding is even between first and last token.

    One-chunk answers count where their chunk came; NaN where no token came.
    """
    first, last = rows["first_token_ns"].astype(np.float64), rows["last_token_ns"].astype(np.float64)
    length = last - first
    inside = np.clip(np.minimum(last, end_ns) - np.maximum(first, start_ns), 0, None)
    at_once = ((first >= start_ns) & (first < end_ns)).astype(np.float64)
    share = np.where(length > 0, inside / np.where(length > 0, length, 1.0), at_once)
    share[rows["first_token_ns"] == MISSING] = np.nan
    return np.asarray(share)


def busy_seconds(tree: np.ndarray, rows: np.ndarray, trees: int) -> np.ndarray:
    """Seconds in which at least one request of each tree was in flight (union of [sent, done]); shape (trees,)."""
    tree, known, covered = _covered(tree, rows)
    busy: np.ndarray = np.zeros(trees)
    end, start = rows["done_ns"][known], rows["sent_ns"][known]
    np.add.at(busy, tree, np.maximum(0, end - np.maximum(start, covered)) * NS)
    return busy


def human_seconds(tree: np.ndarray, rows: np.ndarray, trees: int) -> np.ndarray:
    """Seconds in which nothing of a tree was in flight and a turn that a person began came next; shape (trees,)."""
    tree, known, covered = _covered(tree, rows)
    out: np.ndarray = np.zeros(trees)
    human = ((rows["flags"][known] & Flag.HUMAN_TURN) != 0) & (covered > 0)
    np.add.at(out, tree[human], np.maximum(0, rows["sent_ns"][known] - covered)[human] * NS)
    return out


def _covered(tree: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By tree and start: the tree, the row, and up to when the tree's earlier requests reached (0 for its first)."""
    which = np.flatnonzero((rows["sent_ns"] != MISSING) & (rows["done_ns"] != MISSING) & (tree >= 0))
    which = which[np.lexsort((rows["sent_ns"][which], tree[which]))]
    mine, end = tree[which], rows["done_ns"][which]
    if not len(which):
        return mine, which, end
    stride = int(end.max()) + 1  # keeps one tree's times apart from the next one's
    reach = np.maximum.accumulate(end + mine * stride) - mine * stride
    return mine, which, np.r_[0, np.where(mine[1:] == mine[:-1], reach[:-1], 0)]


def as_float(rows: np.ndarray, name: str) -> np.ndarray:
    """An integer column as float64 with NaN for missing."""
    values: Any = rows[name].astype(np.float64)
    values[rows[name] == MISSING] = np.nan
    return np.asarray(values)
