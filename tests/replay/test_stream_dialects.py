"""The Anthropic Messages and OpenAI Responses dialects, whole and byte by byte."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replay.stream import AnswerStream
from replay.stream_anthropic import AnthropicStream
from replay.stream_responses import ResponsesStream
from results.records import Finish, Status


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
