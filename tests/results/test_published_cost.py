"""Published figures of the InferenceX app and its articles, reproduced from what they were made of."""

from __future__ import annotations

from datetime import date

import pytest

from hardware.registry import load_registry
from results.cost import cost
from results.profit import device_hours_per_year, profit

BILLION = 1e9
# dsv4-pro at 75 tok/s/user, 60 % of hours sold, no licence fee; B$ per GW and year: revenue, profit.
RUBIN = ("vr-nvl72", 159.5, 149.9, 9.58)
GB300 = ("gb300-nvl72", 114.9, 105.3, 9.55)


@pytest.mark.parametrize(("name", "kw", "hours"), [("vr-nvl72", 3.3, 2.6545e9), ("gb300-nvl72", 2.12, 4.1321e9)])
def test_device_hours_of_a_gigawatt_year(name: str, kw: float, hours: float) -> None:
    assert load_registry().get(name).kw_all_in == kw
    assert device_hours_per_year(1000, kw) == pytest.approx(hours, rel=1e-4)
    assert device_hours_per_year(1000, kw) == pytest.approx(1e6 / kw * 8760)


@pytest.mark.parametrize(("name", "revenue", "published", "spent"), [RUBIN, GB300])
def test_profit_of_a_gigawatt_year(name: str, revenue: float, published: float, spent: float) -> None:
    """The cost side follows from kW and the hyperscaler tier, charged for all hours, and revenue - profit = cost.

    The revenue itself can't be derived: the articles print neither the throughput at 75 tok/s/user nor the hit rate and
    list price it was billed at.
    """
    device = load_registry().get(name)
    usd, kw = device.price("hyperscaler"), device.kw_all_in
    assert usd is not None
    assert kw is not None
    hours = device_hours_per_year(1000, kw)
    result = profit(revenue * BILLION / hours / 0.6, usd, utilisation=0.6)
    assert result.revenue * hours == pytest.approx(revenue * BILLION)
    assert result.cost * hours / BILLION == pytest.approx(spent, abs=0.005)
    assert result.cost * hours / BILLION == pytest.approx(revenue - published, abs=0.06)  # both rounded to 0.1
    assert result.profit * hours / BILLION == pytest.approx(published, abs=0.06)
    assert result.licence == 0


def test_cost_counts_all_hours_and_revenue_the_sold_ones() -> None:
    full, half = profit(100.0, 3.61, utilisation=1.0), profit(100.0, 3.61, utilisation=0.5)
    assert (full.cost, half.cost) == (3.61, 3.61)
    assert half.revenue == full.revenue / 2


@pytest.mark.parametrize(
    ("name", "mtok_s_mw", "tok_s"),
    [
        ("vr-nvl72", 59.4, 196_020),
        ("gb300-nvl72", 28.5, 60_420),
        ("gb300-nvl72", 21.1, 44_732),
        ("b200", 6.95, 11_884.5),
        ("b300", 5.56, 10_564),
        ("h200", 2.26, 3_096.2),
        ("mi355x", 2.01, 4_200.9),
    ],
)
def test_throughput_per_mw_and_per_device_are_one_figure(name: str, mtok_s_mw: float, tok_s: float) -> None:
    """Total tokens at 100 tok/s/user (P90), M tok/s/MW as published; the rate per device is ours: x kW / 1000."""
    kw = load_registry().get(name).kw_all_in
    assert cost({"total": tok_s}, None, kw).tokens_per_s_per_mw["total"] == pytest.approx(mtok_s_mw * 1e6)


@pytest.mark.parametrize(
    ("name", "published", "tok_s_at_20"), [("tpu-v7", 0.181, 9_364), ("b200", 0.222, 8_903), ("b300", 0.276, 8_925)]
)
def test_dollars_per_million_at_100_tok_s_per_user(name: str, published: float, tok_s_at_20: float) -> None:
    """$/M total, 8k/1k, qwen3.5 FP8. The tok/s behind them is not published, nor which tier was paid.

    What can be told: at each known price the figure stands for a rate below the one published for 20 tok/s/user, and
    at 20 tok/s/user a million tokens cost less than at 100.
    """
    device = load_registry().get(name)
    for tier in ("hyperscaler", "rental-3y"):
        usd = device.price(tier, as_of=date(2026, 7, 31))
        assert usd is not None
        implied = usd / published / 3600 * 1e6
        assert cost({"total": implied}, usd, None).usd_per_million["total"] == pytest.approx(published)
        at_20 = cost({"total": tok_s_at_20}, usd, None).usd_per_million["total"]
        assert at_20 is not None
        assert at_20 < published
        assert implied < tok_s_at_20


def test_older_tables_are_still_there_to_choose() -> None:
    h200 = load_registry().get("h200")
    april = date(2026, 4, 30)
    assert (h200.price("rental-3y"), h200.price("rental-3y", as_of=april)) == (2.9, 1.60)
    fact = h200.fact("usd_device_hour.rental-3y", source="CONSTANTS.ts")
    assert fact is not None
    assert fact.value == 1.60
    assert h200.fact("usd_device_hour.rental-3y", source="nobody") is None
