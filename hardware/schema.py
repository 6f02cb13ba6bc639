"""The hardware files: what they may hold, and refusals that name file, line and key.

A file is TOML with a table per accelerator; `docs/hardware.md` is for users. A quantity is a list of published
values, or the reason why none is known:

    [b200]
    label = "NVIDIA B200 SXM"
    kw_all_in = [
      { value = 1.71, source = "where it was read", date = "2026-07" },
      { value = 2.17, source = "an older table", date = "2026-04" },
    ]
    fp4_flop_s = { unknown = "why" }

    [b200.usd_device_hour]
    rental-3y = [{ value = 3.7, source = "a contract", date = "2026-11-02" }]
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from hardware.toml_file import DATE_PATTERN, KeyPath, convert, first_day, parse_tables, read_text, refusal

_PCI_ID = r"^[0-9a-f]{4}:[0-9a-f]{4}$"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_Text = Annotated[str, msgspec.Meta(min_length=1)]

Kind = Literal["gpu", "tpu", "asic", "cpu"]


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published value; the unit is part of the key it stands under."""

    value: Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
    source: _Text
    date: Annotated[str, msgspec.Meta(pattern=DATE_PATTERN)]
    """When the source was published or says the value held: a year, a month or a day, as exact as is known."""
    note: str | None = None

    def __post_init__(self) -> None:
        _ = self.since  # a day no calendar has is a ValueError, which validation reports with its place

    @property
    def since(self) -> datetime.date:
        """First day of `date`'s year, month or day."""
        return first_day(self.date)


class PriceFact(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A price, which may be zero."""

    value: Annotated[float, msgspec.Meta(ge=0, lt=1e30)]


class Unknown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why there is no value."""

    unknown: _Text


Quantity = tuple[Fact, ...] | Unknown
_Facts = Annotated[tuple[Fact, ...], msgspec.Meta(min_length=1)] | Unknown | None
_Prices = Annotated[tuple[PriceFact, ...], msgspec.Meta(min_length=1)] | Unknown | None


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """US dollars per device and hour, by who pays them."""

    hyperscaler: _Prices = None
    """Total cost of owning at a hyperscaler's volume."""
    neocloud: _Prices = None
    """Total cost of owning at a large GPU cloud."""
    rental_3y: _Prices = msgspec.field(default=None, name="rental-3y")
    on_demand: _Prices = None
    internal: _Prices = None
    """The maker's own cost, where it also sells (TPU)."""
    external: _Prices = None
    """Cost of owning for the maker's customers."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accelerator as a file gives it; None is what the file does not mention."""

    label: _Text | None = None
    vendor: _Text | None = None
    kind: Kind | None = None
    aliases: tuple[_Text, ...] = ()
    """Further names, among them those the driver gives the device."""
    pci_ids: tuple[Annotated[str, msgspec.Meta(pattern=_PCI_ID)], ...] = ()
    """vendor:device in hexadecimal."""
    hbm_bytes: _Facts = None
    hbm_bytes_s: _Facts = None
    bf16_flop_s: _Facts = None
    fp8_flop_s: _Facts = None
    fp4_flop_s: _Facts = None
    scale_up_bytes_s: _Facts = None
    scale_up_devices: _Facts = None
    host_memory_bytes: _Facts = None
    tdp_w: _Facts = None
    kw_all_in: _Facts = None
    usd_device_hour: Prices = Prices()


def read_file(path: Path, known: Collection[str] = ()) -> dict[str, Entry]:
    """The accelerators of a hardware file by name; those not `known` must say label, vendor and kind.

    Raises UserError naming file, line and key when the file can't be read, is not TOML, or holds an unknown key or a
    bad value.
    """
    return parse(read_text(path, "hardware file"), str(path), known)


def parse(text: str, origin: str, known: Collection[str] = ()) -> dict[str, Entry]:
    """As `read_file`, of a file's text; `origin` is what errors name as the file."""
    entries = {}
    for name, table in parse_tables(text, origin).items():
        if not _NAME.fullmatch(name):
            raise refusal(text, origin, (name,), "a name is of lower-case letters, digits and hyphens")
        entries[name] = convert(table, Entry, text, origin, (name,), _known_keys)
        missing = [key for key in ("label", "vendor", "kind") if getattr(entries[name], key) is None]
        if missing and name not in known:
            raise refusal(text, origin, (name,), f"a new accelerator also needs {' and '.join(missing)}")
    return entries


def _known_keys(path: KeyPath) -> tuple[str, ...]:
    """Of the table that holds the last key of `path`."""
    if len(path) == 2:
        return Entry.__struct_encode_fields__
    if path[1:-1] == ("usd_device_hour",):
        return Prices.__struct_encode_fields__
    if isinstance(path[-2], int):
        return Fact.__struct_encode_fields__
    return ("unknown (values stand in a list: [{ value, source, date }])",)
