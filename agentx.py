"""agentx: replay captured coding-agent sessions against LLM serving endpoints and measure what comes back.

`import agentx; agentx.load("runs/").requests` has every request of every run below a folder as a pandas DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from results.load import Runs

__version__ = "0.1.0"
__all__ = ["__version__", "load", "main"]


def load(*paths: str | Path) -> Runs:
    """Return all runs at or below `paths` (folders or URLs; `runs` when none is given), to be asked by pandas or SQL.

    `.runs` is a DataFrame of one row for each run, `.requests` of one for each request, and so are `.sessions`,
    `.chunks`, `.metrics`, `.power` and `.client`; `.sql(statement)` answers what `agentx query` does. Needs pandas and
    DuckDB (`pip install agentx-live[pandas]`). Warns of runs that can't be used; raises `results.errors.UserError` when
    none can.
    """
    from results.load import Runs

    return Runs(*(paths or ("runs",)))


def main() -> None:
    """Run the command line."""
    import atexit
    import gc

    # Modules stay until the process ends: to go through them while they are loaded, and again at the end, takes as long
    # as a short command does.
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.freeze)
    from harness.cli import entry

    entry()


if __name__ == "__main__":
    main()
