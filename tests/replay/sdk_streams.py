"""Streams that hypothesis makes up, in the forms that servers use and the official clients understand."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from hypothesis import strategies as st

characters = st.sampled_from([*' ab"\\\n\r\t{}[]:/é漢🙂', "\u2028", "\x85", "\x7f", "\0"])
texts = st.text(characters, min_size=1, max_size=8) | st.sampled_from(["data: ", "[DONE]", "\n\n"])
numbers = st.integers(0, 10**6)
unsaid = st.none() | numbers
arguments_of_calls = st.dictionaries(texts, texts | numbers | st.none(), max_size=3)


def present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


@st.composite
def pieces(draw: st.DrawFn, whole: str) -> list[str]:
    """`whole`, cut anywhere; now and then an empty piece."""
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    return [whole[low:high] for low, high in zip([0, *places], [*places, len(whole)], strict=True)]


@st.composite
def written(draw: st.DrawFn, events: list[tuple[str, Any]]) -> bytes:
    """Events as a server may write them: escaped or not, line ends of either kind, comments and spaces between."""
    escaped, spaced = draw(st.booleans()), draw(st.booleans())
    end = draw(st.sampled_from(["\n", "\r\n"]))
    out = []
    for name, data in events:
        text = data if isinstance(data, str) else dumped(data, escaped=escaped, spaced=spaced)
        out.append((f"event: {name}{end}" if name else "") + f"data: {text}{end}{end}")
        if draw(st.integers(0, 9)) == 0:
            out.append(f": keep-alive{end}{end}")
    return "".join(out).encode()


def dumped(data: Any, *, escaped: bool, spaced: bool) -> str:
    return json.dumps(data, ensure_ascii=escaped, separators=None if spaced else (",", ":"))


@st.composite
def chat_deltas(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Reasoning and text in any order, then calls."""
    field = draw(st.sampled_from(["reasoning_content", "reasoning"]))
    said = st.tuples(st.sampled_from(["content", "content", field]), texts | st.just(""))
    deltas: list[dict[str, Any]] = [{name: text} for name, text in draw(st.lists(said, max_size=8))]
    for index in range(draw(st.integers(0, 2))):
        arguments = json.dumps(draw(arguments_of_calls))
        first, *rest = draw(pieces(arguments))
        function = {"name": f"tool_{index}", "arguments": first}
        deltas.append({"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in rest]
    return deltas


def says_something(delta: dict[str, Any]) -> bool:
    """A count that runs along grows with content only: else each growth is a token of its own to the parser."""
    (value,) = delta.values()
    return bool(value if isinstance(value, str) else value[0].get("id") or value[0]["function"]["arguments"])


@st.composite
def chat_streams(draw: st.DrawFn) -> bytes:
    """Chat completions as vLLM, SGLang, TensorRT-LLM and Dynamo stream them."""
    deltas = draw(chat_deltas())
    finish = draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
    style = draw(st.sampled_from(["none", "last", "each", "each and last"]))
    cached, reasoning, prompt = draw(unsaid), draw(unsaid), draw(numbers)
    nothing = draw(st.sampled_from([{}, {"usage": None}]))
    finish_is_alone = draw(st.booleans())

    def usage(output: int) -> dict[str, Any]:
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            **present(prompt_tokens_details=None if cached is None else {"cached_tokens": cached}),
            **present(completion_tokens_details=None if reasoning is None else {"reasoning_tokens": reasoning}),
        }

    def chunk(delta: dict[str, Any], reason: str | None, output: int) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**head, "choices": [choice], **({"usage": usage(output)} if style.startswith("each") else nothing)}

    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    opening = {"role": "assistant", "content": draw(st.sampled_from(["", None]))}
    generated = list(accumulate(map(says_something, deltas), initial=0))
    chunks = [chunk(delta, None, output) for delta, output in zip([opening, *deltas], generated, strict=True)]
    if finish_is_alone or not deltas:
        chunks.append(chunk({}, finish, generated[-1]))
    else:
        chunks[-1]["choices"][0]["finish_reason"] = finish
    if style.endswith("last"):
        chunks.append({**head, "choices": [], "usage": usage(generated[-1])})
    return draw(written([*[("", data) for data in chunks], ("", "[DONE]")]))


