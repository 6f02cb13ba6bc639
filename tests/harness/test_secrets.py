"""P122: keys in headers, cookies and URLs are used, and are in no file, terminal or command line of ours."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from time import monotonic, sleep

import pytest

from replay.endpoint import header_secrets, parse_endpoint, read_headers
from results.errors import UserError
from results.redact import redact
from tests.harness.sweep.sweeps import ended, sweep, write
from tests.harness.test_run import QUICK, agentx, command, hostile, only_run, rows_of
from tests.raw_server import Request, Writer, normal_answer

HEADERS = """\
# what the gateway asks for
X-Auth-Token: CANARY-2-token

Cookie: sid=CANARY-3-sid; theme=CANARY-4-theme
"""
SIZE = ("--sessions", "3", "--concurrency", "2", "--idle", "0s", "--power", "none", *QUICK)


async def telling(request: Request, writer: Writer) -> None:
    """Says in its errors what it was sent, in several ways; a third of the answers are such errors."""
    assert request.headers["x-auth-token"] == "CANARY-2-token"
    assert "sid=CANARY-3-sid" in request.headers["cookie"]
    if len(request.body) % 3 == 0:
        sent = request.headers["cookie"].partition("; ")[2].partition("=")[2]
        text = f"bad {request.headers['x-auth-token']}, {sent}; {request.headers['authorization']}".encode()
        cookie = b"set-cookie: other=CANARY-9-set\r\n"
        await writer.raw(b"HTTP/1.1 500 Oops\r\n%bcontent-length: %d\r\n\r\n%b" % (cookie, len(text), text))
        return
    await normal_answer(request, writer, tokens=int(request.json()["max_tokens"]), step_ms=0.05)


def canaries(folder: Path) -> list[tuple[Path, bytes]]:
    """Files below that hold one, and where in them."""
    found = ((path, path.read_bytes().partition(b"CANARY")) for path in folder.rglob("*") if path.is_file())
    return [(path, before[-40:] + mark + after[:20]) for path, (before, mark, after) in found if mark]


def command_lines() -> list[str]:
    """Of every process that this one has started, or they have: other tests may run beside it."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        found[int(entry.name)] = parent, line
    mine, more = {os.getpid()}, {os.getpid()}
    while more:
        more = {pid for pid, (parent, _) in found.items() if parent in mine} - mine
        mine |= more
    return [line for pid, (_, line) in found.items() if pid in mine]


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    file = tmp_path / "headers"
    file.write_text(HEADERS)
    return file


def test_headers_and_cookies_of_a_file_are_sent_and_kept_nowhere(tmp_path: Path, headers: Path) -> None:
    out = tmp_path / "runs"
    with hostile(telling) as server:
        page = server.url.replace("http://", "http://u:CANARY-5@word@") + "/metrics?token=CANARY-6-query"
        with subprocess.Popen(
            command("run", "--endpoint", server.url, *SIZE, "--metrics-url", page, "--out", str(out)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "AGENTX_API_KEY": "CANARY-1-key", "AGENTX_HEADERS_FILE": str(headers)},
        ) as process:  # fmt: skip
            lines: set[str] = set()
            deadline = monotonic() + 40
            while process.poll() is None and monotonic() < deadline:
                lines |= set(command_lines())
                sleep(0.1)
            said = process.communicate(timeout=10)
    rows = rows_of(only_run(out))
    assert {row["status"] for row in rows} >= {"ok", "http_error"}, said
    assert any("bad …" in (row["error"] or "") for row in rows)
    assert not canaries(out)
    assert "CANARY" not in "".join(said)
    # The user's own command shows what the user typed; nothing that agentx starts repeats it.
    assert not [line for line in lines if "CANARY" in line and str(out) not in line]


def test_a_killed_run_leaves_no_secret_in_its_journal(tmp_path: Path, headers: Path) -> None:
    out = tmp_path / "runs"
    with hostile(telling) as server:
        words = command("run", "--endpoint", server.url, "--duration", "60s", *SIZE[2:], "--headers-file", str(headers))
        environment = {**os.environ, "AGENTX_API_KEY": "CANARY-1-key"}
        process = subprocess.Popen([*words, "--out", str(out), "--quiet"], env=environment)
        deadline = monotonic() + 20
        while not any(path.stat().st_size for path in out.glob("*/journal/w*.requests")):
            assert monotonic() < deadline
            sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not canaries(out)
    assert agentx("recover", str(only_run(out))).returncode in (0, 1)
    assert rows_of(only_run(out))
    assert not canaries(out)


