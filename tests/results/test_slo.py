"""Objectives: read, held against a summary, and never met by a figure that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from results.errors import UserError
from results.slo import judge, parse_objectives


def summary(ttft: float | None = 1.0, *, errors: float | None = 0.0, invalid: tuple[str, ...] = ()) -> dict[str, Any]:
    stats = {"p50": 0.5, "p90": ttft, "p99": 9.0, "mean": 0.6}
    return {
        "latency": {"ttft_s": stats, "tpot_s": {"p90": 0.04}},
        "requests": {"error_rate": errors},
        "intervals": {"latency.ttft_s.p90": [0.8, 1.3]},
        "invalid_reasons": list(invalid),
    }


def test_units_and_figures() -> None:
    parsed = parse_objectives(" ttft_p90<2s, tpot_p90 < 50ms,error_rate<1%")
    assert [(one.figure, one.limit) for one in parsed] == [("ttft_p90", 2.0), ("tpot_p90", 0.05), ("error_rate", 0.01)]


@pytest.mark.parametrize(
    "text", ["", "ttft_p90", "ttft_p90>2s", "ttft_p91<2s", "speed_p90<2s", "ttft_p90<2", "error_rate<1s", "ttft_p90<1%"]
)
def test_what_can_not_be_read_is_named(text: str) -> None:
    with pytest.raises(UserError, match="objective") as caught:
        parse_objectives(text)
    assert caught.value.remedy


def test_a_run_holds_or_says_what_it_breaks() -> None:
    objectives = parse_objectives("ttft_p90<2s,tpot_p90<50ms,error_rate<1%")
    assert judge(objectives, summary()).holds
    broken = judge(objectives, summary(2.0, errors=0.02))
    assert not broken.holds
    assert broken.why == ("ttft_p90 2 is not below 2", "error_rate 0.02 is not below 0.01")


def test_unknown_and_invalid_hold_nothing() -> None:
    """An upper bound is not met by what was never measured, nor by a run that refused its work."""
    objectives = parse_objectives("ttft_p90<2s")
    assert judge(objectives, summary(None)).why == ("ttft_p90 is not known",)
    assert judge(objectives, summary(invalid=("too many failures",))).why == ("too many failures",)


def test_a_limit_inside_the_interval_is_said_to_be_close() -> None:
    assert judge(parse_objectives("ttft_p90<1200ms"), summary()).close == ("ttft_p90<1200ms",)
    assert judge(parse_objectives("ttft_p90<2s"), summary()).close == ()
