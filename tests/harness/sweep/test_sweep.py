"""Sweeps through the command line, with servers of their own that answer many times faster than any real one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest

from agentx import load
from tests.harness.sweep.sweeps import (
    HEAD,
    PATHS,
    ROOT,
    alive,
    arguments,
    configuration,
    ended,
    states,
    sweep,
    write,
)
from tests.harness.test_run import hostile
from tests.raw_server import Request, Writer


def until(condition: Callable[[], bool], limit_s: float = 15) -> None:
    deadline = monotonic() + limit_s
    while not condition():
        assert monotonic() < deadline, "did not happen"
        sleep(0.02)


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        arguments(*words),
        cwd=ROOT,
        env={**os.environ, **PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def test_failing_points_are_kept_with_their_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    deaf = configuration("deaf", "deaf").replace("ready_timeout: 10s", "ready_timeout: 1s")
    missing = configuration("missing").replace('"{python}", -m', "no-such-program, -m")
    file = write(tmp_path, configuration("broken", "broken"), deaf, missing, configuration("good"))
    out = tmp_path / "runs"
    done = sweep(str(file), "--out", str(out), "--json")
    assert done.returncode == 1, done.stderr
    last = ended(out)
    assert {name: line["status"] for name, line in last.items()} == {
        "broken/closed-loop/c1": "failed",
        "deaf/closed-loop/c1": "failed",
        "missing/closed-loop/c1": "failed",
        "good/closed-loop/c1": "done",
    }
    assert (
        "server ended with code 3 before it was ready: CUDA error: out of memory"
        in (last["broken/closed-loop/c1"]["reason"])
    )
    assert "not ready after 1 s" in last["deaf/closed-loop/c1"]["reason"]
    assert "loading weights" in last["deaf/closed-loop/c1"]["reason"]
    assert "no-such-program" in last["missing/closed-loop/c1"]["reason"]
    assert (out / "s/attempts/broken/closed-loop/c1/1/server.log").read_text() == "CUDA error: out of memory\n"

    matrix = json.loads(done.stdout)
    point = matrix["curves"][3]["points"][0]
    assert point["valid"]
    assert point["total_tok_s"] > 0
    run = out / "s" / point["run"]
    serving = json.loads((run / "serving.json").read_bytes())
    assert serving["point"] == "good/closed-loop/c1"
    assert serving["kv_pool"] == {"tokens": 64 * 16_384, "source": "/metrics"}
    assert serving["serving"]["accelerators"] == 0
    assert json.loads((run / "summary.json").read_bytes())["concurrency"] == 1

    again = sweep(str(file), "--out", str(out))  # nothing is left: failed points are not tried again by themselves
    assert again.returncode == 1
    assert again.stderr == ""
    assert "no-such-program" in again.stdout
    assert len(states(out)) == 8


def test_p127_killed_in_the_second_point_and_resumed_there_is_one_result_per_point(tmp_path: Path) -> None:
    starts, out = tmp_path / "starts", tmp_path / "runs"
    file = write(tmp_path, configuration("a", "counted", str(starts)), points="[1, 2, 3]")
    process = start(str(file), "--out", str(out))
    try:
        until(lambda: bool(list(out.glob("s/attempts/a/closed-loop/c3/1/*/journal/header.json"))))
    finally:
        process.kill()
        process.communicate()
    assert ended(out)["a/closed-loop/c3"]["status"] == "running"

    done = sweep(str(file), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout)["curves"][0]["points"]
    assert {p["point"]: (p["status"], p["attempt"]) for p in points} == {
        "a/closed-loop/c1": ("done", 1),
        "a/closed-loop/c2": ("done", 1),
        "a/closed-loop/c3": ("done", 2),
    }
    assert len(list((out / "s/runs").iterdir())) == 3
    (killed,) = (out / "s/attempts/a/closed-loop/c3/1").glob("*/run.json")
    serving = json.loads((killed.parent / "serving.json").read_bytes())  # a killed run has its metadata, too
    assert (serving["point"], serving["serving"]["model"]) == ("a/closed-loop/c3", "quick")
    assert starts.read_text().count("start") == 4
    assert sorted(p["run"] for p in points) == sorted(f"runs/{path.name}" for path in (out / "s/runs").iterdir())

    # A crash between keeping a run and noting it: the run is found, not repeated.
    journal = out / "s" / "state.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    assert ended(out)["a/closed-loop/c2"]["status"] == "running"
    assert sweep(str(file), "--out", str(out)).returncode == 0
    assert ended(out)["a/closed-loop/c2"]["status"] == "done"
    assert starts.read_text().count("start") == 4

    # Or a moment before that, when the run had ended and was not kept yet.
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    (kept,) = [p.parent for p in out.glob("s/runs/*/serving.json") if '"a/closed-loop/c2"' in p.read_text()]
    kept.rename(out / "s/attempts/a/closed-loop/c2/1" / kept.name)
    assert sweep(str(file), "--out", str(out)).returncode == 0
    assert ended(out)["a/closed-loop/c2"]["run_id"] == kept.name
    assert kept.is_dir()
    assert starts.read_text().count("start") == 4
    frame = load(out / "s" / "runs").requests
    assert sorted(frame.groupby("run_id").concurrency.first()) == [1, 2, 3]


@pytest.mark.timeout(120)
def test_killed_again_and_again_at_any_moment_a_sweep_repeats_and_loses_nothing(tmp_path: Path) -> None:
    starts, out = tmp_path / "starts", tmp_path / "runs"
    file = write(tmp_path, configuration("a", "counted", str(starts)), points="[1, 2]")
    moments, kills = random.Random(7), 0
    done_before: dict[str, str] = {}
    process = start(str(file), "--out", str(out), "--json")
    while True:
        try:
            said, _ = process.communicate(timeout=moments.uniform(1.0, 5.0) if kills < 4 else 50)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
        for name, line in ended(out).items() if (out / "s/state.jsonl").is_file() else ():
            if line["status"] == "done":
                assert done_before.setdefault(name, line["run_id"]) == line["run_id"]  # never made again
        process = start(str(file), "--out", str(out), "--json")
    assert process.returncode == 0
    assert kills >= 3
    points = json.loads(said)["curves"][0]["points"]
    assert [(p["status"], p["valid"]) for p in points] == [("done", True)] * 2
    runs = sorted(path.name for path in (out / "s/runs").iterdir())
    assert runs == sorted(p["run"].removeprefix("runs/") for p in points)
    assert done_before.items() <= {line["point"]: line["run_id"] for line in ended(out).values()}.items()
    begun = [(line["point"], line["attempt"]) for line in states(out) if line["status"] == "running"]
    assert len(begun) == len(set(begun))
    assert sum(line["status"] == "done" for line in states(out)) == 2
    assert starts.read_text().count("start") <= len(begun) <= 2 + kills
    requests = load(out / "s/runs").requests
    assert requests.request_id.is_unique
    assert sorted(requests.groupby("run_id").concurrency.first()) == [1, 2]


def test_a_server_that_dies_under_load_fails_the_point_with_its_last_words(tmp_path: Path) -> None:
    head = HEAD.replace("sessions: 1, duration: 20s", "duration: 20s")
    file = write(tmp_path, configuration("a", "dies"), head=head)
    sweep(str(file), "--out", str(tmp_path / "runs"))
    last = ended(tmp_path / "runs")["a/closed-loop/c1"]
    assert last["status"] == "failed"
    assert last["reason"] == "server ended with code 9 during the run: Xid 79"
    assert (tmp_path / "runs/s/attempts/a/closed-loop/c1/1" / last["run_id"] / "summary.json").is_file()


def test_p120_ctrl_c_ends_the_run_and_the_server_and_leaves_a_state_to_resume(tmp_path: Path) -> None:
    pids, out = tmp_path / "pids", tmp_path / "runs"
    head = "name: s\nrun: {duration: 60s, drain: 5s, time_scale: 0, max_context: 10k, workers: 1}\n"
    file = write(tmp_path, configuration("a", "family", str(pids)), points="[1, 2]", head=head)
    process = start(str(file), "--out", str(out))
    until(lambda: any(path.stat().st_size for path in out.glob("s/attempts/a/closed-loop/c1/1/*/journal/w*.requests")))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert ended(out)["a/closed-loop/c1"]["status"] == "interrupted"
    assert "a/closed-loop/c2" not in ended(out)
    family = [int(pid) for pid in pids.read_text().split()]
    assert len(family) == 3
    until(lambda: not any(map(alive, family)), 5)
    (partial,) = out.glob("s/attempts/a/closed-loop/c1/1/*/summary.json")
    assert not json.loads(partial.read_bytes())["valid"]
    assert not (out / "s/runs").exists()
    shown = sweep(str(file), "--out", str(out), "--dry-run")
    assert "interrupted" in shown.stdout
    assert "2 min of load" in shown.stdout


def test_a_killed_sweep_leaves_no_server_behind(tmp_path: Path) -> None:
    pids, out = tmp_path / "pids", tmp_path / "runs"
    head = "name: s\nrun: {duration: 60s, time_scale: 0, max_context: 10k, workers: 1}\n"
    file = write(tmp_path, configuration("a", "family", str(pids)), head=head)
    process = start(str(file), "--out", str(out))
    until(pids.is_file)
    sleep(0.2)
    process.kill()
    process.communicate()
    family = [int(pid) for pid in pids.read_text().split()]
    until(lambda: not any(map(alive, family)), 10)


def test_a_resumed_sweep_waits_until_the_servers_of_the_killed_one_have_ended(tmp_path: Path) -> None:
    pid, out = tmp_path / "pid", tmp_path / "runs"
    stubborn = configuration("a", "stubborn", str(pid)).replace("stop_timeout: 2s", "stop_timeout: 4s")
    file = write(tmp_path, stubborn)
    process = start(str(file), "--out", str(out))
    until(pid.is_file)
    sleep(0.2)
    process.kill()
    process.wait()  # its pipes are open for as long as its guards live
    first = int(pid.read_text())
    assert alive(first)
    begun = monotonic()
    again = start(str(file), "--out", str(out))
    until(lambda: pid.read_text() != str(first), 20)
    waited = monotonic() - begun
    assert not alive(first)
    assert waited > 2
    again.send_signal(signal.SIGTERM)
    said = again.communicate(timeout=30)[1].decode()
    process.communicate()
    assert "waiting for the processes of the sweep before this one to end" in said


def test_p122_no_secret_reaches_any_file_of_a_sweep_or_the_terminal(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    flags = "--api-key, CANARY-1-flag, --header, 'Authorization: Bearer CANARY-2-head', 'x://u:CANARY-3-url@h?key=CANARY-4q'"
    tells = configuration("tells", "tells", flags).replace("env: {", "env: {HF_TOKEN: CANARY-5-env, ")
    broken = configuration("broken", "broken", "--token=CANARY-6-flag")
    file = write(tmp_path, tells, broken)
    done = sweep(str(file), "--out", str(out), "--json", AGENTX_API_KEY="CANARY-7-key", MY_SECRET="CANARY-8-mine")
    assert ended(out)["tells/closed-loop/c1"]["valid"], done.stderr
    assert "CANARY" not in done.stdout + done.stderr
    files = [path for path in out.rglob("*") if path.is_file()]
    assert any(path.name == "server.log" and b"arguments: " in path.read_bytes() for path in files)
    for path in files:
        assert b"CANARY" not in path.read_bytes(), path


def test_two_sweeps_never_share_a_folder(tmp_path: Path) -> None:
    file = write(tmp_path, configuration("a", "deaf"))
    process = start(str(file), "--out", str(tmp_path / "runs"))
    until(lambda: (tmp_path / "runs/s/state.jsonl").is_file() and bool(states(tmp_path / "runs")))
    second = sweep(str(file), "--out", str(tmp_path / "runs"))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=15)
    assert second.returncode == 2
    assert "another sweep is running there" in second.stderr
    assert process.returncode == 143
    assert ended(tmp_path / "runs")["a/closed-loop/c1"]["status"] == "interrupted"


def test_a_matrix_for_ci_has_one_job_per_point_and_one_per_adaptive_curve(tmp_path: Path) -> None:
    second = configuration("b", more="  points: auto\n  runner: [self-hosted, b200]\n  priority: 5\n")
    file = write(tmp_path, configuration("a"), second, points="[1, 4]")
    done = sweep(str(file), "--matrix-json", "--out", str(tmp_path / "runs"))
    assert json.loads(done.stdout)["include"] == [
        {
            "only": "b/closed-loop",
            "artifact": "b-closed-loop",
            "runner": ["self-hosted", "b200"],
            "group": "self-hosted-b200",
            "priority": 5,
        },
        *(
            {
                "only": f"a/closed-loop/c{n}",
                "artifact": f"a-closed-loop-c{n}",
                "runner": ["self-hosted"],
                "group": "self-hosted",
                "priority": 0,
            }
            for n in (1, 4)
        ),
    ]
    assert done.stdout.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_writes_nothing_and_says_how_long_it_takes(tmp_path: Path) -> None:
    adaptive = configuration("b", more="  points: {low: 2, high: 4}\n")
    file = write(tmp_path, configuration("a"), adaptive, points="[1, 4, 2]")
    done = sweep(str(file), "--dry-run", "--json", "--out", str(tmp_path / "runs"))
    said = json.loads(done.stdout)
    assert said["order"] == [f"{n}/closed-loop/c{c}" for n, c in (("a", 1), ("b", 2), ("a", 4), ("b", 4), ("a", 2))]
    assert said["time_left_s"] == {"least": 5 * 20.0, "most": 6 * (20.0 + 5 + 10 + 2)}
    shown = sweep(str(file), "--dry-run", "--out", str(tmp_path / "runs")).stdout
    assert shown.index("a/closed-loop/c4") < shown.index("a/closed-loop/c2")
    assert "b/closed-loop/c2…c4" in shown
    assert not (tmp_path / "runs").exists()


def test_a_state_that_was_cut_by_a_crash_is_read_up_to_the_cut_and_a_strange_one_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, configuration("a"))
    folder = tmp_path / "runs" / "s"
    folder.mkdir(parents=True)
    (folder / "state.jsonl").write_text('{"schema": 1, "at": "x", "poi')
    assert sweep(str(file), "--dry-run", "--out", str(tmp_path / "runs")).returncode == 0
    (folder / "state.jsonl").write_text('{"schema": 1}\n')
    refused = sweep(str(file), "--dry-run", "--out", str(tmp_path / "runs"))
    assert refused.returncode == 2
    assert "state.jsonl:1: not a line of a sweep's state" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert os.listdir(folder) == ["state.jsonl"]


def test_p129_a_sweep_into_a_pipe_has_no_control_codes_and_its_result_on_stdout_only(tmp_path: Path) -> None:
    file = write(tmp_path, configuration("a"))
    done = sweep(str(file), "--out", str(tmp_path / "runs"), "--json", TERM="dumb")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert json.loads(done.stdout)["curves"]


def test_p124_a_point_without_one_good_answer_leaves_strict_json(tmp_path: Path) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n")

    def never(word: str) -> None:
        raise AssertionError(word)

    with hostile(script) as server:
        serving = "{model: quick, engine: simulated, accelerators: 0}"
        own = f"- name: a\n  serving: {serving}\n  endpoint: {server.url}\n  reset: salt\n"
        done = sweep(str(write(tmp_path, own)), "--out", str(tmp_path / "runs"), "--json")
    texts = {path: path.read_text() for path in (tmp_path / "runs").rglob("*.json")}
    read = {path.name: json.loads(text, parse_constant=never) for path, text in texts.items()}
    assert read["summary.json"]["requests"]["ok"] == 0
    assert read["summary.json"]["latency"]["ttft_s"]["p50"] is None
    assert read["summary.json"]["reasons"]["latency.ttft_s"]
    json.loads(done.stdout, parse_constant=never)
