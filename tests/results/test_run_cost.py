"""Cost and profit of a run's summary, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from results.errors import UserError
from results.profit import Prices
from results.run_cost import Assumptions, run_cost
from results.tco import Capital, Finance, Power, Tco

PRICES = Prices(1.40, 4.40, 0.26)


def summary(**throughput: float | None) -> dict[str, Any]:
    rates = {"input": 80_000.0, "output": 800.0, "cached_input": 72_000.0, "computed_input": 8000.0, "total": 80_800.0}
    rates |= throughput  # type: ignore[arg-type]
    return {
        "run_id": "r",
        "throughput": {f"{kind}_tok_s": rate for kind, rate in rates.items()},
        "cache": {"achieved": 0.9},
    }


def of(document: dict[str, Any], price: float | None = 4.0, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"kw_per_device": 2.0, "prices": PRICES, "utilisation": 0.5, "licence_share": 0.1}
    return run_cost(document, Assumptions(devices=8, usd_per_device_hour=price, **(given | more)))


def test_figures_are_per_device() -> None:
    found = of(summary())
    assert found["usd_per_million"]["output"] == pytest.approx(4.0 / (100 * 3600 / 1e6))
    assert found["usd_per_million"]["input"] == pytest.approx(4.0 / (10_000 * 3600 / 1e6))
    assert found["tokens_per_s_per_mw"]["total"] == pytest.approx(10_100 * 1000 / 2)


def test_profit_bills_cached_tokens_once_and_at_their_own_price() -> None:
    full = 3600 / 1e6 * (10_000 * (0.1 * 1.40 + 0.9 * 0.26) + 100 * 4.40)
    found = of(summary())["profit"]
    assert found["revenue"] == pytest.approx(0.5 * full)
    assert found["profit"] == pytest.approx(0.5 * full * 0.9 - 4.0)


@pytest.mark.parametrize(("price", "output"), [(None, 800.0), (4.0, None)])
def test_what_is_not_known_is_null_with_its_reason(price: float | None, output: float | None) -> None:
    found = of(summary(output=output), price)
    assert found["profit"] is None
    assert found["reasons"]["profit"].startswith("not known: ")
    assert found["usd_per_million"]["output"] is None


def test_amounts_per_rack_and_per_mw_are_the_same_money() -> None:
    found = of(summary(), rack_devices=72)["profit"]
    assert found["per_rack_year"]["cost"] == pytest.approx(4.0 * 72 * 8760)
    assert found["per_mw_year"]["cost"] == pytest.approx(4.0 * 500 * 8760)
    for amounts in (found, found["per_rack_year"], found["per_mw_year"]):
        assert amounts["gross_margin"] == pytest.approx(amounts["revenue"] - amounts["cost"])
        assert amounts["profit"] == pytest.approx(amounts["gross_margin"] - amounts["licence"])
        assert amounts["licence"] == pytest.approx(0.1 * amounts["revenue"])


def test_payback_needs_the_capital() -> None:
    tco = Tco(
        capital=Capital(server_usd=8760, network_usd=0),
        finance=Finance(years=4, interest_per_year=0),
        power=Power(it_kw=1, pue=1, load_share=1, electricity_usd_per_kwh=0),
    )
    owned = of(summary(), tco=tco)["profit"]
    assert owned["months_to_pay_back"] == pytest.approx(12 / (owned["profit"] + 0.25))
    rented = of(summary())
    assert rented["profit"]["months_to_pay_back"] is None
    assert "--tco" in rented["reasons"]["profit.months_to_pay_back"]
    assert of(summary(), tco=tco, price=1e6)["reasons"]["profit.months_to_pay_back"] == "it never pays back"


def test_free_tokens_earn_nothing_and_say_so() -> None:
    found = of(summary(), prices=Prices(0, 0))
    assert (found["profit"]["revenue"], found["profit"]["profit"]) == (0, -4.0)
    for figure in ("gross_margin_share", "break_even_utilisation", "break_even_price"):
        assert found["profit"][figure] is None
        assert found["reasons"][f"profit.{figure}"] == "there is no revenue"


def test_zero_throughput_has_no_cost_per_token_and_a_whole_loss() -> None:
    found = of(summary(input=0.0, output=0.0, total=0.0, cached_input=0.0, computed_input=0.0))
    assert found["usd_per_million"]["total"] is None
    assert found["reasons"]["usd_per_million.total"] == "throughput is zero"
    assert found["profit"]["profit"] == -4.0


@pytest.mark.parametrize("document", [summary() | {"cache": {"achieved": None}}, summary() | {"cache": {}}])
def test_an_unknown_hit_rate_is_no_hit_rate_of_zero(document: dict[str, Any]) -> None:
    found = of(document)
    assert found["profit"] is None
    assert "cache hits" in found["reasons"]["profit"]
    assert found["usd_per_million"]["total"] is not None  # costs need no hit rate


def test_p134_more_cached_than_input_is_an_error_that_names_the_run() -> None:
    with pytest.raises(UserError, match=r"run r: more cached input \(90000 tok/s\) than input \(80000 tok/s\)"):
        of(summary(cached_input=90_000.0))
    of(summary(cached_input=80_000.0))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_impossible_figures_are_refused_by_name(value: float) -> None:
    with pytest.raises(UserError, match=r"run r: throughput\.output_tok_s"):
        of(summary(output=value))
    with pytest.raises(UserError, match=r"run r: cache\.achieved"):
        of(summary() | {"cache": {"achieved": value}})


def test_an_older_summary_lacks_figures_and_still_reads() -> None:
    found = of({"run_id": "r", "throughput": {"output_tok_s": 800.0}})
    assert found["usd_per_million"]["output"] is not None
    assert found["usd_per_million"]["input"] is None
