"""NVIDIA GPUs through the driver's library (nvidia-ml-py): energy counters, average and instant power, MIG.

Where the library can't be loaded but `nvidia-smi` is there, its table is read instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from collectors.power.command import output
from collectors.power.smi_text import parse_nvidia_smi
from collectors.power.source import Device, Kind, Sample, Scope, SourceError, percent, plausible

_AMPERE = 7
_INSTANT_AMPERE = ("A100", "A800", "A30")
"""GA100: the one Ampere chip whose power reading is instant (NVML reference, nvmlDeviceGetPowerUsage)."""


class NvidiaSource:
    """All GPUs the driver shows, each once; MIG instances add memory but no power of their own."""

    name = "nvml"
    scope = Scope.ACCELERATOR

    def __init__(self) -> None:
        self.problems: Counter[str] = Counter()
        self._gpus: list[_Gpu] = []
        self._open = False

    def devices(self) -> list[Device]:
        """GPUs by UUID; SourceError without the package, the driver, the permission, or a GPU."""
        self.close()
        try:
            import pynvml
        except ImportError as error:
            raise SourceError("nvidia-ml-py is not installed (pip install 'agentx-live[nvidia]')") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            self._open = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.close()
            raise SourceError(f"NVML: {error}") from error
        for index in range(count):
            try:
                self._gpus.append(_Gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index), index))
            except pynvml.NVMLError as error:
                self.problems[f"GPU {index}: {error}"] += 1
        if not self._gpus:
            self.close()
            reasons = "; ".join(self.problems) or "the driver shows no GPU"
            raise SourceError(f"NVML: {reasons}")
        return [gpu.device for gpu in self._gpus]

    def sample(self) -> list[Sample]:
        """Counter, average and instant power of every GPU; SourceError when none answers any more."""
        samples: list[Sample] = []
        dead: list[str] = []
        for gpu in self._gpus:
            try:
                samples += gpu.sample(self.problems)
            except self._nvml.NVMLError as error:
                reason = f"{gpu.device.id}: {error}"
                self.problems[reason] += 1
                dead.append(reason)
        if dead and not samples:
            raise SourceError("; ".join(dead))
        return samples

    def close(self) -> None:
        """Shut the library down."""
        self._gpus = []
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass


class _Gpu:
    """One GPU's handle and what it can say. Lost GPUs raise; fields it does not have are None."""

    def __init__(self, nvml: Any, handle: Any, index: int) -> None:
        self._nvml = nvml
        self._handle = handle
        self.device = Device(_text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)))
        self._usage_kind = self._kind_of_usage()
        self._soft = (
            nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_NO_DATA,
        )  # fmt: skip
        self._index = index

    def sample(self, problems: Counter[str]) -> list[Sample]:
        self._problems = problems
        energy = self._get("total energy", self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        now = monotonic_ns()  # of this GPU: with eight of them, one call after the other, it matters
        powers = self._powers(expected=energy is None)
        rates = self._get("utilisation", self._nvml.nvmlDeviceGetUtilizationRates)
        memory = self._get("memory", self._nvml.nvmlDeviceGetMemoryInfo)
        state: dict[str, Any] = {
            "utilisation": None if rates is None else percent(rates.gpu),
            "memory_bytes": None if memory is None else int(memory.used),
            "t_ns": now,
        }
        samples = [Sample(self.device, kind, field, watts=watts, **state) for kind, field, watts in powers]
        if energy is not None:
            samples.append(Sample(self.device, Kind.COUNTER, "total_energy_consumption", joules=energy / 1e3, **state))
        return samples + self._instances()

    def _powers(self, *, expected: bool) -> list[tuple[Kind, str, float | None]]:
        """Average and instant power as the driver tells them apart; else the one reading older drivers have."""
        nvml = self._nvml
        wanted = (
            (Kind.AVERAGE, "power_average", nvml.NVML_FI_DEV_POWER_AVERAGE),
            (Kind.INSTANT, "power_instant", nvml.NVML_FI_DEV_POWER_INSTANT),
        )
        answers = self._get("field values", nvml.nvmlDeviceGetFieldValues, [field for *_, field in wanted])
        found: list[tuple[Kind, str, float | None]] = []
        for (kind, field, _), answer in zip(wanted, answers or (), strict=False):
            if answer.nvmlReturn == nvml.NVML_SUCCESS:
                watts = plausible(_value(nvml, answer) / 1e3, self._problems, self.device.id)
                found.append((kind, field, watts))
        if not found:
            usage = self._get("power usage", nvml.nvmlDeviceGetPowerUsage)
            if usage is not None:
                watts = plausible(usage / 1e3, self._problems, self.device.id)
                found.append((self._usage_kind, "power_usage", watts))
            elif expected:  # no counter either: what is missing must show
                found.append((self._usage_kind, "power_usage", None))
        return found

    def _instances(self) -> list[Sample]:
        """Memory of each MIG instance. Power and energy exist for the whole GPU only."""
        nvml = self._nvml
        mode = self._quiet(nvml.nvmlDeviceGetMigMode)
        if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        samples = []
        for index in range(self._quiet(nvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
            handle = self._quiet(nvml.nvmlDeviceGetMigDeviceHandleByIndex, index)
            if handle is None:
                continue
            try:
                used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
                instance = Device(_text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle)))
            except nvml.NVMLError as error:
                self._problems[f"MIG instance {index} of {self.device.id}: {error}"] += 1
                continue
            samples.append(Sample(instance, None, None, memory_bytes=used))
        return samples

    def _kind_of_usage(self) -> Kind:
        """nvmlDeviceGetPowerUsage is a 1 s average on Ampere (without GA100) and later, instant before."""
        try:
            generation = self._nvml.nvmlDeviceGetArchitecture(self._handle)
        except self._nvml.NVMLError:
            return Kind.INSTANT
        old = generation < _AMPERE or (
            generation == _AMPERE and any(chip in self.device.name for chip in _INSTANT_AMPERE)
        )
        return Kind.INSTANT if old else Kind.AVERAGE

    def _get(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            if error.value not in self._soft:
                raise
            self._problems[f"{self.device.id}: {what}: {error}"] += 1
            return None

    def _quiet(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """For what most GPUs do not have at all."""
        try:
            return call(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


class NvidiaToolSource:
    """What `nvidia-smi` prints; older drivers know fewer columns."""

    name = "nvidia-smi"
    scope = Scope.ACCELERATOR
    _POWER = ("power.draw.average,power.draw.instant", "power.draw")

    def __init__(self) -> None:
        self.problems: Counter[str] = Counter()
        self._query = ""

    def devices(self) -> list[Device]:
        """GPUs by UUID; SourceError without the tool or a GPU."""
        reason = "no nvidia-smi"
        for power in self._POWER:
            self._query = f"--query-gpu=index,uuid,name,{power},utilization.gpu,memory.used"
            try:
                return list({sample.device.id: sample.device for sample in self.sample()}.values())
            except SourceError as error:
                reason = str(error)
        raise SourceError(reason)

    def sample(self) -> list[Sample]:
        """One call of the tool."""
        return parse_nvidia_smi(output(("nvidia-smi", self._query, "--format=csv")), self.problems)

    def close(self) -> None:
        """Nothing is held."""


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _value(nvml: Any, answer: Any) -> float:
    kinds = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return float(getattr(answer.value, kinds.get(answer.valueType, "uiVal")))
