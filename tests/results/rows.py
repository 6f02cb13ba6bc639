"""Journals made by hand: one call per request, times in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from results.journal import JournalWriter, write_header
from results.records import CHUNK_UNIT_NS, CLIENT, MISSING, REQUEST, TREE, Finish, Phase, Status
from results.store import finalize

MS = 1_000_000


class Run:
    """Writes a journal and turns it into result files."""

    def __init__(self, folder: Path, **header: Any) -> None:
        self.directory = folder / "run"
        self.journal = self.directory / "journal"
        self.journal.mkdir(parents=True)
        self.header: dict[str, Any] = {
            "run_id": "run",
            "session_ids": ["s0", "s1", "s2"],
            "lane_names": ["main", "a1"],
            "concurrency": 1,
            "steady_start_ns": 0,
            "steady_end_ns": None,
            **header,
        }
        write_header(self.journal, self.header)
        self.writers: dict[int, JournalWriter] = {}
        self.seq = 0

    def writer(self, worker: int = 0) -> JournalWriter:
        if worker not in self.writers:
            self.writers[worker] = JournalWriter(self.journal, worker)
        return self.writers[worker]

    def request(
        self,
        *,
        sent: float = 0.0,
        chunks: Sequence[float] = (100.0,),
        done: float | None = None,
        worker: int = 0,
        status: Status = Status.OK,
        error: str = "",
        due: float | None = None,
        **fields: int,
    ) -> None:
        """`chunks` are arrival times after `sent`; absent token counts are one per chunk and ten in."""
        sent_ns = round(sent * MS)
        times = [sent_ns + round(c * MS) for c in chunks]
        ended = round(done * MS) if done is not None else (times[-1] if times else sent_ns)
        offsets = np.array([(t - sent_ns) // CHUNK_UNIT_NS for t in times], "<u4")
        row = dict.fromkeys(("pass_" if n == "pass" else n for n in REQUEST.names or () if n != "error"), MISSING)
        row |= {
            "seq": self.seq,
            "session": 0,
            "lane": 0,
            "turn": self.seq,
            "pass_": 0,
            "slot": 0,
            "phase": Phase.STEADY,
            "status": status,
            "finish": Finish.LENGTH,
            "kernel_stamps": 1,
            "http_status": 200,
            "flags": 0,
            "scheduled_ns": sent_ns if due is None else round(due * MS),
            "sent_ns": sent_ns,
            "headers_ns": sent_ns,
            "first_token_ns": times[0] if times else MISSING,
            "first_text_ns": times[0] if times else MISSING,
            "last_token_ns": times[-1] if times else MISSING,
            "done_ns": ended,
            "planned_input_tokens": 10,
            "planned_output_tokens": len(times),
            "input_tokens": 10,
            "output_tokens": len(times),
            "output_chunks": len(times),
            "parse_errors": 0,
            "coalesced_chunks": 0,
            "chunk_start": self.writer(worker).chunks(offsets),
            "chunk_count": len(times),
        }
        self.writer(worker).request(error=error, **(row | fields))
        self.seq += 1

    def tree(self, *, started: float = 0.0, ended: float, worker: int = 0, **fields: int) -> None:
        row = dict.fromkeys(("pass_" if n == "pass" else n for n in TREE.names or ()), 0)
        row |= {"started_ns": round(started * MS), "ended_ns": round(ended * MS)}
        self.writer(worker).tree(**(row | fields))

    def client(self, *, t: float, worker: int = 0, **fields: int) -> None:
        row = dict.fromkeys(CLIENT.names or (), 0) | {"t_ns": round(t * MS), "wall_ns": 500 * MS}
        self.writer(worker).client(**(row | fields))

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()

    def finish(self, **header: Any) -> dict[str, Any]:
        self.close()
        return finalize(self.directory, {**self.header, **header}, keep_chunks=True)

    def rows(self, name: str = "requests") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.directory / f"{name}.parquet").to_pylist()
        return rows
