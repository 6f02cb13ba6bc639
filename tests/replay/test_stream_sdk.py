"""Our parser reads from the bytes what the official clients read from them, however the bytes are cut.

The bytes are those of the simulated endpoint, recorded at the socket, and streams that hypothesis makes up in the forms
that servers use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.mock_server import MockConfig
from replay.stream import AnswerStream, ChatStream
from replay.stream_anthropic import AnthropicStream
from results.records import Finish, Status
from tests.harness.mock_thread import FAST, serving
from tests.replay.sdk_answers import (
    CallingAnthropic,
    CallingChat,
    HearingResponses,
    Said,
    chat_said,
    completion_said,
    counts,
    fed,
    heard,
    messages_said,
    response_said,
)
from tests.replay.sdk_streams import chat_streams, message_streams, response_streams, texts
from tests.sdk_relay import Script, relaying, scripted

cuts = st.lists(st.integers(0, 100_000), max_size=12)
FORCED: Any = {"extra_body": {"ignore_eos": True}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "ls", "parameters": {"properties": {"path": {}}}}}
TOOL: Any = {"name": "ls", "input_schema": {"type": "object", "properties": {"path": {}}}}


def openai_at(port: int) -> Any:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=20)


def anthropic_at(port: int) -> Any:
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="none", max_retries=0, timeout=20)


class Recording(NamedTuple):
    """A stream of the simulated endpoint, and what the client made of it."""

    body: bytes
    said: Said
    chunks: int

    def __repr__(self) -> str:
        return f"{len(self.body)} bytes"


def check(body: bytes, said: Said, chunks: int, places: list[int], *, messages: bool, ok: bool = True) -> None:
    """What is kept, and what the parser of measured runs counts, which skips what it has learned."""
    keeping: CallingChat | CallingAnthropic = CallingAnthropic() if messages else CallingChat()
    fed(keeping, body, places)
    assert heard(keeping) == said
    plain: AnswerStream = AnthropicStream() if messages else ChatStream()
    fed(plain, body, places)
    for stream in (keeping, plain):
        assert (stream.output_chunks, stream.parse_errors) == (chunks, 0)
        assert (stream.status is Status.OK) == ok, stream.error
    assert counts(plain) == said[3:]


REQUESTS: dict[str, tuple[Callable[..., tuple[Said, int]], dict[str, Any]]] = {
    "chat": (chat_said, {"stream_options": {"include_usage": True}}),
    "chat, again": (chat_said, {"stream_options": {"include_usage": True}}),
    "chat without usage": (chat_said, {"max_tokens": 30, **FORCED}),
    "chat of one token": (chat_said, {"max_tokens": 1, "stream_options": {"include_usage": True}}),
    "a call": (chat_said, {"tools": [CHAT_TOOL], "tool_choice": "required"}),
    "a call cut": (chat_said, {"tools": [CHAT_TOOL], "tool_choice": "required", "max_tokens": 5, **FORCED}),
    "completion": (completion_said, {"max_tokens": 40, "stream_options": {"include_usage": True}, **FORCED}),
    "completion with ids": (completion_said, {"extra_body": {"return_token_ids": True}}),
    "message": (messages_said, {"max_tokens": 40}),
    "message, again": (messages_said, {"max_tokens": 40}),
    "tool use": (messages_said, {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 4_000}),
    "tool use cut": (messages_said, {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 2}),
}


@pytest.fixture(scope="module")
def recordings() -> dict[str, Recording]:
    made: dict[str, Recording] = {}
    with (
        serving(MockConfig(FAST, "m")) as port,
        relaying(port) as relay,
        openai_at(relay.port) as chat,
        anthropic_at(relay.port) as messages,
    ):
        for name, (ask, fields) in REQUESTS.items():
            said, chunks = ask(messages if ask is messages_said else chat, model="m", **fields)
            (body,) = set(relay.bodies()) - {recording.body for recording in made.values()}
            made[name] = Recording(body, said, chunks)
    return made


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(REQUESTS)), cuts)
def test_what_the_simulated_endpoint_sent(recordings: dict[str, Recording], name: str, places: list[int]) -> None:
    body, said, chunks = recordings[name]
    check(body, said, chunks, places, messages=REQUESTS[name][0] is messages_said)


@pytest.mark.parametrize("name", list(REQUESTS))
def test_byte_by_byte(recordings: dict[str, Recording], name: str) -> None:
    body, said, chunks = recordings[name]
    check(body, said, chunks, list(range(len(body))), messages=REQUESTS[name][0] is messages_said)


def test_the_recordings_hold_what_they_are_for(recordings: dict[str, Recording]) -> None:
    """Else the tests above would compare nothing with nothing."""
    said = {name: recording.said for name, recording in recordings.items()}
    assert (said["chat"].cached, said["chat, again"].cached) == (0, 32)
    assert said["message, again"].cached == 32
    assert said["chat without usage"].output is None
    assert json.loads(said["a call"].calls[0][1])["path"]
    assert said["a call"].finish is said["tool use"].finish is Finish.TOOL_CALLS
    assert said["a call cut"].finish is said["tool use cut"].finish is Finish.LENGTH
    assert said["tool use"].output == recordings["tool use"].chunks - 1, "the name comes before the first token"
    assert json.loads(said["tool use"].calls[0][1])["path"]


class Scripted(NamedTuple):
    """A server that says what it is told, and its clients."""

    server: Script
    chat: Any
    messages: Any

    def says(self, body: bytes) -> None:
        self.server.body = body


@pytest.fixture(scope="module")
def script() -> Iterator[Scripted]:
    with scripted() as server, openai_at(server.port) as chat, anthropic_at(server.port) as messages:
        yield Scripted(server, chat, messages)


@settings(max_examples=40, deadline=None)
@given(chat_streams(), cuts)
def test_any_chat_stream(script: Scripted, body: bytes, places: list[int]) -> None:
    script.says(body)
    said, chunks = chat_said(script.chat, model="m")
    check(body, said, chunks, places, messages=False, ok=bool(chunks or said.output))


@settings(max_examples=40, deadline=None)
@given(message_streams(), cuts)
def test_any_stream_of_messages(script: Scripted, body: bytes, places: list[int]) -> None:
    script.says(body)
    said, chunks = messages_said(script.messages, model="m", max_tokens=9)
    check(body, said, chunks, places, messages=True, ok=bool(chunks or said.output))


@settings(max_examples=20, deadline=None)
@given(response_streams(), cuts)
def test_any_response(script: Scripted, body: bytes, places: list[int]) -> None:
    script.says(body)
    said, chunks = response_said(script.chat)
    stream = HearingResponses()
    fed(stream, body, places)
    assert stream.heard() == said
    assert (stream.output_chunks, stream.parse_errors) == (chunks, 0)
    assert (stream.status is Status.OK) == bool(chunks or said.output), stream.error


PARTS = st.integers(2, 8)
"""How many events of an answer come before it breaks off."""


def begun(recording: Recording, count: int) -> bytes:
    events = recording.body.split(b"\n\n")
    assert len(events) > count + 3
    return b"".join(event + b"\n\n" for event in events[:count])


@settings(max_examples=20, deadline=None)
@given(PARTS, cuts)
def test_answers_broken_off_are_words_without_a_success(
    recordings: dict[str, Recording],
    script: Scripted,
    count: int,
    places: list[int],
) -> None:
    """The clients hand out what came and raise nothing: that it was not all is for us to notice."""
    body = begun(recordings["chat without usage"], count)
    script.says(body)
    said, chunks = chat_said(script.chat, model="m")
    check(body, said, chunks, places, messages=False, ok=False)
    body = begun(recordings["message"], count)
    script.says(body)
    said, chunks = messages_said(script.messages, model="m", max_tokens=9)
    check(body, said, chunks, places, messages=True, ok=False)


@settings(max_examples=20, deadline=None)
@given(PARTS, texts, cuts)
def test_errors_within_an_answer_have_the_same_words(
    recordings: dict[str, Recording],
    script: Scripted,
    count: int,
    words: str,
    places: list[int],
) -> None:
    error = {"message": words, "type": "overloaded_error"}
    body = begun(recordings["chat without usage"], count) + f"data: {json.dumps({'error': error})}\n\n".encode()
    script.says(body)
    with pytest.raises(openai.APIError) as refused:
        chat_said(script.chat, model="m")
    chat = ChatStream()
    fed(chat, body, places)
    assert (chat.status, chat.error) == (Status.STREAM_ERROR, f"{refused.value.message} (overloaded_error)")

    told = f"event: error\ndata: {json.dumps({'type': 'error', 'error': error})}\n\n"
    body = begun(recordings["message"], count) + told.encode()
    script.says(body)
    with pytest.raises(anthropic.APIStatusError) as overloaded:
        messages_said(script.messages, model="m", max_tokens=9)
    messages = AnthropicStream()
    fed(messages, body, places)
    assert (messages.status, messages.error) == (Status.STREAM_ERROR, f"{words} ({overloaded.value.type})")
