"""What surrounds a run and a sweep: huge answers, no way out of the machine, no terminal (P126, P128, P129)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from time import monotonic

from results.journal import ERROR_BYTES
from tests.harness.sweep.sweeps import HEAD, PATHS, ROOT, arguments, configuration, ended, sweep, write
from tests.harness.test_run import QUICK, command, hostile, only_run, rows_of, simulated, summary_of
from tests.raw_server import Request, Writer, delta, finish, usage

OFFLINE = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "https_proxy"), "http://127.0.0.1:9"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
}
"""Every way out of this machine leads to a closed port: a download would fail, or hang on."""


def peak_of_a_run(text: int, out: Path) -> tuple[int, int]:
    """Largest resident set of any process of a run, and bytes of text that its server sent; both in bytes.

    Each answer has a chunk of `text` characters; every third is an error of that length, with a key in it.
    """
    sent = 0

    async def script(request: Request, writer: Writer) -> None:
        nonlocal sent
        sent += text
        if sent // text % 3 == 0:
            body = ("é " * (text // 3)).encode() + b'{"api_key": "CANARY-in-the-text"}'
            await writer.raw(b"HTTP/1.1 500 Oops\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        tokens = int(request.json()["max_tokens"])
        await writer.head()
        await writer.event(delta(content="x" * text))
        await writer.event(delta(content=" y"))
        await writer.event(finish())
        await writer.event(usage(10, tokens))
        await writer.event("[DONE]")
        await writer.end()

    rules = out.with_suffix(".yaml")
    rules.write_text("base: closed-loop\nfailed_limit: 1.0\n")
    with hostile(script) as server:
        words = (
            "--sessions",
            "20",
            "--concurrency",
            "4",
            "--workers",
            "1",
            "--idle",
            "0s",
            "--power",
            "none",
            "--chunks",
        )
        run = command("run", "--endpoint", server.url, "--scenario", str(rules), *words, *QUICK, "--quiet")
        process = subprocess.Popen([*run, "--out", str(out)], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1)
    return used.ru_maxrss * 1024, sent


def test_p126_huge_answers_and_errors_are_not_kept_and_not_held(tmp_path: Path) -> None:
    small, _ = peak_of_a_run(1_000, tmp_path / "small")
    large, sent = peak_of_a_run(2_000_000, tmp_path / "large")
    assert sent > 100e6
    assert large - small < 40e6, (small, large, sent)
    rows = rows_of(only_run(tmp_path / "large"))
    assert {row["status"] for row in rows} == {"ok", "http_error"}
    errors = [row["error"] for row in rows if row["error"]]
    assert errors
    assert all(100 < len(error.encode()) <= ERROR_BYTES and "\ufffd" not in error for error in errors)
    files = [path for path in only_run(tmp_path / "large").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000
    assert not any(b"CANARY" in path.read_bytes() for path in files)


def test_p128_a_sweep_fetches_no_tokenizer_and_a_name_fails_its_point_at_once(tmp_path: Path) -> None:
    own = "scenarios: [{name: named, tokenizer: nobody/no-model}, {name: plain, tokenizer: usage}]\n"
    file = write(tmp_path, configuration("a"), head=HEAD + own)
    done = sweep(str(file), "--out", str(tmp_path / "runs"), timeout=50, **OFFLINE)
    last = ended(tmp_path / "runs")
    assert last["a/named/c1"]["status"] == "failed", done.stderr
    assert "--tokenizer nobody/no-model" in last["a/named/c1"]["reason"]
    assert last["a/named/c1"]["seconds"] < 15
    assert (last["a/plain/c1"]["status"], last["a/plain/c1"]["valid"]) == ("done", True), done.stderr


def test_p128_a_server_that_hangs_at_its_download_fails_its_point_at_the_limit(tmp_path: Path) -> None:
    deaf = configuration("deaf", "deaf").replace("ready_timeout: 10s", "ready_timeout: 2s")
    begun = monotonic()
    sweep(str(write(tmp_path, deaf)), "--out", str(tmp_path / "runs"), timeout=50, **OFFLINE)
    assert monotonic() - begun < 15
    assert "not ready after 2 s (" in ended(tmp_path / "runs")["deaf/closed-loop/c1"]["reason"]


def test_p129_a_run_and_a_sweep_need_neither_input_nor_terminal(tmp_path: Path) -> None:
    plain = {name: value for name, value in (os.environ | PATHS).items() if name not in ("TERM", "COLUMNS", "NO_COLOR")}
    file = write(tmp_path, configuration("a"), points="[1, 2]")
    with simulated() as url:
        run = command("run", "--endpoint", url, "--sessions", "1", "--concurrency", "1", *QUICK, "--json")
        for name, words in (("run", run), ("sweep", arguments(str(file), "--json"))):
            closed = f"exec {shlex.join([*words, '--out', str(tmp_path / name)])} <&-"
            done = subprocess.run(
                ["sh", "-c", closed], capture_output=True, text=True, timeout=50, check=False, cwd=ROOT, env=plain
            )
            assert done.returncode == 0, done.stderr
            assert "\x1b" not in done.stdout + done.stderr
            assert "\r" not in done.stdout + done.stderr
            json.loads(done.stdout)
    assert {line["status"] for line in ended(tmp_path / "sweep").values()} == {"done"}
    assert summary_of(only_run(tmp_path / "run"))["valid"]


def test_p129_a_closed_standard_error_or_a_reader_that_left_ends_no_run(tmp_path: Path) -> None:
    with simulated() as url:
        run = command("run", "--endpoint", url, "--sessions", "1", "--concurrency", "1", *QUICK)
        for name, redirect in (
            ("error", "2>&-"),
            ("all", "<&- >&- 2>&-"),
            ("left", f"| {shlex.quote(sys.executable)} -c pass"),
        ):
            out = tmp_path / name
            subprocess.run(["sh", "-c", f"{shlex.join([*run, '--out', str(out)])} {redirect}"], timeout=50, check=False)
            assert summary_of(only_run(out))["valid"], name
