"""The Anthropic Messages and OpenAI Responses dialects, whole and byte by byte."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.stream import AnswerStream
from replay.stream_anthropic import AnthropicStream
from replay.stream_responses import ResponsesStream
from results.records import Finish, Status
from tests.replay.reference_stream import held


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def text_delta(text: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


START = event(
    "message_start", message={"role": "assistant", "content": [], "usage": {"input_tokens": 9, "output_tokens": 1}}
)
BLOCK = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
STOP = event("message_stop")
OVERLOADED = event("error", error={"type": "overloaded_error", "message": "Overloaded"})


def message_delta(reason: str | None = "end_turn", **usage: int) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage=usage)


def read(stream: AnswerStream, parts: list[bytes], *, step: int | None = None, clean: bool = True) -> AnswerStream:
    for k, part in enumerate(parts):
        for low in range(0, len(part), step or len(part)):
            stream.feed(part[low : low + (step or len(part))], k)
    stream.end(len(parts), clean)
    return stream


@pytest.mark.parametrize("step", [None, 1])
def test_p45_input_is_the_uncached_part_and_totals_are_not_added(step: int | None) -> None:
    usage = {
        "input_tokens": 120,
        "cache_read_input_tokens": 90_000,
        "cache_creation_input_tokens": 400,
        "output_tokens": 1,
    }
    parts = [
        event("message_start", message={"usage": usage}),
        event("ping"),
        BLOCK,
        text_delta("a"),
        text_delta("b"),
        message_delta(None, output_tokens=7),
        message_delta(output_tokens=20),
        STOP,
    ]
    s = read(AnthropicStream(), parts, step=step)
    assert (s.status, s.input_tokens, s.cached_tokens, s.output_tokens) == (Status.OK, 90_520, 90_000, 20)
    assert (s.first_token_ns, s.last_token_ns, s.output_chunks, s.finish) == (3, 4, 2, Finish.STOP)


def test_absent_cache_counts_stay_unknown() -> None:
    s = read(AnthropicStream(), [START, BLOCK, text_delta("a"), message_delta(output_tokens=1), STOP])
    assert (s.input_tokens, s.cached_tokens) == (9, None)


@pytest.mark.parametrize("clean", [True, False])
def test_p47_no_message_stop_is_truncated(clean: bool) -> None:
    s = read(AnthropicStream(), [START, BLOCK, *[text_delta("a")] * 3], clean=clean)
    assert (s.status, s.output_chunks) == (Status.TRUNCATED, 3)


def test_p48_overload_inside_the_stream() -> None:
    s = read(
        AnthropicStream(), [START, event("ping"), BLOCK, text_delta("a"), text_delta("b"), OVERLOADED], clean=False
    )
    assert s.status is Status.STREAM_ERROR
    assert s.error == "Overloaded (overloaded_error)"
    assert s.output_chunks == 2


def test_thinking_and_tool_calls_are_tokens() -> None:
    parts = [
        START,
        event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""}),
        event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
        event("content_block_start", index=1, content_block={"type": "tool_use", "name": "bash", "input": {}}),
        event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": ""}),
        event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{}"}),
        message_delta("tool_use", output_tokens=9),
        STOP,
    ]
    s = read(AnthropicStream(), parts)
    assert (s.first_token_ns, s.first_text_ns, s.last_token_ns, s.output_chunks) == (2, -1, 5, 3)
    assert s.finish is Finish.TOOL_CALLS


def test_a_redacted_thought_is_a_token() -> None:
    block = event("content_block_start", index=0, content_block={"type": "redacted_thinking", "data": "EmwK"})
    s = read(AnthropicStream(), [START, block, text_delta("a"), message_delta(output_tokens=2), STOP])
    assert (s.first_token_ns, s.first_text_ns, s.output_chunks) == (1, 2, 2)


def test_named_events_are_learned() -> None:
    s = read(AnthropicStream(), [START, BLOCK, *[text_delta(f"t{k}") for k in range(9)], message_delta(), STOP])
    assert len(s._frames) == 1
    assert (s.output_chunks, s.first_text_ns, s.last_token_ns) == (9, 2, 10)


CREATED = event("response.created", response={"status": "in_progress", "usage": None})


def output(text: str) -> bytes:
    return event("response.output_text.delta", delta=text)


COMPLETED = event(
    "response.completed",
    response={
        "usage": {
            "input_tokens": 50,
            "input_tokens_details": {"cached_tokens": 40},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 4},
        }
    },
)


@pytest.mark.parametrize("step", [None, 1])
def test_a_responses_stream(step: int | None) -> None:
    parts = [
        CREATED,
        event("response.reasoning_text.delta", delta="hm"),
        output("a"),
        output(""),
        output("b"),
        COMPLETED,
    ]
    s = read(ResponsesStream(), parts, step=step)
    assert (s.status, s.input_tokens, s.cached_tokens, s.output_tokens, s.reasoning_tokens) == (Status.OK, 50, 40, 7, 4)
    assert (s.first_token_ns, s.first_text_ns, s.last_token_ns, s.output_chunks) == (1, 2, 4, 3)


def test_p49_no_completion_event_is_truncated() -> None:
    s = read(ResponsesStream(), [CREATED, *[output("a")] * 5], clean=True)
    assert (s.status, s.output_chunks) == (Status.TRUNCATED, 5)


def test_a_failed_response() -> None:
    failed = event("response.failed", response={"error": {"code": "server_error", "message": "oom"}})
    s = read(ResponsesStream(), [CREATED, output("a"), failed])
    assert (s.status, s.error) == (Status.STREAM_ERROR, "oom (server_error)")


def test_incomplete_is_cut_by_length() -> None:
    incomplete = event("response.incomplete", response={"usage": {"input_tokens": 1, "output_tokens": 1}})
    s = read(ResponsesStream(), [CREATED, output("a"), incomplete])
    assert (s.status, s.finish) == (Status.OK, Finish.LENGTH)


def test_an_answer_stopped_by_the_filter() -> None:
    details = {"incomplete_details": {"reason": "content_filter"}, "usage": None}
    s = read(ResponsesStream(), [CREATED, output("a"), event("response.incomplete", response=details)])
    assert s.finish is Finish.CONTENT_FILTER


def test_a_call_begins_with_its_name() -> None:
    parts = [
        CREATED,
        event("response.output_item.added", item={"type": "message", "content": []}),
        event("response.output_item.added", item={"type": "function_call", "name": "bash", "arguments": ""}),
        event("response.function_call_arguments.delta", delta="{}"),
        event("response.completed", response={"output": [{"type": "function_call"}]}),
    ]
    s = read(ResponsesStream(), parts)
    assert (s.first_token_ns, s.last_token_ns, s.first_text_ns, s.output_chunks) == (2, 3, -1, 2)
    assert s.finish is Finish.TOOL_CALLS


def test_an_error_event_without_a_name_line() -> None:
    error = b'data: {"type":"error","code":"server_error","message":"oom"}\n\n'
    s = read(ResponsesStream(), [CREATED, output("a"), error])
    assert (s.status, s.error) == (Status.STREAM_ERROR, "oom (server_error)")


ANSWERS: list[tuple[type[AnswerStream], list[bytes]]] = [
    (AnthropicStream, [START, event("ping"), BLOCK, *[text_delta("a")] * 3, message_delta(output_tokens=3), STOP]),
    (AnthropicStream, [START, BLOCK, text_delta("a"), OVERLOADED]),
    (ResponsesStream, [CREATED, output("a"), output("b"), COMPLETED]),
]


@given(
    st.sampled_from(ANSWERS),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    st.lists(st.integers(0, 2000), max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_damaged_and_cut_anywhere_they_read_the_same(
    answer: tuple[type[AnswerStream], list[bytes]], damage: list[tuple[int, int]], cuts: list[int]
) -> None:
    kind, parts = answer
    data = bytearray(b"".join(parts))
    for place, byte in damage:
        data[place % len(data)] = byte
    places = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    states = []
    for pieces in ([bytes(data)], [bytes(data[a:b]) for a, b in pairwise(places)], [bytes([b]) for b in data]):
        s = kind()
        for piece in pieces:
            s.feed(piece, 1)
        s.end(1, True)
        states.append(held(s))
    assert states[0] == states[1] == states[2]
