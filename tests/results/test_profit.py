"""Cost and profit: published figures, hand-made edges, properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.cost import KINDS, cost
from results.errors import UserError
from results.profit import LIST_PRICES, Prices, bill, device_hours_per_year, profit, revenue_per_hour


@pytest.mark.parametrize(("prompt", "inside"), [(100_000, True), (10_000, False)])
def test_p134_cached_tokens_are_billed_once_in_either_dialect(prompt: int, inside: bool) -> None:
    prices = Prices(3, 15, 0.3)
    dollars = bill(prices, prompt=prompt, cached=90_000, output=1_000, cached_inside=inside)
    assert dollars == pytest.approx(0.072)


def test_p134_more_cached_than_prompt_is_an_error() -> None:
    with pytest.raises(UserError, match="101 cached"):
        bill(Prices(3, 15), prompt=100, cached=101, output=0, cached_inside=True)


@pytest.mark.parametrize(
    ("kw", "usd", "revenue", "published", "spent"), [(3.3, 3.61, 159.5, 149.9, 9.58), (2.12, 2.31, 114.9, 105.3, 9.55)]
)
def test_published_profit_per_gigawatt_year(
    kw: float, usd: float, revenue: float, published: float, spent: float
) -> None:
    hours = device_hours_per_year(1000, kw)
    result = profit(revenue * 1e9 / hours / 0.6, usd, utilisation=0.6)
    assert result.cost * hours / 1e9 == pytest.approx(spent, abs=0.006)
    assert result.profit * hours / 1e9 == pytest.approx(published, abs=0.1)


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
    assert LIST_PRICES["zai"].cached == 0.26


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
