"""Prometheus pages of the DCGM exporter and of AMD's device metrics exporter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from collectors.power.http import Page
from collectors.power.source import Device, Kind, Sample, Scope, SourceError, number, percent, plausible

# The numbers by their names on the page, lower case and without the `amd_` that AMD's exporter can put before them:
# kind of power or energy, and the factor to watts or joules (DCGM field identifiers; AMD metrics list).
_POWER = {
    "dcgm_fi_dev_power_usage": (Kind.AVERAGE, 1.0),
    "dcgm_fi_dev_power_usage_instant": (Kind.INSTANT, 1.0),
    "dcgm_fi_dev_total_energy_consumption": (Kind.COUNTER, 1e-3),
    "gpu_average_package_power": (Kind.AVERAGE, 1.0),
    "gpu_package_power": (Kind.INSTANT, 1.0),
    "gpu_energy_consumed": (Kind.COUNTER, 1e-6),
}
_SPARE_POWER = {"gpu_power_usage": (Kind.INSTANT, 1.0)}
"""Read only where the page has neither of the package powers for a device."""

_UTILISATION = ("dcgm_fi_dev_gpu_util", "gpu_gfx_activity")
_MEMORY = ("dcgm_fi_dev_fb_used", "gpu_used_vram")  # MiB
_ID = ("UUID", "uuid", "gpu_uuid", "serial_number")
_INDEX = ("gpu", "gpu_id")
_NAME = ("modelName", "card_model", "card_series")
_HOST = ("Hostname", "hostname", "node")
_PARTITION = ("GPU_I_ID", "gpu_partition_id")


class ExporterSource:
    """One exporter page, with all GPUs of its node (or of several). Nothing is frozen: fields may come and go."""

    name = "exporter"
    scope = Scope.ACCELERATOR

    def __init__(self, url: str) -> None:
        self.problems: Counter[str] = Counter()
        bare = "/" not in url.partition("://")[2].rstrip("/")
        self._url = f"{url.rstrip('/')}/metrics" if bare else url
        self._page: Page | None = None

    def devices(self) -> list[Device]:
        """GPUs on the page; SourceError when it can't be read (a page without GPUs yet is no failure)."""
        return list({sample.device.id: sample.device for sample in self.sample()}.values())

    def sample(self) -> list[Sample]:
        """Read the page once."""
        self._page = self._page or Page()
        samples = parse_exporter(self._page.text(self._url), self.problems, urlsplit(self._url).hostname)
        if not samples:
            self.problems[f"{self._url}: no GPU power on the page"] += 1
        return samples

    def close(self) -> None:
        """Close the connection."""
        if self._page is not None:
            self._page.close()
            self._page = None


def parse_exporter(text: str, problems: Counter[str], page_host: str | None = None) -> list[Sample]:
    """Samples of a page. A GPU that appears once per MIG instance, pod or partition is counted once.

    `page_host` is where GPUs are whose rows do not say so.
    SourceError when the text is no Prometheus page.
    """
    gpus: dict[tuple[str, str | None], _Page] = defaultdict(_Page)
    for name, labels, value in _series(text):
        gpu = gpus[_identity(labels), _label(labels, _HOST) or page_host]
        gpu.name = gpu.name or _label(labels, _NAME)
        gpu.values.setdefault(name, value)
        if name in _MEMORY and value is not None:
            gpu.memory[tuple(_label(labels, (part,)) or "" for part in _PARTITION)] = value
    samples: list[Sample] = []
    for (identity, host), gpu in gpus.items():
        samples += _samples(Device(identity, gpu.name or "GPU"), host, gpu, problems)
    return samples


class _Page:
    """What the page says about one GPU; memory is per instance."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.values: dict[str, float | None] = {}
        self.memory: dict[tuple[str, ...], float] = {}


def _series(text: str) -> Iterable[tuple[str, dict[str, str], float | None]]:
    from prometheus_client.parser import text_string_to_metric_families

    known = {*_POWER, *_SPARE_POWER, *_UTILISATION, *_MEMORY}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.lower().removeprefix("amd_").removesuffix("_total")
                if name in known:
                    yield name, sample.labels, number(sample.value)
    except Exception as error:  # the parser raises whatever its slicing meets
        raise SourceError(f"not a Prometheus page: {type(error).__name__}: {error}") from error


def _identity(labels: dict[str, str]) -> str:
    return _label(labels, _ID) or f"gpu{_label(labels, _INDEX) or 0}"


def _label(labels: dict[str, str], names: Iterable[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


def _samples(device: Device, host: str | None, gpu: _Page, problems: Counter[str]) -> list[Sample]:
    used = sum(gpu.memory.values()) if gpu.memory else None
    state: dict[str, Any] = {
        "utilisation": percent(next((gpu.values[name] for name in _UTILISATION if name in gpu.values), None)),
        "memory_bytes": None if used is None else round(used * 2**20),
        "host": host,
    }
    samples: list[Sample] = []
    for table in (_POWER, _SPARE_POWER):
        if table is _SPARE_POWER and any(sample.watts is not None for sample in samples):
            break
        for name, (kind, scale) in table.items():
            value = gpu.values.get(name)
            if name not in gpu.values:
                continue
            if kind is Kind.COUNTER:
                if value:
                    samples.append(Sample(device, kind, name, joules=value * scale, **state))
            elif value != 0:  # AMD's exporter writes 0 for what the chip does not have
                samples.append(Sample(device, kind, name, watts=plausible(value, problems, device.id), **state))
    if not samples and any(name in gpu.values for name in (*_POWER, *_SPARE_POWER)):
        problems[f"{device.id}: no power reading"] += 1
        samples.append(Sample(device, Kind.INSTANT, None, **state))
    return samples
