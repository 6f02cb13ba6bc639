"""The dated registry of accelerators: sizes, rates, power and prices, each with its source.

    registry = load_registry()                  # what ships; load_registry(path) adds a user's file
    gpu = registry.get("B200")                  # by name, alias, or the name the driver gives
    gpu.hbm_bytes, gpu.tdp_w, gpu.kw_all_in     # float, or None when unknown: gpu.why_unknown("tdp_w")
    gpu.price("rental-3y", as_of=date(2026, 8, 1))
    gpu.fact("kw_all_in"), gpu.facts("kw_all_in")    # the chosen value with source and date; all published ones

Everything is per device: a GPU package, a TPU or Trainium chip, also in racks (`gb300-nvl72` is one GPU of the rack).
Rates are dense. `KEYS` gives the unit and the definition of every key.

Which of several published values is used: those dated after `as_of` are left out; a value from the user's file beats
ours; then the newest date wins (a month counts from its first day); of the same date, the one that stands first.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hardware.errors import UserError
from hardware.schema import Entry, Fact, Kind, Prices, Quantity, Unknown, read_file

__all__ = ["KEYS", "TIERS", "Accelerator", "Fact", "Registry", "load_registry"]

_DATA = Path(__file__).parent / "data"

TIERS: tuple[str, ...] = Prices.__struct_encode_fields__
"""Price tiers: hyperscaler, neocloud, rental-3y, on-demand, internal, external."""

KEYS: dict[str, tuple[str, str]] = {
    "hbm_bytes": ("bytes", "memory of the device"),
    "hbm_bytes_s": ("bytes/s", "peak bandwidth of that memory"),
    "bf16_flop_s": ("FLOP/s", "dense BF16 matrix rate"),
    "fp8_flop_s": ("FLOP/s", "dense FP8 matrix rate"),
    "fp4_flop_s": ("FLOP/s", "dense FP4 matrix rate"),
    "scale_up_bytes_s": ("bytes/s", "scale-up link of a device, one direction"),
    "scale_up_devices": ("devices", "devices in one scale-up domain"),
    "host_memory_bytes": ("bytes", "host memory per device"),
    "tdp_w": ("W", "thermal design power of a device"),
    "kw_all_in": ("kW", "utility power per device: its share of hosts, network, cooling and losses"),
    **{f"usd_device_hour.{tier}": ("USD/h", f"price of a device and hour, tier {tier}") for tier in TIERS},
}
"""Key to unit and definition."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator with every published value of every key."""

    name: str
    label: str
    vendor: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    pci_ids: tuple[str, ...] = ()
    quantities: dict[str, Quantity] = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    """The files it was read from."""

    def facts(self, key: str) -> tuple[Fact, ...]:
        """Every published value of a key of `KEYS`, in the order of preference; none when unknown."""
        quantity = self._quantity(key)
        return () if isinstance(quantity, Unknown) else quantity

    def fact(self, key: str, *, as_of: datetime.date | None = None, source: str | None = None) -> Fact | None:
        """The value to use by the rule above, with source and date; None when none is known (by then, of that source).

        `source` keeps the values whose source holds these words, in any case.
        """
        for fact in self.facts(key):
            named = not source or source.casefold() in fact.source.casefold()
            if named and (as_of is None or fact.since <= as_of):
                return fact
        return None

    def why_unknown(self, key: str) -> str | None:
        """Why a key has no value; None when it has one."""
        quantity = self._quantity(key)
        return quantity.unknown if isinstance(quantity, Unknown) else None

    def price(self, tier: str, *, as_of: datetime.date | None = None) -> float | None:
        """US dollars per device and hour in a tier of `TIERS`; raises UserError for any other tier."""
        if tier not in TIERS:
            raise UserError(f"price tier {tier!r}", remedy=f"choose one of: {', '.join(TIERS)}")
        return self._value(f"usd_device_hour.{tier}", as_of)

    @property
    def hbm_bytes(self) -> float | None:
        """Memory of the device, bytes."""
        return self._value("hbm_bytes")

    @property
    def hbm_bytes_s(self) -> float | None:
        """Peak bandwidth of the device's memory, bytes/s."""
        return self._value("hbm_bytes_s")

    @property
    def scale_up_bytes_s(self) -> float | None:
        """Scale-up link of a device in one direction, bytes/s."""
        return self._value("scale_up_bytes_s")

    @property
    def scale_up_devices(self) -> int | None:
        """Devices in one scale-up domain."""
        value = self._value("scale_up_devices")
        return None if value is None else int(value)

    @property
    def host_memory_bytes(self) -> float | None:
        """Host memory per device, bytes."""
        return self._value("host_memory_bytes")

    @property
    def tdp_w(self) -> float | None:
        """Thermal design power of a device, W."""
        return self._value("tdp_w")

    @property
    def kw_all_in(self) -> float | None:
        """Utility power per device with its share of everything around it, kW."""
        return self._value("kw_all_in")

    def flop_s(self, precision: str) -> float | None:
        """Dense matrix rate at `bf16`, `fp8` or `fp4`, FLOP/s; raises UserError for any other precision."""
        if f"{precision}_flop_s" not in KEYS:
            raise UserError(f"precision {precision!r}", remedy="choose one of: bf16, fp8, fp4")
        return self._value(f"{precision}_flop_s")

    def _value(self, key: str, as_of: datetime.date | None = None) -> float | None:
        fact = self.fact(key, as_of=as_of)
        return None if fact is None else fact.value

    def _quantity(self, key: str) -> Quantity:
        if key not in KEYS:
            raise UserError(f"hardware key {key!r}", remedy=_closest(key, list(KEYS)))
        return self.quantities[key]


