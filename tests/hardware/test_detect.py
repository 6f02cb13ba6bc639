"""Detection: the real nvidia-ml-py over a small C library, sysfs trees, a metadata server; every failure is a line."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hardware import detect as detecting
from hardware.detect import Detection, Machine, detect
from hardware.registry import load_registry


def compiled(folder: Path, library: str, *sources: Path) -> Path:
    """Build a shared library with the system's compiler; skips without one."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", folder / library, *sources], check=True)
    return folder


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a libnvidia-ml.so.1 that says what the environment tells it to."""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    return compiled(tmp_path_factory.mktemp("nvml"), "libnvidia-ml.so.1", Path(__file__).with_name("fake_nvml.c"))


@pytest.fixture(scope="session")
def fake_amdsmi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a libamd_smi.so: our few functions, and a stub for every other name the Python package looks up."""
    package = importlib.util.find_spec("amdsmi")
    if package is None or package.origin is None:
        pytest.skip("needs the Python package amdsmi")
    wrapper = Path(package.origin).with_name("amdsmi_wrapper.py").read_text()
    ours = Path(__file__).with_name("fake_amdsmi.c")
    wanted = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper))
    missing = wanted - set(re.findall(r"^\w+ (amdsmi_\w+)\(", ours.read_text(), re.MULTILINE))
    folder = tmp_path_factory.mktemp("amdsmi")
    stubs = folder / "stubs.c"
    stubs.write_text("".join(f"int {name}(void) {{ return 2; }}\n" for name in sorted(missing)))
    return compiled(folder, "libamd_smi.so", ours, stubs)


LIBRARIES = {"pynvml": "libnvidia-ml.so.1", "amdsmi": "libamd_smi.so"}


def look(root: Path, library: Path | None = None, **environment: str) -> Detection:
    """Detect below `root` with the libraries in `library`; those of the machine the test runs on are out of sight."""
    hidden = root / "hidden"
    hidden.mkdir(exist_ok=True)
    for package, file in LIBRARIES.items():
        if library is None or not (library / file).exists():
            (hidden / f"{package}.py").write_text("raise ImportError('hidden')\n")
    environment |= {"PYTHONPATH": str(hidden)} | ({"LD_LIBRARY_PATH": str(library)} if library else {})
    return detect(load_registry(), Machine(root, environment))


def line(detection: Detection, method: str) -> str:
    return next(step.text for step in detection.steps if step.method == method)


def pci(root: Path, address: str, vendor: str, device: str, kind: str, driver: str | None = None) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("device", device), ("class", kind)):
        (folder / name).write_text(text + "\n")
    if driver is not None:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)


def test_nvml_names_the_devices_with_driver_and_memory(fake_nvml: Path, tmp_path: Path) -> None:
    got = look(tmp_path, fake_nvml, FAKE_NVML_NAMES="NVIDIA B200|NVIDIA B200|NVIDIA L4")
    b200, l4 = got.found
    assert (b200.device, b200.accelerator, b200.count, b200.method) == ("NVIDIA B200", "b200", 2, "nvml")
    assert (b200.driver, b200.memory_bytes, b200.mig) == ("580.95.05", 192_265_846_784, None)
    assert (l4.device, l4.accelerator, l4.count) == ("NVIDIA L4", None, 1)
    assert line(got, "nvml") == "driver 580.95.05, 3 device(s)"


@pytest.mark.parametrize(("parts", "mig"), [(0, False), (3, True)])
def test_mig_is_said_and_its_devices_counted(parts: int, mig: bool, fake_nvml: Path, tmp_path: Path) -> None:
    got = look(tmp_path, fake_nvml, FAKE_NVML_NAMES="NVIDIA H200|NVIDIA H200", FAKE_NVML_MIG=str(parts))
    (found,) = got.found
    assert (found.mig, found.mig_devices, found.count) == (mig, 2 * parts, 2)


