"""What accelerators this machine has, and how that is known. Whatever fails is a line of the answer, never an error.

Asked in turn: NVML, amdsmi, Google's TPU environment, metadata and device files, and the PCI ids in sysfs. A maker's
own library beats the PCI ids of the same maker; a machine where nothing is found is a `cpu`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hardware.registry import Registry

_PROBE = Path(__file__).with_name("probe.py")
_PROBE_S = 10.0
_METADATA_S = 1.0
_METADATA_HOST = "169.254.169.254"
_VENDORS = {"10de": "NVIDIA", "1002": "AMD", "1ae0": "Google", "1d0f": "AWS"}
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""VGA, 3D and display controller, processing accelerator."""

_NOT_IN_REGISTRY = {
    "10de:2331": "NVIDIA H100 PCIe",
    "10de:2321": "NVIDIA H100 NVL",
    "10de:233b": "NVIDIA H200 NVL",
    "10de:29bc": "NVIDIA B100",
    "1002:740c": "AMD Instinct MI250X",
    "1002:740f": "AMD Instinct MI210",
    "1002:74a0": "AMD Instinct MI300A",
    "1ae0:005e": "Google TPU v4",
    "1ae0:0062": "Google TPU v5p",
    "1ae0:0063": "Google TPU v5e",
    "1ae0:006f": "Google TPU v6e",
    "1d0f:7164": "AWS Trainium",
    "1d0f:7264": "AWS Inferentia2",
}
"""Names by the PCI ID database, JAX's hardware_utils (Google) and the Neuron driver (AWS)."""


class _ProbeDevice(msgspec.Struct, frozen=True):
    name: str
    memory_bytes: int | None
    mig: bool | None
    mig_devices: int


class _ProbeAnswer(msgspec.Struct, frozen=True):
    error: str | None = None
    driver: str | None = None
    devices: tuple[_ProbeDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Devices of one name."""

    device: str
    """As the machine names it."""
    accelerator: str | None
    """Name in the registry; None when it is not there."""
    count: int | None
    """Devices of that name here; None when it can't be told."""
    method: str
    """Who said so: nvml, amdsmi, tpu, pci or nothing."""
    vendor: str
    driver: str | None = None
    memory_bytes: int | None = None
    """Memory of one device as the driver gives it."""
    mig: bool | None = None
    """Whether MIG is on (for every device; None when they differ or have no such mode)."""
    mig_devices: int = 0
    """MIG devices in all."""


@dataclass(frozen=True, slots=True)
class Step:
    """One way of asking, and what came of it."""

    method: str
    answered: bool
    text: str


@dataclass(frozen=True, slots=True)
class Detection:
    """What was found, best source first, and every step on the way."""

    found: tuple[Found, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Machine:
    """Where to look; tests give a tree of their own."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


def detect(registry: Registry, machine: Machine | None = None) -> Detection:
    """Name this machine's accelerators; never raises, and takes at most about 20 s when libraries hang."""
    machine = machine or Machine()
    found: list[Found] = []
    steps: list[Step] = []
    for method, ask in _METHODS:
        try:
            answers, text = ask(registry, machine)
        except Exception as error:  # whatever it is, it is said, and the next method is asked
            answers, text = [], f"{type(error).__name__}: {error}"
        steps.append(Step(method, bool(answers), " ".join(text.split())))
        vendors = {known.vendor for known in found}
        found += [answer for answer in answers if answer.vendor not in vendors]
    if not found:
        found.append(Found(_cpu_name(machine), "cpu", 1, "nothing", "any"))
        steps.append(Step("nothing", True, "no accelerator found: a machine of processors only"))
    return Detection(tuple(found), tuple(steps))


def _by_library(library: str, vendor: str) -> Callable[[Registry, Machine], tuple[list[Found], str]]:
    def ask(registry: Registry, machine: Machine) -> tuple[list[Found], str]:
        answer = _probe(library, machine)
        if answer.error is not None:
            return [], answer.error
        by_name: dict[str, list[_ProbeDevice]] = {}
        for device in answer.devices:
            by_name.setdefault(device.name, []).append(device)
        found = [
            _library_found(registry, name, group, library, vendor, answer.driver) for name, group in by_name.items()
        ]
        return found, f"driver {answer.driver or 'unknown'}, {len(answer.devices)} device(s)"

    return ask


def _library_found(
    registry: Registry, name: str, devices: list[_ProbeDevice], method: str, vendor: str, driver: str | None
) -> Found:
    known = registry.find(name)
    modes = {device.mig for device in devices}
    return Found(
        device=name,
        accelerator=known.name if known else None,
        count=len(devices),
        method=method,
        vendor=vendor,
        driver=driver,
        memory_bytes=devices[0].memory_bytes,
        mig=modes.pop() if len(modes) == 1 else None,
        mig_devices=sum(device.mig_devices for device in devices),
    )


def _probe(library: str, machine: Machine) -> _ProbeAnswer:
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_PROBE), library],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PROBE_S,
            check=False,
            env=dict(machine.environment),
        )
    except subprocess.TimeoutExpired:
        return _ProbeAnswer(error=f"no answer within {_PROBE_S:.0f} s")
    try:
        return msgspec.json.decode(done.stdout, type=_ProbeAnswer)
    except msgspec.DecodeError:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return _ProbeAnswer(error=f"the library ended its process ({how})")


