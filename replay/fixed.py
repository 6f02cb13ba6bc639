"""Independent requests of one shape, as a corpus: the chip-level test, where nothing can come from a prefix cache."""

from __future__ import annotations

import hashlib

import numpy as np

from replay.corpus import MISSING, Corpus
from replay.scenario import Fixed

BLOCK_SIZE = 64
SESSIONS = 1024
"""The plan goes round them; every pass has words of its own."""


def fixed_corpus(shape: Fixed) -> Corpus:
    """`SESSIONS` sessions of one request each: `input_tokens` in, `output_tokens` out."""
    n = SESSIONS
    blocks = shape.input_tokens // BLOCK_SIZE
    name = f"fixed {shape.input_tokens}/{shape.output_tokens}"
    missing = np.full(n, MISSING, np.int32)
    return Corpus(
        meta={"name": name, "importer": "fixed"},
        digest=hashlib.sha256(name.encode()).hexdigest(),
        session_ids=[f"fixed-{k}" for k in range(n)],
        lane_names=["main"],
        models=[],
        stops=[],
        input_kind_sets=[("text",)],
        output_kind_sets=[("text",)],
        session_row=np.arange(n + 1, dtype=np.int64),
        lane=np.zeros(n, np.int32),
        parent_lane=missing,
        spawn_turn=missing,
        join_turn=missing,
        turn=np.zeros(n, np.int32),
        start_s=np.zeros(n),
        think_s=np.full(n, np.nan),
        api_s=np.full(n, np.nan),
        ttft_s=np.full(n, np.nan),
        input_tokens=np.full(n, shape.input_tokens, np.int64),
        output_tokens=np.full(n, shape.output_tokens, np.int64),
        block_size=np.full(n, BLOCK_SIZE, np.int32),
        run_offset=np.arange(n + 1, dtype=np.int64),
        run_first=np.zeros(n, np.int64),
        run_count=np.full(n, blocks, np.int64),
        system_tokens=np.zeros(n, np.int64),
        tool_tokens=np.zeros(n, np.int64),
        model=missing,
        stop=missing,
        streamed=np.ones(n, np.int8),
        input_kinds=np.zeros(n, np.int32),
        output_kinds=np.zeros(n, np.int32),
    )
