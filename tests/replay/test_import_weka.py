"""The weka importer: every container, both conventions of nested times, and everything a file can get wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.corpus import Corpus
from replay.importers import ImportReport, import_traces, sources
from replay.importers.decoded import Malformed
from replay.importers.weka import decode
from results.errors import UserError


def request(**fields: Any) -> dict[str, Any]:
    return {"t": 0.0, "type": "n", "model": "m", "in": 128, "out": 5, "hash_ids": [1, 2], **fields}


def trace(*requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": "t1", "block_size": 64, "hash_id_scope": "local", "requests": list(requests or [request()]), **fields}


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def bring_in(source: Path, *, strict: bool = False) -> tuple[Corpus, ImportReport]:
    output = source.parent / "corpus.parquet"
    report = import_traces(source, output, format_name="weka", strict=strict)
    return Corpus.load(output), report


TRACES = [trace(request(), request(t=3.0, **{"in": 200}, hash_ids=[1, 2, 3]), id=f"t{k}") for k in range(3)]


def folder(path: Path) -> Path:
    (path / "d" / "deep").mkdir(parents=True)
    for k, value in enumerate(TRACES):
        (path / "d" / ("deep" if k else "") / f"{k}.json").write_bytes(encode(value))
    (path / "d" / "readme.txt").write_text("not a trace")
    return path / "d"


def lines(path: Path) -> Path:
    (path / "t.jsonl").write_bytes(b"\n".join(map(encode, TRACES)))
    return path / "t.jsonl"


def packed(path: Path, name: str, pack: Callable[[bytes], bytes]) -> Path:
    (path / name).write_bytes(pack(b"\n".join(map(encode, TRACES))))
    return path / name


def zipped(path: Path) -> Path:
    with zipfile.ZipFile(path / "t.zip", "w") as archive:
        for k, value in enumerate(TRACES):
            archive.writestr(f"in/{k}.json", encode(value))
    return path / "t.zip"


def tarred(path: Path, name: str, pack: Callable[[bytes], bytes]) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for k, value in enumerate(TRACES):
            data = encode(value)
            info = tarfile.TarInfo(f"in/{k}.json")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    (path / name).write_bytes(pack(buffer.getvalue()))
    return path / name


zstd = zstandard.ZstdCompressor().compress


@pytest.mark.parametrize(
    "make",
    [
        folder,
        lines,
        lambda p: packed(p, "t.jsonl.gz", gzip.compress),
        lambda p: packed(p, "t.jsonl.zst", zstd),
        zipped,
        lambda p: tarred(p, "t.tar", bytes),
        lambda p: tarred(p, "t.tar.gz", gzip.compress),
        lambda p: tarred(p, "t.tgz", gzip.compress),
        lambda p: tarred(p, "t.tar.zst", zstd),
    ],
)
def test_every_container_gives_the_same_corpus(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    corpus, report = bring_in(make(tmp_path))
    assert (report.sessions, report.requests, report.skipped) == (3, 6, [])
    assert sorted(corpus.session_ids) == ["t0", "t1", "t2"]
    assert corpus.input_tokens.tolist() == [128, 200] * 3
    reference = tmp_path / "reference"
    reference.mkdir()
    assert corpus.digest == bring_in(lines(reference))[0].digest


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_single_json_file(tmp_path: Path, suffix: str) -> None:
    packers: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}
    (tmp_path / f"t.json{suffix}").write_bytes(packers[suffix](encode(TRACES[0])))
    assert bring_in(tmp_path / f"t.json{suffix}")[1].requests == 2


def subagent(t: float, *requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "subagent", "t": t, "agent_id": "a1", "status": "completed", "requests": list(requests), **fields}


@pytest.mark.parametrize("shift", [0.0, 10.0], ids=["relative", "absolute"])
def test_both_conventions_of_nested_times(tmp_path: Path, shift: float) -> None:
    child = [request(t=0.5 + shift, api_time=2.0), request(t=4.0 + shift, api_time=3.0, hash_ids=[1, 9])]
    value = trace(
        request(t=0.0, api_time=9.0), subagent(10.0, *child), request(t=12.0), request(t=17.0), request(t=30.0)
    )
    (tmp_path / "t.json").write_bytes(encode(value))
    corpus, report = bring_in(tmp_path / "t.json")
    assert (report.requests, report.subagents, report.subagent_requests) == (4, 1, 2)
    children = corpus.parent_lane >= 0
    assert corpus.start_s[children].tolist() == [10.5, 14.0]
    assert set(corpus.spawn_turn[children].tolist()) == {0}
    assert set(corpus.join_turn[children].tolist()) == {2}  # the child ends at 17.0


def test_a_background_child_joins_nothing(tmp_path: Path) -> None:
    value = trace(request(), subagent(1.0, request(t=0.0, api_time=500.0)), request(t=20.0))
    (tmp_path / "t.json").write_bytes(encode(value))
    corpus, _ = bring_in(tmp_path / "t.json")
    assert corpus.join_turn[corpus.parent_lane >= 0].tolist() == [-1]


def test_p77_optional_fields_may_be_absent_and_unknown_ones_present(tmp_path: Path) -> None:
    bare = {"t": 0, "type": "s", "in": 64, "out": 0, "hash_ids": [7]}
    value = {"block_size": 64, "requests": [bare, {**bare, "t": 5, "surprise": {"x": [1]}}], "totals": None, "more": 1}
    (tmp_path / "name.json").write_bytes(encode(value))
    corpus, report = bring_in(tmp_path / "name.json")
    assert report.sessions == 1
    assert report.unknown_fields == {"surprise": 1, "more": 1}
    assert corpus.session_ids == ["name.json"]
    assert np.isnan(corpus.think_s).all()
    assert np.isnan(corpus.api_s).all()
    assert corpus.system_tokens.tolist() == [-1, -1]
    assert corpus.streamed.tolist() == [1, 1]


BAD: dict[str, tuple[Any, str]] = {
    "no-json": (b"{", "truncated"),
    "empty": (b"", "truncated"),
    "null": (b"null", "object"),
    "list": (b"[]", "object"),
    "no-requests": (trace() | {"requests": []}, "no requests"),
    "requests-text": (trace() | {"requests": "x"}, "array"),
    "global-ids": (trace(hash_id_scope="global"), "hash_id_scope is 'global'"),
    "zero-block": (trace() | {"block_size": 0}, "block_size is 0"),
    "p70-too-few": (trace(request(**{"in": 1025}, hash_ids=[1, 2])), "2 hash_ids for 1025 tokens, expected 16"),
    "p70-too-many": (trace(request(hash_ids=[1, 2, 3, 4])), "4 hash_ids for 128 tokens, expected 2"),
    "p76-no-time": (trace({k: v for k, v in request().items() if k != "t"}), "`t`"),
    "p76-nan": (json.dumps(trace(request(t=1.5))).replace("1.5", "NaN").encode(), "JSON"),
    "p76-negative": (trace(request(t=-5)), "requests[0].t is -5"),
    "p76-backwards": (trace(request(t=9), request(t=1)), "requests[1] starts before"),
    "huge-time": (json.dumps(trace(request(t=1.5))).replace("1.5", "1e999").encode(), ""),
    "negative-in": (trace(request(**{"in": -64}, hash_ids=[])), "is -64"),
    "negative-out": (trace(request(out=-1)), "out is -1"),
    "float-tokens": (trace(request(**{"in": 128.5})), "int"),
    "text-tokens": (trace(request(out="5")), "int"),
    "huge-tokens": (trace(request(out=1 << 50)), "out is"),
    "huge-id": (trace(request(hash_ids=[1, 1 << 63])), "hash"),
    "text-ids": (trace(request(hash_ids=["a", "b"])), "int"),
    "think-negative": (trace(request(think_time=-1.0)), "think_time is -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_p85_malformed_traces_are_named_counted_and_skipped(tmp_path: Path, name: str) -> None:
    value, words = BAD[name]
    data = value if isinstance(value, bytes) else encode(value)
    source = tmp_path / "d"
    source.mkdir()
    (source / "bad.json").write_bytes(data)
    (source / "good.json").write_bytes(encode(trace(id="good")))
    corpus, report = bring_in(source)
    assert corpus.session_ids == ["good"]
    ((where, reason),) = report.skipped
    assert where == "bad.json"
    assert words in reason
    assert "\n" not in reason
    with pytest.raises(UserError, match=r"bad\.json"):
        bring_in(source, strict=True)


def test_p85_broken_lines_cost_only_themselves(tmp_path: Path) -> None:
    text = [encode(trace(id=f"t{k}")) for k in range(20)]
    text[7] = text[7][:30]
    text[12] = b""
    text[15] = b'{"kind": "unknown"}'
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(text))
    corpus, report = bring_in(tmp_path / "t.jsonl")
    assert len(corpus.session_ids) == 17
    assert [name for name, _ in report.skipped] == ["t.jsonl:8", "t.jsonl:16"]


def test_ids_seen_before_get_a_suffix(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"\n".join([encode(trace(id="same"))] * 3))
    corpus, report = bring_in(tmp_path / "t.jsonl")
    assert corpus.session_ids == ["same", "same#2", "same#3"]
    assert report.renamed == 2


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.json.gz", gzip.compress(encode(trace()))[:-9]),
        ("t.json.zst", zstd(encode(trace()))[:-3]),
        ("t.tar", b"no tar at all" * 100),
        ("t.zip", b"PK\x03\x04 broken"),
        ("t.tar.gz", b"\x1f\x8b\x08\x00 broken"),
    ],
)
def test_broken_archives_are_one_clear_error(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match="no trace could be read"):
        bring_in(tmp_path / name)
    assert not (tmp_path / "corpus.parquet").exists()
    assert not list(tmp_path.glob("*.tmp"))


def test_p84_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nope\.json: no such file"):
        bring_in(tmp_path / "nope.json")
    (tmp_path / "x.csv").write_text("a,b")
    with pytest.raises(UserError, match=r"x\.csv: unknown kind"):
        bring_in(tmp_path / "x.csv")


def test_documents_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 2000)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(UserError, match="larger than 2,000 bytes"):
        bring_in(tmp_path / "t.json.gz")


def test_links_to_files_are_followed_and_links_to_folders_are_not(tmp_path: Path) -> None:
    """Download caches are folders of links to files; a link to a folder may lead in a circle."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "0a1b").write_bytes(encode(trace(id="linked")))
    source = tmp_path / "d"
    source.mkdir()
    (source / "link.json").symlink_to(blobs / "0a1b")
    (source / "circle").symlink_to(source)
    assert bring_in(source)[0].session_ids == ["linked"]


