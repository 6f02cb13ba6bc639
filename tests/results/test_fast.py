"""Faster decoding by hand: shares of a session, Amdahl with and without agents, and what it is worth in dollars."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from results.errors import UserError
from results.fast import Session, saved_s, sessions_of, speed_up, spread, time_by_cause
from results.fast_value import Market, fast_report, worth_it

S = 1_000_000_000


def session(*rows: dict[str, Any], wall: float | None = None) -> Session:
    """Rows are {sent, first, last, done} in seconds, and lane, tokens, human, ok."""
    at = {name: np.array([round(row[name] * S) for row in rows]) for name in ("sent", "first", "last", "done")}
    return Session(
        0,
        round((wall or max(row["done"] for row in rows)) * S),
        np.array([row.get("lane", 0) for row in rows]),
        at["sent"],
        at["first"],
        at["last"],
        at["done"],
        np.array([row.get("ok", True) for row in rows]),
        np.array([row.get("human", False) for row in rows]),
        np.array([row.get("tokens", 100.0) for row in rows], dtype=np.float64),
    )


def turn(sent: float, first: float, last: float, done: float | None = None, **more: Any) -> dict[str, Any]:
    return {"sent": sent, "first": first, "last": last, "done": last if done is None else done, **more}


ONE_LANE = session(turn(0, 1, 5, tokens=400), turn(7, 8, 9, 9.5, tokens=100), turn(10, 10.5, 11.5, human=True), wall=12)
"""12 s: decode 4 + 1 + 1, prefill 1 + 1 + 0.5, tool 2 and 0.5 at the end, human 0.5, an answer's end 0.5."""


def test_the_time_of_a_session_by_cause() -> None:
    assert time_by_cause(ONE_LANE) == pytest.approx(
        {"decode": 6.0, "prefill": 2.5, "tool": 2.5, "human": 0.5, "rest": 0.5}
    )


def test_what_overlaps_has_equal_parts_and_failures_are_rest() -> None:
    both = session(turn(0, 2, 6), turn(2, 4, 10, lane=1), turn(11, 12, 13, 14, ok=False), wall=14)
    # 0-2 prefill; 2-4 and 4-6 half and half, 6-10 decode; 10-11 silent; 11-14 a failed request.
    assert time_by_cause(both) == pytest.approx({"decode": 7.0, "prefill": 3.0, "tool": 1.0, "human": 0.0, "rest": 3.0})


@pytest.mark.parametrize("factor", [1.5, 2.0, 10.0, float("inf")])
def test_one_lane_is_amdahl_s_law(factor: float) -> None:
    found = speed_up(ONE_LANE, factor)
    assert found.low == found.high == pytest.approx(1 / (1 - 0.5 + 0.5 / factor))


def test_an_agent_beside_its_parent_shrinks_only_what_is_waited_for() -> None:
    # The parent decodes 0-4, then an agent 4-10 and the parent's own second turn 4-6; the third waits for both.
    rows = (turn(0, 0, 4), turn(4, 4, 6), turn(4, 4, 10, lane=1), turn(10, 10, 12))
    found = saved_s(session(*rows), 2.0)
    # 4 + 6 + 2 s of decoding follow each other: 6 s at most. That the third turn waited for the agent and not for a
    # tool of 4 s after the second turn is not in a run's times: 2 + 1 + 1 s at least.
    assert (found.low, found.high) == pytest.approx((4.0, 6.0))
    assert found.high < 14 / 2  # not the sum of all decoding


def test_where_the_end_is_another_request_s() -> None:
    # Lane 0 decodes to 10 s; an agent's single prefill ends at 9 s and can't shrink.
    rows = (turn(0, 0, 1), turn(1, 1, 10), turn(1, 9, 9, lane=1))
    found = saved_s(session(*rows), float("inf"))
    assert found.low == pytest.approx(2.0)  # the agent now ends last, at 8 s
    assert found.high == pytest.approx(10.0)


