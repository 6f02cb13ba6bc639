"""What a chat template adds is measured from counts; after that any conversation's size is arithmetic."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.chat_shape import ChatShape, measure_shape
from replay.messages import CALL_ID, AnthropicFrames, Frames, NoFrames, anthropic_fields, message
from replay.tokens import ServerCounter, TokenCounter, common_words
from replay.usage import Unmeasurable, UsageCounter
from results.errors import EXIT_ENDPOINT
from tests.replay.token_server import (
    REAL,
    Template,
    TemplateError,
    TokenServer,
    bracketed,
    chatml,
    count_of,
    default_system,
    forgetting,
    no_system,
    no_tools,
    thinking,
    tools_announced_once,
    tools_numbered,
    trimming,
    with_bos,
)

TABLE = common_words()
LINEAR = {
    "chatml": chatml,
    "trimming": trimming,
    "with_bos": with_bos,
    "default_system": default_system,
    "bracketed": bracketed,
    "no_system": no_system,
    "no_tools": no_tools,
    "thinking": thinking,
    "tools_announced_once": tools_announced_once,
    "tools_numbered": tools_numbered,
}
WITH_TOOLS = ("chatml", "trimming", "with_bos", "default_system", "no_system")


def measured(template: Template, name: str = "qwen", **options: Any) -> tuple[ChatShape, TokenServer]:
    server = TokenServer(count_of(name), template=template)
    return measure_shape(UsageCounter(server.client(), "m"), TABLE, **options), server


@cache
def shape_of(template: str) -> ChatShape:
    return measured(LINEAR[template])[0]


def conversation(shape: ChatShape, sizes: list[int], kinds: list[bool], system: int) -> list[tuple[str, int]]:
    """Messages as prompts have them: a user's first, then an answer and what follows it."""
    roles: list[tuple[str, int]] = [("system", system)] if system and shape.takes_system else []
    roles.append(("user", sizes[0]))
    for (answer, rest), tool in zip(zip(sizes[1::2], sizes[2::2], strict=False), kinds, strict=False):
        called = tool and shape.tool is not None
        roles += [("assistant_call" if called else "assistant", answer), ("tool" if called else "user", rest)]
    return roles


def messages(roles: list[tuple[str, int]]) -> list[dict[str, Any]]:
    words = TABLE.words
    return [
        message(role, "".join(words[(k * 31 + at) % len(words)] for k in range(n)))
        for at, (role, n) in enumerate(roles)
    ]


sizes_lists = st.lists(st.integers(1, 60), min_size=1, max_size=13)
kind_lists = st.lists(st.booleans(), min_size=6, max_size=6)


@pytest.mark.parametrize("template", LINEAR)
@settings(max_examples=30, deadline=None)
@given(sizes=sizes_lists, kinds=kind_lists, system=st.integers(0, 40))
def test_any_conversation_is_counted_as_computed(
    template: str, sizes: list[int], kinds: list[bool], system: int
) -> None:
    shape = shape_of(template)
    roles = conversation(shape, sizes, kinds, system)
    server = TokenServer(count_of("qwen"), template=LINEAR[template])
    assert server.tokens(server.template, messages(roles)) == shape.tokens(roles)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("target", [64, 1_001, 20_000])
def test_a_prompt_of_exactly_so_many_tokens_needs_no_search(name: str, target: int) -> None:
    shape, server = measured(with_bos, name)
    asked = len(server.requests)
    fixed = [("system", 20), ("user", 5), ("assistant", 7)]
    roles = [*fixed, ("user", target - shape.tokens([*fixed, ("user", 0)]))]
    assert UsageCounter(server.client(), "m").count_messages(messages(roles)) == target
    assert len(server.requests) == asked + 1


@pytest.mark.parametrize("template", LINEAR)
def test_few_requests_measure_a_template(template: str) -> None:
    _, server = measured(LINEAR[template])
    assert len(server.requests) <= 8
    assert all(body["max_tokens"] == 1 and body["stream"] is False for _, body in server.requests)


def test_tool_messages_are_measured_where_they_cost_the_same_every_time() -> None:
    for name, shape in ((name, shape_of(name)) for name in LINEAR):
        assert (shape.tool is not None) == (shape.assistant_call is not None) == (name in WITH_TOOLS)


