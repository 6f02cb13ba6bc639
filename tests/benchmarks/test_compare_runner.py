"""The comparison with the public runner: its reading and its judgement, without the runner."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_runner, public_runner
from benchmarks.compare_runner import Cost, Side, observe, table, time_lapse
from benchmarks.public_runner import TOKENS, Sent, beginnings, differences, lateness_s, read_sent, write_tokenizer
from harness.mock_text import Prompt

TRACE: dict[str, Any] = {
    "id": "t",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "in": 640, "out": 100, "api_time": 5.0, "hash_ids": [1]},
        {
            "type": "subagent",
            "t": 10,
            "duration_ms": 3001,
            "requests": [{"t": 11.0, "in": 64, "out": 4, "api_time": None}],
        },
        {"t": 100.0, "in": 1280, "out": 0, "think_time": 50.0},
    ],
}


def sent(stream: str, *pairs: tuple[int, int], warmup: bool = False, at: int = 0) -> list[Sent]:
    return [
        Sent(f"{stream}{n}", "s", stream, warmup, tokens, output, at + n * 1_000_000)
        for n, (tokens, output) in enumerate(pairs)
    ]


def test_time_lapse_shortens_times_and_answers_and_leaves_inputs() -> None:
    main, agent, last = time_lapse(TRACE, 0.01, 0.1)["requests"]
    assert (main["in"], main["out"], main["api_time"]) == (640, 10, 5.0 * 0.01)
    assert agent["duration_ms"] == round(3001 * 0.01)
    assert isinstance(agent["duration_ms"], int)  # the runner refuses fractions
    assert (agent["requests"][0]["out"], agent["requests"][0]["api_time"]) == (1, None)
    assert (last["out"], last["think_time"]) == (0, 50.0 * 0.01)
    assert TRACE["requests"][0]["out"] == 100


def test_the_runner_s_tokenizer_has_the_tokens_of_the_simulated_endpoint(tmp_path: Path) -> None:
    text = "  Enter KING, in 1599;\n'Tis the 2nd night--O horrible!\n"
    assert re.findall(TOKENS, text) == [piece.decode() for piece in Prompt.of_text(text.encode()).pieces()]
    assets = tmp_path / "env/lib/python3.11/site-packages/aiperf/dataset/generator/assets"
    assets.mkdir(parents=True)
    (assets / "shakespeare.txt").write_text(text)
    write_tokenizer(tmp_path / "env", tmp_path / "tokenizer")
    vocabulary = json.loads((tmp_path / "tokenizer/tokenizer.json").read_bytes())["model"]["vocab"]
    assert set(re.findall(TOKENS, text)) <= set(vocabulary)
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))


def test_equal_streams_are_equal_whatever_they_are_called_and_whenever_they_were_sent() -> None:
    ours = [*sent("main", (10, 1), (20, 2)), *sent("main:fa1", (15, 3))]
    theirs = [*sent("t::fa:000", (15, 3), at=5), *sent("t", (10, 1), (20, 2), at=9)]
    assert differences(ours, theirs, warmup=False, cut_off=False) == {"s": None}


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ([(10, 1), (20, 3)], "request 1 of a stream of 2, theirs 2"),
        ([(10, 1)], "request 1 of a stream of 2, theirs 1"),
        ([(11, 1), (20, 2)], "request 0 of a stream of 2, theirs 2"),
    ],
)
def test_a_difference_is_told_by_its_first_request(theirs: list[tuple[int, int]], said: str) -> None:
    ours = sent("main", (10, 1), (20, 2))
    assert differences(ours, sent("t", *theirs), warmup=False, cut_off=False) == {"s": said}


def test_a_missing_stream_and_a_missing_session_are_differences() -> None:
    two = [*sent("a", (10, 1)), *sent("b", (20, 1))]
    assert differences(two, sent("a", (10, 1)), warmup=False, cut_off=False) == {"s": "2 streams, theirs 1"}
    assert differences([], two, warmup=False, cut_off=False) == {"s": "0 streams, theirs 2"}


def test_runs_ended_by_time_are_compared_as_far_as_both_came() -> None:
    ours, longer = sent("a", (10, 1), (20, 1)), sent("b", (10, 1), (20, 1), (30, 1))
    assert differences(ours, longer, warmup=False, cut_off=True) == {"s": None}
    other = sent("b", (10, 1), (21, 1), (30, 1))
    assert differences(ours, other, warmup=False, cut_off=True) == {"s": "request 1 of a stream of 2, theirs 3"}


def test_beginnings_count_from_the_first_measured_request_of_all() -> None:
    early = Sent("x", "u", "main", True, 1, 1, 0)
    first = Sent("y", "u", "main", False, 1, 1, 2_000_000_000)
    second = Sent("z", "v", "main", False, 1, 1, 3_500_000_000)
    assert beginnings([early, first, second]) == {"u": 0.0, "v": 1.5}


def test_records_are_read_with_what_the_trace_says_and_a_session_s_trees_are_told_apart(tmp_path: Path) -> None:
    def record(name: str, root: str, at: int, outer: int, inner: int | None, phase: str = "profiling") -> str:
        said: dict[str, Any] = {
            "x_request_id": name,
            "x_correlation_id": name,
            "root_correlation_id": root,
            "conversation_id": "t",
        }
        said |= {"source_trace_id": "t", "source_outer_idx": outer, "benchmark_phase": phase}
        place = {} if inner is None else {"source_inner_idx": inner}
        payload = {"max_completion_tokens": 7}
        return json.dumps({"metadata": {**said, **place, "request_start_ns": at}, "payload": payload})

    lines = [record("b", "r1", 20, 1, 0), record("a", "r1", 10, 0, None, "warmup"), record("c", "r2", 30, 0, None)]
    (tmp_path / "profile_export_raw.jsonl").write_text("\n".join(lines))
    found = read_sent(tmp_path, {"t": TRACE})
    assert [(r.request_id, r.session, r.warmup, r.recorded_input, r.asked_output) for r in found] == [
        ("a", "t", True, 640, 7),
        ("b", "t", False, 64, 7),
        ("c", "t #2", False, 640, 7),
    ]
    assert [(r.start_s, r.end_s) for r in found] == [(0.0, 5.0), (11.0, 11.0), (0.0, 5.0)]


def test_lateness_is_from_the_last_token_plus_the_pause_to_the_next_body() -> None:
    def at(name: str, stream: str, start: float, end: float, *, warmup: bool = False) -> Sent:
        return Sent(name, "s", stream, warmup, 1, 1, 0, start, end)

    requests = [at("a", "x", 0, 1), at("b", "y", 0, 1), at("c", "x", 3, 4), at("d", "x", 3.5, 5)]
    seen: dict[str, dict[str, Any]] = {
        "a": {"body_ns": 0, "last_token_ns": 1_000_000_000},
        "c": {"body_ns": 3_010_000_000, "last_token_ns": 4_000_000_000},
        "d": {"body_ns": 4_250_000_000, "last_token_ns": None},
    }
    assert lateness_s(requests, seen) == pytest.approx([0.010, 0.250])  # c after 2 s of pause, d after none
    assert lateness_s([at("a", "x", 0, 1, warmup=True), at("c", "x", 3, 4)], seen) == []


def test_the_table_has_what_the_endpoint_counted() -> None:
    def side(name: str, tokens: int) -> Side:
        requests = sent(name, (100, 5), (200, 5))
        seen = {r.request_id: {"prompt_tokens": tokens, "cached_tokens": 50, "output_tokens": 5} for r in requests}
        seen = {name: {**counts, "last_token_ns": 3_001_000_000} for name, counts in seen.items()}
        return Side(
            requests, {k: {**v, "body_ns": 3_000_000_000} for k, v in seen.items()}, None, Cost(10**9, 2.0, 10**6)
        )

    rows = {name: (ours, theirs, ratio) for name, ours, theirs, ratio in table(side("a", 100), side("b", 200))}
    assert rows["input tokens counted by the server"] == ("200", "400", "0.500")
    assert rows["achieved hit rate at the server"] == ("0.5000", "0.2500", "2.000")
    assert rows["theoretical hit rate, its own figure"] == ("unknown", "unknown", "")
    assert rows["seconds from the command to the first request"] == ("2.00", "2.00", "1.000")
    assert rows["sessions with equal streams of equal requests"] == ("1 of 1", "no difference", "")


def test_what_a_command_and_its_children_took_is_added_up(tmp_path: Path) -> None:
    burn = "import time\nt=time.process_time()\nx=bytearray(60_000_000)\nwhile time.process_time()-t<0.6: pass"
    parent = f"import subprocess,sys;subprocess.run([sys.executable,'-c',{burn!r}])"
    cost = observe([sys.executable, "-c", parent], log=tmp_path / "log")
    assert 0.6 <= cost.cpu_s < 5
    assert cost.peak_bytes > 60_000_000
    with pytest.raises(RuntimeError, match="ended with 3: no"):
        observe([sys.executable, "-c", "print('no');raise SystemExit(3)"], log=tmp_path / "log")


def test_where_the_runner_is_not_the_reason_is_said(tmp_path: Path) -> None:
    said = compare_runner.compare(tmp_path, compare_runner.TRACES, compare_runner.Trial())
    assert isinstance(said, str)
    assert str(tmp_path) in said
    assert f"agentx-harness=={public_runner.VERSION}" in said
