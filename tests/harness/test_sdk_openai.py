"""The official OpenAI client against the simulated endpoint: it must find what it was written for.

The client checks every answer against its own types (`_strict_response_validation`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from time import monotonic, sleep
from typing import Any

import httpx
import openai
import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving, words

USAGE: Any = {"stream": True, "stream_options": {"include_usage": True}}
LIST: Any = {
    "type": "function",
    "function": {
        "name": "list_files",
        "description": "Lists a folder.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
READ: Any = {"type": "function", "function": {"name": "read_file", "parameters": {}}}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(MockConfig(FAST, "org/m")) as number:
        yield number


def connect(port: int, kind: Any = openai.OpenAI, *, retries: int = 0, strict: bool = True) -> Any:
    url = f"http://127.0.0.1:{port}/v1"
    return kind(base_url=url, api_key="none", max_retries=retries, timeout=20, _strict_response_validation=strict)


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[Any]:
    with connect(port) as made:
        yield made


def ask(text: str = " hello", **fields: Any) -> dict[str, Any]:
    return {"model": "org/m", "messages": [{"role": "user", "content": text}], **fields}


def test_models_are_listed_and_retrieved(client: Any) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by, model.max_model_len) == ("org/m", "model", "agentx", 8_192)
    assert client.models.retrieve("org/m") == model
    with pytest.raises(openai.NotFoundError, match="`org/n` does not exist"):
        client.models.retrieve("org/n")


def test_chat_whole_and_streamed(client: Any) -> None:
    whole = client.chat.completions.create(**ask())
    (choice,) = whole.choices
    assert (whole.object, whole.model, choice.index) == ("chat.completion", "org/m", 0)
    assert (choice.message.role, choice.finish_reason) == ("assistant", "stop")
    assert not choice.message.tool_calls
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    with client.chat.completions.create(**ask(), **USAGE) as stream:
        *parts, last = stream
    assert "".join(part.choices[0].delta.content for part in parts) == choice.message.content
    assert [part.choices[0].finish_reason for part in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert parts[0].choices[0].delta.role == "assistant"
    assert len({part.id for part in [*parts, last]}) == 1
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens == len(parts) - 1


def test_usage_says_what_came_from_the_cache(client: Any) -> None:
    body = ask(words(100, "cached"), max_tokens=5)
    for expected in (0, 96):
        usage = client.chat.completions.create(**body).usage
        assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (107, expected)
    *_, last = client.chat.completions.create(**body, **USAGE)
    assert last.usage.prompt_tokens_details.cached_tokens == 96


def test_the_helper_that_accumulates(client: Any) -> None:
    with client.chat.completions.stream(**ask(), stream_options=USAGE["stream_options"]) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == said
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == len(said.split())


def test_an_answer_cut_by_its_length_is_one_to_the_helper(client: Any) -> None:
    body = ask(max_completion_tokens=3, extra_body={"ignore_eos": True})
    with client.chat.completions.stream(**body, stream_options=USAGE["stream_options"]) as stream:
        stream.until_done()
        with pytest.raises(openai.LengthFinishReasonError) as caught:
            stream.get_final_completion()
    usage = caught.value.completion.usage
    assert usage is not None
    assert usage.completion_tokens == 3


def test_lengths_beyond_the_clients_own_fields(client: Any) -> None:
    forced = {"extra_body": {"ignore_eos": True, "min_tokens": 60}, "max_tokens": 60}
    assert client.chat.completions.create(**ask(), **forced).usage.completion_tokens == 60
    named = client.chat.completions.create(**ask(), max_tokens=1, extra_headers={"X-Request-Id": "r-1"})
    assert named.id == "chatcmpl-r-1"


@pytest.mark.parametrize("prompt", ["one two three", list(range(50))])
def test_completions_whole_and_streamed(port: int, client: Any, prompt: Any) -> None:
    body = {"model": "org/m", "prompt": prompt, "max_tokens": 9}
    whole = client.completions.create(**body)
    assert whole.object == "text_completion"
    assert whole.usage.prompt_tokens == (3 if isinstance(prompt, str) else 50)
    # Not checked against the client's types: they have no null finish reason, which OpenAI's own server sends.
    with connect(port, strict=False) as lenient:
        *parts, last = lenient.completions.create(**body, **USAGE)
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.usage.completion_tokens == whole.usage.completion_tokens == len(parts)


def test_tools_are_counted_and_not_called_unless_forced(client: Any) -> None:
    bare = client.chat.completions.create(**ask(max_tokens=1)).usage.prompt_tokens
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(**ask(max_tokens=1), tools=[LIST], tool_choice=choice)
        assert answer.usage.prompt_tokens > bare + 20
        assert answer.choices[0].message.content
        assert not answer.choices[0].message.tool_calls


NAMED = {"type": "function", "function": {"name": "read_file"}}


@pytest.mark.parametrize(
    ("choice", "names", "argument"),
    [("required", {"list_files", "read_file"}, {"path", "input"}), (NAMED, {"read_file"}, {"input"})],
)
def test_a_forced_call_whole_and_streamed(client: Any, choice: Any, names: set[str], argument: set[str]) -> None:
    called = set()
    for start in (" a", " b", " c", " d", " e", " f"):
        body = ask(start, tools=[LIST, READ], tool_choice=choice)
        whole = client.chat.completions.create(**body).choices[0]
        (call,) = whole.message.tool_calls
        assert (call.type, whole.finish_reason, whole.message.content) == ("function", "tool_calls", None)
        with client.chat.completions.stream(**body) as stream:
            events = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
            (again,) = stream.get_final_completion().choices[0].message.tool_calls
        assert (again.function.name, again.function.arguments) == (call.function.name, call.function.arguments)
        assert "".join(event.arguments_delta for event in events) == call.function.arguments
        called.add(call.function.name)
        ((key, value),) = json.loads(call.function.arguments).items()
        assert key in argument
        assert value.split()
    assert called == names


def test_a_call_cut_by_its_length_is_left_open(client: Any) -> None:
    body = ask(max_tokens=4, extra_body={"ignore_eos": True}, tools=[LIST], tool_choice="required")
    whole = client.chat.completions.create(**body)
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 4)
    arguments = whole.choices[0].message.tool_calls[0].function.arguments
    assert json.loads(arguments + '"}')["path"].count(" ") == 4
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(arguments)


def test_a_conversation_with_a_tool(client: Any) -> None:
    """The client's own objects go back as history, as agents send them."""
    start = ask(words(60, "agent"), tools=[LIST])
    first = client.chat.completions.create(**start, tool_choice="required")
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": " a.py b.py"}
    turns = [*start["messages"], message, result]
    second = client.chat.completions.create(**{**start, "messages": turns})
    assert second.choices[0].finish_reason == "stop"
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens // 16 * 16


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "`other` does not exist", "model"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens must be at least 1", "max_tokens"),
        ({"max_tokens": 9_000}, openai.BadRequestError, "maximum context length is 8192", "input_tokens"),
        ({"messages": []}, openai.BadRequestError, "must not be empty", "messages"),
        ({"tool_choice": "required"}, openai.BadRequestError, "`tools` must be set", "tool_choice"),
        ({"tools": [LIST], "tool_choice": NAMED}, openai.BadRequestError, "none of `tools`", "tool_choice"),
        ({"tools": [LIST], "tool_choice": "some"}, openai.BadRequestError, "not supported", "tool_choice"),
        ({"tools": [{"type": "x"}], "tool_choice": "required"}, openai.BadRequestError, "Invalid request body", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_clients_own(
    client: Any, fields: dict[str, Any], kind: type[Exception], text: str, param: str | None, stream: bool
) -> None:
    with pytest.raises(kind, match=text) as caught:
        client.chat.completions.create(**{**ask(), **fields}, stream=stream)
    error: Any = caught.value
    assert error.param == param
    assert str(error.code) == str(error.status_code)  # as sent, or as text, by version
    assert error.type == ("NotFoundError" if kind is openai.NotFoundError else "BadRequestError")


def test_routes_that_are_not_there(client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="org/m", input="x")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="org/m", input="x")


