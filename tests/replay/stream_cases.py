"""Answer streams as data: what a server wrote when, and what must be read from it.

Used whole, cut at every byte, against the slow reader, and over real sockets.
"""

from __future__ import annotations

from results.records import Finish, Flag, Status
from tests.replay.stream_odd_cases import ODD_CASES
from tests.replay.stream_writes import (
    DONE,
    OK,
    PLAIN,
    TAIL,
    Case,
    W,
    call,
    chunk,
    counts,
    event,
    fin,
    spaced,
    think,
    txt,
    use,
)

CASES = [
    *(
        Case(
            f"P01 C01 a role chunk with {label} is no token",
            [W(5, chunk({"role": "assistant", **extra})), W(214, txt("a")), W(224, txt("b")), *TAIL],
            {**OK, "first_token": 214, "last_token": 224, "output_chunks": 2, "output_tokens": 2, "input_tokens": 10},
        )
        for label, extra in (("no content", {}), ("null", {"content": None}), ('""', {"content": ""}))
    ),
    *(
        Case(
            f"P03 reasoning with content {empty!r} beside it",
            [
                W(1, chunk({"role": "assistant", "content": empty})),
                W(183, chunk({"content": empty, "reasoning_content": "x"})),
                W(900, txt("y")),
                *TAIL,
            ],
            {**OK, "first_token": 183, "first_text": 900, "output_chunks": 2},
        )
        for empty in ("", None)
    ),
    Case(
        "C02 the other name of reasoning",
        [W(60, chunk({"reasoning": "x"})), W(70, txt("y")), *TAIL],
        {**OK, "first_token": 60, "first_text": 70},
    ),
    Case(
        "P05 cut while still reasoning",
        [*spaced(60, 5, [think("t")] * 100), W(570, fin("length")), W(571, use(30, 100)), W(572, DONE)],
        {
            **OK,
            "first_token": 60,
            "first_text": None,
            "output_tokens": 100,
            "finish": Finish.LENGTH,
            "output_chunks": 100,
        },
    ),
    Case(
        "P06 C03 nothing but a tool call",
        [
            W(40, chunk({"role": "assistant", "content": None})),
            W(300, call(0, id="c1", name="bash", arguments="")),
            W(310, call(0, arguments='{"cmd":')),
            W(320, call(0, arguments='"ls"}')),
            W(330, fin("tool_calls")),
            W(340, use(90_000, 18)),
            W(341, DONE),
        ],
        {
            **OK,
            "first_token": 300,
            "last_token": 320,
            "first_text": None,
            "output_tokens": 18,
            "finish": Finish.TOOL_CALLS,
        },
    ),
    Case(
        "P08 no token at all",
        [W(20, chunk({"role": "assistant"})), W(25, fin()), W(26, DONE)],
        {"status": Status.STREAM_ERROR, "error": "empty answer", "first_token": None, "output_chunks": 0},
        flags=Flag.EMPTY | Flag.NO_USAGE,
    ),
    Case(
        "a token whose text is empty (half a character) is counted by usage",
        [W(20, txt("")), W(25, fin("length")), W(26, use(5, 1)), W(27, DONE)],
        {**OK, "first_token": None, "output_tokens": 1},
        flags=Flag.EMPTY,
    ),
    Case(
        "P09 the whole answer in one event",
        [W(200, txt("sixteen words")), W(3200, use(50, 16)), W(3210, DONE)],
        {**OK, "first_token": 200, "last_token": 200, "output_tokens": 16, "output_chunks": 1},
    ),
    Case(
        "P10 C05 four tokens an event, counted as it goes",
        [
            *spaced(100, 32, [txt("a b c d", usage=counts(100, 4 * (k + 1))) for k in range(8)]),
            W(400, fin("length")),
            W(401, use(100, 32)),
            W(402, DONE),
        ],
        {**OK, "first_token": 100, "last_token": 324, "output_tokens": 32, "first_chunk_tokens": 4, "output_chunks": 8},
    ),
    Case(
        "C04 text held back while the count grows",
        [
            W(10, chunk({"role": "assistant", "content": ""}, usage=counts(5, 0))),
            W(20, txt("", usage=counts(5, 1))),
            W(30, txt("", usage=counts(5, 2))),
            W(40, txt("ab", usage=counts(5, 3))),
            W(50, chunk({}, "stop", usage=counts(5, 3))),
            W(60, DONE),
        ],
        {**OK, "first_token": 20, "first_text": 40, "last_token": 40, "output_chunks": 3, "output_tokens": 3},
    ),
    Case(
        "P14 C07 bookkeeping is not tokens",
        [
            W(10, chunk({"role": "assistant", "content": ""})),
            W(100, txt("a")),
            W(110, txt("b")),
            W(600, use(5, 2)),
            W(900, DONE),
        ],
        {**OK, "first_token": 100, "last_token": 110, "output_chunks": 2},
    ),
    Case(
        "P16 running totals are not added up",
        [
            *spaced(1, 1, [txt("t", usage=counts(6179, k + 1)) for k in range(222)]),
            W(300, use(6179, 222)),
            W(301, DONE),
        ],
        {**OK, "input_tokens": 6179, "output_tokens": 222},
    ),
    Case(
        "P18 usage rides on a chunk without text",
        [
            *spaced(1, 1, [txt("t")] * 40),
            W(50, chunk({"content": ""}, "stop", usage=counts(100, 40))),
            W(51, DONE),
        ],
        {**OK, "output_tokens": 40, "output_chunks": 40, "last_token": 40},
    ),
    Case(
        "P19 P22 C13 no usage: counts are unknown",
        [*spaced(1, 1, [txt("t")] * 5), W(50, fin()), W(51, DONE)],
        {**OK, "output_tokens": None, "input_tokens": None, "output_chunks": 5},
        flags=Flag.NO_USAGE,
    ),
    Case(
        "P23 C14 reasoning is part of the output",
        [*PLAIN, W(120, fin()), W(121, use(100, 500, reasoning=420)), W(122, DONE)],
        {**OK, "output_tokens": 500, "reasoning_tokens": 420},
    ),
    Case(
        "C12 a usage that contradicts a hundred chunks",
        [*spaced(1, 1, [txt("t")] * 100), W(150, fin()), W(151, use(9, 1)), W(152, DONE)],
        {**OK, "output_tokens": 1, "output_chunks": 100},
        flags=Flag.USAGE_MISMATCH,
    ),
    Case(
        "cached tokens",
        [*PLAIN, W(120, fin()), W(121, use(100, 2, cached=96)), W(122, DONE)],
        {**OK, "cached_tokens": 96},
    ),
    Case(
        "P26 no blank after the field name",
        [W(w.ms, w.data.replace(b"data: ", b"data:")) for w in [*PLAIN, *TAIL]],
        {**OK, "first_token": 100, "last_token": 110, "output_tokens": 2},
    ),
    Case(
        "CRLF line ends",
        [W(w.ms, w.data.replace(b"\n", b"\r\n")) for w in [*PLAIN, *TAIL]],
        {**OK, "first_token": 100, "last_token": 110, "output_tokens": 2},
    ),
    Case(
        "CR line ends",
        [W(w.ms, w.data.replace(b"\n", b"\r")) for w in [*PLAIN, *TAIL]],
        {**OK, "first_token": 100, "last_token": 110, "output_tokens": 2},
    ),
    Case(
        "a byte order mark first",
        [W(100, b"\xef\xbb\xbf" + txt("a")), W(110, txt("b")), *TAIL],
        {**OK, "first_token": 100, "output_chunks": 2},
    ),
    Case(
        "P28 one event over several data lines",
        [
            W(100, b'data: {\ndata: "choices": [{"delta":\ndata: {"content": "a"}}]\ndata: }\n\n'),
            W(110, txt("b")),
            *TAIL,
        ],
        {**OK, "first_token": 100, "output_chunks": 2},
    ),
    Case(
        "P30 line separators that are none in SSE",
        [W(100, txt("a\u2028b")), W(110, txt("c\u0085d\u2029")), *TAIL],
        {**OK, "output_chunks": 2, "parse_errors": 0},
    ),
    Case(
        "P33 C10 comments and pings between events",
        [*spaced(0, 200, [b": ping\n\n"] * 10), W(2100, txt("a")), W(2110, b":\n\n"), W(2120, txt("b")), *TAIL],
        {**OK, "first_token": 2100, "last_token": 2120, "output_chunks": 2},
    ),
    Case(
        "P34 several events in one write",
        [W(100, txt("a") + txt("b") + txt("c") + txt("d")[:30]), W(140, txt("d")[30:]), *TAIL],
        {**OK, "first_token": 100, "last_token": 140, "output_chunks": 4, "coalesced": 2},
        flags=Flag.COALESCED,
    ),
    Case(
        "P36 the last event has no line end",
        [*PLAIN, W(120, fin()), W(121, use(10, 5)[:-2])],
        {**OK, "output_tokens": 5, "input_tokens": 10},
        flags=Flag.UNTERMINATED_TAIL | Flag.NO_DONE,
    ),
    Case(
        "P37 C11 cut without any end",
        spaced(10, 10, [txt("t")] * 5),
        {"status": Status.TRUNCATED, "output_chunks": 5},
        clean=False,
    ),
    Case(
        "a proper end of the body, but none of the answer",
        spaced(10, 10, [txt("t")] * 5),
        {"status": Status.TRUNCATED, "output_chunks": 5},
    ),
    Case(
        "cut although every chunk carried usage",
        spaced(10, 10, [txt("t", usage=counts(5, k + 1)) for k in range(5)]),
        {"status": Status.TRUNCATED, "output_chunks": 5},
        clean=False,
    ),
    Case(
        "P37 a finish reason without the end marker",
        [*PLAIN, W(120, fin()), W(121, use(5, 2))],
        {**OK, "output_chunks": 2},
        clean=False,
        flags=Flag.NO_DONE,
    ),
    *(
        Case(
            f"P38 C08 an error inside a 200 stream ({label})",
            [*spaced(10, 10, [txt("t")] * 3), W(50, error), W(60, DONE)],
            {"status": Status.STREAM_ERROR, "error": text, "output_chunks": 3},
        )
        for label, error, text in (
            ("object", event({"error": {"message": "oom", "code": 500}}), "oom (500)"),
            ("beside empty choices", event({"choices": [], "error": {"message": "oom"}}), "oom"),
            ("text", event({"error": "out of memory"}), "out of memory"),
            ("named", b'event: error\ndata: {"message": "gone"}\n\n', "gone"),
            ("P40 odd capitals, reason in a comment", b"event: Error\n: out of memory\ndata:\n\n", "out of memory"),
            ("P40 no data line", b"event: error\n: out of memory\n\n", "out of memory"),
            ("named, not JSON", b"event: error\ndata: it broke\n\n", "it broke"),
            ("P28 over two lines", b'event: error\ndata: {"error":\ndata: {"message": "oom"}}\n\n', "oom"),
        )
    ),
    Case(
        "context overflow inside the stream",
        [W(10, event({"error": {"message": "maximum context length is 10 tokens"}})), W(20, DONE)],
        {"status": Status.CONTEXT_OVERFLOW, "output_chunks": 0},
    ),
    Case(
        "P42 one unreadable chunk",
        [
            *spaced(10, 10, [txt("t")] * 4),
            W(50, b'data: {"choices":[{"delta":\n\n'),
            *spaced(60, 10, [txt("t")] * 4),
            W(100, fin()),
            W(101, use(5, 9)),
            W(102, DONE),
        ],
        {**OK, "parse_errors": 1, "output_chunks": 8, "output_tokens": 9},
        flags=Flag.PARSE_ERROR,
    ),
    Case(
        "invalid UTF-8 inside a text",
        [W(10, txt("t")), W(20, txt("u").replace(b'"u"', b'"\xff"')), W(30, fin()), W(31, use(5, 2)), W(32, DONE)],
        {**OK, "parse_errors": 1, "output_chunks": 1},
        flags=Flag.PARSE_ERROR,
    ),
    Case(
        "P43 ids, retry hints and event names between",
        [W(w.ms, b"id: 7\nevent: message\nretry: 3000\n" + w.data) for w in [*PLAIN, *TAIL]],
        {**OK, "first_token": 100, "last_token": 110, "output_tokens": 2},
    ),
    Case(
        "P44 a forced length that was not delivered",
        [*spaced(10, 10, [txt("t")] * 10), W(120, fin()), W(121, use(100, 10)), W(122, DONE)],
        {"status": Status.STREAM_ERROR, "error": "short output: 10 of 1024 forced tokens", "output_tokens": 10},
        forced=1024,
        flags=Flag.SHORT_OUTPUT,
    ),
    Case(
        "P44 the same, not forced",
        [*spaced(10, 10, [txt("t")] * 10), W(120, fin()), W(121, use(100, 10)), W(122, DONE)],
        {**OK, "output_tokens": 10, "finish": Finish.STOP},
    ),
    Case(
        "a token short of a forced length is flagged, not failed",
        [*spaced(10, 1, [txt("t")] * 99), W(120, fin("length")), W(121, use(100, 99)), W(122, DONE)],
        {**OK, "output_tokens": 99},
        forced=100,
        flags=Flag.SHORT_OUTPUT,
    ),
    Case(
        "the text completion's dialect",
        [
            W(10, event({"choices": [{"index": 0, "text": " a", "finish_reason": None}], "usage": None})),
            W(20, event({"choices": [{"index": 0, "text": " b", "finish_reason": None}], "usage": None})),
            W(30, event({"choices": [{"index": 0, "text": " c", "finish_reason": "length"}]})),
            W(31, use(5, 3)),
            W(32, DONE),
        ],
        {**OK, "output_chunks": 3, "last_token": 30, "first_text": 10},
    ),
    Case(
        "texts with escapes, quotes and braces between learned ones",
        [
            *spaced(10, 10, [txt(t) for t in ("a", "b", 'say "hi"', "}]}\n\n", "data: {", "\\", "é", " ", "c")]),
            W(120, fin()),
            W(121, use(5, 9)),
            W(122, DONE),
        ],
        {**OK, "output_chunks": 9, "last_token": 90},
    ),
    Case(
        "a text that looks like another field",
        [
            *spaced(10, 10, [txt("a"), txt('","finish_reason":"stop'), txt("b")]),
            W(120, fin("length")),
            W(121, use(5, 3)),
            W(122, DONE),
        ],
        {**OK, "output_chunks": 3, "finish": Finish.LENGTH},
    ),
    Case(
        "an empty text that opens and closes like a learned frame",
        [
            W(10, txt("a")),
            W(20, chunk({"content": "", "role": "assistant"})),
            W(30, chunk({"content": "", "note": "x"})),
            W(40, txt("b")),
            *TAIL,
        ],
        {**OK, "output_chunks": 2, "first_token": 10, "last_token": 40},
    ),
    Case(
        "the last token's chunk carries the finish reason",
        [W(10, txt("a")), W(20, txt("b")), W(30, chunk({"content": "c"}, "length")), W(31, use(5, 3)), W(32, DONE)],
        {**OK, "output_chunks": 3, "last_token": 30, "finish": Finish.LENGTH},
    ),
    Case(
        "JSON that is no chunk",
        [W(10, event("null")), W(11, event("[1, 2]")), W(12, event({"choices": "x", "usage": 7})), *PLAIN, *TAIL],
        {**OK, "output_chunks": 2},
    ),
    Case(
        "numbers that are no counts",
        [
            *PLAIN,
            W(120, fin()),
            W(121, event({"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": "2"}})),
            W(122, DONE),
        ],
        {**OK, "input_tokens": None, "output_tokens": None},
        flags=Flag.NO_USAGE,
    ),
    *ODD_CASES,
]