def test_an_agent_that_can_t_shrink_holds_up_whoever_may_have_waited_for_it() -> None:
    # The agent reads 1-9 s; the parent decodes 0-1, 1-8 and 9-10, then reads: the first and the last decoding can go.
    rows = (turn(0, 0, 1), turn(1, 9, 9, lane=1), turn(1, 1, 8), turn(9, 9, 10), turn(10, 14, 14))
    found = saved_s(session(*rows), float("inf"))
    assert (found.low, found.high) == pytest.approx((2.0, 9.0))


@dataclass
class _Step:
    lane: int
    anchor: int
    pause: float
    prefill: float
    decode: float
    barriers: list[int] = field(default_factory=list)


def _replayed(steps: list[_Step], factor: float) -> list[dict[str, Any]]:
    """The times that follow from causes: a pause after the anchor, and barriers without one."""
    rows: list[dict[str, Any]] = []
    for step in steps:
        sent = step.pause + (rows[step.anchor]["done"] if step.anchor >= 0 else 0.0)
        sent = max([sent, *(rows[barrier]["done"] for barrier in step.barriers)])
        first = sent + step.prefill
        rows.append(turn(sent, first, first + step.decode / factor, lane=step.lane))
    return rows


def _tree(draw: random.Random) -> list[_Step]:
    """A parent of some turns, some of which begin agents at once that a later turn joins, or none."""
    steps = [_Step(0, -1, 0.0, draw.uniform(0, 3), draw.uniform(0, 9))]
    parent, lane, waiting = 0, 0, []
    for _ in range(draw.randint(1, 5)):
        spawned = parent
        for _ in range(draw.choice((0, 0, 1, 3))):
            lane, last = lane + 1, spawned
            for number in range(draw.randint(1, 3)):
                pause = draw.uniform(0, 2) if number else 0.0
                steps.append(_Step(lane, last, pause, draw.uniform(0, 3), draw.uniform(0, 9)))
                last = len(steps) - 1
            waiting.append(last)
        joined = waiting if draw.random() < 0.6 else []
        steps.append(_Step(0, parent, draw.uniform(0, 4), draw.uniform(0, 3), draw.uniform(0, 9), list(joined)))
        waiting = [] if joined else waiting
        parent = len(steps) - 1
    return steps


@pytest.mark.parametrize("seed", range(150))
def test_the_bounds_hold_whatever_waited_for_what(seed: int) -> None:
    draw = random.Random(seed)
    steps = _tree(draw)
    before = sorted(_replayed(steps, 1.0), key=lambda row: row["sent"])
    for factor in (1.3, 2.0, 8.0, 1e9):
        truth = max(row["done"] for row in before) - max(row["done"] for row in _replayed(steps, factor))
        found = saved_s(session(*before), factor)
        assert found.low - 1e-6 <= truth <= found.high + 1e-6
        if len({step.lane for step in steps}) == 1:
            assert found.low == pytest.approx(found.high)


def test_percentiles_are_of_sessions() -> None:
    assert spread([1.0, 2.0, 3.0]) == pytest.approx({"p10": 1.2, "p50": 2.0, "p90": 2.8})
    assert spread([]) == {"p10": None, "p50": None, "p90": None}
    assert spread([1.0, float("inf"), float("inf")])["p90"] is None


def test_break_even_by_hand() -> None:
    # 600 tokens, 3 s saved at twice the speed.
    report = fast_report([ONE_LANE], Market((2.0,), (45.0,), batch_usd=5.0, hour_usd=60.0))
    (at,) = report["by_factor"]
    assert at["saved_hours"] == pytest.approx({"low": 3 / 3600, "high": 3 / 3600})
    assert at["break_even_usd_per_million"]["low"] == pytest.approx(5 + 3 / 3600 * 60 / 600e-6)
    (priced,) = at["by_price"]
    hour = 40 * 600e-6 / (3 / 3600)
    assert priced["break_even_hour_usd"] == pytest.approx({"low": hour, "high": hour})
    assert report["output_tokens"] == 600
    assert report["time_share"]["decode"]["all"] == 0.5
    assert report["time_share"]["queue"] is None
    assert "prefill" in report["reasons"]["time_share.queue"]


