"""The Anthropic route of the simulated endpoint: its rendering, its usage, its errors, on a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving, words

PATH = "/v1/messages"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(MockConfig(FAST, "m")) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client


def ask(text: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": text}], **fields}


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    *frames, empty = text.split("\n\n")
    assert empty == ""
    pairs = [frame.removeprefix("event: ").split("\ndata: ") for frame in frames]
    made = [(name, json.loads(data)) for name, data in pairs]
    assert all(data["type"] == name for name, data in made)
    return made


def test_a_streamed_answer_event_by_event(http: httpx.Client) -> None:
    http.post("/reset_prefix_cache")
    body = ask(words(60), stream=True)
    for cached in (0, 64):
        response = http.post(PATH, json=body, headers={"x-request-id": "r7"})
        assert response.headers["content-type"].startswith("text/event-stream")
        said = events(response.text)
        assert [name for name, _ in said] == [
            "message_start",
            "ping",
            "content_block_start",
            *["content_block_delta"] * 4,
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        message = said[0][1]["message"]
        assert message["usage"] == {"input_tokens": 67, "output_tokens": 0}, "the cache's share is not known yet"
        assert (message["id"], message["model"], message["content"]) == ("msg_r7", "m", [])
        ending = said[-2][1]
        assert ending["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
        assert ending["usage"] == {
            "input_tokens": 67 - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": 4,
        }


def test_streamed_and_whole_answers_are_the_same(http: httpx.Client) -> None:
    whole = http.post(PATH, json=ask(" hello")).json()
    said = events(http.post(PATH, json=ask(" hello", stream=True)).text)
    text = "".join(data["delta"]["text"] for name, data in said if name == "content_block_delta")
    assert whole["content"] == [{"type": "text", "text": text}]
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "max_tokens")


def test_answers_have_the_length_asked_for(http: httpx.Client) -> None:
    for tokens in (1, 70, 300):
        usage = http.post(PATH, json=ask(" hello", max_tokens=tokens)).json()["usage"]
        assert usage["output_tokens"] == tokens


CALL = {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "src", "deep": True}}
ARGUMENTS = '{"path": "src", "deep": true}'
TOOL = {"name": "ls", "description": "list", "input_schema": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("anthropic", "chat"),
    [
        pytest.param({}, {}, id="a string"),
        pytest.param(
            {"system": " be kind"},
            {"first": [{"role": "system", "content": " be kind"}]},
            id="system",
        ),
        pytest.param(
            {
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cch=1f2e"},
                    {"type": "text", "text": " be", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": " kind"},
                ]
            },
            {"first": [{"role": "system", "content": " be kind"}]},
            id="system in blocks, without the one that no cache survives",
        ),
        pytest.param(
            {
                "more": [
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, CALL]},
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": " and"},
                            {
                                "type": "tool_result",
                                "tool_use_id": "t1",
                                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                            },
                            {"type": "tool_result", "tool_use_id": "t1", "content": " c", "is_error": True},
                        ],
                    },
                ]
            },
            {
                "last": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "t1", "type": "function", "function": {"name": "ls", "arguments": ARGUMENTS}}
                        ],
                    },
                    {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
                    {"role": "tool", "tool_call_id": "t1", "content": " c"},
                    {"role": "user", "content": " and"},
                ]
            },
            id="a tool call and its results, which come first",
        ),
        pytest.param(
            {"tools": [TOOL]},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "ls", "description": "list", "parameters": TOOL["input_schema"]},
                    }
                ]
            },
            id="tools",
        ),
    ],
)
def test_the_prompt_is_that_of_chat(http: httpx.Client, anthropic: dict[str, Any], chat: dict[str, Any]) -> None:
    start = {"role": "user", "content": words(40, "gamma")}
    body = {"model": "m", "messages": [start, *anthropic.pop("more", [])], **anthropic}
    same = {"messages": [*chat.pop("first", []), start, *chat.pop("last", [])], "max_tokens": 1, **chat}
    counted = http.post(f"{PATH}/count_tokens", json=body).json()
    assert counted["context_management"] == {"original_input_tokens": counted["input_tokens"]}
    http.post("/reset_prefix_cache")
    prompt = http.post(CHAT, json=same).json()["usage"]["prompt_tokens"]
    usage = http.post(PATH, json={**body, "max_tokens": 1}).json()["usage"]
    assert counted["input_tokens"] == prompt
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt
    assert usage["cache_read_input_tokens"] == prompt // 16 * 16, "the same tokens, so the same blocks"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"{not json", 400, "Invalid request body"),
        ({"model": "m", "messages": []}, 400, "max_tokens"),
        (ask(" a", messages=[]), 400, "at least one message"),
        (ask(" a", messages=[{"role": "tool", "content": "x"}]), 400, "role 'tool'"),
        (ask([{"type": "image", "source": {}}]), 400, "'image' is not supported"),
        (ask([{"type": "tool_result", "content": [{"type": "image"}]}]), 400, "'image' is not supported"),
        (ask(" a", max_tokens=0), 400, "max_tokens must be at least 1"),
        (ask(" a", model="other"), 404, "does not exist"),
        (ask(words(8_192), stream=True), 400, "maximum context length is 8192"),
    ],
)
def test_errors_are_in_the_form_of_anthropic(http: httpx.Client, body: Any, status: int, text: str) -> None:
    response = http.post(PATH, content=body if isinstance(body, bytes) else json.dumps(body).encode())
    answer = response.json()
    assert (response.status_code, answer["type"]) == (status, "error")
    assert answer["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert text in answer["error"]["message"]


def test_counting_refuses_what_creating_does(http: httpx.Client) -> None:
    response = http.post(f"{PATH}/count_tokens", json=ask(" a", model="other"))
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
