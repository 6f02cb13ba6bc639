"""Small corpora for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replay.corpus import COLUMNS, Corpus, CorpusWriter


def runs_of(ids: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for block in ids:
        if runs and sum(runs[-1]) == block:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((block, 1))
    return runs


def row(*, ids: Sequence[int], block_size: int = 64, **fields: Any) -> dict[str, Any]:
    """One corpus row; what is not given is null, the lane is `main`."""
    base: dict[str, Any] = dict.fromkeys(COLUMNS)
    base |= {"session_id": "s", "lane_id": "main", "api_s": 0.0, "input_kinds": ["text"]}
    return {**base, "blocks": runs_of(ids), "block_size": block_size, **fields}


def write_corpus(path: Path, sessions: Sequence[Sequence[dict[str, Any]]]) -> Corpus:
    with CorpusWriter(path, {"name": "test"}) as writer:
        for rows in sessions:
            writer.add_session(rows)
    return Corpus.load(path)
