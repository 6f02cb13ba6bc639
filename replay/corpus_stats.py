"""What a corpus holds: sizes, times, sub-agents, and how much of it an infinite prefix cache would serve."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from replay.chains import Recorded, find_chains
from replay.corpus import MISSING, Corpus
from replay.prefix import SeenBlocks
from results.stats import distribution


def corpus_stats(corpus: Corpus) -> dict[str, Any]:
    """Figures of a corpus (JSON-ready). Percentiles are over top-level requests (those of the main lanes)."""
    main = corpus.parent_lane == MISSING
    children = np.flatnonzero(~main)
    lane_key = np.repeat(np.arange(len(corpus.session_ids)), np.diff(corpus.session_row)) << 32 | corpus.lane
    hit, whole, block_tokens = infinite_cache_hits(corpus)
    return {
        "name": corpus.meta.get("name"),
        "digest": corpus.digest,
        "licence": corpus.meta.get("licence"),
        "attribution": corpus.meta.get("attribution"),
        "sessions": len(corpus.session_ids),
        "requests": int(main.sum()),
        "subagents": len(np.unique(lane_key[children])),
        "subagent_requests": len(children),
        "input_tokens": int(corpus.input_tokens.sum()),
        "output_tokens": int(corpus.output_tokens.sum()),
        "input": distribution(corpus.input_tokens[main]),
        "output": distribution(corpus.output_tokens[main]),
        "think_s": distribution(corpus.think_s[main]),
        "requests_per_session": distribution(np.diff(corpus.session_row)),
        "longest_context": int((corpus.input_tokens + corpus.output_tokens).max()),
        "flat_agents": _flat_agents(corpus),
        "infinite_cache": {
            "hit_rate": hit / whole if whole else None,
            "hit_blocks": hit,
            "blocks": whole,
            "hit_tokens": block_tokens,
        },
        "fresh_turns": fresh_turns(corpus),
    }


def infinite_cache_hits(corpus: Corpus, kept: np.ndarray | None = None) -> tuple[int, int, int]:
    """(hit blocks, whole blocks, hit tokens) of an infinite cache per session tree.

    Contiguous prefix only, whole blocks (floor of input / block size), requests of a tree in the order of their starts.
    `kept` (bool, shape (rows,)) leaves requests out.
    """
    hit = whole = tokens = 0
    sizes = corpus.block_size.tolist()
    for row, _, shared, limit in _prefixes(corpus, kept):
        hit += shared
        whole += limit
        tokens += shared * sizes[row]
    return hit, whole, tokens


def fresh_turns(corpus: Corpus) -> dict[str, Any]:
    """Later requests of their session that share not one block with anything it sent before.

    A session's agents have a fresh start each; where nearly every turn has one, something at the head of the prompt
    changes with every request (a time, a nonce, a billing mark) and no prefix cache can help. Block ids name whole
    prefixes, so what the hit rate were without it can't be known from a trace.
    """
    fresh = later = tokens = 0
    sizes = corpus.block_size.tolist()
    for row, place, shared, limit in _prefixes(corpus, None):
        if place and limit:
            later += 1
            fresh += not shared
            tokens += limit * sizes[row] * (not shared)
    return {"turns": fresh, "of": later, "share": fresh / later if later else None, "tokens": tokens}


def _prefixes(corpus: Corpus, kept: np.ndarray | None) -> Iterator[tuple[int, int, int, int]]:
    """(row, place in its tree, blocks seen before in the tree, whole blocks), tree by tree in the order of starts."""
    offsets = corpus.run_offset.tolist()
    firsts, counts = corpus.run_first.tolist(), corpus.run_count.tolist()
    blocks = (corpus.input_tokens // corpus.block_size).tolist()
    for low, high in pairwise(corpus.session_row.tolist()):
        seen, place = SeenBlocks(), 0
        for row in (low + np.argsort(corpus.start_s[low:high], kind="stable")).tolist():
            if kept is not None and not kept[row]:
                continue
            begin, end = offsets[row], offsets[row + 1]
            runs = list(zip(firsts[begin:end], counts[begin:end], strict=True))
            limit = min(blocks[row], sum(counts[begin:end]))
            shared, _ = seen.prefix(runs, limit)
            seen.add(runs, limit, row)
            yield row, place, shared, limit
            place += 1


def _flat_agents(corpus: Corpus) -> dict[str, int]:
    """Agents and side calls that the traces recorded flat, found by their prefix chains, and the requests of both."""
    agents = side_calls = requests = 0
    ends = corpus.start_s + np.nan_to_num(corpus.api_s)
    firsts, counts, offsets = corpus.run_first.tolist(), corpus.run_count.tolist(), corpus.run_offset.tolist()
    for low, high in pairwise(corpus.session_row.tolist()):
        for lane in np.unique(corpus.lane[low:high]).tolist():
            rows = low + np.flatnonzero(corpus.lane[low:high] == lane)
            rows = rows[np.argsort(corpus.start_s[rows], kind="stable")]
            recorded = []
            for row in rows.tolist():
                begin, end = offsets[row], offsets[row + 1]
                runs = list(zip(firsts[begin:end], counts[begin:end], strict=True))
                at, till, model = float(corpus.start_s[row]), float(ends[row]), int(corpus.model[row])
                tokens = int(corpus.input_tokens[row]), int(corpus.output_tokens[row])
                recorded.append(Recorded(at, till, model, runs, sum(counts[begin:end]), *tokens))
            for chain in find_chains(recorded)[1:]:
                agents += not chain.auxiliary
                side_calls += chain.auxiliary
                requests += len(chain.requests)
    return {"agents": agents, "side_calls": side_calls, "requests": requests}
