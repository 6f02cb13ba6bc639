"""Cost and profit: published figures, hand-made edges, properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.cost import KINDS, cost
from results.errors import UserError
from results.profit import Point, Prices, bill, profit, revenue_per_hour


@pytest.mark.parametrize(("prompt", "inside"), [(100_000, True), (10_000, False)])
def test_p134_cached_tokens_are_billed_once_in_either_dialect(prompt: int, inside: bool) -> None:
    prices = Prices(3, 15, 0.3)
    dollars = bill(prices, prompt=prompt, cached=90_000, output=1_000, cached_inside=inside)
    assert dollars == pytest.approx(0.072)


def test_p134_more_cached_than_prompt_is_an_error() -> None:
    with pytest.raises(UserError, match="101 cached"):
        bill(Prices(3, 15), prompt=100, cached=101, output=0, cached_inside=True)


def test_power_figures_agree_with_each_other() -> None:
    figures = cost({"total": 1000.0}, 3.6, 2.0)
    assert figures.tokens_per_s_per_mw["total"] == 500_000
    assert figures.joules_per_token["total"] == 2.0
    assert figures.tokens_per_usd["total"] == 1e6
    assert figures.usd_per_million["total"] == 1.0


def test_unknown_and_zero_throughput_are_none_with_the_reason() -> None:
    figures = cost({"input": 0.0}, 1.0, 1.0)
    assert [figures.usd_per_million[kind] for kind in KINDS] == [None] * 5
    assert figures.reasons["usd_per_million.input"] == "throughput is zero"
    assert figures.reasons["joules_per_token.output"] == "throughput is not known"
    assert cost({"input": 5.0}, 0.0, None).reasons["tokens_per_usd.input"] == "the price is zero"


def test_negative_margin_zero_price_and_idle() -> None:
    loss = profit(1.0, 2.0, utilisation=0.5, licence_share=0.1)
    assert (loss.gross_margin, loss.profit) == pytest.approx((-1.5, -1.55))
    assert loss.months_to_pay_back(1000) is None
    idle = profit(5.0, 2.0, utilisation=0)
    assert (idle.profit, idle.break_even_price, idle.break_even_utilisation) == (-2.0, None, 0.4)
    free = revenue_per_hour(Prices(0, 0), input_tok_s=9, output_tok_s=9, hit_rate=0.5)
    assert profit(free, 1.0).break_even_utilisation is None


def test_unlisted_cached_price_is_a_tenth_of_input() -> None:
    assert Prices(2.0, 8.0).cached == pytest.approx(0.2)
    assert Prices(2.0, 8.0, 0.0).cached == 0


def test_payback_counts_what_comes_in_before_the_capital_is_paid_for() -> None:
    owned = profit(10.0, 2.0, utilisation=0.5, licence_share=0.1)  # profit 2.5, of the cost 1.5 are the capital's own
    assert owned.months_to_pay_back(4 * 730) == pytest.approx(4 / 2.5)
    assert owned.months_to_pay_back(4 * 730, 1.5) == pytest.approx(1.0)
    assert owned.months_to_pay_back(0) == 0
    losing = profit(4.0, 2.5, utilisation=0.5)
    assert losing.months_to_pay_back(730) is None
    assert losing.months_to_pay_back(730, 1.5) == pytest.approx(1.0)  # it loses, and yet brings cash in


def test_margin_is_a_share_of_revenue_where_there_is_some() -> None:
    assert profit(4.0, 1.0, utilisation=0.5).margin == pytest.approx(0.5)
    assert profit(4.0, 4.0, utilisation=0.5).margin == pytest.approx(-1.0)
    assert profit(0.0, 1.0).margin is None


@pytest.mark.parametrize(
    "name", ["input_tok_s", "hit_rate", "usd_per_device_hour", "price_factor", "throughput_factor"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_point_of_impossible_numbers_has_no_profit(name: str, value: float) -> None:
    good: dict[str, Any] = {"input_tok_s": 9.0, "output_tok_s": 1.0, "hit_rate": 0.5, "usd_per_device_hour": 1.0}
    with pytest.raises(UserError):
        Point(**(good | {"prices": Prices(1, 2), name: value})).profit()


amounts = st.floats(0.01, 1e4)


@given(amounts, amounts, st.floats(0.01, 1), st.floats(0, 0.9))
def test_break_even_breaks_even(full: float, usd: float, utilisation: float, licence: float) -> None:
    result = profit(full, usd, utilisation=utilisation, licence_share=licence)
    assert result.break_even_price is not None
    assert result.break_even_utilisation is not None
    again = profit(full * result.break_even_price, usd, utilisation=utilisation, licence_share=licence)
    assert again.profit == pytest.approx(0, abs=1e-9 * usd)
    if result.break_even_utilisation <= 1:
        at = profit(full, usd, utilisation=result.break_even_utilisation, licence_share=licence)
        assert at.profit == pytest.approx(0, abs=1e-9 * usd)


@given(amounts, amounts, st.floats(0, 1), st.floats(0.1, 10))
def test_revenue_is_linear_in_price(inputs: float, outputs: float, hit: float, factor: float) -> None:
    one = revenue_per_hour(Prices(1, 4), input_tok_s=inputs, output_tok_s=outputs, hit_rate=hit)
    more = revenue_per_hour(Prices(factor, 4 * factor), input_tok_s=inputs, output_tok_s=outputs, hit_rate=hit)
    assert more == pytest.approx(factor * one)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_revenue_is_the_bill_of_an_hour_s_tokens(computed: int, cached: int, output: int) -> None:
    """Both dialects of P134 come to the same dollars, and to what an hour at these rates earns."""
    prices, prompt = Prices(1.4, 4.4, 0.26), computed + cached
    inside = bill(prices, prompt=prompt, cached=cached, output=output, cached_inside=True)
    beside = bill(prices, prompt=computed, cached=cached, output=output, cached_inside=False)
    hit = cached / prompt if prompt else 0.0
    earned = revenue_per_hour(prices, input_tok_s=prompt / 3600, output_tok_s=output / 3600, hit_rate=hit)
    assert inside == beside == pytest.approx(earned, rel=1e-9, abs=1e-12)
