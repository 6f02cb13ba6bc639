"""The real amdsmi binding over a library of ours, and what AMD's tools print."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from collectors.power.amd import AmdToolSource
from collectors.power.smi_text import parse_amd_smi, parse_rocm_smi
from collectors.power.source import Sample, SourceError
from tests.collectors.native_smi import Smi

A = "11ff74a1-0000-1000-8011-000000000001"
B = "22ff74a1-0000-1000-8011-000000000002"
NO_PERM = "!10"


def gpu(index: int, uuid: str, bus: int, **numbers: Any) -> dict[str, Any]:
    known = {"uuid": uuid, "bus": bus, "vram_mib": 1024, "activity": 40, **numbers}
    return {f"{index}.{name}": value for name, value in known.items()}


def by_kind(samples: list[Sample]) -> dict[tuple[str, str | None], float | None]:
    return {(s.device.id, s.kind): s.joules if s.kind == "counter" else s.watts for s in samples}


def test_two_sockets_with_counter_and_current_power(libraries: Path, tmp_path: Path) -> None:
    one = gpu(0, A, 5, current=640, socket=640, energy_uj=15_300_000)
    with Smi("amd", libraries, tmp_path, count=2, **one, **gpu(1, B, 6, average=250, socket=250)) as smi:
        assert [device["id"] for device in smi.ask("devices")] == [A, B]
        rows = smi.ask("sample")
        assert {row["memory_bytes"] for row in rows} == {1 << 30}
        assert {row["utilisation"] for row in rows} == {0.4}
        numbers = smi.numbers()
        assert numbers.pop((A, "counter")) == pytest.approx(15.3, rel=1e-5)
        assert numbers == {(A, "instant"): 640, (B, "average"): 250}


def test_p114_average_not_available_current_taken(libraries: Path, tmp_path: Path) -> None:
    """MI300: the average is the library's 0xFFFF, and no number of its own."""
    with Smi("amd", libraries, tmp_path, count=1, **gpu(0, A, 5, current=640, socket=640)) as smi:
        smi.ask("devices")
        (row,) = smi.ask("sample")
        assert (row["kind"], row["field"], row["watts"]) == ("instant", "current_socket_power", 640)
        smi.script({"0.current": None, "0.average": 250})
        assert smi.numbers() == {(A, "average"): 250}
        assert not any("implausible" in problem for problem in smi.problems)  # blanks are no readings at all


def test_partitions_of_a_socket_count_its_power_once(libraries: Path, tmp_path: Path) -> None:
    numbers = {**gpu(0, A, 5, current=640, function=0), **gpu(1, B, 5, current=640, function=1)}
    with Smi("amd", libraries, tmp_path, count=2, **numbers) as smi:
        smi.ask("devices")
        assert smi.numbers() == {(A, "instant"): 640, (B, None): None}


def test_permission_no_gpu_and_a_lost_gpu_are_reasons(libraries: Path, tmp_path: Path) -> None:
    with Smi("amd", libraries, tmp_path, init=NO_PERM) as smi:
        assert "Permission" in smi.ask("devices")["error"]
        smi.script({"init": 0, "count": 0})
        assert smi.ask("devices") == {"error": "amdsmi: the library shows no GPU"}
        smi.script({"count": 1, **gpu(0, A, 5, current=640)})
        smi.ask("devices")
        assert smi.numbers() == {(A, "instant"): 640}
        smi.script({"0.lost": "!31"})
        assert "amdsmi" in smi.ask("sample")["error"]
        smi.script({"0.lost": None})
        assert smi.numbers() == {(A, "instant"): 640}


def test_nothing_supported_shows_as_missing(libraries: Path, tmp_path: Path) -> None:
    with Smi("amd", libraries, tmp_path, count=1, **gpu(0, A, 5, vram_mib=None, activity=None)) as smi:
        smi.ask("devices")
        (row,) = smi.ask("sample")
        assert (row["kind"], row["watts"], row["memory_bytes"], row["utilisation"]) == ("instant", None, None, None)


def test_without_the_library_stdout_stays_clean(capfd: pytest.CaptureFixture[str]) -> None:
    """The binding prints its troubles; a run with --json must not."""
    from collectors.power.amd import AmdSource

    with pytest.raises(SourceError, match="amdsmi"):
        AmdSource().devices()
    assert capfd.readouterr().out == ""


