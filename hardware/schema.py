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
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from hardware.errors import UserError
from hardware.toml_lines import key_lines

_DATE = r"^\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$"
_PCI_ID = r"^[0-9a-f]{4}:[0-9a-f]{4}$"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_Text = Annotated[str, msgspec.Meta(min_length=1)]

Kind = Literal["gpu", "tpu", "asic", "cpu"]


class Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One published value; the unit is part of the key it stands under."""

    value: Annotated[float, msgspec.Meta(gt=0, lt=1e30)]
    source: _Text
    date: Annotated[str, msgspec.Meta(pattern=_DATE)]
    """When the source was published or says the value held: a year, a month or a day, as exact as is known."""
    note: str | None = None

    def __post_init__(self) -> None:
        _ = self.since  # a day no calendar has is a ValueError, which validation reports with its place

    @property
    def since(self) -> datetime.date:
        """First day of `date`'s year, month or day."""
        return datetime.date.fromisoformat((self.date + "-01-01")[:10])


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
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"hardware file {path}: {reason}") from error
    return parse(text, str(path), known)


def parse(text: str, origin: str, known: Collection[str] = ()) -> dict[str, Entry]:
    """As `read_file`, of a file's text; `origin` is what errors name as the file."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of too many digits, too deep nesting
        raise _not_toml(error, text, origin) from error
    entries = {}
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            raise _refusal(text, origin, (name,), "a name is of lower-case letters, digits and hyphens")
        try:
            entries[name] = msgspec.convert(_dates_as_text(table), Entry)
        except msgspec.ValidationError as error:
            message, _, where = str(error).partition(" - at ")
            raise _refusal(text, origin, (name, *_path(where)), message) from error
        missing = [key for key in ("label", "vendor", "kind") if getattr(entries[name], key) is None]
        if missing and name not in known:
            raise _refusal(text, origin, (name,), f"a new accelerator also needs {' and '.join(missing)}")
    return entries


def _dates_as_text(value: Any) -> Any:
    """The same tree with TOML's own dates as text."""
    if isinstance(value, dict):
        return {key: _dates_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_dates_as_text(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _path(where: str) -> tuple[str | int, ...]:
    """Keys and indices of msgspec's `$.usd_device_hour.rental-3y[0].value`."""
    steps = re.findall(r"\.([^.\[`]+)|\[(\d+)\]", where)
    return tuple(key or int(index) for key, index in steps)


def _refusal(text: str, origin: str, path: tuple[str | int, ...], message: str) -> UserError:
    remedy = ""
    if field := re.search(r"unknown field `([^`]+)`", message):
        path, message = (*path, field[1]), "unknown key"
        remedy = f"known keys: {', '.join(_known_keys(path))}"
    elif missing := re.search(r"missing required field `([^`]+)`", message):
        message = f"the key {missing[1]} is missing"
    elif "matching regex" in message:
        example = "a date as 2026, 2026-07 or 2026-07-15" if path[-1] == "date" else "vendor:device as 10de:2901"
        message = f"write {example}"
    elif "object | array" in message:
        message = 'write a list of { value, source, date }, or { unknown = "why" }'
    lines = key_lines(text)
    known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in lines), ())
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
    return UserError(f"{origin}, line {lines.get(known, 1)}: {key}: {message}", remedy=remedy)


def _known_keys(path: tuple[str | int, ...]) -> tuple[str, ...]:
    """Of the table that holds the last key of `path`."""
    if len(path) == 2:
        return Entry.__struct_encode_fields__
    if path[1:-1] == ("usd_device_hour",):
        return Prices.__struct_encode_fields__
    if isinstance(path[-2], int):
        return Fact.__struct_encode_fields__
    return ("unknown (values stand in a list: [{ value, source, date }])",)


def _not_toml(error: Exception, text: str, origin: str) -> UserError:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
    message, line = (found[1], found[2]) if found else (str(error), None)
    return UserError(f"{origin}, line {line or text.count(chr(10)) + 1}: not TOML: {message}")
