"""What nvidia-smi, amd-smi and rocm-smi print, as samples. Pure: text in, samples out; odd cells are None."""

from __future__ import annotations

import csv
import json
from collections import Counter
from typing import Any

from collectors.power.source import Device, Kind, Sample, SourceError, number, percent, plausible

_NVIDIA_POWER = (
    (Kind.AVERAGE, "power.draw.average"),
    (Kind.INSTANT, "power.draw.instant"),
    (Kind.INSTANT, "power.draw"),
)
_ROCM_POWER = (
    (Kind.INSTANT, "Current Socket Graphics Package Power (W)"),
    (Kind.AVERAGE, "Average Graphics Package Power (W)"),
)
_AMD_POWER = (
    (Kind.INSTANT, "current_socket_power"),
    (Kind.AVERAGE, "average_socket_power"),
    (Kind.INSTANT, "socket_power"),
)


def parse_nvidia_smi(text: str, problems: Counter[str]) -> list[Sample]:
    """`nvidia-smi --query-gpu=... --format=csv`, with or without units, whatever columns this driver has."""
    rows = list(csv.reader(text.strip().splitlines(), skipinitialspace=True))
    if len(rows) < 2:
        raise SourceError("nvidia-smi printed no table")
    header = [name.partition("[")[0].strip() for name in rows[0]]
    units = [name.partition("[")[2].rstrip("] ") for name in rows[0]]
    samples: list[Sample] = []
    for row in rows[1:]:
        # `memory.used [MiB]` names the unit once, in the header, when cells come without.
        cells = {name: _united(cell, unit) for name, cell, unit in zip(header, row, units, strict=False)}
        device = Device(
            cells.get("uuid") or f"gpu{cells.get('index', len(samples))}", cells.get("name") or "NVIDIA GPU"
        )
        used = number(cells.get("memory.used"))
        state: dict[str, Any] = {
            "utilisation": percent(number(cells.get("utilization.gpu"))),
            "memory_bytes": None if used is None else round(used),
        }
        samples += _power_samples(device, cells, _NVIDIA_POWER, problems, state)
    return samples


def parse_amd_smi(text: str, problems: Counter[str]) -> list[Sample]:
    """`amd-smi metric --json` (bare list, or under `gpu_data`) or `--csv`; warnings may stand before it."""
    samples: list[Sample] = []
    for row in _amd_rows(text):
        device = Device(f"gpu{row.get('gpu', len(samples))}", "AMD GPU")
        power, energy = _part(row, "power"), _part(row, "energy")
        used = number(_part(row, "mem_usage").get("used_vram"))
        bare = not isinstance(_part(row, "mem_usage").get("used_vram"), dict)
        state: dict[str, Any] = {
            "utilisation": percent(number(_part(row, "usage").get("gfx_activity"))),
            "memory_bytes": None if used is None else round(used * 2**20 if bare else used),
        }
        joules = number(energy.get("total_energy_consumption"))
        readings = _power_samples(device, power, _AMD_POWER, problems, state, expected=joules is None)
        samples += readings
        if joules is not None:
            samples.append(Sample(device, Kind.COUNTER, "total_energy_consumption", joules=joules, **state))
    return samples


def parse_rocm_smi(text: str, problems: Counter[str]) -> list[Sample]:
    """`rocm-smi --json`: one object per card, every cell a string; a second die has no power of its own."""
    document = _json(text)
    if not isinstance(document, dict):
        raise SourceError("rocm-smi printed no object")
    samples: list[Sample] = []
    for card, cells in document.items():
        if not card.startswith("card") or not isinstance(cells, dict):
            continue
        names = ("Card Series", "Card series", "Card Model", "Card model")
        name = next((str(cells[key]) for key in names if cells.get(key)), "AMD GPU")
        device = Device(str(cells.get("Unique ID") or card), name)
        used = number(cells.get("VRAM Total Used Memory (B)"))
        state: dict[str, Any] = {
            "utilisation": percent(number(cells.get("GPU use (%)"))),
            "memory_bytes": None if used is None else round(used),
        }
        if any("secondary die" in str(cell).lower() for cell in cells.values()):
            samples.append(Sample(device, None, None, **state))
            continue
        micro = number(cells.get("Accumulated Energy (uJ)"))
        samples += _power_samples(device, cells, _ROCM_POWER, problems, state, expected=not micro)
        if micro:
            samples.append(Sample(device, Kind.COUNTER, "Accumulated Energy (uJ)", joules=micro * 1e-6, **state))
    return samples


def _power_samples(
    device: Device,
    cells: dict[str, Any],
    names: tuple[tuple[Kind, str], ...],
    problems: Counter[str],
    state: dict[str, Any],
    *,
    expected: bool = True,
) -> list[Sample]:
    """A sample per kind of power that has a number; an empty one when a reading was `expected` and none is there."""
    found: dict[Kind, Sample] = {}
    known = [(kind, name) for kind, name in names if name in cells]
    for kind, name in known:
        watts = plausible(number(cells[name]), problems, device.id)
        generic = name in ("power.draw", "socket_power")
        if watts is not None and not (generic and found):
            found.setdefault(kind, Sample(device, kind, name, watts=watts, **state))
    if found or not expected:
        return list(found.values())
    problems[f"{device.id}: no power reading"] += 1
    kind, name = known[0] if known else names[0]
    return [Sample(device, kind, name if known else None, **state)]


def _united(cell: str, unit: str) -> str:
    cell = cell.strip()
    return f"{cell} {unit}" if unit and cell[-1:].isdigit() else cell


def _json(text: str) -> Any:
    """The JSON document in the output, which warnings may precede."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.lstrip()[:1] in ("{", "[")]
    for start in starts:
        try:
            return json.loads("\n".join(lines[start:]))
        except ValueError:
            continue
    raise SourceError("the tool printed no JSON")


def _amd_rows(text: str) -> list[dict[str, Any]]:
    try:
        document = _json(text)
    except SourceError:
        return _amd_csv(text)
    rows = document.get("gpu_data", document) if isinstance(document, dict) else document
    rows = [rows] if isinstance(rows, dict) else rows
    return [row for row in rows if isinstance(row, dict)]


def _amd_csv(text: str) -> list[dict[str, Any]]:
    """Rows of `--csv`, where a cell may be a bracketed list that holds commas of its own."""
    lines = [line for line in text.splitlines() if line.strip()]
    start = next((i for i, line in enumerate(lines) if line.startswith("gpu,")), None)
    if start is None:
        raise SourceError("amd-smi printed neither JSON nor a table")
    header = lines[start].split(",")
    rows = []
    for line in lines[start + 1 :]:
        cells = _split(line)
        if len(cells) == len(header):
            rows.append(dict(zip((name.strip() for name in header), cells, strict=True)))
    if not rows and len(lines) > start + 1:
        raise SourceError("amd-smi printed rows that do not fit their header")
    return rows


def _split(line: str) -> list[str]:
    cells, depth, quoted, cell = [], 0, False, ""
    for character in line:
        if character == '"':
            quoted = not quoted
            continue
        depth += (character == "[") - (character == "]")
        if character == "," and not depth and not quoted:
            cells.append(cell.strip())
            cell = ""
        else:
            cell += character
    return [*cells, cell.strip()]


def _part(row: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of a JSON row; a CSV row has no groups. N/A stands for a whole group where nothing is supported."""
    if name not in row:
        return {} if any(isinstance(value, dict) for value in row.values()) else row
    part = row[name]
    return part if isinstance(part, dict) else {}
