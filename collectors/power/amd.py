"""AMD GPUs: the amdsmi binding where its library is installed, else what `amd-smi` or `rocm-smi` prints."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from collectors.power.command import output
from collectors.power.smi_text import parse_amd_smi, parse_rocm_smi
from collectors.power.source import Device, Kind, Sample, Scope, SourceError, number, percent, plausible

_BLANK = 0xFFFF
"""The library's 16-bit and 32-bit 'not supported' both reach up to here; no socket draws 65 kW."""

_TOOLS: tuple[tuple[tuple[str, ...], Callable[[str, Counter[str]], list[Sample]]], ...] = (
    (("amd-smi", "metric", "--power", "--energy", "--usage", "--mem-usage", "--json"), parse_amd_smi),
    (("amd-smi", "metric", "--power", "--energy", "--usage", "--mem-usage", "--csv"), parse_amd_smi),
    (
        ("rocm-smi", "--showpower", "--showenergycounter", "--showuse", "--showmeminfo", "vram", "--showuniqueid",
         "--showproductname", "--json"),
        parse_rocm_smi,
    ),
)  # fmt: skip


class AmdSource:
    """All GPUs the amdsmi library shows. Partitions of one socket share its power, which is counted once."""

    name = "amdsmi"
    scope = Scope.ACCELERATOR

    def __init__(self) -> None:
        self.problems: Counter[str] = Counter()
        self._gpus: list[tuple[Any, Device, bool]] = []
        self._open = False

    def devices(self) -> list[Device]:
        """GPUs by UUID; SourceError without the package, the library, the permission, or a GPU."""
        self.close()
        self._smi = _load()
        try:
            self._smi.amdsmi_init()
            self._open = True
            handles = self._smi.amdsmi_get_processor_handles()
        except self._smi.AmdSmiException as error:
            self.close()
            raise SourceError(f"amdsmi: {_said(error)}") from error
        sockets: set[str] = set()
        for index, handle in enumerate(handles):
            try:
                socket = self._smi.amdsmi_get_gpu_device_bdf(handle).rpartition(".")[0]
                device = Device(self._smi.amdsmi_get_gpu_device_uuid(handle), self._name(handle))
            except self._smi.AmdSmiException as error:
                self.problems[f"GPU {index}: {_said(error)}"] += 1
                continue
            self._gpus.append((handle, device, socket not in sockets))
            sockets.add(socket)
        if not self._gpus:
            self.close()
            raise SourceError(f"amdsmi: {'; '.join(self.problems) or 'the library shows no GPU'}")
        return [device for _, device, _ in self._gpus]

    def sample(self) -> list[Sample]:
        """Counter and power of every socket; SourceError when no GPU answers any more."""
        samples: list[Sample] = []
        failed = self.problems.total()
        answers = 0
        for handle, device, first in self._gpus:
            energy = self._get(device, "energy", self._smi.amdsmi_get_energy_count, handle) if first else None
            now = monotonic_ns()  # of this GPU: with eight of them, one call after the other, it matters
            power = self._get(device, "power", self._smi.amdsmi_get_power_info, handle)
            activity = self._get(device, "activity", self._smi.amdsmi_get_gpu_activity, handle)
            vram = self._get(device, "memory", self._smi.amdsmi_get_gpu_vram_usage, handle)
            answers += sum(answer is not None for answer in (power, energy, activity, vram))
            used = number((vram or {}).get("vram_used"))
            state: dict[str, Any] = {
                "utilisation": percent(number((activity or {}).get("gfx_activity"))),
                "memory_bytes": None if used is None else round(used * 2**20),
                "t_ns": now,
            }
            if not first:
                samples.append(Sample(device, None, None, **state))
                continue
            joules = _counter(energy)
            powers = _powers(power or {}, self.problems, device.id)
            if not powers and joules is None:
                powers = [(Kind.INSTANT, "socket_power", None)]
            samples += [Sample(device, kind, field, watts=watts, **state) for kind, field, watts in powers]
            if joules is not None:
                samples.append(Sample(device, Kind.COUNTER, "energy_accumulator", joules=joules, **state))
        if not answers and self.problems.total() > failed:
            raise SourceError(f"amdsmi: {list(self.problems)[-1]}")
        return samples

    def close(self) -> None:
        """Shut the library down."""
        self._gpus = []
        if self._open:
            self._open = False
            with contextlib.suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()

    def _name(self, handle: Any) -> str:
        try:
            return str(self._smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        except (self._smi.AmdSmiException, ValueError):
            return "AMD GPU"

    def _get(self, device: Device, what: str, call: Callable[[Any], Any], handle: Any) -> Any:
        try:
            return call(handle)
        except self._smi.AmdSmiException as error:
            self.problems[f"{device.id}: {what}: {_said(error)}"] += 1
            return None


class AmdToolSource:
    """What `amd-smi` or `rocm-smi` prints, whichever works first. Slow, so only where the binding does not."""

    name = "amd-smi"
    scope = Scope.ACCELERATOR

    def __init__(self) -> None:
        self.problems: Counter[str] = Counter()
        self._tool: tuple[tuple[str, ...], Callable[[str, Counter[str]], list[Sample]]] | None = None

    def devices(self) -> list[Device]:
        """GPUs of the first tool that answers; SourceError with what each of them said."""
        reasons = []
        for command, parse in _TOOLS:
            try:
                samples = parse(output(command), self.problems)
            except SourceError as error:
                reasons.append(str(error))
                continue
            if samples:
                self.name = command[0]
                self._tool = (command, parse)
                return list({sample.device.id: sample.device for sample in samples}.values())
            reasons.append(f"{command[0]} lists no GPU")
        raise SourceError("; ".join(dict.fromkeys(reasons)))

    def sample(self) -> list[Sample]:
        """One call of the tool."""
        if self._tool is None:
            raise SourceError("no AMD tool")
        command, parse = self._tool
        return parse(output(command), self.problems)

    def close(self) -> None:
        """Nothing is held."""


def _load() -> Any:
    """The binding, which prints to stdout and raises anything when its library is missing."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            import amdsmi
    except ImportError as error:
        raise SourceError("amdsmi is not installed (pip install 'agentx-live[amd]')") from error
    except Exception as error:
        reason = said.getvalue().strip().partition("\n")[0] or f"{type(error).__name__}: {error}"
        raise SourceError(f"amdsmi: {reason}") from error
    return amdsmi


def _said(error: Exception) -> str:
    return " ".join(str(getattr(error, "err_info", None) or error).split()) or type(error).__name__


def _counter(energy: Any) -> float | None:
    """Joules of the accumulator, whose resolution is in microjoules; releases before 6.1 call the ticks `power`."""
    if not energy:
        return None
    ticks, resolution = (
        number(energy.get("energy_accumulator", energy.get("power"))),
        number(energy["counter_resolution"]),
    )
    return None if not ticks or not resolution else ticks * resolution * 1e-6


def _powers(power: dict[str, Any], problems: Counter[str], what: str) -> list[tuple[Kind, str, float | None]]:
    """The readings this chip has: current power on MI300 and later, average before; `socket_power` is one of both."""
    found: list[tuple[Kind, str, float | None]] = []
    for kind, field in ((Kind.INSTANT, "current_socket_power"), (Kind.AVERAGE, "average_socket_power")):
        watts = number(power.get(field))
        if watts and watts < _BLANK and (watts := plausible(watts, problems, what)) is not None:
            found.append((kind, field, watts))
    if not found and (watts := number(power.get("socket_power"))) and watts < _BLANK:
        found.append((Kind.INSTANT, "socket_power", plausible(watts, problems, what)))
    return found
