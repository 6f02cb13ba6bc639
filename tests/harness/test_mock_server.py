"""Times, connections and lifecycle of the simulated endpoint."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from time import monotonic, sleep
from typing import Any, cast

import httpx
import pytest
from typer.testing import CliRunner

from hardware.engine.profiles import PROFILES
from harness import mock_http
from harness.cli import app, register
from harness.mock_server import MockConfig, configure
from results.errors import UserError
from tests.harness.mock_thread import FAST, Answer, chat, post_bytes, serving, stream, words
from tests.harness.test_mock_metrics import samples
from tests.harness.test_run import agentx, only_run, rows_of, summary_of

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
# First token of a 100-token prompt after 250 ms, then one every 20 ms.
STEADY = dataclasses.replace(
    FAST, step_s=0.020, prefill_tokens_s=100 / 0.230, decode_request_s=1e-9, kv_tokens_s=1e12, max_num_seqs=2
)


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process or thread is about to do."""
    deadline = monotonic() + 5
    while not condition():
        assert monotonic() < deadline, "it never happened"
        sleep(0.005)


def truth_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("early_role", [False, True])
def test_p146_tokens_come_when_they_should(tmp_path: Path, early_role: bool) -> None:
    truth = tmp_path / "truth.jsonl"
    errors = []
    with serving(MockConfig(STEADY, "m", truth, early_role)) as port:
        # A busy machine only adds to a time: the best of three tells what the server does.
        for attempt in range(3):
            with connect(port) as sock:
                answer = stream(sock, chat(100, f"try{'abc'[attempt]}", max_tokens=10))
            first, last = answer.token_ns[0], answer.token_ns[-1]
            errors.append(max(abs(answer.after_ms(first) - 250), abs(answer.after_ms(last) - 430)))
            assert len(answer.token_ns) == 10
            assert len(answer.events) == 11, "the role once, then the tokens"
            role_ms = answer.after_ms(answer.events[0][0])
            assert (role_ms < 100) == early_role
            entry = truth_of(truth)[-1]
            assert entry["output_tokens"] == 10
            assert not entry["aborted"]
            assert answer.sent_ns <= entry["body_ns"] <= entry["first_token_ns"] <= first
            assert entry["last_token_ns"] <= last
            if errors[-1] < 2:
                break
    assert min(errors) < 2, f"off by {errors} ms"


