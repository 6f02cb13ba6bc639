"""The real nvidia-ml-py over a library of ours: what a node's driver answers, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.collectors.native_smi import Smi

A = "GPU-11111111-aaaa-bbbb-cccc-000000000000"
B = "GPU-22222222-aaaa-bbbb-cccc-000000000000"
NOT_SUPPORTED, NO_PERMISSION, NO_FUNCTION = "!3", "!4", "!13"


def gpu(index: int, uuid: str, **numbers: Any) -> dict[str, Any]:
    known = {"uuid": uuid, "name": "NVIDIA H100 80GB HBM3", "architecture": 9, "memory": 1 << 30, **numbers}
    return {f"{index}.{name}": value for name, value in known.items()}


def full(index: int, uuid: str, **numbers: Any) -> dict[str, Any]:
    readings = {"energy_uj": 5_000_000, "average_mw": 450_000, "instant_mw": 470_000, "utilisation": 75}
    return gpu(index, uuid, **{**readings, **numbers})


def test_two_gpus_with_every_number(libraries: Path, tmp_path: Path) -> None:
    with Smi("nvidia", libraries, tmp_path, count=2, **full(0, A), **full(1, B, energy_uj=7_000_000)) as smi:
        assert [device["id"] for device in smi.ask("devices")] == [A, B]
        rows = smi.ask("sample")
        assert {row["utilisation"] for row in rows} == {0.75}
        assert {row["memory_bytes"] for row in rows} == {1 << 30}
        assert smi.numbers() == {
            (A, "average"): 450, (A, "instant"): 470, (A, "counter"): 5,
            (B, "average"): 450, (B, "instant"): 470, (B, "counter"): 7,
        }  # fmt: skip
        smi.script({"0.energy_uj": 905_000_000})
        assert smi.numbers()[A, "counter"] == 905


def test_p112_not_supported_is_null_per_field(libraries: Path, tmp_path: Path) -> None:
    nothing = gpu(0, A, energy_uj=NOT_SUPPORTED, fields=NO_FUNCTION, usage_mw=NOT_SUPPORTED, memory=NOT_SUPPORTED)
    with Smi("nvidia", libraries, tmp_path, count=1, **nothing) as smi:
        smi.ask("devices")
        (row,) = smi.ask("sample")
        assert row["watts"] is None
        assert row["kind"] == "average"  # what is missing shows as missing, not as a GPU that needs no power
        assert row["memory_bytes"] is None
        assert any("Not Supported" in problem and "total energy" in problem for problem in smi.problems)


def test_older_driver_has_one_reading_whose_meaning_follows_the_chip(libraries: Path, tmp_path: Path) -> None:
    old = {"fields": NO_FUNCTION, "usage_mw": 300_000}
    chips = [("NVIDIA H100", 9, "average"), ("NVIDIA A100-SXM4-80GB", 7, "instant"), ("NVIDIA L40S", 8, "average"),
             ("NVIDIA A10", 7, "average"), ("Tesla V100", 5, "instant")]  # fmt: skip
    numbers: dict[str, Any] = {"count": len(chips)}
    for index, (name, architecture, _) in enumerate(chips):
        numbers |= gpu(index, f"GPU-{index}", name=name, architecture=architecture, **old)
    with Smi("nvidia", libraries, tmp_path, **numbers) as smi:
        smi.ask("devices")
        assert smi.numbers() == {(f"GPU-{i}", kind): 300 for i, (_, _, kind) in enumerate(chips)}


def test_mig_instances_have_memory_and_the_gpu_keeps_the_power(libraries: Path, tmp_path: Path) -> None:
    instances = {f"0.mig.{i}.{name}": value for i in range(2) for name, value in
                 (("uuid", f"MIG-{i}"), ("name", "NVIDIA H100 MIG 3g.40gb"), ("memory", 1000 + i))}  # fmt: skip
    with Smi("nvidia", libraries, tmp_path, count=1, **full(0, A, mig=2, utilisation="!3"), **instances) as smi:
        smi.ask("devices")
        rows = smi.ask("sample")
        assert {(r["device"]["id"], r["memory_bytes"]) for r in rows if r["kind"] is None} == {
            ("MIG-0", 1000),
            ("MIG-1", 1001),
        }
        assert {r["device"]["id"] for r in rows if r["watts"] or r["joules"]} == {A}


def test_permission_errors_are_reasons(libraries: Path, tmp_path: Path) -> None:
    with Smi("nvidia", libraries, tmp_path, init=NO_PERMISSION) as smi:
        assert "Insufficient Permissions" in smi.ask("devices")["error"]
        smi.script({"init": 0, "count": 2, "0.handle": NO_PERMISSION, **full(1, B)})
        assert [device["id"] for device in smi.ask("devices")] == [B]
        assert "GPU 0: Insufficient Permissions" in smi.problems
        smi.script({"1.energy_uj": NO_PERMISSION})
        assert (B, "counter") not in smi.numbers()
        assert (B, "average") in smi.numbers()


def test_a_gpu_that_vanishes_leaves_the_others(libraries: Path, tmp_path: Path) -> None:
    with Smi("nvidia", libraries, tmp_path, count=2, **full(0, A), **full(1, B)) as smi:
        smi.ask("devices")
        assert len(smi.numbers()) == 6
        smi.script({"0.lost": 1})
        assert {device for device, _ in smi.numbers()} == {B}
        assert any(problem.startswith(A) and "lost" in problem.lower() for problem in smi.problems)
        smi.script({"1.lost": 1})
        assert "lost" in smi.ask("sample")["error"].lower()
        smi.script({"0.lost": None, "1.lost": None})
        smi.ask("devices")
        assert len(smi.numbers()) == 6


def test_no_gpu_and_no_driver_are_told_apart(libraries: Path, tmp_path: Path) -> None:
    with Smi("nvidia", libraries, tmp_path, count=0) as smi:
        assert smi.ask("devices") == {"error": "NVML: the driver shows no GPU"}
        smi.script({"init": "!9"})
        assert "Driver Not Loaded" in smi.ask("devices")["error"]


def test_implausible_power_is_left_out(libraries: Path, tmp_path: Path) -> None:
    with Smi("nvidia", libraries, tmp_path, count=1, **full(0, A, instant_mw=1000)) as smi:
        smi.ask("devices")
        assert smi.numbers()[A, "instant"] is None
        assert any("implausible" in problem for problem in smi.problems)
