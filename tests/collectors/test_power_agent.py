"""`agentx collect` and the client of its readings, over real HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic_ns

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.network import Exchange
from collectors.power import PowerMeter
from collectors.power.agent import Agent, Memory
from collectors.power.remote import RemoteSource
from collectors.power.source import SourceError
from harness.cli import entry
from results.errors import UserError
from results.power_journal import Series, read_power
from tests.collectors.native_smi import ROOT
from tests.collectors.power_pages import serving

TOKEN = "canary-token"


@contextmanager
def agent(token: str | None = TOKEN, interval_s: float = 0.05) -> Iterator[Agent]:
    with serving() as meter:
        meter.pages["/w"] = '{"watts": 250, "joules": 1000, "device": "gpu0"}'
        server = Agent("127.0.0.1", 0, [f"url:{meter.url}/w"], token=token, interval_s=interval_s)
        thread = Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def test_only_the_token_opens_it() -> None:
    with agent() as server:
        url = f"http://127.0.0.1:{server.port}"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN}x"}):
            for path in ("/samples", "/metrics", "/other"):
                assert httpx.get(url + path, headers=headers).status_code == 401
        with httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            assert client.get(f"{url}/samples").status_code == 200
            assert client.get(f"{url}/other").status_code == 404
            assert client.get(f"{url}/samples?after=x").status_code == 400
        source = RemoteSource(url, "wrong")
        with pytest.raises(SourceError, match="HTTP 401") as error:
            source.devices()
        assert "wrong" not in str(error.value)
        source.close()


def test_an_open_address_needs_a_token() -> None:
    with pytest.raises(UserError, match="without a token"):
        Agent("0.0.0.0", 0, ["cmd:echo 1"], token=None)
    with pytest.raises(UserError, match="no power to read"):
        Agent("127.0.0.1", 0, ["none"], token=None)
    with agent() as server, pytest.raises(UserError, match="in use"):
        Agent("127.0.0.1", server.port, ["cmd:echo 1"], token=None)


def test_prometheus_page_is_parsed_by_the_official_parser() -> None:
    with agent() as server:
        time.sleep(0.15)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        text = httpx.get(f"http://127.0.0.1:{server.port}/metrics", headers=headers).text
    samples = {s.name: s for family in text_string_to_metric_families(text) for s in family.samples}
    assert samples["agentx_power_watts"].value == 250
    assert samples["agentx_power_watts"].labels["device"] == "gpu0"
    assert samples["agentx_energy_joules_total"].value == 1000


def test_every_reading_arrives_once_on_the_clients_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's clock is an hour ahead; readings land where they were taken, though polls come half as often."""
    hour = 3600 * 10**9
    monkeypatch.setattr("collectors.power.agent.monotonic_ns", lambda: monotonic_ns() + hour)
    with agent(interval_s=0.04) as server:
        for sampler in server._samplers:
            sampler._clock = lambda: monotonic_ns() + hour
        before = monotonic_ns()
        choice = f"agent:http://127.0.0.1:{server.port}"
        with PowerMeter(tmp_path, [choice], interval_s=0.1, token=TOKEN):
            time.sleep(0.5)
        after = monotonic_ns()
    log = read_power(tmp_path, 0)
    assert log is not None
    late = log.rows[log.rows["t_ns"] > before + 50_000_000]
    watts = late[[log.series[i].kind == "instant" for i in late["series"]]]
    assert late["t_ns"].max() < after + 5_000_000
    assert len(watts) >= 8
    gaps = [int(gap) for gap in (watts["t_ns"][1:] - watts["t_ns"][:-1])]
    assert min(gaps) > 10_000_000  # none twice
    assert sum(gaps) / len(gaps) == pytest.approx(40_000_000, rel=0.25)
    assert {(s.source, s.host != "") for s in log.series} == {("agent/url", True)}


def test_an_agent_started_anew_has_a_new_clock_and_numbering() -> None:
    page = {"boot": "a", "now_ns": 0, "next": 5, "samples": [], "problems": ["nvml: lost"]}
    row = {
        "source": "nvml", "scope": "accelerator", "device": "g", "name": "g", "kind": "instant", "field": "w",
        "host": "n", "t_ns": 10**15, "watts": 5, "joules_counter": None, "utilisation": None, "memory_bytes": None,
    }  # fmt: skip
    with serving() as server:
        source = RemoteSource(server.url, None)
        server.pages["/samples?after=-1"] = json.dumps({**page, "samples": [row]})
        assert [device.id for device in source.devices()] == ["g"]
        assert source.problems["nvml: lost"] == 1
        source.clock.add(Exchange(0, 0, 0))  # the old clock, known as well as can be
        server.pages["/samples?after=5"] = json.dumps({**page, "boot": "b", "now_ns": 10**15, "samples": [row, {}]})
        (sample,) = source.sample()
        assert sample.t_ns is not None
        assert abs(sample.t_ns - monotonic_ns()) < 10**9
        assert any("started anew" in problem for problem in source.problems)
        for broken in ('{"boot": "b"}', "[]", "<html>", '{"boot": "b", "now_ns": "x", "next": 1, "samples": []}'):
            server.pages["/samples?after=5"] = broken
            with pytest.raises(SourceError, match=r"agent|JSON"):
                source.sample()
        source.close()


def test_readings_taken_while_the_client_was_away_arrive_when_it_is_back() -> None:
    with agent(token=None, interval_s=0.03) as server:
        source = RemoteSource(f"http://127.0.0.1:{server.port}", None)
        source.devices()
        source.sample()
        source.close()  # the network is gone
        time.sleep(0.3)
        source.devices()  # as the sampler does after a failure
        assert len({sample.t_ns for sample in source.sample()}) >= 6
        source.close()


def test_readings_of_an_earlier_process_do_not_hide_new_ones() -> None:
    memory = Memory()
    series = Series("a", "given", "d", "d", "instant", None, "h")
    for t in range(3):
        memory.row(t, series, watts=1.0, joules=None, utilisation=None, memory_bytes=None)
    assert [row["t_ns"] for row in memory.after(1)["samples"]] == [1, 2]
    assert memory.after(3)["samples"] == []
    assert len(memory.after(999)["samples"]) == 3
    assert [row["t_ns"] for row in memory.after(-1)["samples"]] == [2]


def test_the_command_serves_until_interrupted(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    command = [sys.executable, "-m", "agentx", "collect", "--listen", "127.0.0.1:0", "--power", "cmd:echo 42"]
    process = subprocess.Popen(
        [*command, "--token-file", str(token), "--interval", "100ms", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said["devices"] == [{"source": "cmd", "device": "cmd", "name": "cmd"}]
    time.sleep(0.2)
    answer = httpx.get(f"{said['url']}/samples", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.json()["samples"][0]["watts"] == 42
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "nonsense"], "--listen nonsense"),
        (["--interval", "1ms", "--power", "cmd:echo 1"], "--interval 1ms"),
        (["--token-file", "/no/file"], "--token-file /no/file"),
        (["--power", "nvidia"], "--power nvidia"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentx", "collect", *arguments])
    with pytest.raises(SystemExit) as end:
        entry()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
