"""Every route of the simulated endpoint, on a real socket."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, chat, serving, words

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(MockConfig(FAST, "m")) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client


def events(response: httpx.Response) -> list[Any]:
    """Parsed data of every event; the stream must end with [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, last, empty = response.text.split("\n\n")
    assert (last, empty) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def usage(http: httpx.Client, body: dict[str, Any], path: str = CHAT) -> tuple[int, int, int]:
    response = http.post(path, json=body).raise_for_status()
    said = response.json()["usage"]
    assert said["total_tokens"] == said["prompt_tokens"] + said["completion_tokens"]
    return said["prompt_tokens"], said["completion_tokens"], said["prompt_tokens_details"]["cached_tokens"]


def test_models_health_version(http: httpx.Client) -> None:
    (model,) = http.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("m", 8_192)
    assert http.get("/health").status_code == 200
    assert "simulated endpoint of agentx" in http.get("/version").json()["version"]


def test_unknown_route_and_method(http: httpx.Client) -> None:
    assert http.get("/v1/nothing").status_code == 404
    assert http.get(CHAT).status_code == 405
    assert http.get("/health?deep=1").status_code == 200


def test_streamed_chat_has_the_shape_of_vllm(http: httpx.Client) -> None:
    body = chat(20, stream=True, stream_options={"include_usage": True}, max_tokens=5, ignore_eos=True, model="m")
    role, *tokens, last = events(http.post(CHAT, json=body, headers={"X-Request-Id": 'abc"1'}))
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [event["choices"][0] for event in tokens]
    assert [delta["delta"]["content"][0] for delta in deltas] == [" "] * 5
    assert [delta["finish_reason"] for delta in deltas] == [None] * 4 + ["length"]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 20,
        "total_tokens": 25,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": last["usage"]["prompt_tokens_details"]["cached_tokens"]},
    }
    for event in (role, *tokens, last):
        assert (event["id"], event["object"], event["model"]) == ('chatcmpl-abc"1', "chat.completion.chunk", "m")


def test_half_of_an_answer_can_be_thought_first() -> None:
    with (
        serving(MockConfig(dataclasses.replace(FAST, reasoning_share=0.5), "m")) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as thinker,
    ):
        body = chat(20, stream=True, stream_options={"include_usage": True}, max_tokens=5, ignore_eos=True)
        _, *tokens, last = events(thinker.post(CHAT, json=body))
        plain = thinker.post(CHAT, json=chat(20, max_tokens=5, ignore_eos=True)).json()
        kinds = [next(iter(event["choices"][0]["delta"])) for event in tokens]
        assert kinds == ["reasoning_content"] * 2 + ["content"] * 3
        assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
        said = plain["choices"][0]["message"]
        streamed = {
            kind: "".join(event["choices"][0]["delta"].get(kind, "") for event in tokens)
            for kind in ("reasoning_content", "content")
        }
        assert (said["reasoning_content"], said["content"]) == tuple(streamed.values())


def test_usage_only_when_asked_for(http: httpx.Client) -> None:
    said = events(http.post(CHAT, json=chat(20, stream=True, max_tokens=2)))
    assert all(event["choices"] and "usage" not in event for event in said)


def test_streamed_and_whole_answers_are_the_same(http: httpx.Client) -> None:
    body = chat(30, max_tokens=40)
    whole = http.post(CHAT, json=body).json()["choices"][0]
    streamed = [event["choices"][0] for event in events(http.post(CHAT, json=body | {"stream": True}))]
    assert "".join(part["delta"]["content"] for part in streamed) == whole["message"]["content"]
    assert streamed[-1]["finish_reason"] == whole["finish_reason"]
    assert whole["message"]["role"] == "assistant"


def test_completions_of_text_and_of_ids(http: httpx.Client) -> None:
    path = "/v1/completions"
    body = {"prompt": "one two 1234", "max_tokens": 3, "ignore_eos": True}
    parts = events(http.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}}))
    text = "".join(part["choices"][0]["text"] for part in parts[:-1])
    assert len(parts) == 4
    assert parts[0]["object"] == "text_completion"
    assert parts[2]["choices"][0]["finish_reason"] == "length"
    assert parts[-1]["usage"]["prompt_tokens"] == 5
    assert http.post(path, json=body).json()["choices"][0]["text"] == text
    assert usage(http, {"prompt": list(range(100)), "max_tokens": 1}, path) == (100, 1, 0)
    assert usage(http, {"prompt": list(range(100)), "max_tokens": 1}, path) == (100, 1, 96)
    assert usage(http, {"prompt": "default length", "ignore_eos": True}, path)[1] == 16


