"""Tornado and Monte Carlo: ranges, ends, distributions, seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.errors import UserError
from results.profit import Point, Prices
from results.sensitivity import PARAMETERS, Range, monte_carlo, parse, ranges_for, tornado

POINT = Point(10_000, 100, 0.9, 3.7, Prices(1.0, 4.0, 0.1), kw_per_device=1.71)
MEASURED: dict[str, Any] = {
    "throughput": {"total_tok_s": 1000.0},
    "intervals": {"throughput.total_tok_s": [950.0, 1100.0], "cache.achieved": [0.85, 0.92]},
}


def test_ranges_come_from_the_run_and_the_registry_where_they_can() -> None:
    found = ranges_for(POINT, MEASURED, published_usd=[1.73, 2.07], published_kw=[1.71, 2.17])
    assert (found["throughput_factor"].low, found["throughput_factor"].high) == pytest.approx((0.95, 1.1))
    assert (found["hit_rate"].low, found["hit_rate"].high) == (0.85, 0.92)
    assert (found["usd_per_device_hour"].low, found["usd_per_device_hour"].high) == (1.73, 3.7)  # widened to the point
    assert found["usd_per_device_hour"].distribution == "uniform"
    assert (found["kw_per_device"].low, found["kw_per_device"].high) == (1.71, 2.17)
    assert "licence_share" not in found
    assert found.keys() <= PARAMETERS.keys()


def test_without_intervals_or_registry_the_defaults_stay_in_bounds() -> None:
    found = ranges_for(replace(POINT, hit_rate=0.98, utilisation=0.95), {})
    assert (found["hit_rate"].low, found["hit_rate"].high) == pytest.approx((0.93, 1.0))
    assert (found["utilisation"].low, found["utilisation"].high) == pytest.approx((0.75, 1.0))
    assert "no interval" in found["throughput_factor"].why
    assert "kw_per_device" not in ranges_for(replace(POINT, kw_per_device=None), {"intervals": None})


def test_the_tornado_by_hand() -> None:
    spans = {
        "price_factor": Range(0.8, 1.2, 1.0, "triangular", ""),
        "usd_per_device_hour": Range(3.0, 4.0, 3.7, "uniform", ""),
        "kw_per_device": Range(1.0, 2.0, 1.71, "uniform", ""),
        "utilisation": Range(0.6, 0.6, 0.6, "uniform", ""),
    }
    full = 3600 / 1e6 * (10_000 * (0.1 * 1.0 + 0.9 * 0.1) + 100 * 4.0)
    bars = {bar.parameter: bar for bar in tornado(POINT, spans)}
    assert bars["price_factor"].profit_at_low == pytest.approx(0.8 * 0.6 * full - 3.7)
    assert bars["price_factor"].profit_at_high == pytest.approx(1.2 * 0.6 * full - 3.7)
    assert bars["usd_per_device_hour"].swing == pytest.approx(1.0)
    assert bars["utilisation"].swing == 0
    kw, profit = bars["kw_per_device"], 0.6 * full - 3.7
    assert kw.swing == 0
    assert (kw.mw_year_at_low, kw.mw_year_at_high) == pytest.approx((profit * 1000 * 8760, profit * 500 * 8760))
    assert next(iter(bars)) == max(bars, key=lambda name: bars[name].swing)
    assert tornado(replace(POINT, kw_per_device=None), {"utilisation": spans["utilisation"]})[0].mw_year_at_low is None


def test_draws_are_seeded_and_independent_of_what_else_varies() -> None:
    spans = ranges_for(POINT, MEASURED)
    assert monte_carlo(POINT, spans, 200, 1) == monte_carlo(POINT, spans, 200, 1)
    assert monte_carlo(POINT, spans, 200, 1) != monte_carlo(POINT, spans, 200, 2)
    one, other = ({name: Range(0.8, 1.2, 1.0, "uniform", "")} for name in ("price_factor", "throughput_factor"))
    assert monte_carlo(POINT, one, 200, 1) != monte_carlo(POINT, other, 200, 1)  # factors alike, but streams apart
    still = {"utilisation": Range(0.6, 0.6, 0.6, "uniform", "")}
    assert monte_carlo(POINT, one | still, 200, 1) == monte_carlo(POINT, one, 200, 1)


def test_the_distributions_are_what_they_are_called() -> None:
    """Means: uniform (a+b)/2, triangular (a+b+c)/3; 20,000 draws hold them to about 0.5 %."""
    rng = np.random.default_rng(0)
    assert Range(0, 3, 3, "uniform", "").draw(rng, 20_000).mean() == pytest.approx(1.5, rel=0.02)
    assert Range(0, 3, 3, "triangular", "").draw(rng, 20_000).mean() == pytest.approx(2.0, rel=0.02)
    assert set(Range(2, 2, 2, "triangular", "").draw(rng, 5)) == {2}


def test_quantiles_and_losses_of_one_uniform_price() -> None:
    """Profit falls with the price one to one: uniform from 0 to 2 x the break-even price loses half of the time."""
    even = POINT.profit().revenue
    found = monte_carlo(POINT, {"usd_per_device_hour": Range(0, 2 * even, even, "uniform", "")}, 20_000, 0)
    assert found["loss_share"] == pytest.approx(0.5, abs=0.02)
    assert found["profit_per_device_hour"]["p5"] == pytest.approx(-0.9 * even, rel=0.03)
    assert found["profit_per_device_hour"]["p95"] == pytest.approx(0.9 * even, rel=0.03)
    assert found["profit_per_mw_year"]["p95"] == pytest.approx(
        found["profit_per_device_hour"]["p95"] * 1000 / 1.71 * 8760
    )


def test_a_sure_loss_and_no_kw() -> None:
    free = replace(POINT, prices=Prices(0, 0), kw_per_device=None)
    found = monte_carlo(free, ranges_for(free, {}), 50, 0)
    assert found["loss_share"] == 1.0
    assert found["profit_per_mw_year"] is None
    still = monte_carlo(POINT, {}, 3, 0)["profit_per_device_hour"]
    assert still["p5"] == still["p95"] == pytest.approx(POINT.profit().profit)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 20), st.integers(0, 99))
def test_every_default_range_can_be_drawn(hit: float, sold: float, usd: float, seed: int) -> None:
    point = replace(POINT, hit_rate=hit, utilisation=sold, usd_per_device_hour=usd)
    spans = ranges_for(point, {})
    found = monte_carlo(point, spans, 20, seed)["profit_per_device_hour"]
    assert found["p5"] <= found["p50"] <= found["p95"]
    for bar in tornado(point, spans):
        assert bar.low <= getattr(point, bar.parameter) <= bar.high


def test_a_file_replaces_the_range_of_its_name() -> None:
    given_ = parse("[hit_rate]\nlow = 0.5\nhigh = 0.6\n[licence_share]\nlow = 0.1\nhigh = 0.3\nmode = 0.2", "f")
    found = ranges_for(POINT, MEASURED, given=given_)
    assert found["hit_rate"] == Range(0.5, 0.6, 0.6, "triangular", "the ranges file")  # the point's 0.9 is outside
    assert found["licence_share"].mode == 0.2
    with pytest.raises(UserError, match="no kW is known"):
        ranges_for(replace(POINT, kw_per_device=None), {}, given=parse("[kw_per_device]\nlow = 1\nhigh = 2", "f"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[price]\nlow = 1\nhigh = 2", "f.toml, line 1: price: no such assumption; known: price_factor"),
        ("[hit_rate]\nlow = 2\nhigh = 1", "f.toml, line 1: hit_rate: low <= mode <= high does not hold"),
        ("[price_factor]\nlow = 1\nhigh = 2\nmode = 3", "f.toml, line 1: price_factor: low <= mode"),
        ("[hit_rate]\nlow = 0\nhigh = 90", "f.toml, line 3: hit_rate.high: a share is from 0 to 1"),
        ("[kw_per_device]\nlow = 0\nhigh = 2", "f.toml, line 2: kw_per_device.low: kW is positive"),
        ("[price_factor]\nlow = nan\nhigh = 2", "f.toml, line 2: price_factor.low: "),
        ('[price_factor]\nlow = 1\nhigh = 2\ndistribution = "normal"', "f.toml, line 4: price_factor.distribution: "),
        ("[price_factor]\nhigh = 2", "f.toml, line 1: price_factor: the key low is missing"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "f.toml")
    assert str(caught.value).startswith(said)
