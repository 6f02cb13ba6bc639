"""A corpus of our own making: coding-agent sessions drawn from a seed, so that `run` works with no file at all.

The shape follows what recorded sessions look like (growing prefix, tool loops with short answers, pauses, sub-agents
beside the parent); the sizes are smaller, so that a laptop can replay them. Nothing is copied from a recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from replay.corpus import CorpusWriter

BLOCK = 64
BUILTIN_SEED = 7
BUILTIN_SESSIONS = 24
_HEADS = ((9_216, 2_048), (6_144, 1_536), (11_264, 2_560))
"""(tool, system) prompt sizes; sessions with the same pair share that head."""

Row = dict[str, Any]


class _Tape:
    """The blocks of one conversation: what grew stays, what is new gets new ids from the session's counter."""

    def __init__(self, next_id: list[int], runs: list[tuple[int, int]] | None = None) -> None:
        self._next = next_id
        self.runs = list(runs or [])

    def blocks(self) -> int:
        return sum(count for _, count in self.runs)

    def grow_to(self, tokens: int) -> None:
        new = tokens // BLOCK - self.blocks()
        if new <= 0:
            return
        first = self._next[0]
        self._next[0] += new
        if self.runs and sum(self.runs[-1]) == first:
            self.runs[-1] = (self.runs[-1][0], self.runs[-1][1] + new)
        else:
            self.runs.append((first, new))

    def cut_to(self, tokens: int) -> None:
        """Drop history beyond `tokens`, as an agent does when it compacts its conversation."""
        keep = tokens // BLOCK
        kept: list[tuple[int, int]] = []
        for first, count in self.runs:
            if keep > 0:
                kept.append((first, min(count, keep)))
            keep -= count
        self.runs = kept


class _Session:
    """Draws one session."""

    def __init__(self, name: str, rng: np.random.Generator, long: bool) -> None:
        self.name = name
        self.rng = rng
        self.next_id = [0]
        self.tools, self.system = _HEADS[int(rng.integers(len(_HEADS)))]
        self.limit = 120_000 if long else int(rng.integers(24_000, 60_000))
        self.rows: list[Row] = []

    def draw(self, turns: int) -> list[Row]:
        """Rows ordered by lane and turn."""
        tape = _Tape(self.next_id)
        context = self.tools + self.system + int(self.rng.integers(200, 4_000))
        clock: float = 0.0
        pause: float | None = None
        children: list[tuple[int, float, list[Row]]] = []
        main: list[Row] = []
        for turn in range(turns):
            if context > self.limit:
                context = self.tools + self.system + int(self.rng.integers(2_000, 8_000))
                tape.cut_to(self.tools + self.system)
            tape.grow_to(context)
            row = self._row("main", turn, clock, context, tape, first=turn == 0) | {"think_s": pause}
            main.append(row)
            end = clock + row["api_s"]
            if self.rng.random() < 0.04:
                children.append((turn, end, self._child(len(children), end, tape, context)))
            pause = self._pause()
            clock = round(end + pause, 3)
            context += row["output_tokens"] + int(self.rng.lognormal(6.3, 1.1))
        return main + [row for spawn, end, rows in children for row in self._joined(spawn, rows, main)]

    def _pause(self) -> float:
        """Tool time, and now and then a human."""
        mean, spread = (3.2, 0.6) if self.rng.random() < 0.06 else (0.4, 0.9)
        return round(float(self.rng.lognormal(mean, spread)), 3)

    def _row(self, lane: str, turn: int, start: float, tokens: int, tape: _Tape, *, first: bool) -> Row:
        output = int(min(4_000, max(8, self.rng.lognormal(5.1, 0.9))))
        api = round(0.4 + tokens / 80_000 + output / 70, 3)
        return {
            "session_id": self.name,
            "lane_id": lane,
            "parent_lane_id": None,
            "spawn_turn": None,
            "join_turn": None,
            "turn": turn,
            "start_s": start,
            "think_s": None,
            "api_s": api,
            "ttft_s": round(0.3 + tokens / 100_000, 3),
            "input_tokens": tokens,
            "output_tokens": output,
            "block_size": BLOCK,
            "blocks": [run for run in tape.runs if run[1]],
            "system_tokens": self.system,
            "tool_tokens": self.tools,
            "model": "agentx-synthetic",
            "stop": "tool_use",
            "streamed": True,
            "input_kinds": ["text"] if first else ["tool_result"],
            "output_kinds": ["text", "tool_use"],
        }

    def _child(self, number: int, start: float, parent: _Tape, context: int) -> list[Row]:
        """A sub-agent with the parent's tools and system prompt and a task of its own."""
        head = self.tools + self.system
        tape = _Tape(self.next_id, parent.runs)
        tape.cut_to(head)
        tokens, clock, rows = head + int(self.rng.integers(300, 2_000)), start + 0.05, []
        for turn in range(int(self.rng.integers(2, 7))):
            tape.grow_to(tokens)
            row = self._row(f"agent-{number}", turn, round(clock, 3), tokens, tape, first=turn == 0)
            rows.append(row)
            clock += row["api_s"] + self._pause() / 2
            tokens += row["output_tokens"] + int(self.rng.lognormal(6.0, 1.0))
        return rows

    def _joined(self, spawn: int, rows: list[Row], main: list[Row]) -> list[Row]:
        end = max(row["start_s"] + row["api_s"] for row in rows)
        join = next((row["turn"] for row in main if row["turn"] > spawn and row["start_s"] >= end), None)
        return [{**row, "parent_lane_id": "main", "spawn_turn": spawn, "join_turn": join} for row in rows]


def write_synthetic(path: Path, *, seed: int, sessions: int) -> None:
    """Write a corpus file drawn from `seed`; the same seed gives the same digest on every machine."""
    meta = {
        "name": f"synthetic-{seed}-{sessions}",
        "importer": "synth",
        "seed": seed,
        "filters": [],
        "licence": "Apache-2.0",
        "attribution": "the agentx authors",
    }
    with CorpusWriter(path, meta) as writer:
        for number in range(sessions):
            rng = np.random.Generator(np.random.PCG64([seed, number]))
            session = _Session(f"synthetic-{number:03d}", rng, long=number % 8 == 5)
            writer.add_session(session.draw(turns=int(rng.integers(12, 56))))