def test_tokenize_counts_what_usage_counts(http: httpx.Client) -> None:
    said = http.post("/tokenize", json={"prompt": "Hello world 12345!", "return_token_strs": True}).json()
    assert said["token_strs"] == ["Hello", " world", " ", "123", "45", "!"]
    assert (said["count"], said["max_model_len"]) == (6, 8_192)
    assert len(set(said["tokens"])) == 6
    again = http.post("/tokenize", json={"prompt": "x Hello"}).json()
    assert again["tokens"][1] != said["tokens"][0], "with its space it is another token"
    messages = [
        {"role": "system", "content": words(10)},
        {"role": "user", "content": [{"type": "text", "text": " a"}, {"type": "text", "text": " b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]},
        {"role": "tool", "content": " c", "tool_call_id": "1"},
    ]
    tools = [{"type": "function", "function": {"name": "ls"}}]
    for fields in ({"messages": messages}, {"messages": messages, "tools": tools}):
        count = http.post("/tokenize", json=fields).json()["count"]
        assert count == usage(http, {**fields, "max_tokens": 1})[0]
    bare = http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()["count"]
    with_answer = http.post("/tokenize", json={"messages": messages}).json()["count"]
    assert with_answer == bare + 3
    one = http.post("/tokenize", json={"messages": messages[:1]}).json()["count"]
    assert one == 4 + 10 + 3


def test_the_second_turn_hits_what_the_first_left(http: httpx.Client) -> None:
    http.post("/reset_prefix_cache").raise_for_status()
    first = chat(100, "turns", max_tokens=61, ignore_eos=True)
    assert usage(http, first) == (100, 61, 0)
    assert usage(http, first)[2] == 96
    said = http.post(CHAT, json=first).json()["choices"][0]["message"]
    turns = [*first["messages"], said, {"role": "user", "content": " more"}]
    # 160 tokens of prompt and answer were computed: 10 full blocks of 16.
    assert usage(http, {"messages": turns, "max_tokens": 1}) == (161 + 1 + 5 + 3, 1, 160)
    assert http.post("/reset_prefix_cache").status_code == 200
    assert usage(http, first)[2] == 0


def test_answers_end_by_themselves_unless_forced(http: httpx.Client) -> None:
    bodies = [chat(20, start) for start in ("aa", "bb", "cc", "dd", "ee", "ff")]
    choices = [http.post(CHAT, json=body).json() for body in bodies]
    lengths = [said["usage"]["completion_tokens"] for said in choices]
    assert {said["choices"][0]["finish_reason"] for said in choices} == {"stop"}
    assert len(set(lengths)) > 2
    assert [usage(http, body)[1] for body in bodies] == lengths, "seeded: the same again"
    assert [usage(http, body | {"seed": 5})[1] for body in bodies] != lengths
    assert all(usage(http, body | {"max_tokens": 300, "min_tokens": 300})[1] == 300 for body in bodies[:2])
    assert usage(http, bodies[0] | {"max_completion_tokens": 7, "ignore_eos": True})[1] == 7


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (CHAT, b"{not json", 400, "Invalid request body"),
        (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "Invalid request body"),
        (CHAT, {}, 400, "messages"),
        (CHAT, {"messages": []}, 400, "must not be empty"),
        (CHAT, {"messages": [{"role": "owner", "content": "x"}]}, 400, "role"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "not supported"),
        (CHAT, chat(20, model="other"), 404, "`other` does not exist"),
        (CHAT, chat(20, max_tokens=0), 400, "max_tokens must be at least 1"),
        (CHAT, chat(20, max_completion_tokens=-1), 400, "max_tokens must be at least 1"),
        (CHAT, chat(20, max_tokens=4, min_tokens=5), 400, "min_tokens"),
        (CHAT, chat(20, n=2), 400, "n must be 1"),
        (CHAT, chat(20, stream_options={"include_usage": True}), 400, "stream=True"),
        (CHAT, chat(8_192), 400, "maximum context length is 8192 tokens"),
        (CHAT, chat(8_100, max_tokens=93), 400, "8100 input tokens, for a total of 8193"),
        (CHAT, chat(8_192, stream=True), 400, "maximum context length"),
        ("/v1/completions", {"prompt": ""}, 400, "cannot be empty"),
        ("/v1/completions", {"prompt": [1, -1]}, 400, "Token id -1 is out of vocabulary"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "Invalid request body"),
        ("/tokenize", {"prompt": "a", "messages": []}, 400, "either `prompt` or `messages`"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "does not exist"),
    ],
)
def test_errors_are_those_of_vllm(http: httpx.Client, path: str, body: Any, status: int, text: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = http.post(path, content=content)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, status)
    assert text in error["message"]
    assert error["type"] == ("NotFoundError" if status == 404 else "BadRequestError")


@pytest.mark.parametrize("content", ["", None, []])
def test_empty_content_is_accepted(http: httpx.Client, content: Any) -> None:
    assert usage(http, {"messages": [{"role": "user", "content": content}], "max_tokens": 2, "ignore_eos": True}) == (
        7,
        2,
        0,
    )


def test_the_longest_request_that_fits_is_served(http: httpx.Client) -> None:
    assert usage(http, chat(8_190, "longest", max_tokens=2, ignore_eos=True)) == (8_190, 2, 0)
