"""Sources that are text, files or HTTP: nvidia-smi, exporters, RAPL, IPMI, Redfish, the user's own probe, TPU."""

from __future__ import annotations

import json
from collections import Counter
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

from collectors.power.exporters import ExporterSource, parse_exporter
from collectors.power.node import IpmiSource, RedfishSource, parse_dcmi
from collectors.power.nvidia import NvidiaToolSource
from collectors.power.probe import ProbeSource, parse_probe
from collectors.power.rapl import RaplSource
from collectors.power.smi_text import parse_nvidia_smi
from collectors.power.source import Sample, SourceError, number
from collectors.power.tpu import TpuSource
from tests.collectors.power_pages import serving


def by_kind(samples: list[Sample]) -> dict[tuple[str, str | None], float | None]:
    return {(s.device.id, s.kind): s.joules if s.kind == "counter" else s.watts for s in samples}


@pytest.mark.parametrize(
    "cell",
    ["[N/A]", "N/A", "[Not Supported]", "ERR!", "", " ", None, True, "nan", "inf", "12 parsecs", "[Unknown Error]"],
)
def test_p112_cells_that_are_no_number_are_none(cell: Any) -> None:
    assert number(cell) is None


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("450.25 W", 450.25),
        ("450250 mW", 450.25),
        (7, 7.0),
        ({"value": "3.5", "unit": "kJ"}, 3500.0),
        ("81559 MiB", 81559 * 2**20),
    ],
)
def test_cells_with_units_are_in_base_units(cell: Any, value: float) -> None:
    assert number(cell) == pytest.approx(value)


NVIDIA_SMI = """
index, uuid, name, power.draw.average [W], power.draw.instant [W], utilization.gpu [%], memory.used [MiB]
0, GPU-a, NVIDIA H100, 450.25 W, 470.00 W, 75 %, 1024 MiB
1, GPU-b, NVIDIA H100, [N/A], 300.00 W, [N/A], [N/A]
2, GPU-c, NVIDIA H100, [Not Supported], ERR!, 0 %, 0 MiB
3, GPU-d, NVIDIA H100, , , 0 %, 0 MiB
"""


def test_p112_nvidia_smi_rows_with_holes() -> None:
    problems: Counter[str] = Counter()
    samples = parse_nvidia_smi(NVIDIA_SMI, problems)
    assert by_kind(samples) == {
        ("GPU-a", "average"): 450.25, ("GPU-a", "instant"): 470, ("GPU-b", "instant"): 300,
        ("GPU-c", "average"): None, ("GPU-d", "average"): None,
    }  # fmt: skip
    assert samples[0].memory_bytes == 1 << 30
    assert problems["GPU-c: no power reading"] == 1


def test_p112_nvidia_smi_column_that_is_used_is_recorded() -> None:
    old = "uuid, power.draw [W]\nGPU-a, 300.5\n"
    (sample,) = parse_nvidia_smi(old, Counter())
    assert (sample.watts, sample.field, sample.kind) == (300.5, "power.draw", "instant")


def test_nvidia_smi_with_older_columns_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        'case "$*" in *average*) echo \'Field "power.draw.average" is not a valid field to query.\'; exit 2;; esac\n'
        "printf 'index, uuid, name, power.draw [W]\\n0, GPU-a, T4, 40.00 W\\n'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    source = NvidiaToolSource()
    assert [device.name for device in source.devices()] == ["T4"]
    assert [sample.watts for sample in source.sample()] == [40]


DCGM = """# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="n1",GPU_I_ID="1"} 410.5
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",modelName="NVIDIA H100",Hostname="n1",GPU_I_ID="2"} 410.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b",modelName="NVIDIA H100",Hostname="n1"} 140737488355328
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",Hostname="n1",GPU_I_ID="1"} 15152422938
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="n1"} 75
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n1",GPU_I_ID="1"} 1024
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",Hostname="n1",GPU_I_ID="2"} 1024
"""
AMD = """# TYPE amd_gpu_package_power gauge
amd_gpu_package_power{gpu_id="0",serial_number="X1",card_model="MI300X",hostname="n2"} 640
amd_gpu_average_package_power{gpu_id="0",serial_number="X1",hostname="n2"} 0
amd_gpu_energy_consumed{gpu_id="0",serial_number="X1",hostname="n2"} 2.5e+09
amd_gpu_gfx_activity{gpu_id="0",serial_number="X1",hostname="n2"} 50
amd_gpu_used_vram{gpu_id="0",serial_number="X1",hostname="n2"} 2048
gpu_power_usage{gpu_id="1",serial_number="X2",hostname="n2"} 300
gpu_power_usage{gpu_id="0",serial_number="X1",hostname="n2"} 640
"""


def test_dcgm_page_with_mig_rows_and_a_blank() -> None:
    problems: Counter[str] = Counter()
    samples = parse_exporter(DCGM, problems)
    assert by_kind(samples) == {
        ("GPU-a", "average"): 410.5, ("GPU-a", "counter"): pytest.approx(15152422.938), ("GPU-b", "average"): None,
    }  # fmt: skip
    assert samples[0].memory_bytes == 2 << 30
    assert samples[0].utilisation == 0.75
    assert samples[0].host == "n1"
    assert any("implausible" in problem for problem in problems)


