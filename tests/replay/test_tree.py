"""Whole sessions through tree and prompt: exact sizes, text that only grows, blocks that mean the same text."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.causes import TreeRules
from replay.chat_shape import ChatShape
from replay.corpus import Corpus, builtin_path
from replay.live_tree import LiveTree
from replay.messages import Frames
from replay.plan import Selection, make_plan
from replay.tree import ASSISTANT, ASSISTANT_CALL, SYSTEM, TOOL, USER, Message, Step, common_tokens, compile_tree
from replay.words import Phrasebook, WordTable
from tests.replay.corpora import row, write_corpus

WORDS = WordTable(tuple(f" {a}{b}{c}d" for a in "abcdef" for b in "aeiou" for c in "lmnr"))
BOOK = Phrasebook(WORDS)
SHAPE = ChatShape(constant=3, system=4, user=5, assistant=6, tool=7, assistant_call=21)
NO_TOOLS = ChatShape(constant=3, system=4, user=5, assistant=6)


def chain(step: Step) -> list[Message]:
    out: list[Message] = []
    message = step.last
    while message is not None:
        out.append(message)
        message = message.previous
    return out[::-1]


def live(corpus: Corpus, session: int, shape: ChatShape = SHAPE, *, share: bool = True, salt: str = "run") -> LiveTree:
    rows = list(range(int(corpus.session_row[session]), int(corpus.session_row[session + 1])))
    tree = compile_tree(corpus, session, rows, shape, TreeRules())
    return LiveTree(
        tree, 0, BOOK, salt, f"{corpus.session_ids[session]}/0", "trace" if share else "none", None, Frames()
    )


def messages(body: bytes | bytearray) -> list[dict[str, Any]]:
    decoded: list[dict[str, Any]] = json.loads(b"[" + bytes(body) + b"]")
    return decoded


def role_of(message: dict[str, Any]) -> str:
    return ASSISTANT_CALL if "tool_calls" in message else str(message["role"])


def counted(body: bytes | bytearray, shape: ChatShape) -> int:
    """Prompt tokens as a server with this template and these words counts them."""
    return shape.tokens([(role_of(m), len(m["content"]) // WORDS.width) for m in messages(body)])


def check_session(corpus: Corpus, session: int, shape: ChatShape) -> None:
    tree = live(corpus, session, shape)
    bodies: dict[int, list[dict[str, Any]]] = {}
    for step in tree.tree.steps:
        tree.theoretical_cached(step)
        body = tree.render(step).body
        assert counted(body, shape) == step.input_tokens
        minimum = shape.constant + shape.user + 1
        assert step.input_tokens == max(step.recorded_input, minimum)
        mine = bodies[step.index] = messages(body)
        roles = [role_of(m) for m in mine]
        assert roles[-1] in (USER, TOOL)
        assert all(m["content"] for m in mine)
        for before, after in pairwise(roles):
            assert (before == ASSISTANT_CALL) == (after == TOOL)
            assert after != SYSTEM
        if step.extends >= 0:
            base = bodies[step.extends]
            assert mine[: len(base) - 1] == base[:-1]
            assert mine[len(base) - 1]["content"].startswith(base[-1]["content"])
        tree.finished(step)


def test_every_session_of_the_shipped_corpus() -> None:
    corpus = Corpus.load(builtin_path())
    for session in range(len(corpus.session_ids)):
        for shape in (SHAPE, NO_TOOLS):
            check_session(corpus, session, shape)


def test_sessions_of_a_real_corpus(weka: Corpus) -> None:
    for session in range(0, len(weka.session_ids), 40):
        check_session(weka, session, SHAPE)


def test_real_prompts_extend_as_the_trace_does(weka: Corpus) -> None:
    """Where the recorded blocks of a turn continue the previous prompt, so does ours, but for rounding by blocks."""
    extended = continued = 0
    for session in range(0, len(weka.session_ids), 10):
        tree = live(weka, session).tree
        for before, after in pairwise(tree.steps):
            if before.lane == after.lane and common_tokens(before, after) >= before.recorded_input:
                continued += 1
                extended += after.extends == before.index
    assert continued > 1000
    assert extended == continued


def shared_prefix(a: bytes, b: bytes) -> int:
    low = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        low += 1
    return low


def text_of(body: bytes | bytearray) -> bytes:
    return "".join(m["content"] for m in messages(body)).encode()


@st.composite
def sessions(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A session whose prompts grow, shrink, diverge and grow again, with partial tails."""
    ids: list[int] = []
    rows: list[dict[str, Any]] = []
    next_id, clock = 0, 0.0
    tokens = draw(st.integers(1, 300))
    for turn in range(draw(st.integers(1, 8))):
        blocks = tokens // 16
        ids = ids[:blocks]
        while len(ids) < blocks:
            ids.append(next_id)
            next_id += 1
        out = draw(st.integers(0, 60))
        rows.append(row(turn=turn, start_s=clock, input_tokens=tokens, output_tokens=out, ids=list(ids), block_size=16))
        clock += 1.0
        kind = draw(st.sampled_from(["grow", "grow", "grow", "same", "shrink", "diverge"]))
        if kind == "grow":
            tokens += draw(st.integers(0, 120))
        elif kind in ("shrink", "diverge"):
            ids = ids[: draw(st.integers(0, len(ids)))]
            tokens = max(
                1, len(ids) * 16 + (draw(st.integers(0, 200)) if kind == "diverge" else draw(st.integers(0, 15)))
            )
    return rows


