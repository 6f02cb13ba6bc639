"""What `agentx cost` assumes: numbers from its options, the hardware registry, price lists and a TCO file."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from results.errors import UserError

if TYPE_CHECKING:
    from hardware.registry import Accelerator, Fact
    from results.price_list import Listed
    from results.run_cost import Assumptions
    from results.tco import Tco


@dataclass(frozen=True, slots=True)
class CostOptions:
    """The options as given; None is not given."""

    gpus: int
    price: float | None = None
    kw_per_gpu: float | None = None
    hardware: str | None = None
    hardware_file: Path | None = None
    tier: str = "rental-3y"
    as_of: str | None = None
    source: str | None = None
    tco: Path | None = None
    rack: int | None = None
    prices: str | None = None
    price_source: str | None = None
    utilisation: float = 0.6
    licence: float | None = None


@dataclass(frozen=True, slots=True)
class CostInputs:
    """What follows from the options, and where each number comes from."""

    assumed: Assumptions
    origins: dict[str, str]
    """By assumption: its value and source in words, or why there is none."""
    published_usd: tuple[float, ...] = ()
    """The registry's newest $/device-hour of each tier."""
    published_kw: tuple[float, ...] = ()


def resolve(options: CostOptions) -> CostInputs:
    """All assumptions; UserError for what does not exist, contradicts itself or is not valid."""
    from hardware.registry import TIERS, load_registry
    from results.run_cost import Assumptions

    as_of = parse_date(options.as_of)
    registry = load_registry(options.hardware_file)
    accelerator = registry.get(options.hardware) if options.hardware else None
    tco = _read_tco(options)
    origins: dict[str, str] = {}
    usd = _price(options, accelerator, tco, as_of, origins)
    kw = _kw(options, accelerator, tco, as_of, origins)
    listed = _listed(options, as_of, origins)
    rack, licence = options.rack, options.licence
    if rack is None and accelerator is not None and accelerator.scale_up_devices is not None:
        rack = accelerator.scale_up_devices
        origins["rack"] = f"{rack} accelerators: the scale-up domain of {accelerator.name}"
    if licence is None and listed is not None:
        licence = listed.price.licence_share
        known = "of the price list" if licence is not None else "no source gives one, none is assumed"
        origins["licence"] = f"{100 * (licence or 0):g} % of revenue: {known}"
    tiers = [accelerator.fact(f"usd_device_hour.{tier}", as_of=as_of) for tier in TIERS] if accelerator else []
    powers = accelerator.facts("kw_all_in") if accelerator else ()
    return CostInputs(
        Assumptions(
            devices=options.gpus,
            usd_per_device_hour=usd,
            kw_per_device=kw,
            prices=listed.price.prices if listed else None,
            utilisation=options.utilisation,
            licence_share=licence or 0.0,
            rack_devices=rack,
            tco=tco,
        ),
        origins,
        tuple(fact.value for fact in tiers if fact is not None),
        tuple(fact.value for fact in powers if as_of is None or fact.since <= as_of),
    )


def parse_date(text: str | None) -> datetime.date | None:
    """The first day of a year or month, or the day; UserError naming --as-of for anything else."""
    import re

    from hardware.toml_file import DATE_PATTERN, first_day

    if text is None:
        return None
    try:
        if re.match(DATE_PATTERN, text):
            return first_day(text)
    except ValueError:
        pass
    raise UserError(f"--as-of {text}", remedy="write 2026, 2026-07 or 2026-07-15")


def _read_tco(options: CostOptions) -> Tco | None:
    from hardware.toml_file import read_text
    from results.tco import parse

    if options.tco is None:
        return None
    if options.price is not None:
        raise UserError("--price and --tco", remedy="give one: the TCO file computes the price")
    return parse(read_text(options.tco, "TCO file"), str(options.tco))


def _price(
    options: CostOptions,
    accelerator: Accelerator | None,
    tco: Tco | None,
    as_of: datetime.date | None,
    origins: dict[str, str],
) -> float | None:
    if options.price is not None:
        origins["price"] = f"${options.price:g} per accelerator-hour: --price"
        return options.price
    if tco is not None:
        usd = tco.usd_per_device_hour
        origins["price"] = f"${usd:.4g} per accelerator-hour: {options.tco}"
        return usd
    if accelerator is None:
        return None
    accelerator.price(options.tier)  # refuses a tier that does not exist
    key = f"usd_device_hour.{options.tier}"
    fact = accelerator.fact(key, as_of=as_of, source=options.source)
    facts = accelerator.facts(key)
    if fact is None and facts:
        published = "; ".join(f"{known.date} {known.value:g} {known.source}" for known in facts)
        raise UserError(
            f"--as-of, --source: {accelerator.name} has no such {options.tier} price", remedy=f"there are: {published}"
        )
    if fact is None:
        origins["price"] = f"no price of {accelerator.name}, {options.tier}: {accelerator.why_unknown(key)}"
        return None
    origins["price"] = f"${fact.value:g} per accelerator-hour, {options.tier}: {_where(fact)}"
    return fact.value


def _kw(
    options: CostOptions,
    accelerator: Accelerator | None,
    tco: Tco | None,
    as_of: datetime.date | None,
    origins: dict[str, str],
) -> float | None:
    if options.kw_per_gpu is not None:
        origins["kW"] = f"{options.kw_per_gpu:g} kW all-in: --kw-per-gpu"
        return options.kw_per_gpu
    if tco is not None:
        origins["kW"] = f"{tco.all_in_kw:.4g} kW all-in: {options.tco}"
        return tco.all_in_kw
    if accelerator is None:
        return None
    # A source may have a price and no kW; the kW's own source is shown.
    fact = accelerator.fact("kw_all_in", as_of=as_of, source=options.source)
    fact = fact or accelerator.fact("kw_all_in", as_of=as_of)
    if fact is None:
        why = accelerator.why_unknown("kw_all_in") or "no value of that date"
        origins["kW"] = f"no kW of {accelerator.name}: {why}"
        return None
    origins["kW"] = f"{fact.value:g} kW all-in: {_where(fact)}"
    return fact.value


def _listed(options: CostOptions, as_of: datetime.date | None, origins: dict[str, str]) -> Listed | None:
    from harness.price_source import find_prices

    if options.prices is None:
        return None
    listed = find_prices(options.prices, as_of=as_of, source=options.price_source)
    price = listed.price
    cached = f"{price.prices.cached:g}" + ("" if price.cached_input is not None else " (10 % of input, not listed)")
    origins["list prices"] = (
        f"{listed.name}: ${price.input:g} input, {cached} cached, {price.output:g} output per M: "
        f"{price.source} ({price.date})" + (f"; {price.note}" if price.note else "")
    )
    return listed


def _where(fact: Fact) -> str:
    return f"{fact.source} ({fact.date})" + (f"; {fact.note}" if fact.note else "")
