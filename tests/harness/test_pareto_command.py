"""`agentx pareto` and curves in `agentx compare`, as commands over run directories."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def agentx(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    command = [sys.executable, "-m", "agentx", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def write_run(folder: Path, x: float | None, y: float | None, load: int, **change: Any) -> None:
    """The files of a run whose figures are `x` and `y`; `change`: other keys of summary.json."""
    folder.mkdir(parents=True)
    summary = {
        "schema": 1,
        "run_id": folder.name,
        "valid": True,
        "scenario": "agentx",
        "concurrency": load,
        "interactivity": {"e2e_normalised": {"p90": x}},
        "latency": {"ttft_s": {"p50": load / 10}},
        "throughput": {"total_tok_s": y, "output_tok_s": y and y / 10},
        "intervals": {"throughput.total_tok_s": y and [0.9 * y, 1.1 * y]},
    } | change
    manifest = {
        "schema": 1,
        "run_id": folder.name,
        "corpus": {"digest": "c"},
        "endpoint": {"model": "m"},
        "plan": {"digest": f"plan{load}"},
        "scenario": {"rules": {"concurrency": load}},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "run.json").write_text(json.dumps(manifest))


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    for side, factor in (("a", 1.0), ("b", 2.0)):
        for load, x, y in ((2, 100.0, 1_000.0), (4, 50.0, 4_000.0), (8, 25.0, 10_000.0), (16, 24.0, 9_000.0)):
            write_run(tmp_path / side / f"{side}{load}", x, factor * y, load)
    return tmp_path / "a", tmp_path / "b"


def test_frontier_table_files_and_value_at_a_speed(sides: tuple[Path, Path], tmp_path: Path) -> None:
    files = [tmp_path / f"out{suffix}" for suffix in (".png", ".svg", ".html", ".csv")]
    out, err = agentx("pareto", sides[0], "--at", "50", "--at", "500", *(f"--out={file}" for file in files))
    assert "3 on the frontier, 1 dominated" in out
    assert "at 50 tok/s/user: 4,000 tok/s" in out
    assert "at 500 tok/s/user: 1,000 tok/s (outside what was measured" in out
    assert "taken as one" in err
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files[1].read_text()
    assert "a4" in files[2].read_text()
    with files[3].open() as text:
        rows = list(csv.DictReader(text))
    assert [(r["run_id"], r["on_frontier"]) for r in rows] == [
        ("a16", "False"), ("a8", "True"), ("a4", "True"), ("a2", "True"),
    ]  # fmt: skip
    assert (float(rows[2]["y_low"]), float(rows[2]["y_high"])) == pytest.approx((3_600, 4_400))


def test_money_by_the_registry_and_json(sides: tuple[Path, Path]) -> None:
    out, _ = agentx("pareto", sides[0], "--gpus", "8", "--per", "million", "--price", "3.6", "--at", "50", "--json")
    found = json.loads(out)
    (curve,) = found["curves"]
    assert curve["at"] == [{"x": 50.0, "y": pytest.approx(3.6e6 / 3600 / 500), "clamped": False}]
    assert found["y"]["better"] == "lower"
    _, err = agentx("pareto", sides[0], "--gpus", "8", "--per", "mw", "--hardware", "B200")
    assert "kW all-in" in err
    _, err = agentx("pareto", sides[0], "--per", "million", "--gpus", "1", code=2)
    assert "no price per accelerator-hour" in err
    assert "Traceback" not in err
    _, err = agentx("pareto", sides[0], "--per", "million", "--price", "1", code=2)
    assert "--gpus N" in err
    _, err = agentx("pareto", sides[0], "--x", "speed", code=2)
    assert "one of interactivity" in err


def test_p136_degenerate_data_is_drawn_with_its_reasons(tmp_path: Path) -> None:
    write_run(tmp_path / "none", None, 0.0, 1)
    out, err = agentx("pareto", tmp_path, f"--out={tmp_path / 'none.png'}", f"--out={tmp_path / 'none.html'}")
    assert "0 on the frontier, 1 without a place" in out
    assert "p90 E2E-normalised interactivity is not known" in err
    write_run(tmp_path / "one", 10.0, 5.0, 2)
    write_run(tmp_path / "nan", float("nan"), 5.0, 4)
    out, err = agentx("pareto", tmp_path, "--at", "10", f"--out={tmp_path / 'one.svg'}", "--json")
    (curve,) = json.loads(out)["curves"]
    assert [p["run_id"] for p in curve["points"] if p["on_frontier"]] == ["one"]
    assert curve["at"] == [{"x": 10.0, "y": 5.0, "clamped": False}]
    assert {p["run_id"]: p["y"] for p in curve["points"]}["nan"] is None


def test_runs_of_two_questions_are_no_curve(sides: tuple[Path, Path]) -> None:
    run = next(sides[0].iterdir()) / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"corpus": {"digest": "other"}}))
    _, err = agentx("pareto", sides[0], code=2)
    assert "corpus" in err
    _, err = agentx("pareto", sides[0], "--allow-mixed")
    assert "differ in corpus" in err


def test_compare_says_how_many_times_better_a_curve_is(sides: tuple[Path, Path], tmp_path: Path) -> None:
    for folder in sides:
        for run in folder.iterdir():
            (run / "requests.parquet").write_bytes(_no_requests(tmp_path))
    out, _ = agentx("compare", *sides, "--at", "60")
    assert f"{sides[1]} against {sides[0]}" in out
    assert "2.00× at 60 tok/s/user" in out
    assert "2.00× at the best tok/s of each" in out
    found = json.loads(agentx("compare", *sides, "--json")[0])
    assert found["curves"]["common"] == [25.0, 100.0]


def _no_requests(folder: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("phase", "status", "session_id")
    columns: dict[str, pa.Array] = {name: pa.array([], pa.string()) for name in names}
    columns["pass"] = pa.array([], pa.int32())
    columns |= {name: pa.array([], pa.float64()) for name in ("ttft_s", "tpot_s", "e2e_s")}
    pq.write_table(pa.table(columns), folder / "empty.parquet")
    return (folder / "empty.parquet").read_bytes()