@settings(max_examples=150, deadline=None)
@given(sessions())
def test_any_session_is_exact_and_as_common_as_its_blocks(rows: list[dict[str, Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder) / "c.parquet", [rows])
    for shape in (SHAPE, NO_TOOLS):
        check_session(corpus, 0, shape)
    tree = live(corpus, 0)
    texts: list[tuple[Step, bytes]] = []
    for step in tree.tree.steps:
        body = tree.render(step).body
        for earlier, text in texts:
            common = common_tokens(earlier, step)
            words = shared_prefix(text, text_of(body)) // WORDS.width
            overhead = SHAPE.constant + sum(message.text_start - message.start for message in chain(step))
            # A prompt that ends inside the template's share of a message can't keep that message.
            kept = max((m.start for m in chain(earlier) if m.role == ASSISTANT and m.start <= common), default=common)
            assert words >= min(common, kept) - overhead
        texts.append((step, text_of(body)))


def test_a_partial_tail_is_continued_not_rewritten(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, input_tokens=100, output_tokens=10, ids=[1], block_size=64),
                row(turn=1, start_s=9, input_tokens=200, output_tokens=10, ids=[1, 2, 3], block_size=64),
            ]
        ],
    )
    tree = live(corpus, 0)
    first, second = tree.tree.steps
    assert first.tail_block == 2
    assert second.extends == 0
    before = messages(tree.render(first).body)
    assert messages(tree.render(second).body)[:1] == before


def test_a_tail_that_spans_several_turns_is_one_block(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, input_tokens=70, output_tokens=1, ids=[1], block_size=64),
                row(turn=1, start_s=1, input_tokens=100, output_tokens=1, ids=[1], block_size=64),
                row(turn=2, start_s=2, input_tokens=130, output_tokens=1, ids=[1, 2], block_size=64),
            ]
        ],
    )
    assert [step.tail_block for step in live(corpus, 0).tree.steps] == [2, 2, None]
    check_session(corpus, 0, SHAPE)


def test_hashed_partial_blocks_do_not_break_the_prefix(tmp_path: Path) -> None:
    """Some recorders hash the partial block too: its id changes when it fills up, the text must not."""
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, input_tokens=100, output_tokens=10, ids=[1, 77], block_size=64),
                row(turn=1, start_s=9, input_tokens=200, output_tokens=10, ids=[1, 2, 3, 78], block_size=64),
            ]
        ],
    )
    assert live(corpus, 0).tree.steps[1].extends == 0


def test_trees_share_nothing_but_the_head_the_trace_says(tmp_path: Path) -> None:
    def session(name: str, tools: int) -> list[dict[str, Any]]:
        ids = list(range(20))
        common = {"tool_tokens": tools, "system_tokens": 64}
        return [row(session_id=name, turn=0, start_s=0, input_tokens=1280, output_tokens=1, ids=ids, **common)]

    corpus = write_corpus(tmp_path / "c.parquet", [session("a", 448), session("b", 448), session("c", 512)])
    texts = [text_of(live(corpus, s).render(live(corpus, s).tree.steps[0]).body) for s in range(3)]
    rendered = []
    for s in range(3):
        tree = live(corpus, s)
        rendered.append(text_of(tree.render(tree.tree.steps[0]).body))
    assert rendered == texts  # the same on every machine, every time
    a, b, c = rendered
    head_words = 512 - SHAPE.constant - SHAPE.system
    assert shared_prefix(a, b) // WORDS.width in range(head_words, head_words + 8)
    assert shared_prefix(a, c) // WORDS.width < 16
    alone = [live(corpus, s, share=False) for s in range(2)]
    a, b = (text_of(tree.render(tree.tree.steps[0]).body) for tree in alone)
    assert shared_prefix(a, b) // WORDS.width < 16