def test_amd_exporter_page_with_and_without_prefix() -> None:
    samples = parse_exporter(AMD, Counter())
    assert by_kind(samples) == {("X1", "instant"): 640, ("X1", "counter"): 2500, ("X2", "instant"): 300}
    assert samples[0].device.name == "MI300X"


def test_c36_fields_that_appear_after_the_first_scrape() -> None:
    with serving() as server:
        server.pages["/metrics"] = "# nothing yet\nup 1\n"
        source = ExporterSource(server.url + "/")
        assert source.devices() == []
        assert source.sample() == []
        server.pages["/metrics"] = DCGM
        assert ("GPU-a", "counter") in by_kind(source.sample())
        server.pages["/metrics"] = AMD
        assert ("X1", "instant") in by_kind(source.sample())
        for broken in ('DCGM_FI_DEV_POWER_USAGE{gpu="0" 1\n', "<html>", 503, 404):
            server.pages["/metrics"] = broken
            with pytest.raises(SourceError):
                source.sample()
        source.close()
    with pytest.raises(SourceError, match="refused"):
        source.sample()
    source.close()


def zone(root: Path, name: str, label: str, energy: int, limit: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(label + "\n")
    (folder / "energy_uj").write_text(f"{energy}\n")
    (folder / "max_energy_range_uj").write_text(f"{limit}\n")
    return folder


def test_rapl_packages_and_memory_over_a_wrap(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 100)
    zone(tmp_path, "intel-rapl:0:1", "dram", 5_000_000, 10**9)
    zone(tmp_path, "intel-rapl:1", "psys", 1)
    zone(tmp_path, "intel-rapl:0:2", "dram", 0)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1)
    source = RaplSource(tmp_path)
    assert [device.name for device in source.devices()] == ["package-0", "package-0 dram"]
    assert by_kind(source.sample()) == pytest.approx({("cpu:0", "counter"): 0.9, ("cpu:0:1", "counter"): 5.0})
    for raw, joules in ((100_000, 1.100001), (50_000, 2.050002), (60_000, 2.060002)):
        (package / "energy_uj").write_text(str(raw))
        assert by_kind(source.sample())["cpu:0", "counter"] == pytest.approx(joules)


def test_rapl_that_is_missing_unreadable_or_goes_away(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no RAPL zone"):
        RaplSource(tmp_path).devices()
    package = zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    source = RaplSource(tmp_path)
    source.devices()
    (package / "energy_uj").unlink()
    with pytest.raises(SourceError, match="No such file"):
        source.sample()
    (package / "energy_uj").write_text("garbage")
    with pytest.raises(SourceError):
        source.sample()


def test_rapl_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1)
    read = Path.read_text

    def refuse(path: Path, *arguments: Any, **more: Any) -> str:
        if path.name == "energy_uj":  # root reads everything, so that a mode can't stand for this
            raise PermissionError(13, "Permission denied")
        return read(path, *arguments, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(SourceError, match="needs root"):
        RaplSource(tmp_path).devices()


IPMI = """
    Instantaneous power reading:                   {watts} Watts
    Minimum during sampling period:                 98 Watts
    Power reading state is:                   {state}
"""


@pytest.mark.parametrize(
    ("watts", "state", "expected"), [("1234", "activated", 1234), ("0", "activated", None), ("90", "deactivated", None)]
)
def test_ipmi_reading(watts: str, state: str, expected: float | None) -> None:
    assert parse_dcmi(IPMI.format(watts=watts, state=state)) == expected


def test_ipmi_without_the_tool_or_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="ipmitool is not installed"):
        IpmiSource().devices()
    tool = tmp_path / "ipmitool"
    tool.write_text("#!/bin/sh\necho 'Could not open device at /dev/ipmi0' >&2; exit 1\n")
    tool.chmod(0o755)
    with pytest.raises(SourceError, match="Could not open device"):
        IpmiSource().devices()
    tool.write_text(f"#!/bin/sh\necho '{IPMI.format(watts=800, state='activated')}'\n")
    assert [sample.watts for sample in IpmiSource().sample()] == [800]