def _by_tpu(registry: Registry, machine: Machine) -> tuple[list[Found], str]:
    """TPU by environment, then metadata server (asked only on Google's machines); the count by device files."""
    said = machine.environment.get("TPU_ACCELERATOR_TYPE") or machine.environment.get("ACCELERATOR_TYPE")
    how = "the environment"
    if not said:
        if not _on_google(machine):
            return [], "no TPU_ACCELERATOR_TYPE in the environment, and not a machine of Google Cloud"
        try:
            said, how = _tpu_metadata(machine), "the metadata server"
        except urllib.error.HTTPError as error:
            return [], f"the metadata server of this machine knows no accelerator-type (HTTP {error.code})"
    generation = said.partition("-")[0]
    known = registry.find(generation)
    count = _tpu_chips(registry, machine)
    where = "no device file or PCI device to count" if count is None else f"{count} chip(s) on this host"
    return [Found(said, known.name if known else None, count, "tpu", "Google")], f"{said} by {how}; {where}"


def _on_google(machine: Machine) -> bool:
    product = machine.root / "sys/class/dmi/id/product_name"
    return "GCE_METADATA_HOST" in machine.environment or (
        product.is_file() and product.read_text(errors="replace").startswith("Google")
    )


def _tpu_metadata(machine: Machine) -> str:
    host = machine.environment.get("GCE_METADATA_HOST", _METADATA_HOST)
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/attributes/accelerator-type", headers={"Metadata-Flavor": "Google"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_METADATA_S) as reply:
        text: str = reply.read(200).decode("ascii", "replace").strip()
    if not re.fullmatch(r"[A-Za-z0-9-]+", text):
        raise ValueError(f"the metadata server's accelerator-type is {text!r}")
    return text


def _tpu_chips(registry: Registry, machine: Machine) -> int | None:
    devices = machine.root / "dev"
    for pattern in ("accel[0-9]*", "accel/accel[0-9]*", "vfio/[0-9]*"):
        count = len(list(devices.glob(pattern)))
        if count:
            return count
    return sum(pci_id.startswith("1ae0:") for pci_id, _ in _pci_devices(registry, machine)) or None


def _by_pci(registry: Registry, machine: Machine) -> tuple[list[Found], str]:
    folder = machine.root / "sys/bus/pci/devices"
    if not folder.is_dir():
        return [], f"{folder} does not exist"
    devices = _pci_devices(registry, machine)
    drivers = dict(devices)
    found = []
    for pci_id, count in sorted(Counter(pci_id for pci_id, _ in devices).items()):
        known = registry.find_pci(pci_id)
        found.append(
            Found(
                device=f"{known.label if known else _NOT_IN_REGISTRY.get(pci_id, 'unknown device')} [{pci_id}]",
                accelerator=known.name if known else None,
                count=count,
                method="pci",
                vendor=known.vendor if known else _VENDORS[pci_id[:4]],
                driver=drivers[pci_id],
            )
        )
    return found, f"{len(devices)} accelerator(s) among the devices in {folder}"


def _pci_devices(registry: Registry, machine: Machine) -> list[tuple[str, str | None]]:
    """PCI id and name of the bound driver, of every accelerator: by its id, or by GPU maker and device class."""
    out = []
    for device in sorted((machine.root / "sys/bus/pci/devices").glob("*")):
        try:
            vendor, product, kind = ((device / name).read_text().strip() for name in ("vendor", "device", "class"))
        except OSError:
            continue
        pci_id = f"{vendor.removeprefix('0x')}:{product.removeprefix('0x')}".lower()
        gpu = pci_id[:4] in ("10de", "1002") and kind.startswith(_GPU_CLASSES)
        if gpu or pci_id in _NOT_IN_REGISTRY or registry.find_pci(pci_id):
            driver = device / "driver"
            out.append((pci_id, driver.resolve().name if driver.exists() else None))
    return out


def _cpu_name(machine: Machine) -> str:
    try:
        text = (machine.root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return "processor"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else "processor"


_METHODS: tuple[tuple[str, Callable[[Registry, Machine], tuple[list[Found], str]]], ...] = (
    ("nvml", _by_library("nvml", "NVIDIA")),
    ("amdsmi", _by_library("amdsmi", "AMD")),
    ("tpu", _by_tpu),
    ("pci", _by_pci),
)
