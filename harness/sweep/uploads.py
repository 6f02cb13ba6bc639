"""Copies of a sweep's finished runs in another place, made point by point; what failed is tried again at the end."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.sweep.state import Record, State
from results.upload import Destination


class Uploads:
    """`<destination>/<sweep>/runs/<run_id>`: the layout of the sweep's own folder, without failed attempts."""

    def __init__(self, target: Destination, state: State) -> None:
        """`target` is the sweep's folder there."""
        self.target = target.below("runs")
        self.under_way = False
        """While it is true, the first Ctrl-C ends the copy: a store that does not answer must not hold up the end."""
        self._state = state
        self._sent: set[str] = set()

    def point(self, record: Record) -> None:
        """Copy the run of a point that is done. A failure is a line on standard error, and `rest` tries again."""
        if record.status == "done" and record.run_id is not None:
            self._send(record.run_id)

    def rest(self) -> None:
        """Copy what of the whole sweep is not there, such as runs of an earlier command; stop at the first failure."""
        for record in list(self._state.records.values()):
            run = record.run_id
            if record.status != "done" or run is None or run in self._sent or not self._folder(run).is_dir():
                continue
            there = self._guarded_has(run)
            if isinstance(there, str):
                self._complain(there)
                return
            if not there and not self._send(run):
                return

    def _folder(self, run: str) -> Path:
        return self._state.folder / "runs" / run

    def _send(self, run: str) -> bool:
        self.under_way = True
        try:
            failure = self.target.send(self._folder(run))
        finally:
            self.under_way = False
        if failure is None:
            self._sent.add(run)
            return True
        self._complain(f"{failure}; the run is in {self._folder(run)}")
        return False

    def _guarded_has(self, run: str) -> bool | str:
        self.under_way = True
        try:
            return self.target.has(run)
        finally:
            self.under_way = False

    def _complain(self, failure: str) -> None:
        print(f"agentx: {failure}; the same command tries again", file=sys.stderr, flush=True)
