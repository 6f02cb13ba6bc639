"""Many runs as one pandas DataFrame."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from results.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def load_requests(path: str | Path) -> pd.DataFrame:
    """One row per request of every run at or below `path` (see `agentx.load`)."""
    try:
        import pandas
    except ImportError as error:
        raise UserError("agentx.load needs pandas", remedy="pip install 'agentx-live[pandas]'") from error
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = Path(path)
    files = sorted(root.rglob("requests.parquet"))
    if not files:
        raise UserError(f"{root}: no run directory there", remedy="give a folder that holds runs")
    table = pa.concat_tables([pq.read_table(file) for file in files], promote_options="default")
    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)
    return frame
