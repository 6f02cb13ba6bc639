"""A corpus: recorded sessions as columns of sizes, times and runs of block ids. No text.

The file is Parquet, one row per recorded request, ordered by session, lane and turn (CONTRACT: "Corpus file"). In
memory it is a set of numpy arrays and a few string tables, so that worker processes can map it instead of loading it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from results.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FORMAT_VERSION = 1
METADATA_KEY = b"agentx.corpus"
MISSING = -1
_REMEDY = "make one with `agentx traces import`"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Rows of session s are `session_row[s]:session_row[s + 1]`; times are seconds since the session's start.

    Missing integers are -1, missing floats NaN. `run_offset` (length rows + 1) delimits the runs of consecutive block
    ids of each row in `run_first` and `run_count`.
    """

    meta: dict[str, Any]
    digest: str
    session_ids: list[str]
    lane_names: list[str]
    models: list[str]
    stops: list[str]
    input_kind_sets: list[tuple[str, ...]]
    output_kind_sets: list[tuple[str, ...]]
    session_row: np.ndarray
    lane: np.ndarray
    parent_lane: np.ndarray
    spawn_turn: np.ndarray
    join_turn: np.ndarray
    turn: np.ndarray
    start_s: np.ndarray
    think_s: np.ndarray
    api_s: np.ndarray
    ttft_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    block_size: np.ndarray
    run_offset: np.ndarray
    run_first: np.ndarray
    run_count: np.ndarray
    system_tokens: np.ndarray
    tool_tokens: np.ndarray
    model: np.ndarray
    stop: np.ndarray
    streamed: np.ndarray
    input_kinds: np.ndarray
    output_kinds: np.ndarray

    @classmethod
    def load(cls, path: str | Path) -> Corpus:
        """Read a corpus file. UserError names the path when it is missing or not a corpus of this version."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = Path(path)
        if not path.is_file():
            what = "not a file" if path.exists() else "no such file"
            raise UserError(f"--corpus {path}: {what}", remedy=_REMEDY)
        try:
            with pq.ParquetFile(path) as file:
                meta = _checked_meta(file, path)
                table = file.read(columns=list(COLUMNS))
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"--corpus {path}: not a Parquet file: {_first_line(error)}", remedy=_REMEDY) from error
        return _from_table(table.combine_chunks(), meta)

    def arrays(self) -> dict[str, np.ndarray]:
        """The numpy columns by name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), np.ndarray)}

    def tables(self) -> dict[str, Any]:
        """Everything else: the string tables, the metadata and the digest (JSON-ready)."""
        return {f.name: value for f in fields(self) if not isinstance(value := getattr(self, f.name), np.ndarray)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], tables: Mapping[str, Any]) -> Corpus:
        """Inverse of `arrays` and `tables`."""
        values: dict[str, Any] = {**tables, **arrays}
        for name in ("input_kind_sets", "output_kind_sets"):
            values[name] = [tuple(kinds) for kinds in tables[name]]
        return cls(**values)


def _checked_meta(file: pq.ParquetFile, path: Path) -> dict[str, Any]:
    text = (file.metadata.metadata or {}).get(METADATA_KEY)
    if text is None:
        raise UserError(f"--corpus {path}: not a corpus", remedy=_REMEDY)
    try:
        meta = dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise UserError(f"--corpus {path}: broken metadata", remedy=_REMEDY) from error
    if meta.get("format") != FORMAT_VERSION:
        raise UserError(f"--corpus {path}: format {meta.get('format')}, this version reads {FORMAT_VERSION}")
    if not isinstance(meta.get("digest"), str):
        raise UserError(f"--corpus {path}: no digest", remedy=_REMEDY)
    found = file.schema_arrow
    for column in corpus_schema():
        if column.name not in found.names or found.field(column.name).type != column.type:
            raise UserError(f"--corpus {path}: no column {column.name} of type {column.type}", remedy=_REMEDY)
    if not file.metadata.num_rows:
        raise UserError(f"--corpus {path}: no requests", remedy=_REMEDY)
    return meta


COLUMNS = (
    "session_id", "lane_id", "parent_lane_id", "spawn_turn", "join_turn", "turn", "start_s", "think_s", "api_s",
    "ttft_s", "input_tokens", "output_tokens", "block_size", "blocks", "system_tokens", "tool_tokens", "model", "stop",
    "streamed", "input_kinds", "output_kinds",
)  # fmt: skip