def test_two_tiers_are_never_dearer_than_one_without_overlap() -> None:
    # Turns of 10, 100 and 1 tokens/s; at twice the speed a second saved is worth 60 / 3600 $.
    slow = session(turn(0, 0, 10, tokens=100), turn(10, 10, 11, tokens=100), turn(11, 11, 21, tokens=10), wall=21)
    market = Market((2.0,), (300.0,), batch_usd=10.0, hour_usd=60.0)
    # Saved 5, 0.5 and 5 s are worth 0.0833, 0.00833 and 0.0833 $; 290 $/M is 0.029, 0.029 and 0.0029 $ more.
    assert worth_it(slow, 2.0, 300.0, market, 60.0).tolist() == [True, False, True]
    plan = fast_report([slow], market)["by_factor"][0]["by_price"][0]["plan"]
    assert plan["turns_worth_it"] == pytest.approx(2 / 3)
    expected = {
        "all_batch": (210 * 10e-6, 21.0, 0.0),
        "two_tiers": (110 * 300e-6 + 100 * 10e-6, 11.0, 110 / 210),
        "all_fast": (210 * 300e-6, 10.5, 1.0),
    }
    for tier, (usd, seconds, share) in expected.items():
        found = plan[tier]
        assert found["usd"] == pytest.approx(usd)
        assert found["hours"]["low"] == found["hours"]["high"] == pytest.approx(seconds / 3600)
        assert found["total_usd"]["low"] == pytest.approx(usd + seconds / 3600 * 60)
        assert found["fast_token_share"] == pytest.approx(share)
    totals = [plan[tier]["total_usd"]["high"] for tier in ("two_tiers", "all_batch", "all_fast")]
    assert totals[0] == min(totals)


def test_what_is_not_known_is_null_with_its_reason() -> None:
    no_hour = fast_report([ONE_LANE], Market())
    assert no_hour["by_factor"][0]["break_even_usd_per_million"] is None
    assert no_hour["by_factor"][0]["by_price"][0]["plan"] is None
    assert "--hour-usd" in no_hour["reasons"]["plan"]
    uncounted = fast_report([session(turn(0, 1, 5, tokens=np.nan))], Market(hour_usd=9.0))
    first = uncounted["by_factor"][0]
    assert uncounted["output_tokens"] is first["break_even_usd_per_million"] is first["by_price"][0]["plan"] is None
    assert first["by_price"][0]["break_even_hour_usd"] == {"low": None, "high": None}
    assert {"output_tokens", "plan", "break_even_usd_per_million", "break_even_hour_usd"} <= set(uncounted["reasons"])
    assert "no session" in fast_report([], Market())["reasons"]["sessions"]
    only = fast_report([session(turn(0, 0, 5))], Market())
    assert only["ceiling"]["low"]["p50"] is None
    assert "ceiling" in only["reasons"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"factors": (1.0,)}, "--speed-up 1"),
        ({"factors": (float("nan"),)}, "--speed-up nan"),
        ({"fast_usd": (3.0,), "batch_usd": 4.0}, "--fast-price 3 is below --batch-price 4"),
        ({"hour_usd": -1.0}, "--hour-usd"),
    ],
)
def test_wrong_assumptions_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Market(**wrong)


def test_only_sessions_replayed_whole_count() -> None:
    names = ("a", "b", "c", "d")
    requests: dict[str, Any] = {
        "session_id": list(names), "pass": [0] * 4, "lane_id": ["main"] * 4,
        "phase": ["steady", "steady", "warmup", "steady"], "status": ["ok"] * 4, "sent_ns": [5] * 4,
        "first_token_ns": [6] * 4, "last_token_ns": [8] * 4, "done_ns": [9] * 4, "output_tokens": [3] * 4,
        "flags": [None] * 4,
    }  # fmt: skip
    trees: dict[str, Any] = {
        "session_id": list(names), "pass": [0] * 4, "end": ["completed", "cut_off", "completed", "completed"],
        "partial": [False, False, False, True], "started_ns": [0] * 4, "ended_ns": [10] * 4,
    }  # fmt: skip
    (found,) = sessions_of(requests, trees)
    assert found.wall_ns == 10
    assert time_by_cause(found) == pytest.approx(
        {"decode": 2e-9, "prefill": 1e-9, "tool": 6e-9, "human": 0.0, "rest": 1e-9}
    )
