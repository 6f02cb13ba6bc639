"""What an accelerator costs to own: dollars per device-hour, item by item, from a TOML file. Pure.

All amounts are per device, so that the sum is the same $/device-hour that the registry's tables give. Every hour of the
year is paid for, whether it is sold or not (`results.profit` has the utilisation).
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from hardware.toml_file import KeyPath, convert, parse_tables
from results.cost import require_amount
from results.profit import HOURS_PER_YEAR

_Amount = Annotated[float, msgspec.Meta(ge=0, lt=1e30)]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Capital(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is bought, per device."""

    server_usd: _Amount
    """The device with its share of the server: host, chassis, NICs."""
    network_usd: _Amount
    """Its share of switches, optics and cables."""
    dram_gb: _Amount = 0.0
    """Host memory for KV offload that the server's price does not hold."""
    dram_usd_per_gb: _Amount = 0.0
    ssd_tb: _Amount = 0.0
    ssd_usd_per_tb: _Amount = 0.0


class Finance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the capital is paid."""

    years: _Positive
    """Over which it is written off."""
    residual_share: _Share = 0.0
    """Of the price, left at the end."""
    interest_per_year: _Share
    """Cost of money: 0.10 is 10 % a year."""


class Power(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of a device with its share of hosts and network; exactly one of the two kW."""

    it_kw: _Positive | None = None
    """At full load, at the rack: before the losses that PUE counts."""
    all_in_kw: _Positive | None = None
    """At full load, at the utility: `it_kw` x `pue`, as `kw_all_in` of the registry."""
    pue: Annotated[float, msgspec.Meta(ge=1, lt=1e30)]
    load_share: _Share
    """Mean draw over the draw at full load."""
    electricity_usd_per_kwh: _Amount

    def __post_init__(self) -> None:
        if (self.it_kw is None) == (self.all_in_kw is None):
            raise ValueError("give it_kw or all_in_kw, one of them")


class Colocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Space, cooling and the power connection, billed on the IT kW reserved; electricity is apart."""

    usd_per_kw_month: _Amount


class Operations(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """People, spares, support."""

    capital_share_per_year: _Share = 0.0
    usd_per_month: _Amount = 0.0


class Tco(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A TCO file."""

    capital: Capital
    finance: Finance
    power: Power
    colocation: Colocation = Colocation(usd_per_kw_month=0.0)
    operations: Operations = Operations()

    @property
    def all_in_kw(self) -> float:
        """Utility power per device at full load."""
        return self.power.all_in_kw or (self.power.it_kw or 0.0) * self.power.pue

    @property
    def capital_usd(self) -> float:
        """Price of everything bought, per device."""
        return sum(self._bought().values())

    @property
    def capital_usd_per_hour(self) -> float:
        """Depreciation and cost of money, $ per device-hour."""
        left = self.capital_usd * self.finance.residual_share
        return annuity(self.capital_usd, left, self.finance.interest_per_year, self.finance.years) / HOURS_PER_YEAR

    @property
    def usd_per_device_hour(self) -> float:
        """The sum of `items`."""
        return sum(self.items().values())

    def items(self) -> dict[str, float]:
        """$ per device-hour by item: straight-line depreciation of each thing bought, then what else is paid.

        The cost of money is what the annuity is above the depreciation. Colocation is billed on the IT kW, electricity
        on the utility's kW x the mean load.
        """
        kept = (1 - self.finance.residual_share) / self.finance.years / HOURS_PER_YEAR
        out = {name: usd * kept for name, usd in self._bought().items()}
        out["cost of money"] = max(0.0, self.capital_usd_per_hour - sum(out.values()))
        out["colocation"] = self.colocation.usd_per_kw_month * self.all_in_kw / self.power.pue * 12 / HOURS_PER_YEAR
        out["electricity"] = self.all_in_kw * self.power.load_share * self.power.electricity_usd_per_kwh
        by_share = self.operations.capital_share_per_year * self.capital_usd
        out["operations"] = (by_share + 12 * self.operations.usd_per_month) / HOURS_PER_YEAR
        return out

    def _bought(self) -> dict[str, float]:
        has = self.capital
        return {
            "server": has.server_usd,
            "network": has.network_usd,
            "host DRAM": has.dram_gb * has.dram_usd_per_gb,
            "SSD": has.ssd_tb * has.ssd_usd_per_tb,
        }


def annuity(price: float, residual: float, interest: float, years: float) -> float:
    """Equal payments at the end of each year that pay `price` less what `residual` is worth today.

    (price - residual / (1 + i)^n) x i / (1 - (1 + i)^-n): the capital recovery factor, or equivalent annual cost
    (Brealey, Myers and Allen, Principles of Corporate Finance, chapter 6); without interest (price - residual) / n.
    UserError for negative arguments and for no years.
    """
    for name, value in (("price", price), ("residual", residual), ("interest", interest)):
        require_amount(name, value)
    require_amount("years", years, positive=True)
    if years * interest < 1e-12:  # none, or too little to show in the digits of a float
        return (price - residual) / years
    paid_off = -math.expm1(-years * math.log1p(interest))  # 1 - (1 + i)^-n, also for an interest near zero
    return (price - residual * (1 - paid_off)) * interest / paid_off


def parse(text: str, origin: str) -> Tco:
    """A TCO file's text; UserError naming `origin`, line and key for anything that is not as `Tco` says."""
    return convert(parse_tables(text, origin), Tco, text, origin, (), _known_keys)


def _known_keys(path: KeyPath) -> tuple[str, ...]:
    sections: dict[str | int, type[msgspec.Struct]] = {
        "capital": Capital,
        "finance": Finance,
        "power": Power,
        "colocation": Colocation,
        "operations": Operations,
    }
    return (Tco if len(path) == 1 else sections[path[0]]).__struct_encode_fields__
