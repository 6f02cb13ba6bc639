"""Many runs as pandas DataFrames."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import TYPE_CHECKING

from results.dataset import scan
from results.errors import UserError
from results.query import Database
from results.run_columns import WANTED

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa


class Runs:
    """All runs at or below some paths: a DataFrame for each table, read when it is asked for, and SQL over all.

    Counts are nullable integers, `*_s` seconds, `*_ns` since each run's start; every row says its `run_id` and
    `folder`. Runs and files that can't be used are warned of.
    """

    def __init__(self, *paths: str | Path) -> None:
        """Read what the runs say of themselves.

        UserError when no run there can be used, or pandas or DuckDB is missing.
        """
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise UserError("agentx.load needs pandas", remedy="pip install 'agentx-live[pandas]'") from error
        self._database = Database(scan(*paths, summary=WANTED), " ".join(map(str, paths)))
        self._told = 0
        self._tell()

    def sql(self, statement: str) -> pd.DataFrame:
        """The answer to one statement of `agentx query`. UserError when it is wrong."""
        table = self._database.table(statement)
        self._tell()
        return _frame(table)

    def _tell(self) -> None:
        notes = self._database.notes
        for note in notes[self._told :]:
            warnings.warn(note, stacklevel=4)
        self._told = len(notes)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row for each run, also for those that can't be used: `problem` says why."""
        return self.sql("FROM runs")

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row for each request sent, with `scenario`, `concurrency` and `valid` of its run."""
        return self.sql(
            "SELECT requests.*, scenario, concurrency, valid FROM requests JOIN runs USING (folder)"
            " ORDER BY folder, sent_ns"
        )

    @cached_property
    def sessions(self) -> pd.DataFrame:
        """One row for each session tree: the job's view."""
        return self.sql("FROM sessions")

    @cached_property
    def chunks(self) -> pd.DataFrame:
        """Arrival of every chunk, of runs with --chunks."""
        return self.sql("FROM chunks")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The server's series, long form."""
        return self.sql("FROM metrics")

    @cached_property
    def power(self) -> pd.DataFrame:
        """Watts and joules by device."""
        return self.sql("FROM power")

    @cached_property
    def client(self) -> pd.DataFrame:
        """The client measuring itself."""
        return self.sql("FROM client")


def _frame(table: pa.Table) -> pd.DataFrame:
    import pandas
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type):  # sums of integers, literals
            kind = pa.int64() if field.type.scale == 0 and _is_small(table.column(place)) else pa.float64()
            table = table.set_column(place, field.name, table.column(place).cast(kind))
    frame: pd.DataFrame = table.to_pandas(
        types_mapper={pa.int64(): pandas.Int64Dtype(), pa.bool_(): pandas.BooleanDtype()}.get,
        maps_as_pydicts="lossy",
        split_blocks=True,
    )
    return frame


def _is_small(column: pa.ChunkedArray) -> bool:
    """Whether 64 bits hold every value."""
    import pyarrow as pa

    try:
        column.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return True
