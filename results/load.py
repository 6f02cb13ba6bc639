"""Many runs as one pandas DataFrame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from results.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def load_requests(path: str | Path) -> pd.DataFrame:
    """One row per request of every run at or below `path`.

    The columns of requests.parquet (token counts as nullable integers, `*_s` in seconds), and of each run `scenario`,
    `concurrency` and `valid`. UserError when there is no run, a file can't be read, or pandas is missing.
    """
    try:
        import pandas
    except ImportError as error:
        raise UserError("agentx.load needs pandas", remedy="pip install 'agentx-live[pandas]'") from error
    import pyarrow as pa

    root = Path(path)
    files = sorted(root.rglob("requests.parquet"))
    if not files:
        raise UserError(f"{root}: no finished run there", remedy="give a folder that holds runs")
    table = pa.concat_tables([_run(file) for file in files], promote_options="default")
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)
    return frame


def _run(file: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file).read()
        summary = json.loads((file.parent / "summary.json").read_bytes())
        columns = {
            "scenario": pa.scalar(summary["scenario"], pa.string()),
            "concurrency": pa.scalar(summary["concurrency"], pa.int64()),
            "valid": pa.scalar(summary["valid"], pa.bool_()),
        }
    except (OSError, ValueError, KeyError) as error:  # Arrow's own errors are ValueErrors
        raise UserError(f"{file.parent}: not a readable run: {error}", remedy="run `agentx recover` on it") from error
    for name, value in columns.items():
        table = table.append_column(name, pa.repeat(value, len(table)))
    return table
