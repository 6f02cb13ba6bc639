"""agentx: replay captured coding-agent sessions against LLM serving endpoints and measure what comes back.

`import agentx; agentx.load("runs/")` gives every run below a folder as a pandas DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

__version__ = "0.1.0"
__all__ = ["__version__", "load", "main"]


def load(path: str | Path) -> pd.DataFrame:
    """Return one row per request of every run directory at or below `path`.

    Columns are those of `requests.parquet` plus `scenario`, `concurrency` and `valid` of the run: tokens as nullable
    integers, `*_s` in seconds, `*_ns` since each run's start. Needs pandas (`pip install agentx-live[pandas]`). Raises
    `results.errors.UserError` when no run is found.
    """
    from results.load import load_requests

    return load_requests(path)


def main() -> None:
    """Run the command line."""
    from harness.cli import entry

    entry()


if __name__ == "__main__":
    main()
