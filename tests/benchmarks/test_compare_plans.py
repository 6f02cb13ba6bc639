"""The comparison of plans with the public runner's: its judgement, without the runner."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.compare_plans import all_before, count_session, matched
from tests.replay.trees import make_tree

TREE = make_tree([[], [0], [0], [1, 2]], [0, 5, 0, 7])  # all in one stream, a second apart, one token each
PAUSES = [None, 5.0, 0.0, 7.0]


def turns(after: list[list[int]], pauses: list[float | None] | None = None, out: int = 1) -> list[dict[str, Any]]:
    waits = [[[0, cause] for cause in causes] for causes in after]
    every = zip(pauses or PAUSES, waits, strict=True)
    return [
        {"t": float(k), "out": out, "pause": pause, "after": wait, "hit_blocks": 1, "blocks": 2}
        for k, (pause, wait) in enumerate(every)
    ]


def judged(theirs: list[dict[str, Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    count_session(counts, TREE, [theirs, []])
    return counts


def test_everything_before_a_request_is_found_through_its_causes() -> None:
    assert all_before({0: set(), 1: {0}, 2: {1}, 3: {2, 0}}) == {0: set(), 1: {0}, 2: {0, 1}, 3: {0, 1, 2}}


def test_the_same_plan_is_the_same_though_written_with_other_causes() -> None:
    counts = judged(turns([[], [0], [0], [0, 1, 2]]))
    assert (counts["sessions with the same streams"], counts["equal pauses"], counts["pauses"]) == (1, 3, 3)
    assert (counts["waits for more here"], counts["waits for less here"]) == (0, 0)
    assert (counts["streams"], counts["requests"], counts["blocks"], counts["hit blocks"]) == (1, 4, 8, 4)
    assert (counts["whole blocks here"], counts["hit blocks here"]) == (4, 3)


def test_other_pauses_and_other_order_are_counted() -> None:
    counts = judged(turns([[], [0], [1], [1]], [None, 5.0, 0.0, 7.1]))
    assert (counts["equal pauses"], counts["pauses"]) == (2, 3)
    assert counts["waits for less here"] == 1  # request 2 waits for 1 there
    assert counts["waits for more here"] == 1  # request 3 waits for 2 here


def test_requests_parted_into_other_streams_are_no_match() -> None:
    whole = turns([[], [0], [0], [1]])
    assert matched(TREE, [whole[:2], whole[2:]]) is None
    assert matched(TREE, [whole[:3]]) is None
    assert matched(TREE, [turns([[], [0], [0], [1]], out=2)]) is None
    assert "sessions with the same streams" not in judged(turns([[], [0], [0], [1]], out=2))