def corpus_schema() -> pa.Schema:
    """The file's columns."""
    import pyarrow as pa

    run = pa.struct([("first", pa.int64()), ("count", pa.int32())])
    kinds: dict[str, pa.DataType] = {
        "session_id": pa.string(),
        "lane_id": pa.string(),
        "parent_lane_id": pa.string(),
        "spawn_turn": pa.int32(),
        "join_turn": pa.int32(),
        "turn": pa.int32(),
        **dict.fromkeys(("start_s", "think_s", "api_s", "ttft_s"), pa.float64()),
        "input_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "block_size": pa.int32(),
        "blocks": pa.list_(run),
        "system_tokens": pa.int64(),
        "tool_tokens": pa.int64(),
        "model": pa.string(),
        "stop": pa.string(),
        "streamed": pa.bool_(),
        "input_kinds": pa.list_(pa.string()),
        "output_kinds": pa.list_(pa.string()),
    }
    return pa.schema([(name, kinds[name]) for name in COLUMNS])


def builtin_path() -> Path:
    """The corpus that ships with the package."""
    return Path(__file__).parent / "data" / "builtin.parquet"


class DigestBuilder:
    """Identity of a corpus' content: independent of file layout, compression and row-group size."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"agentx.corpus.1")

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows in file order."""
        for row in rows:
            self._hash.update(json.dumps([row[name] for name in COLUMNS], separators=(",", ":")).encode())

    def hexdigest(self) -> str:
        """The digest so far."""
        return self._hash.hexdigest()


