"""Histories of what the server really said: kept from streams, put into prompts, counted and accounted for."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from replay.causes import TreeRules
from replay.chat_shape import ChatShape
from replay.corpus import Corpus, builtin_path
from replay.live_tree import LiveTree
from replay.messages import Frames, NoFrames
from replay.spoken import KeptAnthropic, KeptChat, Spoken, spoken_ids, spoken_text
from replay.stream import AnswerStream
from replay.tree import Step, compile_tree
from replay.words import Phrasebook, WordTable

WORDS = WordTable(tuple(f" {a}{b}{c}d" for a in "abcdef" for b in "aeiou" for c in "lmnr"))
BOOK = Phrasebook(WORDS)
IDS = WordTable.of_ids([7 + 13 * k for k in range(120)])
HEADER, FOOTER = ("<", ">"), ("/",)
SHAPE = ChatShape(constant=3, system=3, user=3, assistant=3, tool=3, assistant_call=3)
"""One BOS and the header of the answer; every message has a header of two tokens and a footer of one."""
NO_SHAPE = ChatShape(constant=0, system=0, user=0, assistant=0, tool=0, assistant_call=0)


def live_tree(corpus: Corpus, session: int, *, ids: bool) -> LiveTree:
    rows = list(range(int(corpus.session_row[session]), int(corpus.session_row[session + 1])))
    tree = compile_tree(corpus, session, rows, NO_SHAPE if ids else SHAPE, TreeRules(tools=False))
    book, frames = (Phrasebook(IDS), NoFrames()) if ids else (BOOK, Frames())
    return LiveTree(tree, 0, book, "run", f"{session}/0", "none", 1, frames, keeps_answers=True)


def tokens_of(body: bytes, *, ids: bool) -> list[str]:
    """What a server makes of a prompt."""
    if ids:
        return [str(number) for number in json.loads(b"[" + body[1:] + b"]")]
    out = ["BOS"]
    for message in json.loads(b"[" + body + b"]"):
        role = "assistant" if message["role"] == "assistant" else message["role"]
        out += [HEADER[0] + role, HEADER[1], *message["content"].split(), FOOTER[0]]
    return [*out, HEADER[0] + "assistant", HEADER[1]]


def answer(rng: random.Random, step: Step, *, ids: bool) -> tuple[Spoken, list[str]]:
    """An answer of about the recorded length, now and then far from it."""
    size = rng.choice([step.output_tokens, step.output_tokens, 1 + step.output_tokens // 2, 3 * step.output_tokens])
    if ids:
        numbers = [rng.randrange(10_000, 99_999) for _ in range(size)]
        return Spoken(b"".join(b",%d" % n for n in numbers), size, True), [str(n) for n in numbers]
    said = [f"said{rng.randrange(10**6)}" for _ in range(size)]
    return spoken_text("".join(f" {word}" for word in said), size, size), said


def common(a: list[str], b: list[str]) -> int:
    low = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        low += 1
    return low


@pytest.mark.parametrize("ids", [False, True])
def test_prompts_count_what_they_say_and_theory_is_what_they_share(ids: bool) -> None:
    """The length of every prompt is the planned one plus what `excess` says; the theoretical hits are the longest
    prefix in common with anything sent or generated before, template tokens of one message apart."""
    corpus = Corpus.load(builtin_path())
    check_sessions(corpus, range(0, len(corpus.session_ids), 8), ids=ids)


def test_real_sessions_too(weka: Corpus) -> None:
    """They cut histories in the middle of an answer, which synthetic ones do not."""
    peaks = [int(weka.input_tokens[weka.session_row[k] : weka.session_row[k + 1]].max()) for k in range(650)]
    check_sessions(weka, [k for k, peak in enumerate(peaks) if peak < 30_000][:50], ids=False)


def check_sessions(corpus: Corpus, sessions: Iterable[int], *, ids: bool) -> None:
    rng = random.Random(1)
    spoke = over = 0
    for session in sessions:
        tree = live_tree(corpus, session, ids=ids)
        before: list[list[str]] = []
        for step in tree.tree.steps:
            theory = tree.theoretical_cached(step)
            conversation = tree.render(step)
            prompt = tokens_of(bytes(conversation.body), ids=ids)
            assert len(prompt) == step.input_tokens + conversation.excess
            truth = max((common(prompt, other) for other in before), default=0)
            truth = min(truth, len(prompt) - 1)
            assert truth - 3 - conversation.excess <= theory <= truth + 3, (session, step.index, theory, truth)
            spoke += tree.speaks(step)
            over += conversation.excess > 0
            spoken, said = answer(rng, step, ids=ids)
            before.append(prompt + said[:-1])
            tree.said(step, spoken)
            tree.finished(step)
    assert spoke > 50
    assert over


def test_once_a_prompt_had_the_recorded_words_all_have() -> None:
    """A sub-agent may start from a conversation whose newest answer is not there yet."""
    corpus = Corpus.load(builtin_path())
    tree = live_tree(corpus, 0, ids=False)
    first, second = tree.tree.steps[0], tree.tree.steps[1]
    tree.render(first)
    recorded = bytes(tree.render(second).body)
    tree.said(first, spoken_text(" late", 1, 1))
    assert bytes(tree.render(second).body) == recorded
    assert not tree.speaks(second)


def feed(stream: AnswerStream, *events: dict[str, Any]) -> AnswerStream:
    for event in events:
        stream.feed(b"data: " + json.dumps(event).encode() + b"\n\n", 1)
    stream.feed(b"data: [DONE]\n\n", 2)
    stream.end(3, clean=True)
    return stream


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **more}]}


def test_every_chunk_of_a_kept_answer_is_read() -> None:
    """Frames are learned after the first chunk elsewhere; here the text would be lost."""
    pieces = [" a", ' "b"', "\n", "é", "\ud83d", "\ude00"]
    stream = feed(KeptChat(), *(chat(text) for text in pieces), chat("", finish_reason="stop"))
    assert stream.kept is not None
    assert stream.kept.text == pieces
    assert stream.output_chunks == len(pieces)
    encoded = spoken_text("".join(pieces), 6, 6).encoded
    assert json.loads(b'"' + encoded + b'"') == ' a "b"\né😀'


def test_reasoning_is_kept_apart() -> None:
    stream = feed(KeptChat(), {"choices": [{"delta": {"reasoning_content": "hm"}}]}, chat("yes", finish_reason="stop"))
    assert stream.kept is not None
    assert (stream.kept.text, stream.kept.reasoning) == (["yes"], ["hm"])
    thinking = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}
    text = {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "yes"}}
    stream = feed(KeptAnthropic(), thinking, text, {"type": "message_stop"})
    assert stream.kept is not None
    assert (stream.kept.text, stream.kept.reasoning) == (["yes"], ["hm"])


def completion(*ids: int) -> dict[str, Any]:
    return {"choices": [{"text": "x", "token_ids": list(ids)}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}


def test_token_ids_are_used_as_generated_or_not_at_all() -> None:
    whole = feed(KeptChat(), completion(5), completion(6, 700), usage(3))
    assert spoken_ids(whole) == Spoken(b",5,6,700", 3, True)
    assert spoken_ids(feed(KeptChat(), completion(5), usage(2))) is None
    assert spoken_ids(feed(KeptChat(), chat("text only"), usage(1))) is None


def test_text_that_counts_otherwise_than_generated_is_no_cache_entry() -> None:
    assert spoken_text("a", 2, 2).cacheable
    assert not spoken_text("a", 2, 3).cacheable
    assert not spoken_text("a", 2, None).cacheable
