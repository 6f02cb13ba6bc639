"""Counting tokens without downloading a tokenizer, and the words that are one token each."""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path

import httpx
import pytest

from replay.messages import message
from replay.tokens import (
    LocalCounter,
    ServerCounter,
    TextCounter,
    common_words,
    find_words,
    verify_words,
)
from replay.usage import Refused, Unmeasurable, UsageCounter
from replay.word_search import WANTED_WORDS
from replay.words import WordTable
from results.errors import EXIT_ENDPOINT, UserError
from tests.replay.token_server import (
    REAL,
    Template,
    TokenServer,
    bracketed,
    chatml,
    count_of,
    no_tools,
    trimming,
    with_bos,
    write_directory,
)

CHAT = "/v1/chat/completions"
USER = [message("user", " the of")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agentx"


def usage_counter(server: TokenServer) -> UsageCounter:
    return UsageCounter(server.client(), "m")


def server_counter(server: TokenServer) -> ServerCounter:
    http = server.client()
    counter = ServerCounter.detect(http, "m", UsageCounter(http, "m"))
    assert counter is not None
    return counter


# Words


@pytest.mark.parametrize("name", REAL)
def test_words_are_one_token_wherever_they_stand(name: str) -> None:
    count = count_of(name)
    table = find_words(usage_counter(TokenServer(count)))
    assert len(table.words) == WANTED_WORDS
    for word in table.words:
        assert count(word) == count(word.strip()) == 1
    pairs = "".join(a + b for a, b in product(table.words, repeat=2))
    assert count(pairs) == 2 * WANTED_WORDS**2


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("template", [chatml, trimming, with_bos, bracketed])
def test_usage_alone_finds_the_words_in_few_requests(name: str, template: Template) -> None:
    server = TokenServer(count_of(name), template=template)
    counter = usage_counter(server)
    table = find_words(counter)
    assert table == common_words()
    assert len(server.requests) == counter.requests <= 20
    assert counter.prompt_tokens < 4_000
    assert counter.output_tokens == counter.requests
    assert counter.cached_tokens == 3 * counter.requests


@pytest.mark.parametrize("name", ["deepseek", "mistral"])
def test_a_directory_a_route_and_usage_find_the_same_words(name: str, tmp_path: Path) -> None:
    counters: list[TextCounter] = [
        LocalCounter.load(write_directory(name, tmp_path / "tokenizer")),
        server_counter(TokenServer(count_of(name), route="/tokenize")),
        usage_counter(TokenServer(count_of(name))),
    ]
    assert len({find_words(counter).digest for counter in counters}) == 1


def test_a_bos_before_every_piece_is_not_counted_as_a_word(tmp_path: Path) -> None:
    server = TokenServer(count_of("deepseek"), route="/tokenize", bos_always=True)
    counter = server_counter(server)
    assert counter.count_text(" the") == 2
    table = find_words(counter)
    assert len(table.words) == WANTED_WORDS
    verify_words(counter, table)


# Verification


def test_another_tokenizer_at_the_server_is_found_and_both_numbers_are_said() -> None:
    table = find_words(usage_counter(TokenServer(count_of("qwen"))))
    torn = set(table.words[:5])

    def newer(text: str) -> int:
        return count_of("qwen")(text) + sum(f" {word}" in torn for word in text.split(" "))

    chosen = random.Random(97).choices(table.words, k=97)
    extra = sum(word in torn for word in chosen)
    assert extra
    with pytest.raises(Unmeasurable, match=f"97 one-token words are {97 + extra} tokens by usage") as caught:
        verify_words(usage_counter(TokenServer(newer)), table)
    assert "not the server's" in str(caught.value)
    verify_words(usage_counter(TokenServer(count_of("qwen"))), table)


def test_a_server_with_a_short_context_is_asked_for_no_more_than_it_takes() -> None:
    server = TokenServer(count_of("qwen"), context=450)
    assert find_words(usage_counter(server)) == common_words()


def test_a_server_that_refuses_everything_is_unmeasurable_not_a_traceback() -> None:
    server = TokenServer(count_of("qwen"), context=0)
    for attempt in (find_words, lambda counter: verify_words(counter, common_words())):
        with pytest.raises(Unmeasurable, match=r"can't be counted by usage: POST .* HTTP 400: .*context length is 0"):
            attempt(usage_counter(server))


# Counters


def test_usage_that_is_not_there_is_said_with_the_remedy() -> None:
    with pytest.raises(Unmeasurable, match="reports no usage") as caught:
        usage_counter(TokenServer(count_of("qwen"), usage=False)).count_messages(USER)
    assert caught.value.exit_code == EXIT_ENDPOINT
    assert caught.value.remedy


def test_an_endpoint_that_knows_only_the_newer_length_field_is_counted() -> None:
    server = TokenServer(count_of("qwen"), max_tokens_refused=True)
    counter = usage_counter(server)
    assert counter.count_messages(USER) == counter.count_messages(USER) > 2
    assert len(server.requests) == 3
    assert server.requests[-1][1]["max_completion_tokens"] == 1


def test_a_refusal_keeps_status_and_reason_and_no_key() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401, text=f"bad key:\n{request.headers['authorization'].split()[1]}")

    http = httpx.Client(
        base_url="http://s", transport=httpx.MockTransport(answer), headers={"Authorization": "Bearer zu-7-secret"}
    )
    with pytest.raises(Refused, match=r"POST /v1/chat/completions: HTTP 401: bad key: …$") as caught:
        UsageCounter(http, "m").count_messages(USER)
    assert caught.value.status == 401