class Registry:
    """Accelerators by name."""

    def __init__(self, accelerators: dict[str, Accelerator]) -> None:
        self._accelerators = accelerators
        self._by_spelling: dict[str, Accelerator] = {}
        self._by_pci_id: dict[str, Accelerator] = {}
        for accelerator in accelerators.values():
            for spelling in (*accelerator.aliases, accelerator.label, accelerator.name):
                self._by_spelling[_plain(spelling)] = accelerator
            self._by_pci_id.update(dict.fromkeys(accelerator.pci_ids, accelerator))
        for name, accelerator in accelerators.items():  # a name beats another's alias
            self._by_spelling[_plain(name)] = accelerator

    def __iter__(self) -> Iterator[Accelerator]:
        return iter(self._accelerators.values())

    def __len__(self) -> int:
        return len(self._accelerators)

    def find(self, name: str) -> Accelerator | None:
        """The accelerator of a name, alias or driver's device name; case, spaces and hyphens do not count."""
        return self._by_spelling.get(_plain(name))

    def find_pci(self, pci_id: str) -> Accelerator | None:
        """The accelerator of a PCI `vendor:device` id in lower-case hexadecimal."""
        return self._by_pci_id.get(pci_id)

    def get(self, name: str) -> Accelerator:
        """As `find`; raises UserError with the closest names when there is none."""
        found = self.find(name)
        if found is None:
            raise UserError(
                f"no accelerator {name!r} in the registry", remedy=_closest(_plain(name), list(self._accelerators))
            )
        return found


def load_registry(extra: Path | None = None) -> Registry:
    """The accelerators that ship, with those of the user's file `extra` added or overriding key by key.

    Raises UserError naming file, line and key when the file is not valid.
    """
    if extra is None:
        return _shipped()
    accelerators = {accelerator.name: accelerator for accelerator in _shipped()}
    for name, entry in read_file(extra, known=accelerators).items():
        accelerators[name] = _merge(accelerators.get(name), name, entry, str(extra))
    return Registry(accelerators)


@cache
def _shipped() -> Registry:
    accelerators: dict[str, Accelerator] = {}
    for path in sorted(_DATA.glob("*.toml")):
        for name, entry in read_file(path).items():
            accelerators[name] = _merge(None, name, entry, path.name)
    return Registry(accelerators)


def _merge(base: Accelerator | None, name: str, entry: Entry, origin: str) -> Accelerator:
    """`entry` alone, or over `base`: its values come first, its names are added."""
    label, vendor, kind = (entry.label, entry.vendor, entry.kind)
    if base is not None:
        label, vendor, kind = (label or base.label, vendor or base.vendor, kind or base.kind)
    if label is None or vendor is None or kind is None:
        raise AssertionError("read_file asks a new accelerator for them")
    return Accelerator(
        name=name,
        label=label,
        vendor=vendor,
        kind=kind,
        aliases=(*(base.aliases if base else ()), *entry.aliases),
        pci_ids=(*(base.pci_ids if base else ()), *entry.pci_ids),
        quantities={key: _joined(base.quantities[key] if base else None, _given(entry, key)) for key in KEYS},
        origins=(*(base.origins if base else ()), origin),
    )


def _given(entry: Entry, key: str) -> Quantity | None:
    name, _, tier = key.partition(".")
    quantity: Quantity | None = getattr(entry.usd_device_hour, tier.replace("-", "_")) if tier else getattr(entry, name)
    return quantity


def _joined(base: Quantity | None, given: Quantity | None) -> Quantity:
    """Values in the order of preference: the newer file's, each file's by date, equal dates as they stand."""
    if given is None:
        return base or Unknown("not in the registry's sources")
    if isinstance(given, Unknown):
        return given
    newest_first = tuple(sorted(given, key=lambda fact: fact.since, reverse=True))
    return newest_first if base is None or isinstance(base, Unknown) else newest_first + base


def _plain(name: str) -> str:
    """Letters and digits only, without the makers' names: `NVIDIA B200` is `b200`."""
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in ("nvidia", "amd", "instinct", "google", "aws"))


def _closest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name.casefold(), known, n=3, cutoff=0.5)
    return f"closest: {', '.join(close)}" if close else f"known: {', '.join(known)}"
