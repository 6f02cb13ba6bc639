"""Public failures as whole runs: what users of such tools met, with what must come out instead."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import zlib
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any

import pytest

from replay.corpus import CorpusWriter
from tests.harness.test_run import (
    QUICK,
    agentx,
    command,
    hostile,
    never_ends,
    only_run,
    rows_of,
    simulated,
    summary_of,
    words_in,
)
from tests.raw_server import Request, Writer, delta, finish, normal_answer, usage
from tests.replay.corpora import row as recorded
from tests.replay.corpora import write_corpus

ONE = ("--sessions", "1", "--concurrency", "1", *QUICK)
DEAD = "http://user:CANARY@127.0.0.1:9"
NO_BYPASS = {"http_proxy": DEAD, "HTTP_PROXY": DEAD, "https_proxy": DEAD, "NO_PROXY": "", "no_proxy": ""}


def test_p57_a_dead_proxy_variable_does_not_stand_before_this_machine(tmp_path: Path) -> None:
    with simulated() as url:
        done = agentx(
            *("run", "--endpoint", url, *ONE, "--ready-timeout", "2s", "--out", str(tmp_path)),
            timeout=50,
            **NO_BYPASS,
            all_proxy="socks5://127.0.0.1:9",
        )
    assert done.returncode == 0, done.stderr
    summary = summary_of(only_run(tmp_path))
    assert summary["requests"]["failed"] == 0
    assert summary["server"]["targets"], "the metrics page was asked for through the proxy"


def test_p57_a_dead_proxy_is_named_with_the_variable_and_without_its_password(tmp_path: Path) -> None:
    done = agentx(
        *("run", "--endpoint", "http://inference.example:8000", *ONE, "--ready-timeout", "1s", "--out", str(tmp_path)),
        timeout=50,
        **NO_BYPASS,
    )
    text = " ".join(done.stderr.split())
    assert done.returncode == 3, text
    assert "through the proxy 127.0.0.1:9 that http_proxy names" in text
    assert "unset http_proxy, or add inference.example to no_proxy" in text
    assert "CANARY" not in text


async def at_once(request: Request, writer: Writer) -> None:
    await normal_answer(request, writer, tokens=int(request.json()["max_tokens"]), step_ms=0.05)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_c18_as_many_sessions_as_slots_all_start_at_once(tmp_path: Path, workers: str) -> None:
    """The first requests are answered only when all of them are there: one worker that hoards, and it hangs."""
    everyone = asyncio.Event()
    waiting = 0

    async def script(request: Request, writer: Writer) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 7:
            everyone.set()
        await everyone.wait()
        await at_once(request, writer)

    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "7", "--sessions", "7", "--workers", workers),
            *("--out", str(tmp_path), *QUICK),
        )
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    assert server.in_flight_peak == 7
    assert len({row["session_id"] for row in rows_of(run, "sessions")}) == 7
    assert {row["end"] for row in rows_of(run, "sessions")} == {"completed"}


def test_c18_a_busy_worker_hoards_no_sessions(tmp_path: Path) -> None:
    """Worker 0 is stuck in its first request until worker 1, idle otherwise, has done everything else."""
    requests: list[str] = []

    async def script(request: Request, writer: Writer) -> None:
        worker = request.headers["x-request-id"].split("-")[-2]
        requests.append(worker)
        if worker == "0" and requests.count("0") == 1:
            seen = -1
            while seen != len(requests):
                seen = len(requests)
                await asyncio.sleep(1)
        await at_once(request, writer)

    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--concurrency", "2", "--sessions", "9", "--workers", "2"),
            *("--out", str(tmp_path), *QUICK),
        )
    assert done.returncode in (0, 1), done.stderr
    run = only_run(tmp_path)
    by_worker = {worker: {r["session_id"] for r in rows_of(run) if r["worker"] == worker} for worker in (0, 1)}
    assert (len(by_worker[0]), len(by_worker[1])) == (1, 8)
    sessions = rows_of(run, "sessions")
    assert len(sessions) == 9
    assert {session["end"] for session in sessions} == {"completed"}


def test_c19_the_number_of_live_sessions_changes_up_and_down_and_the_run_ends(tmp_path: Path) -> None:
    with hostile(at_once) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--stages", "1:1s,6:1s,2:1s,5:1s,1:1s", "--json"),
            *("--workers", "2", "--out", str(tmp_path), *QUICK),
        )
    summary = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [stage["concurrency"] for stage in summary["stages"]] == [1, 6, 2, 5, 1]
    assert all(stage["requests_ok"] for stage in summary["stages"])
    assert server.in_flight == 0


@pytest.mark.parametrize("first", [1, 4], ids=["silent-from-the-first", "silent-later"])
def test_c19_a_run_in_which_nothing_moves_is_ended(tmp_path: Path, first: int) -> None:
    """No duration, no limit on answers: without a watchdog it would wait for ever."""
    count = 0

    async def script(request: Request, writer: Writer) -> None:
        nonlocal count
        count += 1
        if count >= first:
            await writer.head()
            await writer.event(delta(content="x"))
            await asyncio.sleep(60)
        await at_once(request, writer)

    (tmp_path / "rules.yaml").write_text("stall_s: 1s\n")
    rules = ("--scenario", str(tmp_path / "rules.yaml"))
    begun = monotonic()
    with hostile(script) as server:
        done = agentx(
            *("run", "--endpoint", server.url, *rules, "--sessions", "3", "--concurrency", "2", "--json"),
            *("--out", str(tmp_path / "r"), *QUICK),
        )
    assert monotonic() - begun < 15
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert any("for 1 s no byte came, nothing was sent and nothing was due" in r for r in summary["invalid_reasons"])
    assert summary["requests"]["by_status"]["timeout"] == 2
    assert summary["requests"]["ok"] == first - 1
    assert {row["end"] for row in rows_of(only_run(tmp_path / "r"), "sessions")} <= {"cut_off", "completed"}


def test_c19_neither_comments_nor_a_long_pause_are_a_stall(tmp_path: Path) -> None:
    """Keep-alive comments are bytes, and a pause that is running is what the trace wants."""
    (tmp_path / "rules.yaml").write_text("stall_s: 1s\ndrain_s: 0.2s\nsystem_idle_cap_s: 2.5\nduration_s: 3s\n")
    rules = ("--scenario", str(tmp_path / "rules.yaml"), "--concurrency", "1", "--json", "--max-context", "14k")
    with hostile(never_ends) as server:
        chatty = agentx("run", "--endpoint", server.url, *rules, "--out", str(tmp_path / "a"))
    with hostile(at_once) as server:
        pausing = agentx("run", "--endpoint", server.url, *rules, "--time-scale", "100", "--out", str(tmp_path / "b"))
    for done in (chatty, pausing):
        assert not any("nothing was due" in reason for reason in json.loads(done.stdout)["invalid_reasons"])
    assert json.loads(pausing.stdout)["requests"]["ok"] == 2


def turns_of(session: str, count: int, start_s: float = 0.0) -> list[dict[str, Any]]:
    """A session that grows by 64 tokens a turn: turns of 100 ms, 300 ms apart."""
    first = zlib.crc32(session.encode())
    return [
        recorded(
            session_id=session,
            ids=range(first, first + k + 1),
            turn=k,
            start_s=start_s + 0.3 * k,
            api_s=0.1,
            input_tokens=64 * (k + 1),
            output_tokens=1 + k % 3,
        )
        for k in range(count)
    ]


@pytest.mark.parametrize(("clock", "pause_s"), [((), 0.2), (("--turn-clock", "recorded"), 0.0)])
def test_p94_a_turn_comes_after_the_answer_not_by_the_recorded_clock(
    tmp_path: Path, clock: tuple[str, ...], pause_s: float
) -> None:
    """The server takes five times as long as the recorded one; which clock rules is in the manifest, caps too."""
    corpus = tmp_path / "c.parquet"
    write_corpus(corpus, [turns_of("s", 3)])
    with hostile(half_a_second) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--corpus", str(corpus), "--sessions", "1", "--concurrency", "1"),
            *(*clock, "--out", str(tmp_path / "r")),
        )
    assert done.returncode in (0, 1), done.stderr
    run = only_run(tmp_path / "r")
    first, second, third = rows_of(run)
    for before, after in ((first, second), (second, third)):
        assert (after["sent_ns"] - before["done_ns"]) * 1e-9 == pytest.approx(pause_s, abs=0.1)
    rules = json.loads((run / "run.json").read_bytes())["scenario"]["rules"]
    assert rules["turn_clock"] == ("recorded" if clock else "completion")
    assert (rules["tree_idle_cap_s"], rules["system_idle_cap_s"]) == (300.0, 10.0)


async def half_a_second(request: Request, writer: Writer) -> None:
    await writer.head()
    await writer.at(500)
    await writer.event(delta(content="x"))
    await writer.event(finish())
    await writer.event(usage(16, 1, 0))
    await writer.event("[DONE]")
    await writer.end()


def test_p62_the_wait_for_a_place_on_the_clients_side_is_in_the_figures(tmp_path: Path) -> None:
    """20 arrivals a second, 8 a second let out (4 places, half a second each): both clocks, the wait, both rates."""
    load = ("--scenario", "fixed", "--isl", "16", "--osl", "1", "--rate", "1200", "--duration", "8s", "--drain", "2s")
    with hostile(half_a_second) as server:
        done = agentx(
            *("run", "--endpoint", server.url, *load, "--max-request-rate", "8", "--out", str(tmp_path), "--json"),
        )
    assert done.returncode == 1, done.stderr
    summary = json.loads(done.stdout)
    rows = rows_of(only_run(tmp_path))
    assert len(rows) == pytest.approx(64, abs=8)
    for row in rows:
        assert row["ttft_s"] == pytest.approx(0.5, abs=0.1)
        assert row["send_lag_s"] == pytest.approx((row["sent_ns"] - row["scheduled_ns"]) * 1e-9)
    last = rows[-1]
    assert last["send_lag_s"] > 3.0  # 8 s of arrivals at 20, of which the last sent is the 64th: due after 3.2 s
    due = summary["latency"]["ttft_from_due_s"]["mean"]
    assert due == pytest.approx(summary["latency"]["ttft_s"]["mean"] + summary["client"]["send_lag_s"]["mean"])
    arrivals = summary["arrivals"]
    assert arrivals["offered_per_min"] == 1200
    assert arrivals["started_per_min"] == pytest.approx(1200, rel=0.25)
    assert arrivals["ended_per_min"] == pytest.approx(480, rel=0.2)
    assert arrivals["over_saturated"] is None  # not the server's fault
    assert summary["client"]["limited"]
    assert not summary["client"]["saturated"]
    started = round(arrivals["started_per_min"] * 8 / 60)
    assert summary["client"]["unsent"] == started - len(rows)
    assert any("--max-request-rate held requests back" in reason for reason in summary["invalid_reasons"])


def test_p82_reasoning_left_out_of_the_history_costs_its_cached_tokens_and_the_run_says_how_many(
    tmp_path: Path,
) -> None:
    """The server keeps what it generated. Dropped and kept: the theory is of the mode, exactly, and the warning's
    tokens are the hits that the other mode has."""
    hits, said = {}, {}
    for mode in ("drop", "keep"):
        options = ("--assistant", "live", "--reasoning", mode, "--sessions", "2", "--concurrency", "1", *QUICK)
        with simulated(reasoning_share=0.5) as url:
            done = agentx("run", "--endpoint", url, *options, "--out", str(tmp_path / mode), "--json")
        assert done.returncode == 0, done.stderr
        rows, said[mode] = rows_of(only_run(tmp_path / mode)), json.loads(done.stdout)
        assert all(row["reasoning_tokens"] == row["output_tokens"] // 2 > 0 for row in rows)
        assert [row["cached_tokens"] for row in rows] == [row["theoretical_cached_tokens"] for row in rows]
        assert [row["input_tokens"] for row in rows] == [row["planned_input_tokens"] for row in rows]
        hits[mode] = sum(row["cached_tokens"] for row in rows)
        manifest = json.loads((only_run(tmp_path / mode) / "run.json").read_bytes())
        assert manifest["scenario"]["rules"]["reasoning"] == mode
    live = said["keep"]["requests"]["live_history"]
    assert live >= 5
    assert [said[mode]["requests"]["reasoning_dropped"] for mode in ("drop", "keep")] == [live, 0]
    assert hits["keep"] > hits["drop"]
    (warning,) = (text for text in said["drop"]["warnings"] if "thought" in text)
    assert f"{live} prompts leave out" in warning
    assert f"{hits['keep'] - hits['drop']:,} tokens" in warning
    assert "--reasoning keep" in warning
    assert not any("thought" in text for text in said["keep"]["warnings"])


async def eleven_per_message(request: Request, writer: Writer) -> None:
    """Probes and streams alike: a token a word, eleven for each message; an empty prompt is refused."""
    body = request.json()
    words = [words_in(message["content"]) for message in body["messages"]]
    if not all(words):
        text = b'{"error":{"message":"empty prompt","code":400}}'
        await writer.raw(b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
        return
    prompt = sum(words) + 11 * len(words)
    if not body.get("stream"):
        text = json.dumps({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": 1}}).encode()
        await writer.raw(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))
        return
    await writer.head()
    await writer.event(delta(content="x"))
    await writer.event(finish())
    await writer.event(usage(prompt, 1, 0))
    await writer.event("[DONE]")
    await writer.end()


@pytest.mark.parametrize(("asked", "sent"), [(1, 12), (2, 12), (16, 16), (1000, 1000)])
def test_p25_c25_the_template_is_part_of_the_length_asked_for(tmp_path: Path, asked: int, sent: int) -> None:
    """Eleven tokens per message: what is asked for is what the server counts, or the nearest above, and said so."""
    with hostile(eleven_per_message, probe=eleven_per_message) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--scenario", "fixed", "--isl", str(asked), "--osl", "1"),
            *("--sessions", "3", "--concurrency", "1", "--json", "--out", str(tmp_path)),
        )
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    assert {(row["planned_input_tokens"], row["input_tokens"], row["status"]) for row in rows_of(run)} == {
        (sent, sent, "ok")
    }
    manifest = json.loads((run / "run.json").read_bytes())
    shape = manifest["endpoint"]["chat_template_tokens"]
    assert shape["constant"] + shape["user"] == 11
    assert manifest["scenario"]["rules"]["fixed"]["input_tokens"] == asked
    said = [text for text in json.loads(done.stdout)["warnings"] if "planned prompts ask for less" in text]
    if asked == sent:
        assert not said
    else:
        assert "3 of 3 planned prompts ask for less than the 12 tokens" in said[0]
        assert "(11 of them): they were sent with 12" in said[0]


def test_p97_nothing_that_is_measured_was_sent_before(tmp_path: Path) -> None:
    """Warm-up and measured prompts are disjoint; the warm-up is kept and in no figure; no hit is more than foretold."""
    (tmp_path / "rules.yaml").write_text("start_min: 0.2\nstart_max: 0.5\nwarmup_requests: 1\n")
    rules = ("--scenario", str(tmp_path / "rules.yaml"), "--sessions", "3", "--concurrency", "2")
    with simulated() as url:
        done = agentx("run", "--endpoint", url, *rules, *QUICK, "--json", "--out", str(tmp_path / "r"))
    assert done.returncode == 0, done.stderr
    rows, summary = rows_of(only_run(tmp_path / "r")), json.loads(done.stdout)
    sent = {
        phase: [(r["session_id"], r["lane_id"], r["turn"], r["pass"]) for r in rows if r["phase"] == phase]
        for phase in ("warmup", "steady")
    }
    assert len(sent["warmup"]) >= 2
    assert len(set(sent["steady"])) == len(sent["steady"]) > 3
    assert not set(sent["warmup"]) & set(sent["steady"])
    assert summary["requests"]["sent"] == len(sent["steady"])
    assert summary["latency"]["ttft_s"]["n"] == len(sent["steady"])
    assert {row["output_tokens"] for row in rows if row["phase"] == "warmup"} == {1}
    assert [row["cached_tokens"] for row in rows] == [row["theoretical_cached_tokens"] for row in rows]


def test_p97_the_first_measured_request_is_no_hit_of_the_probes(tmp_path: Path) -> None:
    """What was asked before, to learn how the server counts, shares nothing with the prompts that are measured."""
    with simulated(block_size=4) as url:
        done = agentx("run", "--endpoint", url, *ONE, "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    first = rows_of(only_run(tmp_path))[0]
    assert (first["phase"], first["cached_tokens"], first["theoretical_cached_tokens"]) == ("steady", 0, 0)


@pytest.mark.parametrize("assistant", ["recorded", "live"])
def test_p78_a_broken_tool_call_of_the_server_never_comes_back_in_a_history(tmp_path: Path, assistant: str) -> None:
    """Every answer is a tool call whose arguments are cut; a history whose arguments are no JSON text is an error."""
    calls: list[str] = []

    async def script(request: Request, writer: Writer) -> None:
        for message in request.json()["messages"]:
            for call in message.get("tool_calls", ()):
                calls.append(call["function"]["arguments"])
                json.loads(calls[-1])  # text, and JSON: else the stream breaks off here
        await writer.head()
        await writer.event(delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "bash", "arguments": ""}}]))
        await writer.event(delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a":1'}}]))
        await writer.event(finish("tool_calls"))
        await writer.event("[DONE]")
        await writer.end()

    with hostile(script, tokenizes=True) as server:
        done = agentx(
            *("run", "--endpoint", server.url, "--assistant", assistant, "--sessions", "2", "--concurrency", "1"),
            *(*QUICK, "--json", "--out", str(tmp_path)),
        )
    assert done.returncode in (0, 1), done.stderr
    summary, rows = json.loads(done.stdout), rows_of(only_run(tmp_path))
    assert {row["status"] for row in rows} == {"ok"}
    assert calls
    assert all(isinstance(json.loads(text), dict) for text in calls)
    later = sum(row["turn"] > 0 for row in rows)
    assert summary["requests"]["live_history"] == 0
    assert summary["requests"]["recorded_instead"] == (later if assistant == "live" else 0)
    said = [text for text in summary["warnings"] if "hold recorded words" in text]
    assert len(said) == (assistant == "live")


def sessions_of_a_long_prefix(path: Path, sessions: int, turns: int) -> Path:
    """Sessions that share 100,000 tokens and grow by 192 each turn."""
    with CorpusWriter(path, {"name": "huge"}) as writer:
        for session in range(sessions):
            rows = []
            for turn in range(turns):
                blocks = [(0, 1562), (10_000 * (session + 1), 3 * turn + 1)]
                size = 64 * sum(count for _, count in blocks)
                plain = recorded(ids=(), turn=turn, start_s=float(turn), input_tokens=size, output_tokens=1)
                rows.append({**plain, "session_id": f"s{session}", "blocks": blocks})
            writer.add_session(rows)
    return path


def test_p91_huge_sessions_start_at_once_within_two_gigabytes(tmp_path: Path) -> None:
    """500 sessions of 200 turns of 100 to 140 thousand tokens, 12 billion in all: none is made before its turn."""
    corpus = sessions_of_a_long_prefix(tmp_path / "c.parquet", 500, 200)
    run = command("run", "--corpus", str(corpus), "--concurrency", "8", "--duration", "2s", "--drain", "5s")
    with hostile(at_once) as server:
        run += ["--endpoint", server.url, "--time-scale", "0", "--out", str(tmp_path / "r")]
        begun = monotonic_ns()
        limited = f"ulimit -v {2 * 1024 * 1024} && exec {shlex.join(run)}"
        done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    streams = [request for request in server.requests if len(request.body) > 500_000]
    assert streams
    assert (streams[0].first_byte_ns - begun) * 1e-9 < 10  # about 2 s, and others use the machine too
    summary = summary_of(only_run(tmp_path / "r"))
    assert summary["requests"]["ok"] > 8
    assert summary["client"]["rss_bytes_max"] < 500e6
    assert "plan: huge" in done.stderr


def test_p93_the_same_corpus_gives_the_same_calls_whoever_sends_them(tmp_path: Path) -> None:
    """Two replays, by one worker and by two: the same requests, sizes and pauses, none lost. (That a *captured* run
    comes back so needs the capture proxy, which is not built.)"""
    corpus = tmp_path / "c.parquet"
    write_corpus(corpus, [turns_of(f"s{k}", 10, start_s=10.0 * k) for k in range(20)])
    load = ("--corpus", str(corpus), "--sessions", "20", "--concurrency", "20")
    calls: list[dict[tuple[object, ...], tuple[object, ...]]] = []
    pauses: list[dict[tuple[object, ...], float]] = []
    with simulated() as url:
        for workers in ("1", "2"):
            out = tmp_path / workers
            done = agentx("run", "--endpoint", url, *load, "--workers", workers, "--out", str(out))
            assert done.returncode == 0, done.stderr
            rows = rows_of(only_run(out))
            calls.append({})
            pauses.append({})
            ended: dict[tuple[object, ...], int] = {}
            for row in rows:
                lane = (row["session_id"], row["lane_id"])
                calls[-1][*lane, row["turn"]] = tuple(
                    row[name] for name in ("input_tokens", "output_tokens", "planned_output_tokens", "status")
                )
                if lane in ended:
                    pauses[-1][*lane, row["turn"]] = (row["sent_ns"] - ended[lane]) * 1e-9
                ended[lane] = row["done_ns"]
            assert len(calls[-1]) == len(rows) == 200
    assert calls[0] == calls[1]
    assert pauses[0].keys() == pauses[1].keys()
    apart = sorted(abs(pauses[0][key] - pauses[1][key]) for key in pauses[0])
    assert apart[len(apart) // 2] < 0.05
