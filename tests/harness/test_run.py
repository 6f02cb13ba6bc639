"""Runs through the command line, as a user starts them, against the simulated endpoint and against hostile servers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving
from tests.raw_server import RawServer, Request, Script, Writer, delta, finish, normal_answer, raw_server, usage

QUICK = ("--time-scale", "0", "--max-context", "14k")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "agentx", *arguments]


def agentx(*arguments: str, timeout: float = 50, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )


@contextmanager
def simulated(truth: Path | None = None, **profile: Any) -> Iterator[str]:
    """URL of a simulated endpoint that answers many times faster than any real one."""
    sizes = {"block_size": 64, "cache_blocks": 16_384, "max_model_len": 65_536, "kv_tokens_s": 1e12, **profile}
    with serving(MockConfig(dataclasses.replace(FAST, **sizes), "quick", truth)) as port:
        yield f"http://127.0.0.1:{port}"


def only_run(out: Path) -> Path:
    (directory,) = out.iterdir()
    return directory


def summary_of(directory: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((directory / "summary.json").read_bytes())
    return loaded


def rows_of(directory: Path, name: str = "requests") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(directory / f"{name}.parquet").to_pylist()
    return rows


def truth_of(path: Path) -> dict[str, dict[str, Any]]:
    return {line["request_id"]: line for line in map(json.loads, path.read_text().splitlines())}


@contextmanager
def hostile(
    script: Script,
    key: str | None = None,
    probe: Script | None = None,
    *,
    tokenizes: bool = False,
    page: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[RawServer]:
    """A raw server in a thread; it answers GETs and probes (by `probe`), `script` gets the streams.

    `key`: who may ask; `tokenizes`: texts are counted at /tokenize too; `page`: what /metrics says.
    """
    ready, stop, box = threading.Event(), threading.Event(), []

    async def dispatch(request: Request, writer: Writer) -> None:
        if key is not None and request.headers.get("authorization") != f"Bearer {key}":
            await writer.raw(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
        elif request.head.startswith(b"GET"):
            pages = {"/v1/models": b'{"data":[{"id":"m"}]}', "/metrics": page}
            found = (body := pages.get(request.target)) is not None
            body = body or b"{}"
            status = b"200 OK" if found else b"404 Not Found"
            await writer.raw(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        elif tokenizes and request.head.startswith(b"POST /tokenize") and "prompt" in request.json():
            body = json.dumps({"count": words_in(request.json()["prompt"])}).encode()
            await writer.raw(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        elif not request.head.startswith(b"POST /v1/chat"):
            await writer.raw(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        elif not request.json().get("stream"):
            await (probe or probe_answer)(request, writer)
        else:
            await script(request, writer)

    async def main() -> None:
        async with raw_server(dispatch, tls=tls) as server:
            box.append(server)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait(5)
    try:
        yield box[0]
    finally:
        stop.set()
        thread.join()


def words_in(text: str) -> int:
    """Tokens of a text: one for each word and each line end."""
    return len(text.replace("\n", " \n ").split(" ")) - 1 + (text[:1] not in (" ", "\n"))


async def probe_answer(request: Request, writer: Writer) -> None:
    """One token per word and line end, three per message: a template that can be measured."""
    messages = request.json()["messages"]
    tokens = sum(3 + words_in(m["content"]) for m in messages)
    body = json.dumps({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 1}}).encode()
    await writer.raw(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )


def test_records_equal_what_the_server_did(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with simulated(truth) as url:
        done = agentx(
            "run", "--endpoint", url, "--sessions", "4", "--concurrency", "2", *QUICK, "--out", str(tmp_path / "r")
        )
    assert done.returncode == 0, done.stderr
    directory = only_run(tmp_path / "r")
    seen = truth_of(truth)
    t0 = json.loads((directory / "run.json").read_bytes())["clock"]["t0_monotonic_ns"]
    rows = rows_of(directory)
    assert len(rows) > 10
    for row in rows:
        line = seen[row["request_id"]]
        assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"]) == (
            line["prompt_tokens"],
            line["output_tokens"],
            line["cached_tokens"],
        )
        assert row["input_tokens"] == row["planned_input_tokens"]
        assert abs(row["first_token_ns"] + t0 - line["first_token_ns"]) < 5_000_000
        assert row["timestamps"] == "kernel"
    sessions = rows_of(directory, "sessions")
    assert [s["end"] for s in sessions] == ["completed"] * 4
    assert sum(s["sent_requests"] for s in sessions) == len(rows)
    assert str(directory) in done.stdout


def test_several_workers_give_one_truth(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with simulated(truth) as url:
        done = agentx(
            *("run", "--endpoint", url, "--sessions", "6", "--concurrency", "3", "--workers", "2"),
            *(*QUICK, "--out", str(tmp_path / "r"), "--json"),
        )
    assert done.returncode == 0, done.stderr
    rows = rows_of(only_run(tmp_path / "r"))
    assert {row["worker"] for row in rows} == {0, 1}
    assert {row["request_id"] for row in rows} <= set(truth_of(truth))
    assert len({row["request_id"] for row in rows}) == len(rows)
    by_session: dict[str, set[int]] = {}
    for row in rows:
        by_session.setdefault(row["session_id"], set()).add(row["worker"])
    assert all(len(workers) == 1 for workers in by_session.values())
    sent = [row["sent_ns"] for row in rows]
    assert sent == sorted(sent)
    assert json.loads(done.stdout)["requests"]["ok"] == len(rows)


def test_hits_reach_theory_at_one_live_session(tmp_path: Path) -> None:
    with simulated() as url:
        options = ("--sessions", "3", "--concurrency", "1", *QUICK, "--out", str(tmp_path), "--json")
        done = agentx("run", "--endpoint", url, *options)
    cache = json.loads(done.stdout)["cache"]
    assert cache["theoretical"] > 0.5
    assert cache["achieved"] == pytest.approx(cache["theoretical"], abs=0.02)


def test_p95_a_second_run_does_not_measure_the_first_ones_cache(tmp_path: Path) -> None:
    options = ("--sessions", "1", "--concurrency", "1", *QUICK, "--json")
    with simulated() as url:
        results = [
            json.loads(agentx("run", "--endpoint", url, *options, "--out", str(tmp_path / name), *salt).stdout)
            for name, salt in (("a", ()), ("b", ()), ("c", ("--salt", "x")), ("d", ("--salt", "x")))
        ]
    first, second, salted, again = (result["cache"]["achieved"] for result in results)
    assert second == pytest.approx(first, abs=0.01)
    assert salted == pytest.approx(first, abs=0.01)
    assert again > first + 0.05  # the same salt was asked for: the alarm says what happened
    assert any("another run's cache" in warning for warning in results[3]["warnings"])
    assert not any("another run's cache" in warning for result in results[:3] for warning in result["warnings"])


def start_run(url: str, out: Path, *options: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command("run", "--endpoint", url, "--concurrency", "4", "--duration", "60s", "--out", str(out), *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = monotonic() + 20
    while not list(out.glob("*/journal/w0.requests")) or not any(
        p.stat().st_size for p in out.glob("*/journal/w0.requests")
    ):
        assert monotonic() < deadline, "the run did not start"
        assert process.poll() is None, process.communicate()
        sleep(0.05)
    return process


def test_kill_9_loses_at_most_a_second(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with simulated(truth) as url:
        process = start_run(url, tmp_path / "r", "--time-scale", "0.1", "--max-context", "14k")
        sleep(2.5)
        process.kill()
        killed = monotonic()
        process.communicate()
        sleep(1.0)  # the workers notice that their parent is gone
        directory = only_run(tmp_path / "r")
        assert (directory / "journal").is_dir()
        recovered = agentx("recover", str(directory))
        assert recovered.returncode == 0, recovered.stderr
        assert "killed" in recovered.stdout
    rows = {row["request_id"] for row in rows_of(directory)}
    run_id = json.loads((directory / "run.json").read_bytes())["run_id"]
    finished = {
        name
        for name, line in truth_of(truth).items()
        if name.startswith(run_id) and not line["aborted"] and line["last_token_ns"] / 1e9 < killed - 1.0
    }
    assert finished
    assert finished <= rows
    assert not summary_of(directory)["valid"]
    assert "nothing to recover" in agentx("recover", str(directory)).stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_p120_an_interrupt_drains_and_keeps_everything(tmp_path: Path, number: int, code: int) -> None:
    with simulated() as url:
        process = start_run(url, tmp_path / "r", "--time-scale", "0.1", "--max-context", "14k")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    directory = only_run(tmp_path / "r")
    summary = summary_of(directory)
    assert summary["requests"]["ok"] == len(rows_of(directory))
    assert any("interrupted" in reason for reason in summary["invalid_reasons"])
    assert json.loads((directory / "run.json").read_bytes())["status"] == "interrupted"
    assert not (directory / "journal").exists()
    assert "interrupted" in out


async def never_ends(request: Request, writer: Writer) -> None:
    await writer.head()
    await writer.event(delta(content="x"))
    while True:
        await asyncio.sleep(0.1)
        await writer.chunk(b": still here\n\n")


def test_the_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    with hostile(never_ends) as server:
        process = subprocess.Popen(
            command("run", "--endpoint", server.url, "--concurrency", "2", "--out", str(tmp_path / "r"), *QUICK),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = monotonic() + 20
        while server.in_flight < 2:
            assert monotonic() < deadline
            sleep(0.05)
        process.send_signal(signal.SIGINT)
        sleep(0.5)
        assert process.poll() is None  # draining
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130, err
    rows = rows_of(only_run(tmp_path / "r"))
    assert {row["status"] for row in rows} == {"cancelled"}


def test_p64_streams_that_never_end_are_cut_at_the_drain_limit(tmp_path: Path) -> None:
    stuck = 0

    async def script(request: Request, writer: Writer) -> None:
        nonlocal stuck
        if stuck < 2:
            stuck += 1
            await never_ends(request, writer)
        await normal_answer(request, writer, tokens=int(request.json()["max_tokens"]), step_ms=0.05)

    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "6", "--duration", "2s", "--drain", "1s", "--json"),
            *("--out", str(tmp_path), *QUICK),
        )
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert summary["requests"]["cancelled"] == 2
    assert summary["requests"]["ok"] > 5
    assert any("2 requests had not finished 1 s after the end" in reason for reason in summary["invalid_reasons"])


def test_p51_a_failing_server_ends_the_run_early_and_is_not_fast(tmp_path: Path) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy")

    with hostile(script) as server:
        started = monotonic()
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "4", "--duration", "60s", "--json"),
            *("--out", str(tmp_path), *QUICK),
        )
        assert monotonic() - started < 20
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert summary["latency"]["ttft_s"]["n"] == 0
    assert summary["requests"]["error_rate"] == 1.0
    assert any("stopped early" in reason and "503" in reason for reason in summary["invalid_reasons"])


def test_p53_a_400_is_not_repeated_and_ends_its_session_only(tmp_path: Path) -> None:
    refused: list[str] = []

    async def script(request: Request, writer: Writer) -> None:
        messages = request.json()["messages"]
        if len(server_requests) == 3 and not refused:
            refused.append(request.headers["x-request-id"])
            await writer.raw(b'HTTP/1.1 400 Bad\r\ncontent-length: 28\r\n\r\n{"error":"invalid_request" }')
            return
        server_requests.append(len(messages))
        await normal_answer(request, writer, tokens=int(request.json()["max_tokens"]), step_ms=0.05)

    server_requests: list[int] = []
    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "1", "--sessions", "2", "--json"),
            *("--out", str(tmp_path), *QUICK),
        )
    assert done.returncode in (0, 1)
    directory = only_run(tmp_path)
    failed = [row for row in rows_of(directory) if row["status"] == "http_error"]
    assert [row["request_id"] for row in failed] == refused
    sessions = {s["session_id"]: s for s in rows_of(directory, "sessions")}
    assert sessions[failed[0]["session_id"]]["end"] == "failed"
    assert sessions[failed[0]["session_id"]]["sent_requests"] < sessions[failed[0]["session_id"]]["planned_requests"]
    assert sorted(s["end"] for s in sessions.values()) == ["completed", "failed"]


def test_p83_context_overflow_ends_only_its_session(tmp_path: Path) -> None:
    async def script(request: Request, writer: Writer) -> None:
        if len(request.body) > 60_000:
            text = b'data: {"error":{"message":"maximum context length is 9000 tokens","code":400}}\n\ndata: [DONE]\n\n'
            await writer.head()
            await writer.chunk(text)
            await writer.end()
            return
        await normal_answer(request, writer, tokens=int(request.json()["max_tokens"]), step_ms=0.05)

    with hostile(script) as server:
        agentx(
            *("run", "--endpoint", server.url, "--concurrency", "1", "--sessions", "3", "--json"),
            *("--out", str(tmp_path), *QUICK),
        )
    directory = only_run(tmp_path)
    assert {row["status"] for row in rows_of(directory)} == {"ok", "context_overflow"}
    assert "overflow" in {s["end"] for s in rows_of(directory, "sessions")}


def test_p122_no_secret_reaches_an_artifact_or_the_terminal(tmp_path: Path) -> None:
    async def script(request: Request, writer: Writer) -> None:
        assert request.headers["authorization"] == "Bearer CANARY1"
        if len(request.body) % 3 == 0:
            await writer.raw(
                b"HTTP/1.1 500 Oops\r\ncontent-length: 45\r\n\r\nno luck with Bearer CANARY1 api_key=CANARY2  "
            )
            return
        await normal_answer(request, writer, tokens=int(request.json()["max_tokens"]), step_ms=0.05)

    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "2", "--sessions", "3", "--out", str(tmp_path), *QUICK),
            AGENTX_API_KEY="CANARY1",
        )
        user = server.url.replace("http://", "http://user:CANARY3@")
        basic = agentx(
            "run", "--endpoint", user, "--sessions", "1", "--concurrency", "1", "--out", str(tmp_path), *QUICK
        )
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"CANARY" not in written
    assert "CANARY" not in done.stdout + done.stderr + basic.stdout + basic.stderr


def test_p129_output_to_a_pipe_has_no_control_codes(tmp_path: Path) -> None:
    with simulated() as url:
        options = ("--endpoint", url, "--sessions", "1", "--concurrency", "1", *QUICK, "--out", str(tmp_path))
        done = agentx("run", *options, TERM="dumb")
        quiet = agentx("run", *options, "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "plan:" in done.stderr
    assert quiet.stderr == ""
    json.loads(quiet.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run",), 2, "give --endpoint URL, or --mock"),
        (("run", "--mock", "--endpoint", "http://127.0.0.1:1"), 2, "one endpoint"),
        (("run", "--mock", "--corpus", "/nope.parquet"), 2, "--corpus /nope.parquet: no such file"),
        (("run", "--mock", "--corpus", __file__), 2, "not a Parquet file"),
        (("run", "--mock", "--duration", "soon"), 2, "90s, 15m or 1h"),
        (("run", "--mock", "--max-context", "3"), 2, "--max-context 3"),
        (("run", "--mock", "--workers", "none"), 2, "--workers none"),
        (("run", "--mock", "--messages", "loud"), 2, "plain or tools"),
        (("run", "--mock", "--model", "other"), 3, "--model other is not served"),
        (("run", "--mock", "nothing"), 2, "--mock nothing; choose small or large"),
        (
            ("run", "--endpoint", "http://127.0.0.1:1", "--ready-timeout", "1s"),
            3,
            "http://127.0.0.1:1 is not ready after 1 s",
        ),
        (("run", "--endpoint", "ftp://x"), 2, "ftp://x is not a URL"),
        (("run", "--endpoint", "http://h/?key=CANARY"), 2, "has a query"),
        (("recover", "/nope"), 2, "/nope: no run.json"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    extra = ("--out", str(tmp_path / "r"), "--quiet") if arguments[0] == "run" else ()
    done = agentx(*arguments, *extra)
    text = " ".join(done.stderr.split())
    assert done.returncode == code, done.stderr
    assert words in text.replace("│ ", "").replace(" │", "")
    assert "Traceback" not in done.stderr
    assert "CANARY" not in done.stderr
    assert not (tmp_path / "r").exists()


def test_p66_every_call_of_the_preflight_carries_the_key(tmp_path: Path) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await normal_answer(request, writer, tokens=int(request.json()["max_tokens"]), step_ms=0.05)

    options = ("--concurrency", "1", "--sessions", "1", "--out", str(tmp_path), *QUICK)
    with hostile(script, key="sesame") as server:
        refused = agentx("run", "--endpoint", server.url, *options, AGENTX_API_KEY="", OPENAI_API_KEY="")
        done = agentx("run", "--endpoint", server.url, *options, AGENTX_API_KEY="sesame")
    assert refused.returncode == 3
    assert "GET /v1/models says 401" in refused.stderr
    assert done.returncode == 0, done.stderr


def test_an_unwritable_folder_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = agentx("run", "--mock", "--out", str(tmp_path / "file"), "--quiet")
    assert done.returncode == 2
    assert f"--out {tmp_path / 'file'}" in done.stderr


def test_p59_too_few_file_descriptors_stop_the_run_before_it_starts(tmp_path: Path) -> None:
    run = command("run", "--mock", "--concurrency", "500", "--quiet", "--out", str(tmp_path))
    script = f"ulimit -n 200 && exec {shlex.join(run)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "file descriptors" in done.stderr


def test_c38_the_server_may_come_up_late(tmp_path: Path) -> None:
    with simulated() as unused:
        port = unused.rsplit(":", 1)[1]
    box: list[subprocess.Popen[bytes]] = []
    server = command("mock", "--port", port)
    late = threading.Timer(1.5, lambda: box.append(subprocess.Popen(server, stdout=subprocess.DEVNULL)))
    late.start()
    try:
        done = agentx(
            *("run", "--endpoint", unused, "--duration", "1s", "--drain", "0s", "--out", str(tmp_path), *QUICK),
        )
    finally:
        late.join()
        box[0].terminate()
        box[0].wait()
    assert done.returncode == 1, done.stderr
    assert f"waiting for {unused}" in done.stderr
    assert rows_of(only_run(tmp_path))


def test_a_server_without_usage_is_measured_and_said(tmp_path: Path) -> None:
    async def script(request: Request, writer: Writer) -> None:
        await writer.head()
        for _ in range(3):
            await writer.event(delta(content=" x"))
        await writer.event(finish())
        await writer.event("[DONE]")
        await writer.end()

    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "1", "--sessions", "1", "--json"),
            *("--out", str(tmp_path), *QUICK),
        )
    summary = json.loads(done.stdout)
    assert summary["requests"]["ok"] > 0
    assert summary["throughput"]["output_tok_s"] is None
    assert any("without usage" in warning for warning in summary["warnings"])
    assert usage(1, 1)["usage"]["prompt_tokens"] == 1


def test_p128_no_tokenizer_is_fetched_a_name_is_refused_at_once_and_a_run_needs_none(tmp_path: Path) -> None:
    # Every way out of this machine leads to a closed port: a download would fail, or hang on.
    offline = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy"), "http://127.0.0.1:9")
    with simulated() as url:
        options = ("--endpoint", url, "--sessions", "1", "--concurrency", "1", *QUICK)
        local = {**offline, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        begun = monotonic()
        named = agentx(
            "run", *options, "--tokenizer", "nobody/no-model", "--out", str(tmp_path / "n"), timeout=50, **local
        )
        assert monotonic() - begun < 10
        none = agentx("run", *options, "--tokenizer", "usage", "--out", str(tmp_path / "u"), timeout=50, **local)
    assert named.returncode == 2, named.stderr
    assert "--tokenizer nobody/no-model" in named.stderr
    assert "Traceback" not in named.stderr
    assert not (tmp_path / "n").exists()
    assert none.returncode == 0, none.stderr
    assert summary_of(only_run(tmp_path / "u"))["requests"]["failed"] == 0


def test_p129_standard_input_may_be_closed(tmp_path: Path) -> None:
    with simulated() as url:
        words = command("run", "--endpoint", url, "--sessions", "1", "--concurrency", "1", *QUICK)
        closed = f"exec {shlex.join([*words, '--out', str(tmp_path)])} <&-"
        done = subprocess.run(["sh", "-c", closed], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
