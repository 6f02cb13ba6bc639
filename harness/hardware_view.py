"""What `agentx hardware` shows: the registry and this machine, as tables and as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from hardware.detect import Detection
from hardware.registry import KEYS, Accelerator, Fact, Registry

_COLUMNS = (
    ("HBM\nGB", "hbm_bytes", 1e9),
    ("HBM\nTB/s", "hbm_bytes_s", 1e12),
    ("FP8\nPF/s", "fp8_flop_s", 1e15),
    ("FP4\nPF/s", "fp4_flop_s", 1e15),
    ("TDP\nW", "tdp_w", 1),
    ("all-in\nkW", "kw_all_in", 1),
    ("own\n$/h", "usd_device_hour.hyperscaler", 1),
    ("rent\n$/h", "usd_device_hour.rental-3y", 1),
)
_SCALES = {"bytes": (1e9, "GB"), "bytes/s": (1e9, "GB/s"), "FLOP/s": (1e12, "TFLOP/s")}


def registry_as_data(registry: Registry) -> list[dict[str, Any]]:
    """One object per accelerator with the chosen value of every key, null when unknown."""
    return [
        {
            "name": accelerator.name,
            "label": accelerator.label,
            "vendor": accelerator.vendor,
            "kind": accelerator.kind,
            **{key: fact.value if (fact := accelerator.fact(key)) else None for key in KEYS},
        }
        for accelerator in registry
    ]


def print_registry(registry: Registry) -> None:
    """The registry as a table: a dash is a value that is not known."""
    table = Table("name", *(title for title, _, _ in _COLUMNS), title="accelerators, per device")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for accelerator in registry:
        chosen = ((accelerator.fact(key), scale) for _, key, scale in _COLUMNS)
        table.add_row(
            accelerator.name, *("–" if fact is None else f"{fact.value / scale:.4g}" for fact, scale in chosen)
        )
    Console().print(table)
    print("PF/s: dense PFLOP/s; own: hyperscaler tier; rent: 3-year rental")
    print("agentx hardware show NAME gives sources, dates and alternatives")


def accelerator_as_data(accelerator: Accelerator) -> dict[str, Any]:
    """Every key with its unit, the chosen value first among all published ones, or why it is unknown."""
    return {
        "name": accelerator.name,
        "label": accelerator.label,
        "vendor": accelerator.vendor,
        "kind": accelerator.kind,
        "aliases": list(accelerator.aliases),
        "pci_ids": list(accelerator.pci_ids),
        "origins": list(accelerator.origins),
        "quantities": {
            key: {
                "unit": unit,
                "definition": definition,
                "value": fact.value if (fact := accelerator.fact(key)) else None,
                "published": [msgspec.to_builtins(fact) for fact in accelerator.facts(key)],
                "unknown": accelerator.why_unknown(key),
            }
            for key, (unit, definition) in KEYS.items()
        },
    }


def print_accelerator(accelerator: Accelerator) -> None:
    """Every value with source and date; the alternatives below the chosen one."""
    title = f"{accelerator.label} ({accelerator.name}), per device"
    table = Table("", "value", "date", "source", title=title)
    table.columns[1].justify = "right"
    for key, (unit, _) in KEYS.items():
        facts = accelerator.facts(key)
        for position, fact in enumerate(facts):
            label = "    or" if position else key.removeprefix("usd_device_hour.")
            table.add_row(label, _with_unit(fact, unit), fact.date, _source(fact), style="dim" if position else "")
        if not facts:
            table.add_row(key.removeprefix("usd_device_hour."), "–", "", f"unknown: {accelerator.why_unknown(key)}")
    Console().print(table)


def print_detection(detection: Detection) -> None:
    """What this machine has, then what every way of asking answered."""
    table = Table("device", "registry", "count", "by", "driver", "MIG", title="this machine")
    for found in detection.found:
        mig = {True: f"on, {found.mig_devices} devices", False: "off", None: "–"}[found.mig]
        count = "?" if found.count is None else str(found.count)
        table.add_row(found.device, found.accelerator or "not in it", count, found.method, found.driver or "–", mig)
    Console().print(table)
    for step in detection.steps:
        print(f"{step.method}: {step.text}")


def _with_unit(fact: Fact, unit: str) -> str:
    scale, name = _SCALES.get(unit, (1, unit))
    return f"{fact.value / scale:,.5g} {name}" if fact.value / scale < 1e5 else f"{fact.value / scale:,.0f} {name}"


def _source(fact: Fact) -> str:
    return f"{fact.source}: {fact.note}" if fact.note else fact.source
