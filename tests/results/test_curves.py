"""Curves of runs: axes, stacks, ratios at equal speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.axes import X_AXES, Y_AXES, Money, rate_of, shown, x_of
from results.curves import StackCurve, View, by_stack, compare_curves, devices_of, hardware_of, point_of
from results.dataset import RunFiles
from results.errors import UserError
from results.stats import percentile, reciprocals

VIEW = View(X_AXES["interactivity"], "p90", Y_AXES["gpu"], "total")


def run(x: float | None, y: float | None, name: str = "r", **manifest: Any) -> RunFiles:
    summary: dict[str, Any] = {
        "run_id": name,
        "concurrency": 4,
        "interactivity": {"e2e_normalised": {"p90": x}},
        "throughput": {"total_tok_s": y},
    }
    return RunFiles(Path(name), summary, manifest)


def curve(points: list[tuple[float, float]], name: str = "a", view: View = VIEW, money: Money = Money()) -> StackCurve:  # noqa: B008
    runs = [run(x, y, f"{name}{k}") for k, (x, y) in enumerate(points)]
    return StackCurve(name, [point_of(one, view, 1) for one in runs], view, money)


def test_three_times_at_a_hundred_and_less_at_maximum_throughput() -> None:
    base = curve([(20, 10_000), (50, 4_000), (100, 1_000)])
    other = curve([(20, 14_000), (50, 9_000), (100, 3_000), (200, 500)], "b")
    found = compare_curves(base, other, [100])
    assert list(found.common or ()) == [20, 100]
    assert dict(found.at)[100] == pytest.approx(3.0)
    assert dict(found.at)[20] == pytest.approx(1.4)
    assert found.at_best == pytest.approx(1.4)


def test_curves_that_share_no_x_have_no_ratio_at_equal_speed() -> None:
    found = compare_curves(curve([(10, 5), (20, 4)]), curve([(30, 5), (40, 4)], "b"), [25])
    assert (found.common, found.at) == (None, ())
    assert found.at_best == 1.0


def test_a_ratio_of_dollars_is_turned_so_that_more_is_better() -> None:
    view = View(VIEW.x, "p90", Y_AXES["million"], "total")
    dear = curve([(10, 1_000), (20, 500)], view=view, money=Money(usd_per_device_hour=4.0))
    cheap = curve([(10, 1_000), (20, 500)], "b", view, Money(usd_per_device_hour=2.0))
    assert dict(compare_curves(dear, cheap).at) == {10: pytest.approx(2.0), 20: pytest.approx(2.0)}


def test_dollars_are_derived_from_the_interpolated_rate_not_splined() -> None:
    view = View(VIEW.x, "p90", Y_AXES["million"], "total")
    points = [(10.0, 4_000.0), (20.0, 1_000.0), (40.0, 100.0)]
    found = curve(points, view=view, money=Money(usd_per_device_hour=3.6))
    rate, _ = found.rate_at(15)
    assert rate is not None
    inside, outside = found.at(15), found.at(5)
    assert [inside[0], outside[0]] == pytest.approx([3.6e6 / 3600 / rate, 3.6e6 / 3600 / 4_000])
    assert [inside[1], outside[1]] == [False, True]


def test_a_dominated_and_an_unknown_point_are_no_part_of_the_curve() -> None:
    found = curve([(10, 100), (20, 50), (15, 40)])
    assert found.on_frontier == {"a0", "a1"}
    assert found.frontier.dominated == ("a2",)
    unknown = StackCurve("u", [point_of(run(None, 5, "n"), VIEW, 1)], VIEW, Money())
    assert unknown.frontier.excluded == ("n",)
    assert unknown.points[0].reason == "p90 E2E-normalised interactivity is not known"
    assert (unknown.at(3), unknown.span, unknown.best) == ((None, True), None, None)


def test_p132_the_p90_of_speed_is_one_over_the_p90_of_time() -> None:
    tpot = {f"p{q}": percentile(np.arange(10, 101, 10) / 1000, q) for q in (50, 75, 90, 95, 99)}
    assert tpot["p90"] == pytest.approx(0.091)
    summary = {"interactivity": {"itl": reciprocals(tpot)}, "intervals": {"latency.tpot_s.p90": [0.08, 0.1]}}
    x, ends = x_of(summary, X_AXES["interactivity-itl"], "p90")
    assert x == pytest.approx(10.99, abs=0.005)
    assert ends is not None
    assert list(ends) == pytest.approx([10.0, 12.5])


def test_every_axis_has_its_value_by_hand() -> None:
    money = Money(usd_per_device_hour=3.6, kw_per_device=2.0)
    figures = {name: shown(500.0, axis, "output", money) for name, axis in Y_AXES.items() if not axis.measured}
    assert figures == {
        "gpu": 500.0,
        "mw": pytest.approx(250_000),
        "usd": pytest.approx(500_000),
        "million": pytest.approx(2.0),
        "joule": pytest.approx(4.0),
    }
    assert shown(500.0, Y_AXES["usd"], "output", Money(0.0)) is None
    assert shown(500.0, Y_AXES["million"], "output", Money(0.0)) == 0.0
    assert shown(0.0, Y_AXES["million"], "output", money) is None


def test_measured_energy_is_interpolated_as_tokens_per_joule() -> None:
    view = View(VIEW.x, "p90", Y_AXES["joule-measured"], "total")
    runs = [run(x, 1.0, f"m{x}") for x in (10, 20)]
    for one, joules in zip(runs, (0.1, 0.4), strict=True):
        one.summary["power"] = {"joules_per_total_token": joules}
    found = StackCurve("m", [point_of(one, view, None) for one in runs], view, Money())
    assert found.at(10)[0] == pytest.approx(0.1)
    assert found.at(15)[0] == pytest.approx(1 / 6.25)  # half way from 10 to 2.5 tokens per joule
    assert point_of(run(1, 1), view, None).reason == "no power was measured for total tokens"


def test_rates_are_of_one_accelerator_and_never_negative() -> None:
    summary = {"throughput": {"total_tok_s": 800.0}, "intervals": {"throughput.total_tok_s": [720.0, 880.0]}}
    assert rate_of(summary, "total", 8) == (100.0, (90.0, 110.0), None)
    assert rate_of({}, "total", 8)[2] == "total tokens/s are not known"
    with pytest.raises(UserError, match="total_tok_s -1"):
        rate_of({"run_id": "r", "throughput": {"total_tok_s": -1.0}}, "total", 1)


def test_a_curve_for_each_stack_whatever_its_parallelism() -> None:
    def served(hardware: str, tp: int, **more: Any) -> dict[str, Any]:
        serving = {"engine": "vllm", "hardware": hardware, "tp": tp, "accelerators": tp, **more}
        return {"sweep": {"serving": serving}}

    offload = {"kind": "dram", "backend": "native"}
    runs = [
        run(1, 1, "a", **served("B200", 4)),
        run(2, 1, "b", **served("B200", 8, kv_offload=offload)),
        run(1, 1, "c", **served("MI355X", 8)),
    ]
    groups = by_stack(runs)
    assert {name: [one.run_id for one in members] for name, members in groups.items()} == {
        "B200": ["a", "b"],
        "MI355X": ["c"],
    }
    assert [devices_of(one, None) for one in runs] == [4, 8, 8]
    assert devices_of(runs[0], 2) == 2
    assert hardware_of(runs[2]) == "MI355X"
    assert [point_of(one, VIEW, 1).offload for one in runs] == [None, "dram", None]
    assert list(by_stack([run(1, 1)])) == ["all runs"]
