"""Cost of owning: by hand, against textbook values, properties, and files that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.errors import UserError
from results.tco import annuity, parse

FILE = """[capital]
server_usd = 43_800
network_usd = 8_760
dram_gb = 100
dram_usd_per_gb = 8.76
ssd_tb = 10
ssd_usd_per_tb = 87.6

[finance]
years = 5
interest_per_year = 0

[power]
it_kw = 1.6
pue = 1.25
load_share = 0.5
electricity_usd_per_kwh = 0.10

[colocation]
usd_per_kw_month = 73

[operations]
capital_share_per_year = 0.05
usd_per_month = 7.30
"""


def test_items_by_hand() -> None:
    tco = parse(FILE, "f")
    items = tco.items()
    assert items["server"] == pytest.approx(1.0)
    assert items["network"] == pytest.approx(0.2)
    assert items["host DRAM"] == pytest.approx(0.02)
    assert items["SSD"] == pytest.approx(0.02)
    assert items["cost of money"] == 0
    assert items["colocation"] == pytest.approx(1.6 * 73 * 12 / 8760)
    assert items["electricity"] == pytest.approx(2.0 * 0.5 * 0.10)
    assert items["operations"] == pytest.approx((0.05 * 54_312 + 12 * 7.30) / 8760)
    assert tco.usd_per_device_hour == pytest.approx(sum(items.values()))
    assert (tco.all_in_kw, tco.capital_usd) == pytest.approx((2.0, 54_312))
    assert parse(FILE.replace("it_kw = 1.6", "all_in_kw = 2.0"), "f").items() == pytest.approx(items)


def test_the_annuity_of_textbooks() -> None:
    """100,000 over 10 years: the recovery factor is 0.14903 at 8 %, 0.16275 at 10 %, and a tenth without interest."""
    assert annuity(100_000, 0, 0.08, 10) == pytest.approx(14_903, abs=0.5)
    assert annuity(100_000, 0, 0.10, 10) == pytest.approx(16_275, abs=0.5)
    assert annuity(100_000, 20_000, 0, 10) == 8_000
    assert annuity(100, 100, 0.1, 7) == pytest.approx(10)  # nothing is used up: interest alone


@given(st.floats(1, 1e6), st.floats(0, 1), st.floats(0, 1), st.floats(0.1, 50))
def test_money_costs_and_the_payments_pay_the_price(price: float, kept: float, interest: float, years: float) -> None:
    yearly = annuity(price, price * kept, interest, years)
    assert yearly >= price * (1 - kept) / years * (1 - 1e-9)
    if interest > 1e-6:
        worth = yearly * (1 - (1 + interest) ** -years) / interest + price * kept * (1 + interest) ** -years
        assert worth == pytest.approx(price, rel=1e-6)


@given(st.floats(1e-300, 1e-9))
def test_an_interest_near_zero_is_no_interest(interest: float) -> None:
    assert annuity(100, 10, interest, 5) == pytest.approx(18, rel=1e-6)


def test_with_interest_the_items_still_add_up() -> None:
    tco = parse(FILE.replace("interest_per_year = 0", "residual_share = 0.2\ninterest_per_year = 0.1"), "f")
    items = tco.items()
    bought = sum(items[name] for name in ("server", "network", "host DRAM", "SSD"))
    assert bought == pytest.approx(54_312 * 0.8 / 5 / 8760)
    assert bought + items["cost of money"] == pytest.approx(annuity(54_312, 0.2 * 54_312, 0.1, 5) / 8760)
    assert items["cost of money"] > 0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pue = 1.25", "pue = nan", "f.toml, line 15: power.pue: "),
        ("pue = 1.25", "pue = 0.9", "f.toml, line 15: power.pue: "),
        ("pue = 1.25", "pue = 1.25\nall_in_kw = 2", "f.toml, line 13: power: give it_kw or all_in_kw"),
        ("it_kw = 1.6\n", "", "f.toml, line 13: power: give it_kw or all_in_kw"),
        ("years = 5", "years = 0", "f.toml, line 10: finance.years: "),
        ("years = 5\n", "", "f.toml, line 9: finance: the key years is missing"),
        ("years = 5", "year = 5", "f.toml, line 10: finance.year: unknown key; known keys: years"),
        ("load_share = 0.5", "load_share = 1.5", "f.toml, line 16: power.load_share: "),
        ("[colocation]", "[colo]", "f.toml, line 19: colo: unknown key; known keys: capital"),
        ("server_usd = 43_800", "server_usd = -1", "f.toml, line 2: capital.server_usd: "),
        ("server_usd = 43_800", "server_usd = 43,800", "f.toml, line 2: not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(old: str, new: str, said: str) -> None:
    assert old in FILE
    with pytest.raises(UserError) as caught:
        parse(FILE.replace(old, new), "f.toml")
    assert str(caught.value).startswith(said)


def test_annuity_refuses_what_makes_no_sense() -> None:
    for arguments in ((-1, 0, 0.1, 5), (1, 0, float("nan"), 5), (1, 0, 0.1, 0)):
        with pytest.raises(UserError):
            annuity(*arguments)