def test_p147_the_servers_own_histograms_include_the_queue(tmp_path: Path) -> None:
    answers: list[Answer] = []
    truth = tmp_path / "truth.jsonl"

    def one(port: int, start: str) -> None:
        with connect(port) as sock:
            answers.append(stream(sock, chat(20, start, max_tokens=5)))

    with serving(MockConfig(STEADY, "m", truth)) as port:
        threads = [Thread(target=one, args=(port, f"req{'abcdefghij'[i]}")) for i in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        page = samples(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    client = sorted(answer.after_ms(answer.token_ns[0]) for answer in answers)
    server = sorted((entry["first_token_ns"] - entry["body_ns"]) / 1e6 for entry in truth_of(truth))
    assert client[-1] > 5 * client[0], "ten requests on two places queue"
    assert median(client) == pytest.approx(median(server), abs=5)
    assert page["vllm:time_to_first_token_seconds_count", ()] == 10
    assert page["vllm:time_to_first_token_seconds_sum", ()] * 100 == pytest.approx(sum(client) / 10, abs=5)
    queued = page["vllm:request_queue_time_seconds_sum", ()]
    prefill = page["vllm:request_prefill_time_seconds_sum", ()]
    assert queued > 3 * prefill, "the queue is most of it, and said separately"
    assert queued + prefill == pytest.approx(page["vllm:time_to_first_token_seconds_sum", ()], rel=0.001)
    for bound in (0.25, 0.5, 0.75):
        below = page["vllm:time_to_first_token_seconds_bucket", (("le", str(bound)),)]
        assert below == sum(t <= bound * 1e3 for t in server)


def test_p68_small_writes_are_not_delayed() -> None:
    with serving(MockConfig(FAST, "m")) as port, connect(port) as sock:
        answers = [stream(sock, chat(20, max_tokens=3)) for _ in range(15)]
    gaps = [b - a for answer in answers for a, b in pairwise([answer.sent_ns, *answer.token_ns])]
    assert len(gaps) == 45
    assert median(gaps) < 10e6, "Nagle and delayed ACK would add 40 ms"
    assert sum(gap > 35e6 for gap in gaps) < 3


def test_200_streams_at_once(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"

    async def one(port: int, index: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = chat(50 + index, max_tokens=20, ignore_eos=True, stream=True)
        writer.write(post_bytes(CHAT, body, f"x-request-id: r{index}\r\n"))
        received = await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return received.count(b'"delta":{"content":')

    async def all_of_them(port: int) -> list[int]:
        return await asyncio.gather(*(one(port, index) for index in range(200)))

    with serving(MockConfig(FAST, "m", truth)) as port:
        counts = asyncio.run(all_of_them(port))
    assert counts == [20] * 200
    entries = {entry["request_id"]: entry for entry in truth_of(truth)}
    assert [entries[f"r{i}"]["prompt_tokens"] for i in range(200)] == [50 + i for i in range(200)]


def test_a_client_that_leaves_ends_its_work(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with serving(MockConfig(FAST, "m", truth)) as port:
        with connect(port) as sock:
            sock.sendall(post_bytes(CHAT, chat(100, stream=True, ignore_eos=True), "x-request-id: left\r\n"))
            assert b"200 OK" in sock.recv(65536)
        with connect(port) as sock:
            sock.sendall(post_bytes(CHAT, chat(100, "other", ignore_eos=True)))
        until(lambda: len(truth_of(truth)) == 2)
        page = samples(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
    assert page["vllm:num_requests_running", ()] == 0
    assert page["vllm:kv_cache_usage_perc", ()] == 0
    assert page["vllm:request_success_total", (("finished_reason", "abort"),)] == 2
    left = next(entry for entry in truth_of(truth) if entry["request_id"] == "left")
    assert left["aborted"]
    assert left["output_tokens"] < 8_000


def test_a_server_that_closes_logs_what_was_under_way(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with serving(MockConfig(STEADY, "m", truth)) as port:
        sockets = [connect(port) for _ in range(3)]
        for sock in sockets:
            sock.sendall(post_bytes(CHAT, chat(100, stream=True)))
        assert b"200 OK" in sockets[2].recv(65536)
    for sock in sockets:
        sock.close()
    assert [entry["aborted"] for entry in truth_of(truth)] == [True] * 3
    assert {entry["first_token_ns"] for entry in truth_of(truth)} == {None}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(MockConfig(FAST, "m")) as bound:
        yield bound


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while data := sock.recv(65536):
        received += data
    return received


def test_requests_sent_ahead_are_answered_in_order(port: int) -> None:
    body = chat(20, stream=True, max_tokens=30, ignore_eos=True)
    with connect(port) as sock:
        sock.sendall(post_bytes(CHAT, body, "x-request-id: one\r\n") + post_bytes(CHAT, body))
        received = sock.recv(65536)
        sock.sendall(b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n")
        received += read_all(sock)
    first, second, last = received.split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [part.count(b'"delta":{"content":') for part in (first, second, last)] == [30, 30, 0]
    assert first.count(b"chatcmpl-one") == 31
    assert all(part.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for part in (first, second))
    assert [b"connection: close" in part for part in (first, second, last)] == [False, False, True]


def test_a_body_in_pieces(port: int) -> None:
    data = post_bytes(CHAT, chat(3_000, max_tokens=1), "connection: close\r\n")
    with connect(port) as sock:
        for start in range(0, len(data), 997):
            sock.sendall(data[start : start + 997])
        received = read_all(sock)
    assert b'"prompt_tokens":3000' in received


def test_expect_continue(port: int) -> None:
    data = post_bytes("/tokenize", {"prompt": "a b"}, "expect: 100-continue\r\nconnection: close\r\n")
    head, body = data.split(b"\r\n\r\n")
    with connect(port) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert b'"count":2' in read_all(sock)


def test_what_is_not_http_is_refused(port: int) -> None:
    with connect(port) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400 Bad Request")


def test_idle_connections_are_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mock_http.KEEP_ALIVE_S == 5.0
    monkeypatch.setattr(mock_http, "KEEP_ALIVE_S", 0.05)
    with connect(port) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        started = monotonic()
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK")
        assert 0.04 < monotonic() - started < 2


def test_an_answer_larger_than_the_kernel_takes_at_once(port: int) -> None:
    data = post_bytes("/tokenize", {"prompt": words(400_000), "return_token_strs": True})
    with connect(port) as sock:
        sock.sendall(data + b"GET /version HTTP/1.1\r\nconnection: close\r\n\r\n")
        until(lambda: len(sock.recv(1 << 20, socket.MSG_PEEK)) > 1000)
        received = read_all(sock)
    assert len(received) > 7_000_000
    _, first, second = received.split(b"HTTP/1.1 200 OK\r\n")
    said = json.loads(first.partition(b"\r\n\r\n")[2])
    assert len(said["tokens"]) == len(said["token_strs"]) == 400_000
    assert b"simulated endpoint" in second


class FullTransport:
    """A transport of which the kernel has not yet taken everything."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffered = b"earlier"

    def get_extra_info(self, name: str) -> socket.socket:
        return self.sock

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self.buffered)

    def write(self, data: bytes) -> None:
        self.buffered += data


def test_a_write_never_overtakes_what_is_buffered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(listener.getsockname()[1]) as sock:
        transport = FullTransport(sock)
        connection = mock_http.Connection(lambda request, connection: None, set())
        connection.connection_made(cast(asyncio.Transport, transport))
        connection.write(b" later")
        assert transport.buffered == b"earlier later"


def test_profiles_and_their_changes() -> None:
    config = configure()
    assert (config.model, config.profile.block_size) == ("agentx-small", 64)
    assert configure("large").profile.cache_blocks > config.profile.cache_blocks
    small = configure(cache_blocks=100, model="x")
    assert (small.model, small.profile.cache_blocks, small.profile.max_model_len) == ("x", 100, 6_400)
    assert configure(block_size=16, max_model_len=1_000).profile.max_model_len == 1_000
    with pytest.raises(UserError, match="choose one of: small, large"):
        configure("huge")
    with pytest.raises(UserError, match="--cache-blocks 0; give at least 1"):
        configure(cache_blocks=0)
    with pytest.raises(UserError, match="--max-model-len 0; give at least 1"):
        configure(max_model_len=0)
    with pytest.raises(UserError, match=r"--max-model-len 6401 .* give --cache-blocks 101"):
        configure(cache_blocks=100, max_model_len=6_401)


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", *code.split(" "), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_the_child_process_ends_with_its_parents_pipe(tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    with start("-m harness.mock_server", "--cache-blocks", "64", "--truth", str(truth)) as child:
        assert child.stdout is not None
        port = json.loads(child.stdout.readline())["port"]
        model = httpx.get(f"http://127.0.0.1:{port}/v1/models").json()["data"][0]
        assert (model["id"], model["max_model_len"]) == ("agentx-small", 4_096)
        httpx.post(f"http://127.0.0.1:{port}{CHAT}", json=chat(20, max_tokens=1)).raise_for_status()
        assert child.stdin is not None
        with connect(port) as sock:
            sock.sendall(post_bytes(CHAT, chat(20, stream=True, ignore_eos=True)))
            assert b"200 OK" in sock.recv(65536)
            child.stdin.close()
            assert child.wait(5) == 0
        assert child.stderr is not None
        assert child.stderr.read() == b""
    assert [entry["aborted"] for entry in truth_of(truth)] == [False, True]


def test_start_up_errors_are_one_line(port: int, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "truth"
    for arguments, text in (
        (("--port", str(port)), f"--host 127.0.0.1 --port {port}: "),
        (("--profile", "huge"), "profile huge is not known; choose one of: small, large"),
        (("--truth", str(missing)), f"--truth {missing}: No such file or directory"),
    ):
        with start("-m harness.mock_server", *arguments) as child:
            out, error = child.communicate()
        assert (child.returncode, out, error.count(b"\n")) == (2, b"", 1)
        assert text in error.decode()


def test_the_mock_command_serves_until_interrupted(tmp_path: Path) -> None:
    code = "import harness.cli.mock as m, sys; m.app(['mock', *sys.argv[1:]])"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code, "--port", "0", "--max-model-len", "4k"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        said = child.stdout.readline().decode()
        example = child.stdout.readline().decode()
        url = said.split(" ")[2]
        assert said.startswith("agentx-small at http://127.0.0.1:")
        assert f"agentx run --endpoint {url}" in example
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] == 4_000
        child.send_signal(signal.SIGINT)
        assert child.wait(5) == 0


@pytest.mark.parametrize(("arguments", "waiting"), [((), None), (("--max-waiting", "0"), 0)])
def test_the_mock_command_limits_the_queue(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], waiting: int | None
) -> None:
    served: list[MockConfig] = []
    monkeypatch.setattr("harness.mock_server.serve", lambda config, *_: served.append(config))
    register()
    CliRunner().invoke(app, ["mock", *arguments], catch_exceptions=False)
    assert served[0].max_waiting == waiting


def test_a_run_against_a_full_queue_names_it(tmp_path: Path) -> None:
    profile = dataclasses.replace(PROFILES["small"], max_num_seqs=2)
    with serving(MockConfig(profile, "m", max_waiting=0)) as port:
        url = f"http://127.0.0.1:{port}"
        load = ("--concurrency", "6", "--duration", "3s", "--drain", "0s", "--time-scale", "0")
        done = agentx("run", "--endpoint", url, *load, "--out", str(tmp_path))
    assert done.returncode == 1, done.stderr
    refused = [row for row in rows_of(only_run(tmp_path)) if row["http_status"] == 429]
    assert refused
    assert {(row["status"], row["error"]) for row in refused} == {
        ("http_error", "HTTP 429: The queue of 0 is full; try again later. (429)")
    }
    assert any("HTTP 429: The queue of 0" in reason for reason in summary_of(only_run(tmp_path))["invalid_reasons"])
