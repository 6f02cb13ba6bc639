"""The official Anthropic client against the simulated endpoint: it must find what it was written for.

The client checks every answer against its own types (`_strict_response_validation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import anthropic
import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving, words

LIST: Any = {
    "name": "list_files",
    "description": "Lists a folder.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
READ: Any = {"name": "read_file", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(MockConfig(FAST, "org/m")) as number:
        yield number


def connect(port: int, kind: Any = anthropic.Anthropic, *, retries: int = 0) -> Any:
    url = f"http://127.0.0.1:{port}"
    return kind(base_url=url, api_key="none", max_retries=retries, timeout=20, _strict_response_validation=True)


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[Any]:
    with connect(port) as made:
        yield made


def ask(text: str = " hello", **fields: Any) -> dict[str, Any]:
    return {"model": "org/m", "max_tokens": 12, "messages": [{"role": "user", "content": text}], **fields}


def test_models_are_listed_and_retrieved(client: Any) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name) == ("org/m", "model", "org/m")
    assert (model.lifecycle, model.max_input_tokens, model.max_tokens) == ("active", 8_192, 8_192)
    assert datetime.now(UTC) - model.created_at < timedelta(minutes=5)
    assert client.models.retrieve("org/m") == model
    with pytest.raises(anthropic.NotFoundError, match="`org/n` does not exist"):
        client.models.retrieve("org/n")


def test_messages_whole_and_streamed(client: Any) -> None:
    whole = client.messages.create(**ask())
    (block,) = whole.content
    assert (whole.type, whole.role, whole.model, block.type) == ("message", "assistant", "org/m", "text")
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 12)
    with client.messages.stream(**ask()) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta", "text"] * 12,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert final.content[0].text == block.text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)
    raw = list(client.messages.create(**ask(), stream=True))
    assert "".join(event.delta.text for event in raw if event.type == "content_block_delta") == block.text


def test_usage_says_what_came_from_the_cache(client: Any) -> None:
    body = ask(words(100, "cached"))
    for cached in (0, 96):
        usage = client.messages.create(**body).usage
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (107 - cached, cached)
        assert usage.cache_creation_input_tokens == 0
    with client.messages.stream(**body) as stream:
        usage = stream.get_final_message().usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (11, 96)


def test_counting_counts_what_creating_does(client: Any) -> None:
    bodies: list[dict[str, Any]] = [
        ask(),
        ask(system=" be kind", tools=[LIST, READ]),
        ask(system=[{"type": "text", "text": " be kind", "cache_control": {"type": "ephemeral"}}]),
    ]
    for body in bodies:
        used = client.messages.create(**body).usage
        del body["max_tokens"]
        counted = client.messages.count_tokens(**body).input_tokens
        assert counted == used.input_tokens + used.cache_read_input_tokens


def test_tools_are_counted_and_not_used_unless_forced(client: Any) -> None:
    bare = client.messages.create(**ask(" bare")).usage.input_tokens
    for choice in ("auto", "none"):
        answer = client.messages.create(**ask(f" {choice}", tools=[LIST]), tool_choice={"type": choice})
        assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > bare + 20
        assert [block.type for block in answer.content] == ["text"]


NAMED: Any = {"type": "tool", "name": "read_file"}


@pytest.mark.parametrize(
    ("choice", "names", "keys"),
    [
        ({"type": "any"}, {"list_files", "read_file"}, {("list_files", "path"), ("read_file", "input")}),
        (NAMED, {"read_file"}, {("read_file", "input")}),
    ],
)
def test_a_forced_call_whole_and_streamed(
    client: Any, choice: Any, names: set[str], keys: set[tuple[str, str]]
) -> None:
    used = set()
    for start in (" a", " b", " c", " d", " e", " f"):
        body = ask(start, max_tokens=4_000, tools=[LIST, READ], tool_choice=choice)
        whole = client.messages.create(**body)
        (block,) = whole.content
        assert (block.type, whole.stop_reason) == ("tool_use", "tool_use")
        with client.messages.stream(**body) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            (again,) = stream.get_final_message().content
        assert (again.name, again.input) == (block.name, block.input)
        assert len(pieces) == whole.usage.output_tokens
        ((key, value),) = block.input.items()
        assert (block.name, key) in keys
        assert len(value.split()) == whole.usage.output_tokens
        used.add(block.name)
    assert used == names


def test_a_call_cut_by_its_length(client: Any) -> None:
    body = ask(max_tokens=1, tools=[LIST], tool_choice={"type": "any"})
    with client.messages.stream(**body) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 1)
    whole = client.messages.create(**body)
    assert (whole.stop_reason, whole.content[0].input["path"].count(" ")) == ("max_tokens", 1)


def test_a_conversation_with_a_tool(client: Any) -> None:
    """The client's own objects go back as history, as agents send them."""
    start = ask(words(60, "agent"), max_tokens=4_000, tools=[LIST])
    first = client.messages.create(**start, tool_choice={"type": "any"})
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": " a.py b.py"}
    turns = [
        *start["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(**{**start, "messages": turns, "max_tokens": 8})
    assert second.stop_reason == "max_tokens"
    before, after = (usage.input_tokens + usage.cache_read_input_tokens for usage in (first.usage, second.usage))
    assert after > before + first.usage.output_tokens
    assert second.usage.cache_read_input_tokens == before // 16 * 16


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "`other` does not exist"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens must be at least 1"),
        ({"max_tokens": 9_000}, anthropic.BadRequestError, "maximum context length is 8192"),
        ({"messages": []}, anthropic.BadRequestError, "at least one message"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "`tools` must be set"),
        ({"tools": [LIST], "tool_choice": NAMED}, anthropic.BadRequestError, "none of `tools`"),
        ({"tools": [LIST], "tool_choice": {"type": "tool"}}, anthropic.BadRequestError, "not supported"),
        ({"tools": [LIST], "tool_choice": {"type": "some"}}, anthropic.BadRequestError, "not supported"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own(
    client: Any, fields: dict[str, Any], kind: type[Exception], text: str, stream: bool
) -> None:
    with pytest.raises(kind, match=text) as caught:
        client.messages.create(**{**ask(), **fields}, stream=stream)
    error: Any = caught.value
    assert error.type == ("not_found_error" if kind is anthropic.NotFoundError else "invalid_request_error")


def test_counting_errors_too(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="`other` does not exist"):
        client.messages.count_tokens(model="other", messages=ask()["messages"])


ONE_PLACE = replace(FAST, max_num_seqs=1, step_s=0.02)


def test_a_full_queue_is_a_rate_limit_which_the_client_waits_out() -> None:
    with (
        serving(MockConfig(ONE_PLACE, "org/m", max_waiting=0)) as port,
        connect(port) as client,
        connect(port, retries=2) as patient,
        client.messages.create(**ask(max_tokens=30), stream=True) as stream,
    ):
        next(stream)
        with pytest.raises(anthropic.RateLimitError, match="queue of 0 is full") as caught:
            client.messages.create(**ask(max_tokens=1))
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.type == "rate_limit_error"
        before = monotonic()
        assert patient.messages.create(**ask(max_tokens=1)).usage.output_tokens == 1
        assert 1.0 <= monotonic() - before < 3
        assert sum(event.type == "content_block_delta" for event in stream) == 30


def test_many_streams_of_the_asynchronous_client(port: int, client: Any) -> None:
    starts = [f" s{chr(97 + k)}" for k in range(20)]

    async def one(many: Any, start: str) -> str:
        async with many.messages.stream(**ask(start)) as stream:
            return "".join([text async for text in stream.text_stream])

    async def main() -> list[str]:
        async with connect(port, anthropic.AsyncAnthropic) as many:
            return await asyncio.gather(*(one(many, start) for start in starts))

    alone = [client.messages.create(**ask(start)).content[0].text for start in starts]
    assert asyncio.run(main()) == alone
