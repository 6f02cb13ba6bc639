"""SGLang's native route of the simulated endpoint, and token ids on /v1/completions, on a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from harness.mock_server import MockConfig
from tests.harness.mock_thread import FAST, serving

PATH = "/generate"


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with serving(MockConfig(FAST, "m")) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client


@pytest.fixture(autouse=True)
def cold(http: httpx.Client) -> None:
    http.post("/reset_prefix_cache").raise_for_status()


def events(text: str) -> list[dict[str, Any]]:
    *frames, done, empty = text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def ask(ids: list[int], tokens: int, **fields: Any) -> dict[str, Any]:
    return {"input_ids": ids, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}, **fields}


def test_every_event_repeats_the_answer_so_far(http: httpx.Client) -> None:
    body = ask(list(range(50)), 4, stream=True)
    for cached in (0, 48):
        said = events(http.post(PATH, json=body, headers={"x-request-id": 'a"1'}).text)
        texts, ids = [event["text"] for event in said], [event["output_ids"] for event in said]
        assert [len(text) for text in texts] == [5, 10, 15, 20]
        assert all(texts[3].startswith(text) for text in texts)
        assert ids == [ids[3][:n] for n in (1, 2, 3, 4)]
        for n, event in enumerate(said, 1):
            assert event["meta_info"] == {
                "id": 'a"1',
                "finish_reason": {"type": "length", "length": 4} if n == 4 else None,
                "prompt_tokens": 50,
                "completion_tokens": n,
                "cached_tokens": cached,
            }


def test_whole_answers_of_text_and_of_ids(http: httpx.Client) -> None:
    body = ask([1, 2, 3], 6)
    whole, last = http.post(PATH, json=body).json(), events(http.post(PATH, json=body | {"stream": True}).text)[-1]
    assert whole == {**last, "meta_info": {**last["meta_info"], "id": whole["meta_info"]["id"]}}
    said = http.post(PATH, json={"text": "one two 1234", "sampling_params": {"max_new_tokens": 2}}).json()
    assert said["meta_info"]["prompt_tokens"] == 5


def test_lengths(http: httpx.Client) -> None:
    def length(**sampling: Any) -> tuple[int, str]:
        meta = http.post(PATH, json={"input_ids": [7, 8], "sampling_params": sampling}).json()["meta_info"]
        return meta["completion_tokens"], meta["finish_reason"]["type"]

    assert length(ignore_eos=True) == (128, "length")
    assert length(max_new_tokens=200, min_new_tokens=200) == (200, "length")
    assert length(max_new_tokens=2_000, sampling_seed=3)[1] == "stop"
    assert length(max_new_tokens=2_000, sampling_seed=3) != length(max_new_tokens=2_000, sampling_seed=4)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"sampling_params": {}}, "Either text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "not both"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [1, -1]}, "Token id -1"),
        ({"input_ids": [[1], [2]]}, "Invalid request body"),
        (ask([1], 2, return_logprob=True), "return_logprob"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "at least 1"),
        (ask([1] * 8_190, 3), "maximum context length is 8192"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_come_as_a_200_when_streamed(http: httpx.Client, body: dict[str, Any], text: str, stream: bool) -> None:
    response = http.post(PATH, json=body | {"stream": stream})
    if not stream or text == "Invalid request body":
        assert response.status_code == 400
        error = response.json()["error"]
    else:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        (event,) = events(response.text)
        error = event["error"]
    assert text in error["message"]


def test_the_next_turn_hits_the_ids_that_were_generated(http: httpx.Client) -> None:
    first = list(range(100))
    said = http.post(PATH, json=ask(first, 61)).json()["output_ids"]
    body = {"prompt": [*first, *said, 5], "max_tokens": 1}
    usage = http.post("/v1/completions", json=body).json()["usage"]
    # 160 tokens of prompt and answer were computed: 10 full blocks of 16.
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (162, 160)


def test_completions_return_their_ids_when_asked_to(http: httpx.Client) -> None:
    body = {"prompt": [3, 4, 5], "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
    whole = http.post("/v1/completions", json=body).json()["choices"][0]
    assert whole["prompt_token_ids"] == [3, 4, 5]
    assert whole["token_ids"] == http.post("/tokenize", json={"prompt": whole["text"]}).json()["tokens"]
    streamed = events(http.post("/v1/completions", json=body | {"stream": True}).text)
    choices = [event["choices"][0] for event in streamed]
    assert [choice["token_ids"] for choice in choices] == [[number] for number in whole["token_ids"]]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[3, 4, 5], None, None, None]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]


def test_chat_returns_its_ids_when_asked_to(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": " a b"}]
    ids = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    body = {"messages": messages, "max_tokens": 3, "ignore_eos": True, "return_token_ids": True}
    whole = http.post("/v1/chat/completions", json=body).json()
    role, *tokens = events(http.post("/v1/chat/completions", json=body | {"stream": True}).text)
    assert whole["prompt_token_ids"] == role["prompt_token_ids"] == ids
    assert [i for event in tokens for i in event["choices"][0]["token_ids"]] == whole["choices"][0]["token_ids"]
    assert len(tokens) == 3
