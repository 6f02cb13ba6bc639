"""Joules and watts of a window: known answers, the failures others had, and properties that hold for any trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.energy import from_counter, from_watts
from results.power import PowerSummary, summarise_power
from results.power_journal import PowerLog, PowerWriter, Series, read_power, write_power

S = 10**9
A = "GPU-11111111-aaaa-bbbb-cccc-000000000000"


def series(**facts: Any) -> Series:
    known = {
        "source": "nvml", "scope": "accelerator", "device": "gpu0", "name": "H100", "kind": "average",
        "field": "power_average", "host": "node",
    }  # fmt: skip
    return Series(**{**known, **facts})


def put(writer: PowerWriter, key: Series, t_s: float, value: float | None) -> None:
    counter = key.kind == "counter"
    watts, joules = (None, value) if counter else (value, None)
    writer.row(round(t_s * S), key, watts=watts, joules=joules, utilisation=0.5, memory_bytes=7)


def log_of(folder: Path, fill: Callable[[PowerWriter], None]) -> PowerLog:
    writer = PowerWriter(folder)
    fill(writer)
    assert writer.close()
    log = read_power(folder, 0)
    assert log is not None
    return log


def every_second(seconds: int, reading: Callable[[PowerWriter, int], None]) -> Callable[[PowerWriter], None]:
    def fill(writer: PowerWriter) -> None:
        for t in range(seconds + 1):
            reading(writer, t)

    return fill


def summary_of(log: PowerLog | None, start_s: float, end_s: float, **counts: Any) -> PowerSummary:
    known = {"output_tokens": 1000, "total_tokens": 10_000, "jobs": 4, **counts}
    return summarise_power(log, round(start_s * S), round(end_s * S), **known)


def test_p115_only_the_measured_window_counts(tmp_path: Path) -> None:
    """60 s of model load at 700 W, 60 s of idling at 100 W, 60 s measured at 500 W."""

    def fill(writer: PowerWriter) -> None:
        for t in range(181):
            put(writer, series(), t, 700 if t < 60 else 100 if t < 120 else 500)

    power = summary_of(log_of(tmp_path, fill), 120, 180).figures
    assert power["watts_mean"] == pytest.approx(500)
    assert power["joules"] == pytest.approx(30_000)
    assert power["window_ns"] == [120 * S, 180 * S]


def test_p115_an_edge_between_samples_is_interpolated() -> None:
    t = np.arange(0, 11) * S
    watts = np.arange(0, 11) * 100.0
    assert from_watts(t, watts, 2 * S + S // 2, 4 * S).joules == pytest.approx((250 + 400) / 2 * 1.5)
    assert from_counter(t, watts, 2 * S + S // 2, 4 * S).joules == pytest.approx(150)


def test_p117_devices_are_summed_not_averaged(tmp_path: Path) -> None:
    """8 GPUs at 500 W for an hour and 1 M output tokens: 4.0 kWh and 14.4 J per token."""

    def fill(writer: PowerWriter) -> None:
        for t in range(0, 3601, 10):
            for gpu in range(8):
                put(writer, series(device=f"gpu{gpu}"), t, 500)

    power = summary_of(log_of(tmp_path, fill), 0, 3600, output_tokens=1_000_000, jobs=100).figures
    assert power["joules"] / 3.6e6 == pytest.approx(4.0)
    assert power["watts_mean"] == pytest.approx(4000)
    assert power["joules_per_output_token"] == pytest.approx(14.4)
    assert power["joules_per_job"] == pytest.approx(144_000)
    assert [row["watts_mean"] for row in power["devices"]] == pytest.approx([500] * 8)


def kinds(t: float, writer: PowerWriter, factor: float) -> None:
    put(writer, series(), t, 400)
    put(writer, series(kind="instant", field="power_instant"), t, 390)
    put(writer, series(kind="counter", field="total_energy_consumption"), t, 9e6 + factor * 400 * t)


@pytest.mark.parametrize(("factor", "warned"), [(1.08, True), (1.03, False), (0.9, True)])
def test_p119_counter_and_integral_are_both_reported(tmp_path: Path, factor: float, warned: bool) -> None:
    log = log_of(tmp_path, every_second(100, lambda w, t: kinds(t, w, factor)))
    power = summary_of(log, 0, 100)
    (row,) = power.figures["devices"]
    assert power.figures["source"] == "nvml:counter"
    assert power.figures["joules"] == pytest.approx(40_000 * factor)
    expected = {"counter": 40_000 * factor, "average": 40_000, "instant": 39_000}
    assert row["joules_by_kind"] == pytest.approx(expected)
    assert any(f"{100 * (factor - 1):+.0f} %" in warning for warning in power.warnings) == warned


def test_p114_a_counter_in_another_unit_is_not_used(tmp_path: Path) -> None:
    log = log_of(tmp_path, every_second(100, lambda w, t: kinds(t, w, 15.3)))
    power = summary_of(log, 0, 100)
    assert power.figures["source"] == "nvml:average"
    assert power.figures["joules"] == pytest.approx(40_000)
    assert any("not in the unit it claims" in warning for warning in power.warnings)


def test_p112_few_nulls_are_bridged_and_many_leave_no_figure(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    few.mkdir()
    many.mkdir()
    power = summary_of(
        log_of(few, every_second(100, lambda w, t: put(w, series(), t, None if t % 3 == 1 else 300))), 0, 100
    )
    assert power.figures["joules"] == pytest.approx(30_000)
    power = summary_of(
        log_of(many, every_second(100, lambda w, t: put(w, series(), t, 300 if t < 50 else None))), 0, 100
    )
    assert power.figures["joules"] is None
    assert power.figures["watts_mean"] is None
    assert power.figures["joules_per_output_token"] is None
    assert power.reasons["power.joules"] == (
        "1 of 1 devices: node/gpu0: readings cover 50 % of the window, 90 % are needed"
    )
    assert set(power.reasons) >= {"power.watts_mean", "power.joules_per_output_token", "power.joules_per_job"}


def test_p112_a_field_renamed_by_a_driver_is_followed_and_recorded(tmp_path: Path) -> None:
    def fill(writer: PowerWriter) -> None:
        for t in range(101):
            put(writer, series(field="power.draw" if t < 50 else "power.draw.average"), t, 300)

    (row,) = summary_of(log_of(tmp_path, fill), 0, 100).figures["devices"]
    assert row["joules"] == pytest.approx(30_000)
    assert row["field"] == "power.draw+power.draw.average"


def test_one_unknown_device_makes_the_sum_unknown(tmp_path: Path) -> None:
    def fill(writer: PowerWriter) -> None:
        for t in range(101):
            put(writer, series(), t, 300)
            put(writer, series(device="gpu1"), t, 300 if t < 30 else None)

    power = summary_of(log_of(tmp_path, fill), 0, 100)
    assert power.figures["joules"] is None
    assert "node/gpu1" in power.reasons["power.joules"]
    assert power.figures["devices"][0]["joules"] == pytest.approx(30_000)


def test_a_device_without_power_of_its_own_is_not_missing(tmp_path: Path) -> None:
    def fill(writer: PowerWriter) -> None:
        for t in range(101):
            put(writer, series(), t, 300)
            put(writer, series(device="MIG-0", kind=None, field=None), t, None)

    power = summary_of(log_of(tmp_path, fill), 0, 100).figures
    assert power["joules"] == pytest.approx(30_000)
    assert len(power["devices"]) == 1


def test_a_gpu_seen_by_two_sources_is_counted_once_by_the_fuller_one(tmp_path: Path) -> None:
    def fill(writer: PowerWriter) -> None:
        for t in range(101):
            if t < 40:
                put(writer, series(device=A), t, 300)
            put(writer, series(source="exporter", device=A.upper(), host="n.example"), t, 310)

    power = summary_of(log_of(tmp_path, fill), 0, 100).figures
    assert power["joules"] == pytest.approx(31_000)
    assert power["source"] == "exporter:average"


def test_same_name_on_two_hosts_is_two_devices(tmp_path: Path) -> None:
    def fill(writer: PowerWriter) -> None:
        for t in range(101):
            for host in ("a", "b"):
                put(writer, series(host=host), t, 300)

    assert summary_of(log_of(tmp_path, fill), 0, 100).figures["joules"] == pytest.approx(60_000)


def test_scopes_are_never_added(tmp_path: Path) -> None:
    def fill(writer: PowerWriter) -> None:
        for t in range(101):
            put(writer, series(scope="cpu", source="rapl", device="cpu:0", kind="counter"), t, 100.0 * t)
            put(writer, series(scope="node", source="ipmi", device="node", kind="instant"), t, 900)
            put(writer, series(), t, 300)

    power = summary_of(log_of(tmp_path, fill), 0, 100).figures
    assert power["joules"] == pytest.approx(30_000)
    assert power["scope"] == "accelerator"
    assert {row["scope"]: row["joules"] for row in power["devices"]} == pytest.approx(
        {"accelerator": 30_000, "node": 90_000, "cpu": 10_000}
    )


def test_idle_baseline_is_apart(tmp_path: Path) -> None:
    def fill(writer: PowerWriter) -> None:
        for t in range(-10, 101):
            put(writer, series(), t, 80 if t < 0 else 300)
        writer.event("idle", start_ns=-9 * S, end_ns=-2 * S)

    power = summary_of(log_of(tmp_path, fill), 0, 100)
    assert power.figures["idle_watts"] == pytest.approx(80)
    assert power.figures["joules"] == pytest.approx(30_000)
    assert "power.idle_watts" not in power.reasons


def test_assumed_power_is_marked(tmp_path: Path) -> None:
    log = log_of(tmp_path, every_second(100, lambda w, t: put(w, series(source="tpu", kind="assumed"), t, 200)))
    power = summary_of(log, 0, 100)
    assert power.figures["source"] == "tpu:assumed"
    assert any("assumed, not measured" in warning for warning in power.warnings)


def test_counts_that_are_zero_or_unknown_give_null_with_a_reason(tmp_path: Path) -> None:
    log = log_of(tmp_path, every_second(100, lambda w, t: put(w, series(), t, 200)))
    power = summary_of(log, 0, 100, output_tokens=None, jobs=0)
    assert power.figures["joules_per_output_token"] is None
    assert power.reasons["power.joules_per_output_token"] == "the number of output tokens is not known"
    assert power.reasons["power.joules_per_job"] == "no finished jobs in the window"
    assert power.figures["joules_per_total_token"] == pytest.approx(2)


def test_no_source_is_null_with_what_was_looked_for(tmp_path: Path) -> None:
    assert summary_of(None, 0, 1).reasons == {"power": "no power source was read"}
    log = log_of(tmp_path, lambda w: w.event("absent", source="nvidia", reason="NVML: Driver Not Loaded"))
    power = summary_of(log, 0, 1)
    assert power.reasons == {"power": "NVML: Driver Not Loaded"}
    assert set(power.figures.values()) == {None}
    json.dumps(power.figures, allow_nan=False)


def test_a_reset_counter_loses_its_interval_only() -> None:
    t = np.arange(0, 101) * S
    joules = 1e6 + 400.0 * np.arange(0, 101)
    joules[60:] -= joules[60]
    energy = from_counter(t, joules, 0, 100 * S)
    assert energy.resets == 1
    assert energy.coverage == pytest.approx(0.99)
    assert energy.joules == pytest.approx(40_000)


@pytest.mark.parametrize("offset", [0, 7, 29])
def test_a_counter_renewed_every_30_s_and_read_every_second(offset: int) -> None:
    t = np.arange(-20, 400)
    renewed = (t - offset) // 30 * 30 + offset
    energy = from_counter(t * S, 5e6 + 400.0 * renewed, 100 * S, 390 * S)
    assert energy.joules == pytest.approx(400 * 290)
    early = from_counter(t * S, 5e6 + 400.0 * renewed, -20 * S, 390 * S)
    assert early.joules == pytest.approx(400 * 410)


def test_a_counter_that_stands_still_is_no_energy_of_zero() -> None:
    energy = from_counter(np.arange(100) * S, np.full(100, 7.0), 0, 90 * S)
    assert energy.joules is None
    assert energy.reason == "the counter did not move"


def test_a_gap_costs_a_counter_nothing_and_watts_their_coverage() -> None:
    t = np.array([*range(40), *range(80, 101)]) * S
    assert from_counter(t, t / S * 400.0, 0, 100 * S).joules == pytest.approx(40_000)
    energy = from_watts(t, np.full(len(t), 400.0), 0, 100 * S)
    assert energy.joules is None
    assert energy.gaps == 1
    assert energy.coverage == pytest.approx(0.59)


@given(
    st.lists(st.tuples(st.floats(0.4, 1.8), st.floats(1, 1000)), min_size=12, max_size=60),
    st.floats(0, 3),
    st.floats(4, 7),
)
def test_windows_add_up(steps: list[tuple[float, float]], start: float, middle: float) -> None:
    """The energy of two windows side by side is that of both together: nothing is counted twice or lost at an edge.

    (Steps within a factor of five: a longer one is a gap, which has rules of its own.)
    """
    t = np.cumsum([round(step * S) for step, _ in steps])
    watts = np.array([value for _, value in steps])
    counter = np.cumsum(watts)
    begin, cut, end = (int(t[0] + part * (t[-1] - t[0]) / 10) for part in (start, middle, 10))
    for energy, values in ((from_watts, watts), (from_counter, counter)):
        parts = [energy(t, values, low, high).joules for low, high in ((begin, cut), (cut, end))]
        whole = energy(t, values, begin, end).joules
        assert whole is not None
        assert None not in parts
        assert sum(part or 0 for part in parts) == pytest.approx(whole, rel=1e-6, abs=1e-6)


def test_rows_survive_a_crash_and_become_the_table(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    writer = PowerWriter(journal)
    t0 = 5 * S
    put(writer, series(), 4, 100)
    put(writer, series(kind="counter"), 6, 123.5)
    put(writer, series(kind=None), 6, None)
    writer.event("failed", source="nvml", t_ns=7 * S, reason="lost")
    assert writer.flush()
    with (journal / "power.rows").open("ab") as file:
        file.write(b"\x01" * 11)
    with (journal / "power.series").open("ab") as file:
        file.write(b'{"series": {"sou')
    log = write_power(tmp_path, "run", t0)
    assert log is not None
    assert log.torn == 2
    assert log.events == [{"event": "failed", "source": "nvml", "t_ns": 2 * S, "reason": "lost"}]
    table = pq.read_table(tmp_path / "power.parquet").to_pylist()
    assert [row["t_ns"] for row in table] == [-S, S, S]
    assert [row["kind"] for row in table] == ["average", "counter", None]
    assert [row["watts"] for row in table] == [100, None, None]
    assert [row["joules_counter"] for row in table] == [None, 123.5, None]
    assert table[0] == {
        "run_id": "run", "t_ns": -S, "source": "nvml", "scope": "accelerator", "device": "gpu0", "name": "H100",
        "watts": 100.0, "joules_counter": None, "kind": "average", "field": "power_average", "utilisation": 0.5,
        "memory_bytes": 7, "host": "node",
    }  # fmt: skip
    assert any("cut by a crash" in warning for warning in summary_of(log, 0, 1).warnings)
    assert any("nvml failed: lost" in warning for warning in summary_of(log, 0, 1).warnings)


def test_no_journal_is_no_table(tmp_path: Path) -> None:
    assert write_power(tmp_path, "run", 0) is None
    assert not (tmp_path / "power.parquet").exists()
