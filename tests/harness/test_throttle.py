"""Rate limits and routing headers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pyarrow.parquet as pq

from harness.throttle import Throttle
from replay.affinity import affinity_lines
from replay.scenario import Scenario
from replay.scheduler import Send
from tests.harness.test_run import QUICK, agentx, hostile, only_run, simulated, summary_of
from tests.raw_server import Request, Writer, normal_answer


def passed(throttle: Throttle, sent: list[tuple[float, Send]], count: int) -> None:
    async def main() -> None:
        for k in range(count):
            throttle.put(Send(0, k, 0))
        runner = asyncio.ensure_future(throttle.run())
        while len(sent) < count:
            await asyncio.sleep(0.005)
        runner.cancel()

    asyncio.run(main())


def test_requests_leave_in_order_and_not_faster_than_allowed() -> None:
    sent: list[tuple[float, Send]] = []
    throttle = Throttle(5.0, None, lambda send: 1, lambda send: sent.append((monotonic(), send)))
    passed(throttle, sent, 12)
    assert [send.step for _, send in sent] == list(range(12))
    times = [at for at, _ in sent]
    for k in range(len(times) - 5):
        assert times[k + 5] - times[k] >= 0.99


def test_input_tokens_are_limited_over_a_minute() -> None:
    sent: list[tuple[float, Send]] = []
    throttle = Throttle(None, 10_000.0, lambda send: 4_500, lambda send: sent.append((monotonic(), send)))
    passed(throttle, sent, 2)  # five units each: ten of ten in this minute
    throttle.put(Send(0, 9, 0))
    assert throttle.take_all() == [Send(0, 9, 0)]
    assert throttle.take_all() == []


def test_no_limit_is_no_throttle() -> None:
    assert Throttle.of(Scenario(), 2, lambda send: 0, lambda send: None) is None


def test_a_throttled_run_is_as_slow_as_asked_and_shows_it_from_due(tmp_path: Path) -> None:
    with simulated() as url:
        done = agentx(
            "run", "--endpoint", url, *QUICK, "--duration", "3s", "--concurrency", "4", "--max-request-rate", "4",
            "--ramp", "0s", "--out", str(tmp_path),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr  # a limit that was asked for is not the client being too slow
    directory = only_run(tmp_path)
    rows = pq.read_table(directory / "requests.parquet").to_pylist()
    assert 8 <= len(rows) <= 16
    summary = summary_of(directory)
    assert (summary["client"]["limited"], summary["client"]["saturated"]) == (True, False)
    assert any("--max-request-rate held requests back" in warning for warning in summary["warnings"])
    latency = summary["latency"]
    assert latency["ttft_from_due_s"]["p50"] > latency["ttft_s"]["p50"] + 0.1


def test_affinity_headers_name_the_lane_and_its_parent() -> None:
    assert affinity_lines("session", "t", 0, 0) == b"x-session-id: t-0\r\n"
    child = affinity_lines("dynamo", "t", 3, 0)
    assert child == b"x-dynamo-session-id: t-3\r\nx-dynamo-parent-session-id: t-0\r\n"


def test_p89_every_turn_of_a_conversation_has_one_id_on_the_wire(tmp_path: Path) -> None:
    seen: list[str] = []

    async def script(request: Request, writer: Writer) -> None:
        seen.append(request.headers["x-correlation-id"])
        await normal_answer(request, writer)

    with hostile(script) as server:
        done = agentx(
            "run", "--endpoint", f"http://127.0.0.1:{server.port}", *QUICK, "--sessions", "2", "--concurrency", "2",
            "--affinity", "correlation", "--out", str(tmp_path), "--tokenizer", "usage",
        )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    rows = pq.read_table(only_run(tmp_path) / "requests.parquet").to_pylist()
    assert len(set(seen)) == len({(row["session_id"], row["lane_id"]) for row in rows})
    assert len(seen) == len(rows) > len(set(seen))