def test_a_server_that_hangs_up_is_an_error_with_its_route() -> None:
    def hang_up(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("connection reset", request=request)

    http = httpx.Client(base_url="http://s", transport=httpx.MockTransport(hang_up))
    with pytest.raises(UserError, match=f"POST {CHAT}: connection reset") as caught:
        UsageCounter(http, "m").count_messages(USER)
    assert caught.value.exit_code == EXIT_ENDPOINT
    assert ServerCounter.detect(http, "m", UsageCounter(http, "m")) is None


@pytest.mark.parametrize("route", ["/tokenize", "/v1/tokenize"])
def test_a_tokenize_route_is_found_and_spares_the_server_generation(route: str) -> None:
    server = TokenServer(count_of("qwen"), route=route)
    counter = server_counter(server)
    assert counter.name == f"server ({route})"
    find_words(counter)
    assert server.asked(CHAT) == 0
    expected = server.tokens(chatml, USER)
    assert [counter.count_messages(USER) for _ in range(3)] == [expected] * 3
    # Once, to see that the route counts messages as the chat route does.
    assert server.asked(CHAT) == 1


def test_no_tokenize_route_is_no_counter() -> None:
    http = TokenServer(count_of("qwen")).client()
    assert ServerCounter.detect(http, "m", UsageCounter(http, "m")) is None


@pytest.mark.parametrize("route_template", [None, with_bos])
def test_usage_counts_messages_where_the_route_does_not_as_the_server_does(route_template: Template) -> None:
    server = TokenServer(
        count_of("qwen"),
        route="/tokenize",
        route_template=route_template,
    )
    counter = server_counter(server)
    asked = server.asked("/tokenize")
    assert counter.count_messages(USER) == counter.count_messages(USER) == server.tokens(chatml, USER)
    assert server.asked("/tokenize") == asked + 1
    assert counter.name == "server (/tokenize), messages by usage"


def test_messages_that_the_template_refuses_do_not_end_the_use_of_the_route() -> None:
    server = TokenServer(count_of("qwen"), route="/tokenize", template=no_tools, route_template=no_tools)
    counter = server_counter(server)
    counter.count_messages(USER)
    with pytest.raises(Refused, match="HTTP 400"):
        counter.count_messages([*USER, message("assistant_call", " a"), message("tool", " b")])
    counter.count_messages(USER)
    assert server.asked(CHAT) == 1


def test_a_route_is_used_without_usage_to_check_it_by() -> None:
    server = TokenServer(count_of("qwen"), route="/tokenize", usage=False)
    assert server_counter(server).count_messages(USER) == server.tokens(chatml, USER)


# Directories


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such directory"):
        LocalCounter.load(tmp_path / "nowhere")


def test_what_a_directory_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json or tekken\.json is needed, neither is there"):
        LocalCounter.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(UserError, match=r"only tokenizer\.model, which is not read there") as caught:
        LocalCounter.load(tmp_path)
    assert "--tokenizer server or usage" in caught.value.remedy


@pytest.mark.parametrize(("package", "name"), [("tokenizers", "tokenizer.json"), ("mistral_common", "tekken.json")])
@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"model": 3}', "\x00\xff"])
def test_a_broken_file_is_named_not_a_traceback(tmp_path: Path, package: str, name: str, content: str) -> None:
    pytest.importorskip(package)
    (tmp_path / name).write_text(content, encoding="latin-1")
    counter = LocalCounter.load(tmp_path)
    with pytest.raises(UserError, match=f"--tokenizer .*{name}: ") as caught:
        find_words(counter)
    assert "\n" not in str(caught.value)


def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="needs a package") as caught:
        LocalCounter.load(tmp_path).count_text(" a")
    assert "pip install 'agentx-live[tokenizer]'" in caught.value.remedy


def test_words_that_are_guessed_are_those_that_most_tokenizers_have() -> None:
    assert isinstance(common_words(), WordTable)
    assert len(common_words().words) == WANTED_WORDS