ONE_PLACE = replace(FAST, max_num_seqs=1, step_s=0.02)


def test_a_full_queue_is_a_rate_limit_which_the_client_waits_out() -> None:
    long: Any = ask(max_tokens=30, extra_body={"ignore_eos": True})
    with (
        serving(MockConfig(ONE_PLACE, "org/m", max_waiting=0)) as port,
        connect(port) as client,
        connect(port, retries=2) as patient,
        client.chat.completions.create(**long, stream=True) as stream,
    ):
        next(stream)
        with pytest.raises(openai.RateLimitError, match="queue of 0 is full") as caught:
            client.chat.completions.create(**ask(max_tokens=1))
        assert caught.value.response.headers["retry-after"] == "1"
        before = monotonic()
        assert patient.chat.completions.create(**ask(max_tokens=1)).usage.completion_tokens == 1
        assert 1.0 <= monotonic() - before < 3
        assert sum(1 for _ in stream) == 30


def test_who_may_wait_does() -> None:
    async def main(port: int) -> list[str]:
        async with connect(port, openai.AsyncOpenAI) as client:
            answers = [client.chat.completions.create(**ask(max_tokens=2)) for _ in range(4)]
            results = await asyncio.gather(*answers, return_exceptions=True)
            return sorted(type(result).__name__ for result in results)

    with serving(MockConfig(ONE_PLACE, "org/m", max_waiting=2)) as port:
        assert asyncio.run(main(port)) == ["ChatCompletion"] * 3 + ["RateLimitError"]


def test_a_stream_closed_early_frees_its_place(port: int, client: Any) -> None:
    stream = client.chat.completions.create(**ask(max_tokens=8_000, extra_body={"ignore_eos": True}), stream=True)
    for _ in range(3):
        next(stream)
    assert running(port) == 1
    stream.close()
    until = monotonic() + 3  # of the 8 s that the answer takes
    while running(port) and monotonic() < until:
        sleep(0.01)
    assert running(port) == 0


def running(port: int) -> int:
    page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    (line,) = (line for line in page.splitlines() if line.startswith("vllm:num_requests_running"))
    return int(float(line.split()[-1]))


def test_many_streams_of_the_asynchronous_client(port: int, client: Any) -> None:
    starts = [f" s{chr(97 + k)}" for k in range(20)]

    async def one(many: Any, start: str) -> str:
        stream = await many.chat.completions.create(**ask(start), stream=True)
        return "".join([part.choices[0].delta.content async for part in stream])

    async def main() -> list[str]:
        async with connect(port, openai.AsyncOpenAI) as many:
            return await asyncio.gather(*(one(many, start) for start in starts))

    alone = [client.chat.completions.create(**ask(start)).choices[0].message.content for start in starts]
    assert asyncio.run(main()) == alone
