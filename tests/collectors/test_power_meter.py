"""A whole reading: sources in threads, the journal, failures as events, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.parquet as pq
import pytest

from collectors.power import PowerMeter, is_local
from collectors.power.choose import open_sources
from collectors.power.sampler import SourceSampler
from collectors.power.source import Device, Kind, Sample, Scope, SourceError
from results.errors import UserError
from results.power import PowerSummary, summarise_power
from results.power_journal import PowerWriter, read_power, write_power
from tests.collectors.native_smi import ROOT, Smi, environment
from tests.collectors.power_pages import serving
from tests.collectors.test_power_nvidia import A, B, full

S = 10**9
RUN = """
import json, sys, time
from pathlib import Path
from collectors.power import PowerMeter
meter = PowerMeter(Path(sys.argv[1]), [sys.argv[2]], interval_s=0.04)
meter.start()
meter.measure_idle(0.2)
t0 = time.monotonic_ns()
print("begun", t0, flush=True)
time.sleep(float(sys.argv[3]))
end = time.monotonic_ns()
meter.stop()
print(json.dumps([t0, end, meter.report()]))
"""


def meter(libraries: Path, folder: Path, seconds: float, choice: str) -> subprocess.Popen[str]:
    (folder / "journal").mkdir()
    command = [sys.executable, "-c", RUN, str(folder / "journal"), choice, str(seconds)]
    env = environment(libraries, folder / "smi.txt")
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env)


def ended(process: subprocess.Popen[str], folder: Path) -> tuple[PowerSummary, dict[str, Any], float]:
    """The summary of a run that went to its end, what the meter reported, and the window in seconds."""
    output, _ = process.communicate(timeout=30)
    t0, end, report = json.loads(output.splitlines()[-1])
    log = write_power(folder, "run", t0)
    return summarise_power(log, 0, end - t0, output_tokens=1000, total_tokens=None, jobs=None), report, (end - t0) / S


def test_two_real_counters_from_idle_to_summary(libraries: Path, tmp_path: Path) -> None:
    """Counters that grow by 500 and 300 W of real time, through binding, thread, journal, table and summary."""
    numbers = {**full(0, A, energy_uj="@500", average_mw=500_000), **full(1, B, energy_uj="@300", average_mw=310_000)}
    Smi("nvidia", libraries, tmp_path, count=2, **numbers)
    power, report, seconds = ended(meter(libraries, tmp_path, 0.6, "nvidia"), tmp_path)
    figures = power.figures
    assert figures["source"] == "nvml:counter"
    assert figures["watts_mean"] == pytest.approx(800, rel=0.04)
    assert figures["joules"] == pytest.approx(800 * seconds, rel=0.04)
    assert figures["idle_watts"] == pytest.approx(800, rel=0.05)
    assert figures["joules_per_output_token"] == pytest.approx(0.8 * seconds, rel=0.04)
    assert power.reasons == {
        "power.joules_per_total_token": "the number of tokens is not known",
        "power.joules_per_job": "the number of finished jobs is not known",
    }
    assert power.warnings == []
    assert pq.read_table(tmp_path / "power.parquet").num_rows == sum(s["reads"] for s in report["sources"]) * 6
    assert [source["failed"] for source in report["sources"]] == [0]
    assert report["sources"][0]["reads"] >= 12


def test_a_gpu_that_vanishes_for_good_leaves_no_sum_and_says_why(libraries: Path, tmp_path: Path) -> None:
    watts = {"energy_uj": "@500", "average_mw": 500_000}
    smi = Smi("nvidia", libraries, tmp_path, count=2, **full(0, A, **watts), **full(1, B, **watts))
    process = meter(libraries, tmp_path, 0.6, "nvidia")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("begun")
    time.sleep(0.2)
    smi.script({"0.lost": 1, "1.lost": 1})
    power, report, _ = ended(process, tmp_path)
    assert power.figures["joules"] is None
    assert power.reasons["power.joules"].startswith(f"2 of 2 devices: {A}: readings cover")
    assert "lost" in power.reasons["power.joules"].lower()
    assert any("reads failed" in warning and "lost" in warning.lower() for warning in power.warnings)
    assert report["sources"][0]["failed"] >= 4


def test_a_kill_leaves_what_was_read(libraries: Path, tmp_path: Path) -> None:
    Smi("nvidia", libraries, tmp_path, count=1, **full(0, A, energy_uj="@500"))
    process = meter(libraries, tmp_path, 60, "nvidia")
    assert process.stdout is not None
    t0 = int(process.stdout.readline().split()[1])
    time.sleep(0.4)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    log = read_power(tmp_path / "journal", t0)
    assert log is not None
    assert log.rows["t_ns"].max() > 0.25 * S
    power = summarise_power(log, 0, int(log.rows["t_ns"].max()), output_tokens=1, total_tokens=1, jobs=1)
    assert power.figures["watts_mean"] == pytest.approx(500, rel=0.05)


class Scripted:
    """A source of our own that does what a test says at each reading."""

    name = "scripted"
    scope = Scope.ACCELERATOR
    device = Device("gpu0", "GPU")

    def __init__(self, act: Callable[[int], float | None]) -> None:
        self.problems: Counter[str] = Counter()
        self.opened = self.reads = 0
        self._act = act

    def devices(self) -> list[Device]:
        self.opened += 1
        return [self.device]

    def sample(self) -> list[Sample]:
        self.reads += 1
        return [Sample(self.device, Kind.INSTANT, "w", watts=self._act(self.reads))]

    def close(self) -> None:
        pass


def sampled(folder: Path, act: Callable[[int], float | None], seconds: float) -> tuple[Scripted, SourceSampler, Any]:
    source = Scripted(act)
    source.devices()
    writer = PowerWriter(folder)
    sampler = SourceSampler(source, writer, interval_s=0.02)
    sampler.start()
    time.sleep(seconds)
    sampler.stop()
    assert sampler.join(5)
    writer.close()
    return source, sampler, read_power(folder, 0)


@pytest.mark.parametrize("error", [SourceError("gone"), RuntimeError("surprise"), OSError(5, "io")])
def test_a_source_that_fails_and_comes_back_is_counted_and_said(tmp_path: Path, error: Exception) -> None:
    def act(read: int) -> float:
        if 3 <= read < 6:
            raise error
        return 100.0

    source, sampler, log = sampled(tmp_path, act, 0.2)
    assert sampler.failed == 3
    assert source.opened == 4  # opened again at every tick until it answered
    events = [(event["event"], event.get("missed")) for event in log.events]
    assert events == [("failed", None), ("back", 3), ("ended", None)]
    assert str(error) in log.events[0]["reason"]
    assert len(log.rows) == sampler.reads - 3


def test_slow_reads_are_counted_and_ticks_stay_on_their_raster(tmp_path: Path) -> None:
    def act(read: int) -> float:
        time.sleep(0.05 if read % 2 else 0)
        return 100.0

    _, sampler, log = sampled(tmp_path, act, 0.3)
    assert sampler.late >= 3
    assert log.events[-1]["late"] == sampler.late


def test_a_source_that_hangs_is_left_behind_and_said(tmp_path: Path) -> None:
    release = Event()

    def act(_: int) -> float:
        release.wait(20)
        return 1.0

    source = Scripted(act)
    writer = PowerWriter(tmp_path)
    sampler = SourceSampler(source, writer, interval_s=0.02)
    sampler.start()
    sampler.stop()
    assert not sampler.join(0.1)
    log = read_power(tmp_path, 0)
    assert log is not None
    assert log.events[-1]["reason"] == "a read did not come back"
    release.set()
    sampler.join(5)
    writer.close()


def test_p119_kinds_stay_apart_through_the_journal(libraries: Path, tmp_path: Path) -> None:
    Smi("nvidia", libraries, tmp_path, count=1, **full(0, A, energy_uj="@540", average_mw=500_000, instant_mw=480_000))
    power, *_ = ended(meter(libraries, tmp_path, 0.4, "nvidia"), tmp_path)
    (row,) = power.figures["devices"]
    kinds = row["joules_by_kind"]
    assert kinds["counter"] / kinds["average"] == pytest.approx(1.08, abs=0.02)
    assert kinds["instant"] / kinds["average"] == pytest.approx(0.96, abs=0.01)
    assert any("+8 %" in warning or "+7 %" in warning or "+9 %" in warning for warning in power.warnings)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("nvidia", "--power nvidia: NVML"), ("amd", "--power amd: amdsmi"), ("gpu", "--power gpu; choose from"),
        ("tpu:much", "not a number of watts"), ("dcgm:node:9400", "no http:// address"), ("cmd:", "--power cmd:"),
        ("cmd:'open", "quotation"), ("cmd:/no/such/meter", "not installed"), ("agent:http://127.0.0.1:9", "refused"),
    ],
)  # fmt: skip
def test_a_named_source_that_can_not_be_read_stops_the_run_with_one_line(
    tmp_path: Path, choice: str, words: str
) -> None:
    with pytest.raises(UserError) as error:
        PowerMeter(tmp_path, [choice]).start()
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_auto_never_fails_and_keeps_its_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = PowerMeter(tmp_path, ["auto"], local=False)
    meter.start()
    meter.stop()
    log = read_power(tmp_path, 0)
    power = summarise_power(log, 0, S, output_tokens=1, total_tokens=1, jobs=1)
    assert "another machine" in power.reasons["power"]
    opened = open_sources(["auto"])
    assert {name for name, _ in opened.absent} | {source.name for source, _ in opened.sources} >= {"nvidia", "amd"}
    for source, _ in opened.sources:
        source.close()
    # A vendor's package may raise anything at all.
    monkeypatch.setattr("collectors.power.amd.AmdSource.devices", lambda _: os.environ["NO_SUCH_NAME"])
    reasons = dict(open_sources(["auto"]).absent)
    assert "KeyError" in reasons["amd"]


def test_what_was_open_is_closed_when_a_later_choice_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr("collectors.power.probe.ProbeSource.close", lambda self: closed.append(self.name))
    for later in ("nonsense", "cmd:false"):
        with pytest.raises(UserError):
            open_sources(["cmd:echo 1", later])
    assert closed == ["cmd", "cmd#2", "cmd"]


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PowerMeter(tmp_path, ["cmd:echo 1"], interval_s=0.05) as meter:
        monkeypatch.setattr("results.journal.os.write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        time.sleep(0.1)
    assert meter.report()["readings_lost"]


def test_none_writes_nothing(tmp_path: Path) -> None:
    with PowerMeter(tmp_path, ["none"]) as meter:
        meter.measure_idle(60)  # returns at once: there is nothing to measure
    assert meter.report()["sources"] == []
    assert not list(tmp_path.iterdir())


def test_several_sources_at_once(tmp_path: Path) -> None:
    with serving() as server:
        server.pages["/w"] = '{"watts": 900, "device": "rack"}'
        choices = [f"url:{server.url}/w", "cmd:echo 120", "cmd:echo 80"]
        with PowerMeter(tmp_path, choices, interval_s=0.05) as meter:
            time.sleep(0.3)
        named = [(source["name"], source["devices"][0]["id"]) for source in meter.report()["sources"]]
        assert named == [("url", "rack"), ("cmd", "cmd"), ("cmd#2", "cmd#2")]
    log = read_power(tmp_path, 0)
    assert log is not None
    assert {(s.source, s.scope) for s in log.series} == {("url", "given"), ("cmd", "given"), ("cmd#2", "given")}
    start, end = int(log.rows["t_ns"].min()), int(log.rows["t_ns"].max())
    power = summarise_power(log, start, end, output_tokens=1, total_tokens=1, jobs=1)
    assert power.figures["watts_mean"] == pytest.approx(1100)


def test_addresses_of_this_machine_are_told_from_others() -> None:
    assert is_local("127.0.0.1")
    assert is_local("localhost")
    assert not is_local("192.0.2.1")
    assert not is_local("no.such.host.invalid")