def test_no_permission_is_a_line_and_pci_names_the_devices(fake_nvml: Path, tmp_path: Path) -> None:
    pci(tmp_path, "0000:18:00.0", "0x10de", "0x2335", "0x030200", driver="vfio-pci")
    pci(tmp_path, "0000:19:00.0", "0x10de", "0x2335", "0x030200", driver="vfio-pci")
    got = look(tmp_path, fake_nvml, FAKE_NVML_INIT="4")
    (found,) = got.found
    assert (found.accelerator, found.count, found.method, found.driver) == ("h200", 2, "pci", "vfio-pci")
    assert "Insufficient Permissions" in line(got, "nvml")


def test_a_driver_without_devices(fake_nvml: Path, tmp_path: Path) -> None:
    got = look(tmp_path, fake_nvml)
    assert got.found[0].accelerator == "cpu"
    assert line(got, "nvml") == "driver 580.95.05, 0 device(s)"


def test_a_library_that_crashes_or_hangs_is_a_line(
    fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detecting, "_PROBE_S", 1.0)
    crashed = look(tmp_path, fake_nvml, FAKE_NVML_CRASH="1")
    assert line(crashed, "nvml") == "the library ended its process (signal 11)"
    began = time.monotonic()
    hung = look(tmp_path, fake_nvml, FAKE_NVML_HANG="1")
    assert line(hung, "nvml") == "no answer within 1 s"
    assert time.monotonic() - began < 5
    assert hung.found[0].accelerator == "cpu"


def test_amdsmi_names_the_devices_with_driver_and_memory(fake_amdsmi: Path, tmp_path: Path) -> None:
    pci(tmp_path, "0000:05:00.0", "0x1002", "0x74a1", "0x120000", driver="amdgpu")
    names = "AMD Instinct MI300X|AMD Instinct MI300X"
    got = look(tmp_path, fake_amdsmi, FAKE_AMDSMI_NAMES=names)
    (found,) = got.found
    assert (found.device, found.accelerator, found.count) == ("AMD Instinct MI300X", "mi300x", 2)
    assert (found.method, found.driver, found.memory_bytes) == ("amdsmi", "6.14.14", 206_141_652_992)


def test_amdsmi_without_memory_or_permission(fake_amdsmi: Path, tmp_path: Path) -> None:
    got = look(tmp_path, fake_amdsmi, FAKE_AMDSMI_NAMES="AMD Instinct MI355X", FAKE_AMDSMI_NO_MEMORY="1")
    assert (got.found[0].accelerator, got.found[0].memory_bytes) == ("mi355x", None)
    refused = look(tmp_path, fake_amdsmi, FAKE_AMDSMI_INIT="10")  # AMDSMI_STATUS_NO_PERM
    assert refused.found[0].accelerator == "cpu"
    assert "AmdSmiLibraryException" in line(refused, "amdsmi")
    assert "\n" not in line(refused, "amdsmi")


def test_the_library_s_answer_beats_the_pci_ids_of_the_same_maker(fake_nvml: Path, tmp_path: Path) -> None:
    pci(tmp_path, "0000:18:00.0", "0x10de", "0x2901", "0x030200", driver="nvidia")
    pci(tmp_path, "0000:c1:00.0", "0x1002", "0x74a1", "0x120000", driver="amdgpu")
    got = look(tmp_path, fake_nvml, FAKE_NVML_NAMES="NVIDIA B200")
    assert [(found.accelerator, found.method) for found in got.found] == [("b200", "nvml"), ("mi300x", "pci")]


