"""Answer streams of odd servers: JSON that Python's own writers make, errors in other shapes, frames that deceive."""

from __future__ import annotations

from results.records import Finish, Flag, Status
from tests.replay.stream_writes import DONE, OK, PLAIN, TAIL, Case, W, chunk, counts, event, fin, spaced, txt, use

_CALL = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}


def _token(json_text: str, **more: str) -> bytes:
    """A token chunk whose text is the JSON string `json_text` as it stands."""
    extra = "".join(f',"{key}":{value}' for key, value in more.items())
    return event(f'{{"choices":[{{"delta":{{"content":{json_text}}}{extra}}}]}}')


def _stamped(text: str, created: int) -> bytes:
    return event({"created": created, "choices": [{"index": 0, "delta": {"content": text}}]})


ODD_CASES = [
    Case(
        "P10 four tokens an event, usage only at the end",
        [
            *spaced(100, 32, [txt("a b c d")] * 8),
            W(400, fin("length")),
            W(401, use(100, 32)),
            W(402, DONE),
        ],
        {**OK, "first_token": 100, "last_token": 324, "output_tokens": 32, "first_chunk_tokens": None},
    ),
    Case(
        "C06 eight tokens in the first event",
        [
            W(100, txt("a" * 8, usage=counts(9, 8))),
            W(110, txt("b", usage=counts(9, 9))),
            W(120, chunk({"content": "c"}, "length", usage=counts(9, 10))),
            W(130, DONE),
        ],
        {**OK, "first_chunk_tokens": 8, "output_chunks": 3, "output_tokens": 10, "last_token": 120},
    ),
    Case(
        "P13 an answer of one token",
        [W(100, txt("a")), W(101, fin("length")), W(102, use(10, 1)), W(103, DONE)],
        {**OK, "first_token": 100, "last_token": 100, "output_tokens": 1, "output_chunks": 1},
    ),
    Case(
        "P21 tokens that are blanks",
        [*spaced(10, 1, [txt(" ")] * 12), W(30, use(5, 12)), W(31, DONE)],
        {**OK, "output_chunks": 12, "output_tokens": 12, "last_token": 21},
    ),
    Case(
        "P30 a raw vertical tab inside a text",
        [W(10, _token('"a\x0bb"')), W(20, _token('"c"')), *TAIL],
        {**OK, "output_chunks": 2, "parse_errors": 0, "last_token": 20},
    ),
    Case(
        "half of a surrogate pair, as escape",
        [W(10, _token('"\\ud83d"')), W(20, _token('"\\ude42"')), *TAIL],
        {**OK, "output_chunks": 2, "parse_errors": 0, "first_token": 10},
    ),
    Case(
        "a log probability of minus infinity",
        [W(10, _token('"a"', logprobs='{"top":-Infinity}')), W(20, _token('"b"', logprobs='{"top":NaN}')), *TAIL],
        {**OK, "output_chunks": 2, "parse_errors": 0},
    ),
    Case(
        "a refusal is text, a call in the old shape is a token",
        [
            W(10, chunk({"function_call": {"name": "f", "arguments": ""}})),
            W(20, chunk({"function_call": {"arguments": "{}"}})),
            W(30, chunk({"refusal": "no"})),
            W(40, chunk({"refusal": None, "function_call": None}, "function_call")),
            W(50, DONE),
        ],
        {**OK, "first_token": 10, "first_text": 30, "output_chunks": 3, "finish": Finish.TOOL_CALLS},
        flags=Flag.NO_USAGE,
    ),
    Case(
        "nested a hundred thousand deep",
        [*PLAIN, W(120, b"data: " + b"[" * 100_000 + b"\n\n"), *TAIL],
        {**OK, "parse_errors": 1, "output_chunks": 2},
        flags=Flag.PARSE_ERROR,
    ),
    Case(
        "counts that no row can hold",
        [*PLAIN, W(120, fin()), W(121, use(2**31, 10**30)), W(122, DONE)],
        {**OK, "input_tokens": None, "output_tokens": None},
        flags=Flag.NO_USAGE,
    ),
    Case(
        "the largest counts that a row can hold",
        [*PLAIN, W(120, fin()), W(121, use(2**31 - 1, 2**31 - 1)), W(122, DONE)],
        {**OK, "input_tokens": 2**31 - 1, "output_tokens": 2**31 - 1},
    ),
    Case(
        "a usage that says less than before: the latest value stands",
        [W(10, txt("a", usage=counts(5, 9))), W(20, txt("b", usage=counts(5, 2))), W(30, fin()), W(40, DONE)],
        {**OK, "output_tokens": 2, "first_chunk_tokens": 9, "output_chunks": 2},
    ),
    Case(
        "equal chunks with equal usage are all read",
        [
            *spaced(10, 1, [txt("a", usage=counts(5, n)) for n in (1, 2, 1, 2, 1)]),
            W(30, fin()),
            W(31, DONE),
        ],
        {**OK, "output_tokens": 1, "output_chunks": 5},
        flags=Flag.USAGE_MISMATCH,
    ),
    Case(
        "equal chunks with different finish reasons are all read",
        [
            *(W(10 + k, chunk({"content": "a"}, reason)) for k, reason in enumerate(("stop", "length", "stop"))),
            W(31, use(5, 3)),
            W(32, DONE),
        ],
        {**OK, "finish": Finish.STOP, "output_chunks": 3},
    ),
    Case(
        "chunks stamped with the second",
        [*spaced(1, 1, [_stamped("a", 1_700_000_000 + k // 50) for k in range(300)]), *TAIL[:1], W(910, use(5, 300))],
        {**OK, "output_chunks": 300, "last_token": 300, "output_tokens": 300},
        flags=Flag.NO_DONE,
    ),
    Case(
        "a token and a call in two choices of each chunk",
        [
            *spaced(10, 10, [event({"choices": [{"delta": {"content": "a"}}, {"delta": _CALL}]})] * 3),
            W(50, use(5, 6)),
            W(51, DONE),
        ],
        {**OK, "output_chunks": 6, "coalesced": 3},
        flags=Flag.COALESCED,
    ),
    Case(
        "an error event, cut after its name, whose data is a learned chunk",
        [W(10, txt("a")), W(20, txt("b")), W(30, b"event: error\n"), W(40, txt("c")), W(50, DONE)],
        {"status": Status.STREAM_ERROR, "error": "error event without a reason", "output_chunks": 2},
    ),
    Case(
        "a mark that is only one at the very start",
        [W(10, b"\xef\xbb\xbf" + txt("a")), W(20, b"\xef\xbb\xbf" + txt("b")), W(30, txt("c")), *TAIL],
        {**OK, "output_chunks": 2, "first_token": 10, "last_token": 30},
    ),
    Case(
        "two events by one blank line and another ending",
        [W(10, txt("a")[:-2] + b"\r\r" + txt("b")), W(20, txt("c")), *TAIL],
        {**OK, "output_chunks": 3, "coalesced": 1},
        flags=Flag.COALESCED,
    ),
    Case(
        "an event that two endings of lines close",
        [W(w.ms, w.data[:-2] + b"\r\n\n") for w in [*PLAIN, *TAIL]],
        {**OK, "output_chunks": 2, "last_token": 110},
    ),
    Case(
        "a name repeated inside the delta: the last one counts",
        [W(10, event('{"choices":[{"delta":{"content":"a","content":""}}]}')), W(20, txt("b")), *TAIL],
        {**OK, "output_chunks": 1, "first_token": 20},
    ),
    *(
        Case(
            f"an error {label}",
            [*PLAIN, W(120, data), W(130, DONE)],
            {"status": Status.STREAM_ERROR, "error": text, "output_chunks": 2},
        )
        for label, data, text in (
            ("as older vLLM says it", event({"object": "error", "message": "boom", "code": 500}), "boom (500)"),
            ("by its type alone", event({"type": "error", "message": "boom"}), "boom (error)"),
            ("named, a JSON string", b'event: error\ndata: "oom"\n\n', "oom"),
            ("named, a JSON number", b"event: error\ndata: 7\n\n", "error event without a reason"),
            ("after a ping that is not its reason", b": ping\n\nevent: error\n\n", "error event without a reason"),
            ("whose details are a list", event({"error": {"message": [{"m": "é"}]}}), '[{"m":"é"}]'),
            ("as a finish reason", fin("error"), "the server gave up: finish_reason error"),
        )
    ),
    Case(
        "aborted by the server is no short success",
        [*PLAIN, W(120, fin("abort")), W(121, use(5, 2)), W(122, DONE)],
        {"status": Status.STREAM_ERROR, "finish": Finish.ABORT, "output_tokens": 2},
    ),
    Case(
        "a chunk larger than a read",
        [W(10, txt("x" * 200_000)), W(20, txt("y")), *TAIL],
        {**OK, "output_chunks": 2, "first_token": 10},
    ),
]