def test_a_pipe_is_named_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_bytes(encode(trace(id="good")))
    os.mkfifo(tmp_path / "pipe.json")
    corpus, report = bring_in(tmp_path)
    assert corpus.session_ids == ["good"]
    assert report.skipped == [("pipe.json", "no regular file")]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from(
    ["t", "type", "in", "out", "hash_ids", "model", "stop", "api_time", "ttft", "requests", "agent_id"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), fields, json_values), max_size=4))
def test_any_damage_is_malformed_or_fine_never_a_traceback(damage: list[tuple[int, str, Any]]) -> None:
    value = trace(request(), subagent(1.0, request(t=0.5)), request(t=9.0), request(t=9.5))
    for place, name, replacement in damage:
        value["requests"][place][name] = replacement
    try:
        session, rows, _ = decode(json.dumps(value).encode(), "name")
    except Malformed:
        return
    assert session == "t1"
    assert all(row["input_tokens"] >= 0 for row in rows)


def test_the_shared_corpus(weka_import: tuple[Path, ImportReport]) -> None:
    path, report = weka_import
    assert (report.sessions, report.requests) == (650, 44_408)
    assert (report.subagents, report.subagent_requests) == (46, 493)
    assert path.stat().st_size < 3_000_000
    corpus = Corpus.load(path)
    main = corpus.parent_lane < 0
    assert np.median(corpus.input_tokens[main]) == 104_381.5
    assert corpus.input_tokens[main].sum() == pytest.approx(5.48e9, rel=0.001)
    assert corpus.meta["licence"] == "Apache License"
    # Lossless: the runs of every request add up to its whole blocks.
    counts = np.add.reduceat(corpus.run_count, corpus.run_offset[:-1][np.diff(corpus.run_offset) > 0])
    whole = (corpus.input_tokens // corpus.block_size)[np.diff(corpus.run_offset) > 0]
    assert (counts == whole).all()