def test_redfish_reads_each_outer_chassis_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTX_REDFISH_USER", "root")
    monkeypatch.setenv("AGENTX_REDFISH_PASSWORD", "canary")
    root = "/redfish/v1/Chassis"
    documents: dict[str, Any] = {
        root: {"Members": [{"@odata.id": f"{root}/{name}"} for name in ("1", "gpus", "new")]},
        f"{root}/1": {"Id": "1", "Name": "Server", "Power": {"@odata.id": f"{root}/1/Power"}},
        f"{root}/1/Power": {"PowerControl": [{"PowerConsumedWatts": 3100}]},
        f"{root}/gpus": {
            "Id": "gpus",
            "Links": {"ContainedBy": {"@odata.id": f"{root}/1"}},
            "Power": {"@odata.id": f"{root}/1/Power"},
        },
        f"{root}/new": {"Id": "new", "EnvironmentMetrics": {"@odata.id": f"{root}/new/E"}},
        f"{root}/new/E": {"PowerWatts": {"Reading": 900.5}},
    }
    with serving() as server:
        server.pages.update({path: json.dumps(document) for path, document in documents.items()})
        source = RedfishSource(server.url)
        assert [device.name for device in source.devices()] == ["Server", "new"]
        assert [sample.watts for sample in source.sample()] == [3100, 900.5]
        assert all(given and given.startswith("Basic ") for _, given in server.seen)
        server.pages[f"{root}/1/Power"] = 401
        with pytest.raises(SourceError, match="HTTP 401") as error:
            source.sample()
        assert "canary" not in str(error.value)
        source.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("512.5\n", {("cmd", "instant"): 512.5}),
        ("0.5 kW", {("cmd", "instant"): 500}),
        ('{"watts": 80, "joules": 1e6}', {("cmd", "instant"): 80, ("cmd", "counter"): 1e6}),
        (
            '[{"device": "a", "watts": 1}, {"device": "b", "watts": null}]',
            {("a", "instant"): 1, ("b", "instant"): None},
        ),
    ],
)
def test_probe_answers(answer: str, expected: dict[tuple[str, str], float | None]) -> None:
    assert by_kind(parse_probe(answer, "cmd")) == expected


@pytest.mark.parametrize("answer", ["", "lots", "{}", "[]", "null", '{"watt": 3}', "<html>"])
def test_probe_answers_that_say_nothing(answer: str) -> None:
    with pytest.raises(SourceError, match="watts"):
        parse_probe(answer, "cmd")


def test_probe_by_command_and_by_url(tmp_path: Path) -> None:
    meter = tmp_path / "my meter"
    meter.write_text("#!/bin/sh\necho $1\n")
    meter.chmod(0o755)
    source = ProbeSource.command(f"'{meter}' 321")
    assert [sample.watts for sample in source.sample()] == [321]
    meter.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    with pytest.raises(SourceError, match=r"failed \(3\): broken"):
        source.sample()
    with pytest.raises(SourceError, match="quotation"):
        ProbeSource.command("meter 'open")
    with serving() as server:
        server.pages["/w"] = "77"
        source = ProbeSource.url(f"{server.url}/w")
        assert [sample.watts for sample in source.sample()] == [77]
        source.close()


def test_tpu_duty_cycle_and_memory_of_two_cores_per_chip(tmp_path: Path) -> None:
    """Against a server that speaks the runtime's protocol, through the messages tpu-info ships."""
    grpc = pytest.importorskip("grpc")
    messages = pytest.importorskip("tpu_info.proto.tpu_metric_service_pb2")
    values: dict[str, list[tuple[int, float]]] = {
        "tpu.runtime.tensorcore.dutycycle.percent": [(0, 25.0), (1, 75.0)],
        "tpu.runtime.hbm.memory.usage.bytes": [(0, 10), (1, 20), (2, 30), (3, 40)],
    }

    def answer(request: Any, _: Any) -> Any:
        response = messages.MetricResponse()
        for device, value in values[request.metric_name]:
            metric = response.metric.metrics.add()
            metric.attribute.value.int_attr = device
            if request.metric_name.endswith("percent"):
                metric.gauge.as_double = value
            else:
                metric.gauge.as_int = int(value)
        return response

    method = grpc.unary_unary_rpc_method_handler(
        answer, messages.MetricRequest.FromString, messages.MetricResponse.SerializeToString
    )
    server = grpc.server(futures.ThreadPoolExecutor(1))
    name = "tpu.monitoring.runtime.RuntimeMetricService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"GetRuntimeMetric": method}),))
    port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
    server.start()
    source = TpuSource(250.0, f"localhost:{port}")
    try:
        assert [device.id for device in source.devices()] == ["tpu0", "tpu1"]
        samples = source.sample()
        assert [(s.kind, s.watts, s.utilisation, s.memory_bytes) for s in samples] == [
            ("assumed", 250, 0.25, 30),
            ("assumed", 250, 0.75, 70),
        ]
    finally:
        server.stop(None).wait()
    with pytest.raises(SourceError, match="TPU runtime"):
        source.sample()
    source.close()
    for chip in (0, 1, 2):
        (tmp_path / f"accel{chip}").touch()
    unknown = TpuSource(None, f"localhost:{port}", tmp_path)
    with pytest.raises(SourceError, match="TPU runtime"):
        unknown.devices()
    stated = TpuSource(250, f"localhost:{port}", tmp_path)
    assert [device.id for device in stated.devices()] == ["tpu0", "tpu1", "tpu2"]
    assert [(sample.kind, sample.watts) for sample in stated.sample()] == [("assumed", 250)] * 3
    assert any("TPU runtime" in problem for problem in stated.problems)
    stated.close()