class CorpusWriter:
    """Writes sessions as they come; memory holds one row group. The file appears under its name when complete."""

    ROWS_PER_GROUP = 2048

    def __init__(self, path: Path, meta: Mapping[str, Any]) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._meta = dict(meta)
        self._rows: list[Mapping[str, Any]] = []
        self._digest = DigestBuilder()
        self._schema = corpus_schema()
        self._writer: Any = None

    def __enter__(self) -> CorpusWriter:
        import pyarrow.parquet as pq

        if self._path.is_dir():
            raise UserError(f"-o {self._path}: that is a folder", remedy="name the file to write")
        try:
            self._writer = pq.ParquetWriter(
                self._temporary, self._schema, compression="zstd", compression_level=12, use_dictionary=True
            )
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def add_session(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append one session's rows (all columns, `blocks` as (first, count) pairs), ordered by lane and turn."""
        self._digest.add(rows)
        self._rows.extend(rows)
        if len(self._rows) >= self.ROWS_PER_GROUP:
            self._flush()

    def add_meta(self, **more: Any) -> None:
        """Metadata known only at the end."""
        self._meta.update(more)

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        columns = {
            name: _run_lists([row[name] for row in self._rows])
            if name == "blocks"
            else [row[name] for row in self._rows]
            for name in COLUMNS
        }
        try:
            self._writer.write_table(pa.table(columns, schema=self._schema))
        except OSError as error:
            raise self._unwritable(error) from error
        self._rows.clear()

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        try:
            if kind is None:
                self._complete()
            else:
                with suppress(OSError):  # the disk may be full: what matters is the error that led here
                    self._writer.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def _complete(self) -> None:
        self._flush()
        meta = {"format": FORMAT_VERSION, "digest": self._digest.hexdigest(), **self._meta}
        try:
            self._writer.add_key_value_metadata({METADATA_KEY.decode(): json.dumps(meta)})
            self._writer.close()
            self._temporary.replace(self._path)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UserError:
        return UserError(f"-o {self._path}: {os.strerror(error.errno) if error.errno else _first_line(error)}")


def _run_lists(blocks: Sequence[Sequence[tuple[int, int]]]) -> pa.Array:
    """Lists of (first, count) pairs as a column, without an object per run."""
    import pyarrow as pa

    runs = np.array([run for row in blocks for run in row], dtype=np.int64).reshape(-1, 2)
    offsets = np.cumsum([0, *map(len, blocks)], dtype=np.int32)
    kind = corpus_schema().field("blocks").type
    pairs = pa.StructArray.from_arrays([runs[:, 0], runs[:, 1].astype(np.int32)], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(offsets, pairs, type=kind)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _from_table(table: pa.Table, meta: dict[str, Any]) -> Corpus:
    sessions, session_index = _encode(table["session_id"])
    change = np.flatnonzero(np.diff(session_index)) + 1
    session_row = np.concatenate([[0], change, [table.num_rows]]).astype(np.int64)
    lanes, lane = _encode(table["lane_id"])
    known = {name: index for index, name in enumerate(lanes)}
    parents, parent_index = _encode(table["parent_lane_id"])
    for name in parents:
        known.setdefault(name, len(known))
    to_lane = np.array([*(known[name] for name in parents), MISSING], dtype=np.int32)
    models, model = _encode(table["model"])
    stops, stop = _encode(table["stop"])
    input_sets, input_kinds = _encode_kinds(table["input_kinds"])
    output_sets, output_kinds = _encode_kinds(table["output_kinds"])
    blocks = _only_chunk(table["blocks"])
    runs = blocks.flatten()
    offsets = _integers(blocks.offsets, np.int64)
    return Corpus(
        meta=meta,
        digest=str(meta["digest"]),
        session_ids=[sessions[k] for k in session_index[session_row[:-1]].tolist()],
        lane_names=list(known),
        models=models,
        stops=stops,
        input_kind_sets=input_sets,
        output_kind_sets=output_sets,
        session_row=session_row,
        lane=lane,
        parent_lane=to_lane[parent_index],
        run_offset=offsets - offsets[0],
        run_first=_integers(runs.field("first"), np.int64),
        run_count=_integers(runs.field("count"), np.int64),
        model=model,
        stop=stop,
        streamed=_integers(table["streamed"].cast("int8"), np.int8),
        input_kinds=input_kinds,
        output_kinds=output_kinds,
        **{name: _integers(table[name], np.int32) for name in ("spawn_turn", "join_turn", "turn", "block_size")},
        **{
            name: _integers(table[name], np.int64)
            for name in ("input_tokens", "output_tokens", "system_tokens", "tool_tokens")
        },
        **{name: _floats(table[name]) for name in ("start_s", "think_s", "api_s", "ttft_s")},
    )


def _only_chunk(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _encode(column: Any) -> tuple[list[str], np.ndarray]:
    """Distinct strings in order of appearance, and each row's index (-1 for null)."""
    encoded = (_only_chunk(column) if hasattr(column, "num_chunks") else column).dictionary_encode()
    return encoded.dictionary.to_pylist(), _integers(encoded.indices, np.int32)


def _encode_kinds(column: pa.ChunkedArray) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Distinct sets of kinds in order of appearance, and each row's index (-1 for null)."""
    lists = _only_chunk(column)
    names, flat = _encode(lists.flatten())
    offsets = _integers(lists.offsets, np.int64)
    sets: dict[tuple[int, ...], int] = {}
    kinds = flat.tolist()
    bounds = (offsets - offsets[0]).tolist()
    known = _valid(lists)
    rows = [
        sets.setdefault(tuple(kinds[low:high]), len(sets)) if known is None or known[k] else MISSING
        for k, (low, high) in enumerate(pairwise(bounds))
    ]
    return [tuple(names[k] for k in found) for found in sets], np.array(rows, dtype=np.int32)


def _integers(column: Any, dtype: type) -> np.ndarray:
    return np.ascontiguousarray(_values(column, MISSING), dtype=dtype)


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return np.ascontiguousarray(_values(column, math.nan), dtype=np.float64)


def _values(column: Any, missing: float) -> np.ndarray:
    """The numbers of a column, `missing` for nulls, from its buffers: Arrow's own conversions would import pandas."""
    array = _only_chunk(column) if hasattr(column, "num_chunks") else column
    kind = np.dtype(str(array.type).replace("double", "float64"))
    data = array.buffers()[1]
    if data is None:
        return np.full(len(array), missing, kind)
    values = np.frombuffer(data, kind, count=len(array), offset=array.offset * kind.itemsize)
    valid = _valid(array)
    return values if valid is None else np.where(valid, values, np.asarray(missing, kind))


def _valid(array: Any) -> np.ndarray | None:
    """Which values are not null; None when all are."""
    bitmap = array.buffers()[0]
    if bitmap is None or not array.null_count:
        return None
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(bool)