def test_a_refused_start_does_not_repeat_the_key(tmp_path: Path, headers: Path) -> None:
    async def refuse(request: Request, writer: Writer) -> None:
        await writer.raw(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")

    with hostile(refuse, key="another") as server:
        options = ("--endpoint", server.url, *SIZE, "--headers-file", str(headers), "--out", str(tmp_path / "runs"))
        for extra in ((), ("--debug",)):
            done = agentx(*extra, "run", *options, AGENTX_API_KEY="CANARY-1-key")
            assert done.returncode != 0
            assert "CANARY" not in done.stdout + done.stderr, done.stderr


def test_the_same_through_a_sweep(tmp_path: Path, headers: Path) -> None:
    out = tmp_path / "runs"
    with hostile(telling) as server:
        own = "- name: a\n  serving: {model: m, engine: simulated, accelerators: 0}\n"
        file = write(tmp_path, f"{own}  endpoint: {server.url}\n  reset: salt\n")
        text = file.read_text().replace("sessions: 1", "sessions: 3")
        file.write_text(text)
        done = sweep(
            str(file), "--out", str(out), "--json", "--headers-file", str(headers), AGENTX_API_KEY="CANARY-1-key"
        )
    line = ended(out)["a/closed-loop/c1"]
    assert line["status"] == "done", done.stderr
    assert {row["status"] for row in rows_of(out / "s/runs" / line["run_id"])} >= {"ok", "http_error"}
    assert not canaries(out)
    assert "CANARY" not in done.stdout + done.stderr


@pytest.mark.parametrize("where", ["http://h:1/v1?key=CANARY", "http://u:CANARY@h:1"])
def test_a_sweep_refuses_an_endpoint_with_a_credential_and_does_not_repeat_it(tmp_path: Path, where: str) -> None:
    file = write(tmp_path, f"- name: a\n  serving: {{model: m, engine: vllm}}\n  endpoint: {where}\n")
    done = sweep(str(file), "--out", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "endpoint holds a credential" in done.stderr
    assert "CANARY" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no colon CANARY", ":1: not a header; write `Name: value`"),
        ("\nX-A:\n", ":2: not a header"),
        ("X A: CANARY", ":1: not a header"),
        ("X-A: CANARY\x01", ":1: not a header"),
        ("X-A: CANARY – €", ":1: not a header"),
        ("Host: CANARY", ":1: host is set by every request itself"),
        ("X-A: CANARY\nx-a: CANARY", ":2: x-a is given twice"),
    ],
)
def test_a_wrong_headers_file_is_one_line_without_its_values(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "headers"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read_headers(file)
    assert f"--headers-file {file}{words}" in str(error.value)
    assert "CANARY" not in str(error.value)
    with pytest.raises(UserError, match="No such file"):
        read_headers(tmp_path / "nothing")


def test_an_authorization_of_the_file_is_sent_instead_of_the_key() -> None:
    given = (("authorization", "Token abc-def"), ("x-a", "b"))
    endpoint = parse_endpoint("http://u:p@h", api_key="key", headers=given)
    assert endpoint.headers == given
    assert endpoint.secrets == ("Token abc-def", "abc-def")
    assert parse_endpoint("unix:/s", api_key="key", headers=given[1:]).headers[0] == ("authorization", "Bearer key")
    cookies = header_secrets([("user-agent", "python-x"), ("cookie", "a=long-one; b=c")])
    assert cookies == ("a=long-one; b=c", "long-one")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://h/m?a=1&access_token=CANARY&b=2", "GET http://h/m?a=1&access_token=…&b=2"),
        ("https://h/x?X-Amz-Signature=CANARY#end", "https://h/x?X-Amz-Signature=…#end"),
        ("Cookie: a=CANARY; b=CANARY", "Cookie: …"),
        ("{'set-cookie': 'a=CANARY; b=CANARY', 'x': 1}", "{'set-cookie': '…', 'x': 1}"),
        ("Authorization: CANARY", "Authorization: …"),
        ("http://u:CAN@ARY@h/x", "http://…@h/x"),
        ("this model's maximum context length is 9000 tokens", "this model's maximum context length is 9000 tokens"),
    ],
)
def test_what_has_the_shape_of_a_key_is_blotted_out(text: str, shown: str) -> None:
    assert redact(text) == shown
