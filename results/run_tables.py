"""The Parquet files of many runs as one Arrow data set of each kind: nothing is read before it is asked for.

Each row says its `run_id` and `folder`, which come from where the file is: a question about one run opens one file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from results.dataset import RunFiles
from results.derive import derive
from results.errors import UserError
from results.places import one_line, printable
from results.records import CLIENT, TREE

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    import pyarrow.fs as pf

_READERS = 16
"""Files whose schemas are read at once: a store answers slowly, but many at a time."""


def schema_of(name: str) -> pa.Schema:
    """The columns that this version writes to `<name>.parquet`, then `folder`."""
    return pa.schema([*_written(name), ("folder", pa.string())])


def open_table(name: str, runs: Sequence[RunFiles]) -> tuple[ds.Dataset, list[str]]:
    """All `<name>.parquet` of `runs` as one data set, and a line for each file that can't be read.

    Columns are those of `schema_of` and what the files have beyond; a column that a file does not have is null there.
    UserError when there are files and none can be read, or files have a column in types that have no common one.
    """
    import pyarrow.dataset as ds  # takes pandas along: a fifth of a second that a look at the runs does not need

    own = schema_of(name)
    runs = [run for run in runs if f"{name}.parquet" in run.files]
    parquet, stores = ds.ParquetFileFormat(), _Stores()
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda run: _schema(parquet, *stores.of(run, name)), runs))
    both = list(zip(runs, found, strict=True))
    notes = [f"{printable(run.folder)}/{name}.parquet can't be read: {why}" for run, why in both if type(why) is str]
    good = [(run, schema) for run, schema in both if isinstance(schema, pa.Schema)]
    if notes and not good:
        raise UserError(notes[0])
    try:
        merged = pa.unify_schemas([own, *(schema for _, schema in good)], promote_options="permissive")
    except pa.ArrowException as error:
        raise UserError(f"{name}.parquet: the runs' files do not fit together: {one_line(error)}") from error
    if not good:
        return ds.dataset(pa.table({field.name: pa.array([], field.type) for field in own})), notes
    fragments = []
    for run, _ in good:
        path, store = stores.of(run, name)
        mine = (ds.field("run_id") == run.run_id) & (ds.field("folder") == printable(run.folder))
        fragments.append(parquet.make_fragment(path, store, partition_expression=mine))
    return ds.FileSystemDataset(fragments, merged, parquet, fragments[0].filesystem), notes


def _schema(parquet: Any, path: str, store: pf.FileSystem) -> pa.Schema | str:
    try:
        return parquet.inspect(path, store).remove_metadata()
    except Exception as error:  # Arrow's, the file system's, and those of a store's client
        return one_line(error)


class _Stores:
    """Arrow's view of the file systems in which runs are."""

    def __init__(self) -> None:
        import pyarrow.fs as pf

        self._local = pf.LocalFileSystem()
        self._remote: dict[int, pf.FileSystem] = {}

    def of(self, run: RunFiles, name: str) -> tuple[str, pf.FileSystem]:
        file = run.folder / f"{name}.parquet"
        if isinstance(file, Path):
            return str(file.absolute()), self._local
        import pyarrow.fs as pf

        fs = file.fs
        store = self._remote.setdefault(id(fs), pf.PyFileSystem(pf.FSSpecHandler(fs)))
        return fs._strip_protocol(file.url), store


def _requests() -> pa.Schema:
    from results.store import requests_table

    return requests_table(derive([], {}), _EMPTY_RUN).schema


def _sessions() -> pa.Schema:
    from results.store import sessions_table

    return sessions_table(derive([], {}), np.zeros(0, TREE), np.zeros(0, np.int32), _EMPTY_RUN).schema


def _client() -> pa.Schema:
    from results.store import client_table

    return client_table(np.zeros(0, CLIENT), np.zeros(0, np.int32), _EMPTY_RUN).schema


def _chunks() -> pa.Schema:
    return pa.schema([("run_id", pa.string()), ("request_id", pa.string()), ("offset_ns", pa.int64())])


def _metrics() -> pa.Schema:
    from results.metrics_table import SCHEMA

    return SCHEMA


def _power() -> pa.Schema:
    from results.power_journal import POWER_ROW, PowerLog, power_table

    return power_table(PowerLog([], np.zeros(0, POWER_ROW)), "").schema


_EMPTY_RUN = {"run_id": "", "session_ids": [], "lane_names": ["main"]}
_WRITTEN: dict[str, Callable[[], pa.Schema]] = {
    "requests": _requests,
    "sessions": _sessions,
    "chunks": _chunks,
    "metrics": _metrics,
    "power": _power,
    "client": _client,
}
TABLES = tuple(_WRITTEN)
"""Kinds of Parquet files in a run directory."""


def _written(name: str) -> pa.Schema:
    return _WRITTEN[name]()
