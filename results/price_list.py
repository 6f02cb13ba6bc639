"""List prices by name: those that ship, a user's file, and which of several published ones is used.

A file is TOML with a table per name; all prices are US dollars per million tokens:

    [my-model]
    label = "what it is"
    prices = [
      { input = 0.60, cached_input = 0.10, output = 3.00, source = "where it was read", date = "2026-03-26" },
    ]

Of several, those dated after `as_of` and those whose source does not hold the wanted words are left out; then the
newest date wins (a year or month counts from its first day); of the same date, the one that stands first.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from hardware.toml_file import DATE_PATTERN, KeyPath, convert, first_day, parse_tables, read_text, refusal
from results.errors import UserError
from results.profit import Prices

_SHIPPED = Path(__file__).parent / "data" / "prices.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Dollars = Annotated[float, msgspec.Meta(ge=0, lt=1e30)]


class ListPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published price, $ per million tokens; zero is a price."""

    input: _Dollars
    output: _Dollars
    cached_input: _Dollars | None = None
    licence_share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Share of revenue that the model's owner takes."""
    source: _Text
    date: Annotated[str, msgspec.Meta(pattern=DATE_PATTERN)]
    note: str | None = None

    def __post_init__(self) -> None:
        _ = self.since  # a day no calendar has is a ValueError, which validation reports with its place

    @property
    def since(self) -> datetime.date:
        """First day of `date`'s year, month or day."""
        return first_day(self.date)

    @property
    def prices(self) -> Prices:
        """The numbers alone."""
        return Prices(self.input, self.output, self.cached_input)


class PriceList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every published price of one name."""

    label: _Text | None = None
    prices: Annotated[tuple[ListPrice, ...], msgspec.Meta(min_length=1)]

    def choose(self, *, as_of: datetime.date | None = None, source: str | None = None) -> ListPrice | None:
        """The price to use by the rule above; None when nothing is left."""
        left = [
            price
            for price in self.prices
            if (as_of is None or price.since <= as_of) and (not source or source.casefold() in price.source.casefold())
        ]
        return max(left, key=lambda price: price.since, default=None)  # max keeps the first of equals


@dataclass(frozen=True, slots=True)
class Listed:
    """A chosen price with the name it stands under."""

    name: str
    price: ListPrice


@cache
def shipped() -> dict[str, PriceList]:
    """The lists that ship, by name."""
    return parse(_SHIPPED.read_text(encoding="utf-8"), _SHIPPED.name)


def read_file(path: Path) -> dict[str, PriceList]:
    """A user's price file; UserError naming file, line and key when it can't be read or is not valid."""
    return parse(read_text(path, "price file"), str(path))


def parse(text: str, origin: str) -> dict[str, PriceList]:
    """As `read_file`, of a file's text; `origin` is what errors name as the file."""
    lists = {}
    for name, table in parse_tables(text, origin).items():
        if not _NAME.fullmatch(name):
            raise refusal(text, origin, (name,), "a name is of lower-case letters, digits, dots and hyphens")
        lists[name] = convert(table, PriceList, text, origin, (name,), _known_keys)
    if not lists:
        raise UserError(f"{origin}: no price list there", remedy="docs/cost.md has an example")
    return lists


def pick(
    lists: dict[str, PriceList],
    name: str | None,
    origin: str,
    *,
    as_of: datetime.date | None = None,
    source: str | None = None,
) -> Listed:
    """The price of `name`, which may be None where there is one list only; UserError when there is none."""
    if name is None and len(lists) == 1:
        name = next(iter(lists))
    if name is None or name not in lists:
        raise UserError(f"{origin}: {'several lists' if name is None else 'no such list'}", remedy=_choose(lists))
    chosen = lists[name].choose(as_of=as_of, source=source)
    if chosen is None:
        published = "; ".join(f"{price.date} {price.source}" for price in lists[name].prices)
        raise UserError(f"{origin}: no price known by --as-of, or of --price-source", remedy=f"there are: {published}")
    return Listed(name, chosen)


def _choose(lists: dict[str, PriceList]) -> str:
    return f"choose one of: {', '.join(lists)}"


def _known_keys(path: KeyPath) -> tuple[str, ...]:
    return (PriceList if len(path) == 2 else ListPrice).__struct_encode_fields__