def test_a_server_without_system_messages_gets_none() -> None:
    corpus = Corpus.load(builtin_path())
    shape = ChatShape(constant=3, system=0, user=5, assistant=6, takes_system=False)
    check_session(corpus, 0, shape)
    tree = live(corpus, 0, shape)
    assert {m["role"] for m in messages(tree.render(tree.tree.steps[3]).body)} == {"user", "assistant"}


def test_another_salt_is_another_text() -> None:
    corpus = Corpus.load(builtin_path())
    one, two = live(corpus, 0, salt="one"), live(corpus, 0, salt="two")
    step = one.tree.steps[0]
    assert shared_prefix(text_of(one.render(step).body), text_of(two.render(step).body)) // WORDS.width < 16


def test_fan_out_and_join_follow_the_recording(tmp_path: Path) -> None:
    child: dict[str, Any] = {"lane_id": "a1", "parent_lane_id": "main", "spawn_turn": 0, "join_turn": 2}
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, api_s=2, input_tokens=64, output_tokens=1, ids=[1]),
                row(turn=1, start_s=5, api_s=1, input_tokens=128, output_tokens=1, ids=[1, 2]),
                row(turn=2, start_s=30, api_s=1, input_tokens=192, output_tokens=1, ids=[1, 2, 3]),
                row(turn=0, start_s=3, api_s=4, input_tokens=64, output_tokens=1, ids=[9], **child),
                row(turn=1, start_s=8, api_s=4, input_tokens=128, output_tokens=1, ids=[9, 10], **child),
            ]
        ],
    )
    steps = live(corpus, 0).tree.steps
    by_place = {(corpus.lane_names[s.lane], s.turn): s for s in steps}
    assert by_place["a1", 0].after == (by_place["main", 0].index,)
    assert by_place["a1", 0].delay_s == pytest.approx(1.0)
    assert set(by_place["main", 2].after) == {by_place["main", 1].index, by_place["a1", 1].index}
    # Its pause counts from its own lane's turn (that ended at 6 s); the child is a barrier without a pause.
    assert by_place["main", 2].anchor == by_place["main", 1].index
    assert by_place["main", 2].delay_s == pytest.approx(24.0)
    assert by_place["main", 1].after == (by_place["main", 0].index,)


def test_a_request_of_unknown_duration_ends_when_it_begins_whatever_the_think_time_says(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, api_s=None, input_tokens=64, output_tokens=1, ids=[1]),
                row(turn=1, start_s=50, think_s=83.0, input_tokens=128, output_tokens=1, ids=[1, 2]),
                row(turn=2, start_s=70, input_tokens=192, output_tokens=1, ids=[1, 2, 3]),
            ]
        ],
    )
    assert [step.delay_s for step in live(corpus, 0).tree.steps] == [0.0, 50.0, 20.0]


def test_theoretical_hits_are_those_of_an_infinite_cache(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, input_tokens=128, output_tokens=1, ids=[1, 2]),
                row(turn=1, start_s=1, input_tokens=200, output_tokens=1, ids=[1, 2, 3]),
                row(turn=2, start_s=2, input_tokens=200, output_tokens=1, ids=[1, 9, 8]),
                row(turn=3, start_s=3, input_tokens=192, output_tokens=1, ids=[1, 2, 3]),
            ]
        ],
    )
    tree = live(corpus, 0)
    assert [tree.theoretical_cached(step) for step in tree.tree.steps] == [0, 128, 64, 128]


def test_context_limit_ends_lanes_and_drops_orphans(tmp_path: Path) -> None:
    child: dict[str, Any] = {"lane_id": "a1", "parent_lane_id": "main", "spawn_turn": 1, "join_turn": None}
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(session_id="long", turn=0, start_s=0, input_tokens=64, output_tokens=1, ids=[1]),
                row(session_id="long", turn=1, start_s=1, input_tokens=640, output_tokens=1, ids=list(range(10))),
                row(session_id="long", turn=2, start_s=2, input_tokens=64, output_tokens=1, ids=[1]),
                row(session_id="long", turn=0, start_s=1.5, input_tokens=64, output_tokens=1, ids=[1], **child),
            ],
            [row(session_id="huge", turn=0, start_s=0, input_tokens=6400, output_tokens=1, ids=list(range(100)))],
            [row(session_id="ok", turn=0, start_s=0, input_tokens=64, output_tokens=1, ids=[1])],
        ],
    )
    plan = make_plan(corpus, Selection(concurrency=1, max_context=300))
    assert plan.requests == 2
    assert sorted(corpus.session_ids[s] for s in plan.order.tolist()) == ["long", "ok"]
    assert plan.dropped == {
        "requests beyond the context limit (their lane ends there)": 4,
        "sessions with no request within the context limit": 1,
    }
    assert plan.digest != make_plan(corpus, Selection(concurrency=1)).digest
