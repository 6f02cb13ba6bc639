"""SGLang's native stream: the whole text again in every event, or only what is new."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.frames import decode
from replay.stream import AnswerStream
from replay.stream_generate import GenerateStream
from results.records import Finish, Flag, Status
from tests.replay.reference_stream import held

DONE = b"data: [DONE]\n\n"
LENGTH = {"type": "length", "length": 3}


class WholeDecode(GenerateStream):
    """The same parser without its short cut."""

    def _decode(self, data: bytes) -> Any:
        return decode(data)


def event(text: str | None, tokens: int, *, spaces: bool = False, finish: Any = None, **meta: Any) -> bytes:
    fields: dict[str, Any] = {} if text is None else {"text": text}
    fields |= {"output_ids": list(range(tokens))}
    said = {"id": "r1", "finish_reason": finish, "prompt_tokens": 50, "completion_tokens": tokens, "cached_tokens": 32}
    separators = (", ", ": ") if spaces else (",", ":")
    data = json.dumps({**fields, "meta_info": {**said, **meta}}, ensure_ascii=False, separators=separators)
    return f"data: {data}\n\n".encode()


def read(parts: list[bytes], *, step: int | None = None, forced: int | None = None, clean: bool = True) -> AnswerStream:
    stream = GenerateStream(forced)
    for k, part in enumerate(parts):
        for low in range(0, len(part), step or len(part)):
            stream.feed(part[low : low + (step or len(part))], k)
    stream.end(len(parts), clean)
    return stream


WHOLE = [event("a", 1), event("a b", 2), event("a b c", 3, finish=LENGTH), DONE]


@pytest.mark.parametrize("step", [None, 1, 7])
def test_repeated_text_is_three_tokens(step: int | None) -> None:
    s = read(WHOLE, step=step, forced=3)
    assert (s.status, s.finish, s.done_marker, s.flags) == (Status.OK, Finish.LENGTH, True, 0)
    assert (s.input_tokens, s.cached_tokens, s.output_tokens, s.reasoning_tokens) == (50, 32, 3, None)
    assert list(s.chunk_times) == [0, 1, 2]
    assert (s.first_text_ns, s.first_chunk_tokens) == (0, 1)


def test_new_text_only_is_the_same() -> None:
    s = read([event("a", 1), event(" b", 2), event(" c", 3, finish=LENGTH), DONE], forced=3)
    assert held(s) == held(read(WHOLE, forced=3))


def test_p10_several_tokens_in_one_event_are_one_chunk() -> None:
    s = read(
        [event("a b", 2), event("a b c d e", 5), event("a b c d e", 5, finish={"type": "stop", "matched": 7}), DONE]
    )
    assert (s.output_tokens, s.output_chunks, s.first_chunk_tokens, s.finish) == (5, 2, 2, Finish.STOP)
    assert s.status is Status.OK


@pytest.mark.parametrize("spaces", [False, True])
def test_half_a_character_is_a_token_without_text(spaces: bool) -> None:
    s = read([event("", 1, spaces=spaces), event("é", 2, spaces=spaces), DONE])
    assert (s.first_token_ns, s.first_text_ns, s.output_chunks) == (0, 1, 2)


def test_ids_without_text_are_tokens() -> None:
    s = read([event(None, 1), event(None, 2, finish=LENGTH), DONE])
    assert (s.first_text_ns, s.output_chunks) == (0, 2)


@pytest.mark.parametrize("step", [None, 1])
@pytest.mark.parametrize("clean", [True, False])
def test_p37_no_end_is_truncated(step: int | None, clean: bool) -> None:
    s = read(WHOLE[:2], step=step, clean=clean)
    assert (s.status, s.output_chunks, s.output_tokens) == (Status.TRUNCATED, 2, 2)


def test_p36_an_end_without_its_newline_is_taken_and_flagged() -> None:
    s = read([*WHOLE[:2], WHOLE[2].rstrip()])
    assert (s.status, s.output_tokens) == (Status.OK, 3)
    assert s.flags == Flag.UNTERMINATED_TAIL | Flag.NO_DONE


@pytest.mark.parametrize("step", [None, 1])
def test_p38_an_error_inside_the_stream_outlives_done(step: int | None) -> None:
    s = read([WHOLE[0], b'data: {"error":{"message":"out of memory"}}\n\n', DONE], step=step)
    assert (s.status, s.error, s.output_chunks) == (Status.STREAM_ERROR, "out of memory", 1)


def test_a_prompt_too_long_is_refused_inside_a_200() -> None:
    words = "The input (9000 tokens) is longer than the model's context length (8192 tokens)."
    s = read([b'data: {"error":{"message":"%b"}}\n\n' % words.encode(), DONE])
    assert (s.status, s.error) == (Status.CONTEXT_OVERFLOW, words)


def test_an_abort_is_no_short_success() -> None:
    s = read([WHOLE[0], event("a", 1, finish={"type": "abort", "message": "queue is full", "status_code": 503}), DONE])
    assert (s.status, s.error, s.finish) == (Status.STREAM_ERROR, "queue is full", Finish.ABORT)
    s = read([WHOLE[0], event("a", 1, finish="abort"), DONE])
    assert s.status is Status.STREAM_ERROR


def test_p44_far_too_few_tokens_have_failed() -> None:
    s = read(WHOLE, forced=30)
    assert (s.status, s.error) == (Status.STREAM_ERROR, "short output: 3 of 30 forced tokens")


@pytest.mark.parametrize("text", ['say "meta_info":{"completion_tokens":9}', '"meta_info', '\\"meta_info":', "\\"])
def test_text_that_looks_like_counts(text: str) -> None:
    s = read([event(text, 1), event(text + text, 2, finish=LENGTH), DONE])
    assert (s.status, s.output_tokens, s.parse_errors) == (Status.OK, 2, 0)


def test_p42_an_event_that_is_no_json_is_counted() -> None:
    s = read([WHOLE[0], b'data: {"text":"a b","meta_info":{"completion_tok\n\n', *WHOLE[2:]])
    assert (s.status, s.parse_errors, s.output_tokens, s.flags) == (Status.OK, 1, 3, Flag.PARSE_ERROR)


def test_counts_that_cannot_be_are_not_taken() -> None:
    s = read([event("a", 1, cached_tokens=-1, prompt_tokens="many"), event("a b", 2, cached_tokens=None), DONE])
    assert (s.input_tokens, s.cached_tokens, s.output_tokens) == (50, None, 2)


@given(
    st.lists(st.tuples(st.text(max_size=12), st.integers(0, 3)), max_size=8),
    st.booleans(),
    st.integers(1, 64),
    st.sampled_from([None, LENGTH, "stop", {"type": "abort", "message": "gone"}]),
)
def test_the_short_cut_reads_what_the_whole_says(
    steps: list[tuple[str, int]], spaces: bool, size: int, finish: Any
) -> None:
    text, tokens, body = "", 0, b""
    for more, grown in steps:
        text, tokens = text + more, tokens + grown
        body += event(text, tokens, spaces=spaces)
    body += event(text, tokens, spaces=spaces, finish=finish) + DONE
    streams: list[AnswerStream] = [GenerateStream(), WholeDecode()]
    for stream in streams:
        for k, low in enumerate(range(0, len(body), size)):
            stream.feed(body[low : low + size], k)
        stream.end(10_000, clean=True)
    assert held(streams[0]) == held(streams[1])
