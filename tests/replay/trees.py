"""Hand-made trees for tests: only what the scheduler looks at."""

from __future__ import annotations

from collections.abc import Sequence

from replay.tree_types import Step, Tree


def make_tree(causes: Sequence[Sequence[int]], delays: Sequence[float] | None = None, session: int = 0) -> Tree:
    """A tree whose step i waits for `causes[i]` and is due `delays[i]` seconds after the last of them by number."""
    steps = [
        Step(
            index=i,
            row=i,
            lane=0,
            turn=i,
            start_s=float(i),
            end_s=float(i),
            runs=[(0, 1)],
            whole_blocks=1,
            block_size=64,
            recorded_input=64,
            output_tokens=1,
            input_tokens=64,
            anchor=max(after, default=-1),
            after=tuple(after),
            delay_s=delays[i] if delays else 0.0,
        )
        for i, after in enumerate(causes)
    ]
    dependents = tuple(tuple(j for j, after in enumerate(causes) if i in after) for i in range(len(causes)))
    return Tree(session, tuple(steps), dependents, [(0, 1)], 0, (0, 0))