def test_pci_ids_of_every_maker(tmp_path: Path) -> None:
    pci(tmp_path, "0000:00:01.0", "0x8086", "0x1237", "0x060000")
    pci(tmp_path, "0000:00:02.0", "0x1d0f", "0xec20", "0x020000", driver="ena")  # Amazon's network card
    pci(tmp_path, "0000:00:03.0", "0x1d0f", "0x7364", "0x088000", driver="neuron")
    pci(tmp_path, "0000:00:04.0", "0x1002", "0x75a3", "0x120000", driver="amdgpu")
    pci(tmp_path, "0000:00:05.0", "0x10de", "0x2331", "0x030200", driver="nvidia")
    pci(tmp_path, "0000:00:06.0", "0x10de", "0x22a3", "0x068000")  # an NVSwitch
    pci(tmp_path, "0000:00:07.0", "0x10de", "0x9999", "0x030200")
    (tmp_path / "sys/bus/pci/devices/0000:00:08.0").mkdir()  # a device that went away
    got = look(tmp_path)
    assert {(found.device, found.accelerator, found.vendor) for found in got.found} == {
        ("AWS Trainium2 [1d0f:7364]", "trainium2", "AWS"),
        ("AMD Instinct MI355X [1002:75a3]", "mi355x", "AMD"),
        ("NVIDIA H100 PCIe [10de:2331]", None, "NVIDIA"),
        ("unknown device [10de:9999]", None, "NVIDIA"),
    }


def test_tpu_by_the_environment_counted_by_device_files(tmp_path: Path) -> None:
    (tmp_path / "dev/vfio").mkdir(parents=True)
    for name in ("0", "1", "2", "3", "vfio"):
        (tmp_path / "dev/vfio" / name).touch()
    got = look(tmp_path, TPU_ACCELERATOR_TYPE="tpu7x-8")
    (found,) = got.found
    assert (found.device, found.accelerator, found.count, found.method) == ("tpu7x-8", "tpu-v7", 4, "tpu")
    assert line(got, "tpu") == "tpu7x-8 by the environment; 4 chip(s) on this host"


def test_tpu_by_pci_alone(tmp_path: Path) -> None:
    pci(tmp_path, "0000:00:04.0", "0x1ae0", "0x0083", "0xff0000")
    pci(tmp_path, "0000:00:05.0", "0x1ae0", "0x0042", "0x020000")  # Google's network card
    (found,) = look(tmp_path).found
    assert (found.accelerator, found.count, found.method) == ("tpu-v8", 1, "pci")


@contextmanager
def metadata_server(status: int, body: bytes, delay_s: float = 0.0) -> Iterator[str]:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            time.sleep(delay_s)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *arguments: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == [("/computeMetadata/v1/instance/attributes/accelerator-type", "Google")]


def test_tpu_by_the_metadata_server_past_any_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with metadata_server(200, b"v6e-8\n") as host:
        got = look(tmp_path, GCE_METADATA_HOST=host)
    (found,) = got.found
    assert (found.device, found.accelerator, found.count) == ("v6e-8", None, None)
    assert line(got, "tpu") == "v6e-8 by the metadata server; no device file or PCI device to count"


@pytest.mark.parametrize(
    ("status", "body", "delay_s", "said"),
    [
        (404, b"no", 0, "knows no accelerator-type (HTTP 404)"),
        (200, b"<html>", 0, "accelerator-type is"),
        (200, b"", 1.5, "timed out"),
    ],
)
def test_a_metadata_server_without_an_answer_is_a_line(
    status: int, body: bytes, delay_s: float, said: str, tmp_path: Path
) -> None:
    with metadata_server(status, body, delay_s) as host:
        got = look(tmp_path, GCE_METADATA_HOST=host)
    assert said in line(got, "tpu")
    assert got.found[0].accelerator == "cpu"


def test_nothing_at_all_is_a_cpu_and_every_method_says_why(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Some Processor 9000\n")
    got = look(tmp_path)
    (found,) = got.found
    assert (found.device, found.accelerator, found.method) == ("Some Processor 9000", "cpu", "nothing")
    assert [step.method for step in got.steps] == ["nvml", "amdsmi", "tpu", "pci", "nothing"]
    assert all(step.text for step in got.steps)
    assert "not a machine of Google Cloud" in line(got, "tpu")
    assert "does not exist" in line(got, "pci")


def test_missing_packages_are_lines_that_name_the_extra(tmp_path: Path) -> None:
    probe = Path(detecting.__file__).with_name("probe.py")
    for library, extra in (("nvml", "nvidia"), ("amdsmi", "amd")):
        command = [sys.executable, "-P", "-S", "-E", str(probe), library]  # -S: no installed packages
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert f"pip install agentx-live[{extra}]" in done.stdout
