"""SQL over many runs: DuckDB over the table of runs and the Arrow data sets of their Parquet files.

The database is empty but for those, lives in memory and may open no file: SQL reads the runs and nothing else, and
writes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from results.dataset import RunFiles, Unread, nothing_in
from results.errors import UserError
from results.places import one_line
from results.run_columns import COLUMNS, runs_table
from results.run_tables import TABLES, open_table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

RUNS = "runs"
VIEWS = (RUNS, *TABLES)
"""What can be asked: one row for each run, and the rows of each kind of Parquet file."""

_QUESTIONS = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""DuckDB's kinds of statement that only ask; DESCRIBE and SUMMARIZE are SELECT, PIVOT is MULTI."""
_ROWS_AT_ONCE = 256
_ATTACHES_NOTHING: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Names of the columns (each once), and rows as they are made."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


class Database:
    """Runs to be asked. `notes` are lines about what can't be answered, for the user to see.

    UserError when none of the runs can be used, or DuckDB is missing.
    """

    def __init__(self, runs: Iterable[RunFiles | Unread], what: str = "the runs") -> None:
        self.notes: list[str] = []
        self._runs: list[RunFiles] = []
        self._connection = _connect()
        self._table = runs_table(self._seen(runs))
        self._open: set[str] = set()
        if not self._runs:
            raise nothing_in(what, self._unread)
        self.notes += [str(run) for run in self._unread]
        copies = {run_id: n for run_id, n in Counter(run.run_id for run in self._runs).items() if n > 1}
        self.notes += [f"{n} runs have the run_id {run_id}: `folder` tells them apart" for run_id, n in copies.items()]

    def _seen(self, runs: Iterable[RunFiles | Unread]) -> Iterator[RunFiles | Unread]:
        """Pass runs on; keep of each only what finds its files."""
        self._unread: list[Unread] = []
        for run in runs:
            if isinstance(run, Unread):
                self._unread.append(run)
            else:
                self._runs.append(RunFiles(run.folder, {"run_id": run.run_id}, {}, run.files))
            yield run

    def ask(self, sql: str) -> Answer:
        """The answer to one statement. UserError for SQL that is wrong or reaches for anything but the runs."""
        self._prepare(sql)
        with _in_a_line():
            done = self._connection.execute(sql)
        description = done.description or []
        return Answer(_distinct([column[0] for column in description]), self._fetch(done))

    def table(self, sql: str) -> pa.Table:
        """The whole answer as an Arrow table. UserError as `ask`."""
        self._prepare(sql)
        with _in_a_line():
            table = self._connection.sql(sql).to_arrow_table()
        return table.rename_columns(_distinct(table.column_names))

    def _prepare(self, sql: str) -> None:
        with _in_a_line():
            statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            raise UserError(f"SQL: {len(statements)} statements", remedy="give one")
        kind = statements[0].type.name
        if kind not in _QUESTIONS:
            raise UserError(f"SQL: {kind} is no question", remedy="SELECT, DESCRIBE, SUMMARIZE or EXPLAIN")
        self._open_named(sql)

    def _fetch(self, done: Any) -> Iterator[tuple[Any, ...]]:
        while True:
            with _in_a_line():
                rows = done.fetchmany(_ROWS_AT_ONCE)
            if not rows:
                return
            yield from rows

    def _open_named(self, sql: str) -> None:
        """Open what the statement may mean: the word is there, if only in a text."""
        words = {word.lower() for word in re.findall(r"\w+", sql)}
        for name in VIEWS:
            if name not in words or name in self._open:
                continue
            if name == RUNS:
                self._connection.register(RUNS, self._table)
            else:
                found, notes = open_table(name, self._runs)
                self.notes += notes
                self._connection.register(name, found)
            self._open.add(name)


def _connect() -> duckdb.DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise UserError("SQL over runs needs DuckDB", remedy="pip install 'agentx-live[analysis]'") from error
    connection = duckdb.connect(":memory:", config=_ATTACHES_NOTHING)
    connection.execute("SET lock_configuration = true")
    return connection


def _distinct(names: list[str]) -> list[str]:
    """Later columns of a name get `_1`, `_2`, …, so that no column hides another."""
    out: list[str] = []
    for name in names:
        unique, number = name, 0
        while unique in out or (number and unique in names):
            number += 1
            unique = f"{name}_{number}"
        out.append(unique)
    return out


@contextmanager
def _in_a_line() -> Iterator[None]:
    """DuckDB's errors as UserError; Ctrl-C as itself."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise _wrong(error) from error
    except RuntimeError as error:
        if "interrupted" in str(error):
            raise KeyboardInterrupt from error
        raise


def _wrong(error: Exception) -> UserError:
    """DuckDB's message in a line, without the drawing of the place."""
    said = one_line(ValueError(str(error).partition("\n\nLINE ")[0]))
    remedy = f"tables: {', '.join(VIEWS)}; DESCRIBE TABLE lists its columns"
    missing = re.search(r'Referenced table "(\w+)', said)
    if missing and any(column.startswith(f"{missing[1]}_") for column in COLUMNS):
        remedy = (
            f"a key of summary.json is a column with _ for its dots, such as {missing[1]}_…; DESCRIBE runs lists them"
        )
    return UserError(f"SQL: {said}", remedy=remedy)
