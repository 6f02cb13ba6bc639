"""The corpus file: round trip, digest, bad files, statistics, the generator."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay.corpus import METADATA_KEY, Corpus, CorpusWriter, builtin_path
from replay.corpus_stats import corpus_stats, infinite_cache_hits
from replay.synth import BUILTIN_SEED, BUILTIN_SESSIONS, write_synthetic
from results.errors import UserError
from tests.replay.corpora import row, write_corpus


def test_what_is_written_is_read(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(session_id="a", turn=0, start_s=0.5, input_tokens=200, output_tokens=3, ids=[1, 2, 9], model="m"),
                row(session_id="a", turn=0, start_s=1.0, input_tokens=64, output_tokens=0, ids=[], lane_id="x")
                | {"parent_lane_id": "main", "spawn_turn": 0, "streamed": True, "input_kinds": None},
            ],
            [row(session_id="b", turn=0, start_s=0.0, input_tokens=64, output_tokens=1, ids=[5], think_s=2.5)],
        ],
    )
    assert corpus.session_ids == ["a", "b"]
    assert corpus.session_row.tolist() == [0, 2, 3]
    assert [corpus.lane_names[k] for k in corpus.lane] == ["main", "x", "main"]
    assert corpus.parent_lane.tolist() == [-1, 0, -1]
    assert corpus.join_turn.tolist() == [-1, -1, -1]
    assert corpus.run_offset.tolist() == [0, 2, 2, 3]
    assert list(zip(corpus.run_first.tolist(), corpus.run_count.tolist(), strict=True)) == [(1, 2), (9, 1), (5, 1)]
    assert corpus.streamed.tolist() == [-1, 1, -1]
    assert corpus.think_s[2] == 2.5
    assert np.isnan(corpus.think_s[0])
    assert corpus.model.tolist() == [0, -1, -1]
    assert [k >= 0 and corpus.input_kind_sets[k] for k in corpus.input_kinds] == [("text",), False, ("text",)]


def test_arrays_and_tables_are_the_whole_corpus() -> None:
    corpus = Corpus.load(builtin_path())
    again = Corpus.from_arrays(corpus.arrays(), json.loads(json.dumps(corpus.tables())))
    for field in dataclasses.fields(corpus):
        one, two = getattr(corpus, field.name), getattr(again, field.name)
        assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f") if isinstance(one, np.ndarray) else one == two


def test_the_digest_is_of_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(turn=k, start_s=float(k), input_tokens=64, output_tokens=1, ids=[k]) for k in range(5)]
    one = write_corpus(tmp_path / "1.parquet", [rows])
    monkeypatch.setattr(CorpusWriter, "ROWS_PER_GROUP", 2)
    two = write_corpus(tmp_path / "2.parquet", [rows])
    three = write_corpus(tmp_path / "3.parquet", [[*rows[:4], {**rows[4], "output_tokens": 2}]])
    assert one.digest == two.digest
    assert one.digest != three.digest


def test_a_failed_import_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> None:
        with CorpusWriter(tmp_path / "c.parquet", {}) as writer:
            writer.add_session([row(turn=0, start_s=0, input_tokens=1, output_tokens=1, ids=[])])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "no such file"),
        (lambda p: p.write_bytes(b""), "not a Parquet file"),
        (lambda p: p.write_bytes(b"PAR1 nonsense PAR1"), "not a Parquet file"),
        (lambda p: pq.write_table(pa.table({"x": [1]}), p), "not a corpus"),
        (lambda p: _with_meta(p, {"format": 99}), "format 99"),
        (lambda p: _with_meta(p, {"format": 1}), "no digest"),
        (lambda p: _with_meta(p, {"format": 1, "digest": "x"}), "no column session_id"),
    ],
)
def test_c32_bad_files_are_named(tmp_path: Path, make: object, words: str) -> None:
    path = tmp_path / "c.parquet"
    make(path)  # type: ignore[operator]
    with pytest.raises(UserError, match=words) as caught:
        Corpus.load(path)
    assert str(path) in caught.value.message


def _with_meta(path: Path, meta: dict[str, int | str]) -> None:
    table = pa.table({"x": [1]})
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({METADATA_KEY.decode(): json.dumps(meta)})


def test_infinite_cache_hits_are_contiguous_per_tree_and_in_time_order(tmp_path: Path) -> None:
    corpus = write_corpus(
        tmp_path / "c.parquet",
        [
            [
                row(turn=0, start_s=0, input_tokens=192, output_tokens=1, ids=[1, 2, 3]),
                row(turn=1, start_s=9, input_tokens=256, output_tokens=1, ids=[1, 2, 8, 3]),  # 3 is no prefix here
                row(turn=0, start_s=5, input_tokens=192, output_tokens=1, ids=[1, 2, 8], lane_id="a")
                | {"parent_lane_id": "main", "spawn_turn": 0},
            ],
            [row(session_id="z", turn=0, start_s=0, input_tokens=64, output_tokens=1, ids=[1])],
        ],
    )
    # in time order: 3 new; the child finds 1, 2; turn 1 finds 1, 2, 8; the other session finds nothing
    assert infinite_cache_hits(corpus) == (5, 11, 320)


def naive_hits(corpus: Corpus) -> tuple[int, int]:
    hit = whole = 0
    for s in range(len(corpus.session_ids)):
        seen: set[tuple[int, int]] = set()
        rows = range(int(corpus.session_row[s]), int(corpus.session_row[s + 1]))
        for r in sorted(rows, key=lambda r: (corpus.start_s[r], r)):
            ids: list[int] = []
            for k in range(int(corpus.run_offset[r]), int(corpus.run_offset[r + 1])):
                ids += range(int(corpus.run_first[k]), int(corpus.run_first[k] + corpus.run_count[k]))
            ids = ids[: int(corpus.input_tokens[r] // corpus.block_size[r])]
            whole += len(ids)
            for place, block in enumerate(ids):
                if (place, block) not in seen:
                    break
                hit += 1
            seen |= set(enumerate(ids))
    return hit, whole


def test_hits_of_the_shipped_corpus_equal_a_plain_computation() -> None:
    corpus = Corpus.load(builtin_path())
    assert infinite_cache_hits(corpus)[:2] == naive_hits(corpus)


def test_stats_are_strict_json_with_units() -> None:
    stats = corpus_stats(Corpus.load(builtin_path()))
    assert json.loads(json.dumps(stats, allow_nan=False)) == stats
    assert stats["sessions"] == BUILTIN_SESSIONS
    assert stats["subagents"] > 10
    assert 0.9 < stats["infinite_cache"]["hit_rate"] < 0.99


def test_the_shipped_corpus_is_what_its_seed_gives(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "c.parquet", seed=BUILTIN_SEED, sessions=BUILTIN_SESSIONS)
    shipped = Corpus.load(builtin_path())
    assert Corpus.load(tmp_path / "c.parquet").digest == shipped.digest
    assert builtin_path().stat().st_size < 60_000
    main = shipped.parent_lane < 0
    assert set(shipped.join_turn[~main].tolist()) - {-1}
    assert (shipped.run_count > 0).all()
    write_synthetic(tmp_path / "other.parquet", seed=8, sessions=3)
    assert Corpus.load(tmp_path / "other.parquet").digest != shipped.digest