AMD_SMI = [
    {
        "gpu": 0,
        "usage": {"gfx_activity": {"value": 87, "unit": "%"}, "vcn_activity": ["N/A", {"value": 0, "unit": "%"}]},
        "power": {"socket_power": {"value": 542, "unit": "W"}, "gfx_voltage": "N/A"},
        "energy": {"total_energy_consumption": {"value": 3.5, "unit": "kJ"}},
        "mem_usage": {"used_vram": {"value": 2048, "unit": "MB"}},
    },
    {
        "gpu": 1,
        "usage": "N/A",
        "power": {"current_socket_power": {"value": 640, "unit": "W"}, "average_socket_power": "N/A"},
        "energy": "N/A",
    },
]


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"gpu_data": rows}], ids=["list", "gpu_data"])
def test_p114_amd_smi_json_in_both_shapes(wrap: Any) -> None:
    text = "WARNING: the user is not in the render group\n" + json.dumps(wrap(AMD_SMI))
    samples = parse_amd_smi(text, Counter())
    assert by_kind(samples) == {("gpu0", "instant"): 542, ("gpu0", "counter"): 3500, ("gpu1", "instant"): 640}
    assert samples[0].memory_bytes == 2048 << 20
    assert [s.field for s in samples if s.device.id == "gpu1"] == ["current_socket_power"]


def test_p114_amd_smi_csv_with_lists_in_cells() -> None:
    text = (
        "gpu,gfx_activity,vcn_activity,socket_power,total_energy_consumption,used_vram\n"
        "0,87,[N/A, 0, 12],542,123.5,2048\n"
        '1,3,"[N/A, 0, 12]",141,N/A,26\n'
    )
    samples = parse_amd_smi(text, Counter())
    assert by_kind(samples) == {("gpu0", "instant"): 542, ("gpu0", "counter"): 123.5, ("gpu1", "instant"): 141}
    assert {s.memory_bytes for s in samples} == {2048 << 20, 26 << 20}


def test_p114_one_watt_rows_are_invalid() -> None:
    cards = {f"card{i}": {"Average Graphics Package Power (W)": f"{i}.0", "GPU use (%)": "99"} for i in range(3)}
    problems: Counter[str] = Counter()
    samples = parse_rocm_smi(json.dumps(cards), problems)
    assert [sample.watts for sample in samples] == [None, None, None]
    assert sum("implausible" in problem for problem in problems) == 3


def test_p112_a_second_die_has_no_power_of_its_own() -> None:
    cards = {
        "card0": {"Unique ID": "0xa", "Average Graphics Package Power (W)": "380.0", "Card Series": "MI250X",
                  "Energy counter": "1000", "Accumulated Energy (uJ)": "2500000.0"},
        "card1": {"Unique ID": "0xb", "Average Graphics Package Power (W)": "N/A (Secondary die)"},
        "system": {"Driver version": "6.2.4"},
    }  # fmt: skip
    samples = parse_rocm_smi(json.dumps(cards), Counter())
    assert by_kind(samples) == {("0xa", "average"): 380, ("0xa", "counter"): 2.5, ("0xb", None): None}


@pytest.mark.parametrize("text", ["", "No AMD GPUs specified", "[", '{"gpu_data": 3', "gpu,power\n0,1,2,3\n"])
def test_output_that_is_no_table_is_a_reason(text: str) -> None:
    with pytest.raises(SourceError):
        parse_amd_smi(text, Counter())


def test_the_tool_is_tried_in_json_then_csv_then_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    source = AmdToolSource()
    with pytest.raises(SourceError, match="amd-smi is not installed; rocm-smi is not installed"):
        source.devices()
    program("rocm-smi", """echo '{"card0": {"Average Graphics Package Power (W)": "90.0"}}'""")
    assert [device.id for device in source.devices()] == ["card0"]
    program("amd-smi", 'case "$*" in *csv) printf "gpu,socket_power\\n0,300\\n";; *) echo "Traceback"; exit 1;; esac')
    source.devices()
    assert source.name == "amd-smi"
    assert [sample.watts for sample in source.sample()] == [300]
    os.remove(tmp_path / "amd-smi")
    with pytest.raises(SourceError, match="not installed"):
        source.sample()