@pytest.mark.parametrize(
    ("template", "note"),
    [
        ("bracketed", "no tool messages: sent as user messages"),
        ("no_tools", "no tool messages: sent as user messages"),
        ("tools_announced_once", "tool messages have no constant cost: sent as user messages"),
        ("tools_numbered", "tool messages have no constant cost: sent as user messages"),
        ("no_system", "no system messages: sent as user messages; "),
        ("chatml", ""),
    ],
)
def test_what_a_template_does_not_take_is_said(template: str, note: str) -> None:
    assert shape_of(template).note == note


def test_a_template_without_a_system_role_is_known_before_anything_is_sent() -> None:
    assert not shape_of("no_system").takes_system
    assert shape_of("no_system").system == 0
    assert all(shape.takes_system for name, shape in ((name, shape_of(name)) for name in LINEAR) if name != "no_system")


def test_a_system_message_that_replaces_a_default_may_cost_less_than_nothing() -> None:
    assert shape_of("default_system").system < 0


def test_what_alternation_hides_is_shared_between_user_and_answer() -> None:
    shape = shape_of("bracketed")
    assert 0 < shape.user <= shape.assistant <= shape.user + 1


def test_tools_are_not_asked_about_when_nobody_sends_any() -> None:
    shape, server = measured(chatml, tools=False)
    assert shape.tool is None
    assert not any(m["role"] == "tool" for _, body in server.requests for m in body["messages"])


def test_an_answer_that_the_template_drops_is_refused_with_both_numbers() -> None:
    with pytest.raises(Unmeasurable, match=r"can't be measured: a prompt of \d+ tokens was counted as \d+") as caught:
        measured(forgetting)
    assert caught.value.exit_code == EXIT_ENDPOINT
    assert caught.value.remedy


@pytest.mark.parametrize(("most", "roles"), [(0, "user"), (1, "user, assistant, user")])
def test_a_template_that_refuses_conversations_is_unmeasurable(most: int, roles: str) -> None:
    def short(given: Any) -> Any:
        if len(given) > most:
            raise TemplateError("too many messages")
        return chatml(given)

    with pytest.raises(Unmeasurable, match=f"the server refuses messages of {roles};"):
        measured(short)


def test_the_source_of_the_figures_is_named() -> None:
    server = TokenServer(count_of("qwen"), route="/tokenize")
    http = server.client()
    usage = UsageCounter(http, "m")
    route = ServerCounter.detect(http, "m", usage)
    assert route is not None
    counters: list[TokenCounter] = [usage, route]
    shapes = [measure_shape(counter, TABLE) for counter in counters]
    assert [shape.source for shape in shapes] == ["usage", "server (/tokenize)"]
    assert shapes[0].tokens([("user", 9)]) == shapes[1].tokens([("user", 9)])
    assert usage.requests == 8 + 1


# Messages


CONVERSATIONS = (
    ["system", "user", "assistant_call", "tool", "assistant", "user"],
    ["user", "assistant", "user", "user"],
)


def framed(frames: Frames, roles: list[str], texts: list[str]) -> bytes:
    previous, body = None, b""
    for role, text in zip(roles, texts, strict=True):
        body += frames.lead(previous, role) + frames.head[role] + text.encode() + frames.tail[role]
        previous = role
    return body


@pytest.mark.parametrize("roles", CONVERSATIONS)
def test_framed_conversations_are_the_messages_that_were_measured(roles: list[str]) -> None:
    texts = [f" {word}" for word in ["one", "two", "six", "ten", "red", "sun"][: len(roles)]]
    made = [message(role, text) for role, text in zip(roles, texts, strict=True)]
    assert json.loads(b"[" + framed(Frames(), roles, texts) + b"]") == made
    assert json.loads(b"{" + framed(AnthropicFrames(), roles, texts) + b"]}") == anthropic_fields(made)
    assert framed(NoFrames(), roles, texts) == "".join(texts).encode()


def test_the_messages_route_has_its_own_forms_of_calls_and_results() -> None:
    """System prompt beside the messages, calls and results as content blocks, the call's id in both."""
    fields = anthropic_fields([message(role, role) for role in CONVERSATIONS[0]])
    assert fields["system"] == "system"
    assert [m["role"] for m in fields["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    text, call = fields["messages"][1]["content"]
    (result,) = fields["messages"][2]["content"]
    assert text == {"type": "text", "text": "assistant_call"}
    assert call["type"] == "tool_use"
    assert result == {"type": "tool_result", "tool_use_id": call["id"], "content": "tool"}


def test_a_tool_result_answers_the_call_before_it() -> None:
    call, result = message("assistant_call", " a"), message("tool", " b")
    assert call["role"] == "assistant"
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == CALL_ID
    assert msgspec.json.decode(call["tool_calls"][0]["function"]["arguments"]) == {}
