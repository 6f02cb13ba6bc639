"""Mid-session starts: a tree as it stood at one moment of its recording (FACTS 2.6, 2.7)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from replay.tree_types import Start, Tree


def start_share(seed: int, session_id: str, slot: int, low: float, high: float) -> float:
    """The share of its recorded duration at which a slot's first tree starts: even in [low, high], by a hash.

    Depends on seed, session and slot only, so that it is the same whatever the number of workers or the other slots.
    Drawn as the public runner draws it (NumPy's default generator, seeded with the hash), so that the same seed starts
    the same sessions at the same turns there and here.
    """
    digest = hashlib.sha256(f"{seed}:{session_id}:{slot}".encode()).digest()
    return low + (high - low) * np.random.default_rng(int.from_bytes(digest[:8], "big")).random()


def start_at(tree: Tree, share: float) -> Tree:
    """`tree` starting at `share` of the time from its first request to the start of its last.

    At least the last request stays to be sent.
    """
    first, last = tree.steps[0].start_s, max(step.start_s for step in tree.steps)
    moment = first + share * (last - first)
    streams: dict[int, list[int]] = {}
    for step in tree.steps:
        streams.setdefault(step.lane, []).append(step.index)
    done: set[int] = set()
    primers = []
    for members in streams.values():
        upcoming = next((k for k, i in enumerate(members) if tree.steps[i].start_s >= moment), len(members))
        done.update(members[:upcoming])
        if 0 < upcoming < len(members):
            primers.append(members[upcoming - 1])
    if not done:
        return tree
    return replace(tree, start=Start(moment, frozenset(done), tuple(sorted(primers))))
