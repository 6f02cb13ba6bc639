"""Cost and profit of a run's summary, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from results.profit import LIST_PRICES
from results.run_cost import run_cost


def summary(**throughput: float | None) -> dict[str, Any]:
    rates = {"input": 80_000.0, "output": 800.0, "cached_input": 72_000.0, "computed_input": 8000.0, "total": 80_800.0}
    rates |= throughput  # type: ignore[arg-type]
    return {
        "run_id": "r",
        "throughput": {f"{kind}_tok_s": rate for kind, rate in rates.items()},
        "cache": {"achieved": 0.9},
    }


def of(document: dict[str, Any], price: float | None = 4.0) -> dict[str, Any]:
    return run_cost(document, 8, price, 2.0, LIST_PRICES["zai"], utilisation=0.5, licence_share=0.1)


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
