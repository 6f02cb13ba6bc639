"""What serving earns: bills, revenue, margin, payback and break-even. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from results.cost import require_amount
from results.errors import UserError

HOURS_PER_YEAR = 8760
DEFAULT_CACHED_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class Prices:
    """List prices in $ per million tokens; an unlisted cached price is 10 % of the input price."""

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached_input"):
            require_amount(f"{name} price", getattr(self, name))

    @property
    def cached(self) -> float:
        """$ per million cached input tokens."""
        return DEFAULT_CACHED_SHARE * self.input if self.cached_input is None else self.cached_input


def bill(prices: Prices, *, prompt: int, cached: int, output: int, cached_inside: bool) -> float:
    """Dollars for token counts; `cached_inside` says whether `prompt` already counts the cached tokens (P134).

    UserError for negative counts, and where more is cached than the prompt that counts it holds.
    """
    for name, count in (("prompt", prompt), ("cached", cached), ("output", output)):
        require_amount(f"{name} tokens", count)
    if cached_inside and cached > prompt:
        raise UserError(f"{cached} cached tokens in a prompt of {prompt}", remedy="is the cached count beside it?")
    computed = prompt - cached if cached_inside else prompt
    return (computed * prices.input + cached * prices.cached + output * prices.output) / 1e6


@dataclass(frozen=True, slots=True)
class Profit:
    """Dollars per device-hour. `break_even_*` are None where no value breaks even."""

    revenue: float
    cost: float
    licence: float
    break_even_utilisation: float | None
    """Share of hours sold at which profit is zero; above 1 it can't be reached."""
    break_even_price: float | None
    """Factor on all list prices at which profit is zero at the given utilisation."""

    @property
    def gross_margin(self) -> float:
        """Revenue less cost."""
        return self.revenue - self.cost

    @property
    def profit(self) -> float:
        """Gross margin less the licence fee."""
        return self.gross_margin - self.licence

    @property
    def margin(self) -> float | None:
        """Gross margin as a share of revenue; None without revenue."""
        return self.gross_margin / self.revenue if self.revenue > 0 else None

    def per_mw_year(self, kw_per_device: float) -> float:
        """Profit in $ of as many devices as a MW feeds, in a year, at the all-in kW of a device."""
        return self.profit * device_hours_per_year(1, kw_per_device)

    def months_to_pay_back(self, capital_usd: float, capital_usd_per_hour: float = 0.0) -> float | None:
        """Months until what comes in equals the capital per device (simple payback, nothing discounted).

        What comes in is the profit before the part of `cost` that is the capital's own: depreciation and cost of money,
        $ per device-hour. None when nothing comes in.
        """
        require_amount("capital", capital_usd)
        require_amount("capital per hour", capital_usd_per_hour)
        cash = self.profit + capital_usd_per_hour
        return capital_usd / (cash * HOURS_PER_YEAR / 12) if cash > 0 else None


def device_hours_per_year(megawatt: float, kw_per_device: float) -> float:
    """Device-hours that so much power feeds in a year, at the all-in kW of a device."""
    require_amount("MW", megawatt)
    require_amount("kW per device", kw_per_device, positive=True)
    return megawatt * 1000 / kw_per_device * HOURS_PER_YEAR


def revenue_per_hour(prices: Prices, *, input_tok_s: float, output_tok_s: float, hit_rate: float) -> float:
    """$ per device-hour with every hour sold; `input_tok_s` counts cached tokens, of which `hit_rate` (0 to 1)."""
    require_amount("input tokens/s", input_tok_s)
    require_amount("output tokens/s", output_tok_s)
    _share("hit rate", hit_rate)
    blend = (1 - hit_rate) * prices.input + hit_rate * prices.cached
    return 3600 / 1e6 * (input_tok_s * blend + output_tok_s * prices.output)


def profit(
    full_revenue: float, usd_per_device_hour: float, *, utilisation: float = 0.6, licence_share: float = 0.0
) -> Profit:
    """Profit per device-hour: hours are sold to `utilisation`, and paid for all of them.

    The licence fee is a share of revenue (InferenceX app, profit-estimator.ts, commit c2b4c4fa). UserError for
    negative amounts and shares outside 0 to 1.
    """
    require_amount("revenue", full_revenue)
    require_amount("price", usd_per_device_hour)
    _share("utilisation", utilisation)
    _share("licence share", licence_share)
    revenue = full_revenue * utilisation
    kept, kept_full = revenue * (1 - licence_share), full_revenue * (1 - licence_share)
    return Profit(
        revenue,
        usd_per_device_hour,
        revenue * licence_share,
        usd_per_device_hour / kept_full if kept_full > 0 else None,
        usd_per_device_hour / kept if kept > 0 else None,
    )


@dataclass(frozen=True, slots=True)
class Point:
    """An operating point of one device and everything assumed of it; shares are 0 to 1."""

    input_tok_s: float
    """Cached tokens included."""
    output_tok_s: float
    hit_rate: float
    """Share of the input that came from a cache."""
    usd_per_device_hour: float
    prices: Prices
    utilisation: float = 0.6
    licence_share: float = 0.0
    kw_per_device: float | None = None
    price_factor: float = 1.0
    """On all list prices."""
    throughput_factor: float = 1.0
    """On input and output alike."""

    def profit(self) -> Profit:
        """Dollars per device-hour."""
        require_amount("price factor", self.price_factor)
        require_amount("throughput factor", self.throughput_factor)
        full = revenue_per_hour(
            self.prices, input_tok_s=self.input_tok_s, output_tok_s=self.output_tok_s, hit_rate=self.hit_rate
        )
        return profit(
            full * self.price_factor * self.throughput_factor,
            self.usd_per_device_hour,
            utilisation=self.utilisation,
            licence_share=self.licence_share,
        )


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UserError(f"{name} {value}", remedy="give a share from 0 to 1")