@st.composite
def blocks(draw: st.DrawFn, index: int) -> list[tuple[str, Any]]:
    """The events of one content block."""
    kind = draw(st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use"]))
    start: dict[str, Any]
    deltas: list[dict[str, Any]]
    if kind == "text":
        start, deltas = {"text": ""}, [{"type": "text_delta", "text": t} for t in draw(st.lists(texts, max_size=5))]
    elif kind == "thinking":
        start = {"thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": t} for t in draw(st.lists(texts, max_size=5))]
        deltas.append({"type": "signature_delta", "signature": "EqQB"})
    elif kind == "redacted_thinking":
        start, deltas = {"data": "EmwK"}, []
    else:
        start = {"id": f"t{index}", "name": f"tool_{index}", "input": {}}
        made = draw(pieces(json.dumps(draw(arguments_of_calls))))
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in made]
    block = {"type": kind, **start}
    return [
        ("content_block_start", {"type": "content_block_start", "index": index, "content_block": block}),
        *(("content_block_delta", {"type": "content_block_delta", "index": index, "delta": d}) for d in deltas),
        ("content_block_stop", {"type": "content_block_stop", "index": index}),
    ]


REASONS = [
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "refusal",
    "pause_turn",
    "model_context_window_exceeded",
]


@st.composite
def message_streams(draw: st.DrawFn) -> bytes:
    """Messages as Anthropic's own service, vLLM and proxies stream them."""

    def usage(**fixed: int) -> dict[str, Any]:
        thinking = draw(unsaid)
        details = present(output_tokens_details=None if thinking is None else {"thinking_tokens": thinking})
        read, made = draw(unsaid), draw(unsaid)
        return fixed | present(cache_read_input_tokens=read, cache_creation_input_tokens=made) | details

    message: dict[str, Any] = {"id": "x", "type": "message", "role": "assistant", "model": "m", "content": []}
    start = {
        **message,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage(input_tokens=draw(numbers), output_tokens=1),
    }
    events: list[tuple[str, Any]] = [("message_start", {"type": "message_start", "message": start})]
    if draw(st.booleans()):
        events.append(("ping", {"type": "ping"}))
    count = draw(st.integers(0, 4))
    for index in range(count):
        events += draw(blocks(index))
    delta = {"stop_reason": draw(st.sampled_from(REASONS)), "stop_sequence": None}
    late = usage(output_tokens=draw(numbers), **present(input_tokens=draw(unsaid)))
    events.append(("message_delta", {"type": "message_delta", "delta": delta, "usage": late}))
    events.append(("message_stop", {"type": "message_stop"}))
    return draw(written(events))


@st.composite
def response_streams(draw: st.DrawFn) -> bytes:
    """Responses as OpenAI's own service and vLLM stream them: every event has a running number."""
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response("in_progress")}]
    items: list[dict[str, Any]] = []
    for index in range(draw(st.integers(0, 3))):
        item, made = draw(response_items(index))
        items.append(item)
        events += made
    cached, reasoning = draw(numbers), draw(numbers)
    inputs, outputs = draw(numbers), draw(numbers)
    usage = {
        "input_tokens": inputs,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": outputs,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": inputs + outputs,
    }
    reason = draw(st.sampled_from([None, "max_output_tokens", "content_filter"]))
    status = "completed" if reason is None else "incomplete"
    details = None if reason is None else {"reason": reason}
    last = {**response(status), "output": items, "usage": usage, "incomplete_details": details}
    events.append({"type": f"response.{status}", "response": last})
    numbered = [(event["type"], {**event, "sequence_number": k}) for k, event in enumerate(events)]
    return draw(written(numbered))


def response(status: str) -> dict[str, Any]:
    return {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": status, "output": []}


@st.composite
def response_items(draw: st.DrawFn, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One item of the output, and the events that tell it."""
    kind = draw(st.sampled_from(["message", "reasoning", "function_call"]))
    begun: dict[str, Any] = {"id": f"i{index}", "type": kind}
    if kind == "function_call":
        whole = json.dumps(draw(arguments_of_calls))
        begun |= {"call_id": f"c{index}", "name": f"tool_{index}", "arguments": ""}
        done, delta, parts = {**begun, "arguments": whole}, "function_call_arguments", draw(pieces(whole))
    else:
        parts = draw(st.lists(texts, max_size=5))
        name, delta = ("output_text", "output_text") if kind == "message" else ("reasoning_text", "reasoning_text")
        begun |= {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        done = {**begun, "content": [{"type": name, "text": "".join(parts)}]}
    place = {"item_id": f"i{index}", "output_index": index}
    return done, [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *({"type": f"response.{delta}.delta", **place, "content_index": 0, "delta": part} for part in parts),
        {"type": "response.output_item.done", "output_index": index, "item": done},
    ]
