"""`agentx hardware` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hardware.registry import KEYS, load_registry

ROOT = Path(__file__).parents[2]


def agentx(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentx", "hardware", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_list_as_a_table_and_as_json() -> None:
    table = agentx("list")
    assert table.returncode == 0
    assert all(accelerator.name in table.stdout for accelerator in load_registry())
    rows = json.loads(agentx("list", "--json").stdout)
    assert [row["name"] for row in rows] == [accelerator.name for accelerator in load_registry()]
    assert set(KEYS) <= set(rows[0])
    assert next(row for row in rows if row["name"] == "gb300-nvl72")["usd_device_hour.rental-3y"] == 5


def test_show_gives_source_date_alternatives_and_reasons() -> None:
    shown = agentx("show", "NVIDIA H200").stdout
    lines = [line.split("│")[1:] for line in shown.splitlines() if "│" in line]
    rental = next(n for n, cells in enumerate(lines) if cells[0].strip() == "rental-3y")
    assert [cells[1].strip() for cells in lines[rental : rental + 3]] == ["2.9 USD/h", "2.05 USD/h", "1.6 USD/h"]
    assert [cells[2].strip() for cells in lines[rental : rental + 3]] == ["2026-07", "2026-06", "2026-04"]
    assert "unknown: the device has no FP4 matrix unit" in shown
    data = json.loads(agentx("show", "vr200", "--json").stdout)["quantities"]
    assert [fact["value"] for fact in data["tdp_w"]["published"]] == [1800, 2300]
    assert (data["tdp_w"]["value"], data["tdp_w"]["unit"], data["tdp_w"]["unknown"]) == (1800, "W", None)
    assert data["bf16_flop_s"]["value"] is None
    assert data["bf16_flop_s"]["unknown"]


def test_a_user_s_file_and_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('[b200]\nkw_all_in = [{ value = 1.5, source = "meter", date = 2026-11-20 }]\n')
    shown = json.loads(agentx("show", "b200", "--hardware-file", str(path), "--json").stdout)
    assert shown["quantities"]["kw_all_in"]["value"] == 1.5
    path.write_text("[b200]\n\nkw = 1\n")
    for command in (["list"], ["show", "b200"], ["detect"]):
        done = agentx(*command, "--hardware-file", str(path))
        assert done.returncode == 2
        assert f"{path}, line 3: b200.kw: unknown key" in done.stderr
        assert "Traceback" not in done.stderr
    assert "closest: b200" in agentx("show", "B20").stderr


def test_detect_as_a_table_and_as_json() -> None:
    data = json.loads(agentx("detect", "--json").stdout)
    assert data["found"]
    assert {step["method"] for step in data["steps"]} >= {"nvml", "amdsmi", "tpu", "pci"}
    table = agentx("detect")
    assert table.returncode == 0
    assert all(f"{step['method']}: {step['text']}" in table.stdout for step in data["steps"])
