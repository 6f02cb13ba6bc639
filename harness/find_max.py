"""`agentx run --find-max`: whole runs at one concurrency after the other, each with fresh texts, until the highest
number of live sessions that holds the objectives is known."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from harness.run import Finished, RunOptions, new_run_id, run
from harness.search import Search
from results.errors import UserError
from results.slo import Objective, Verdict, judge


@dataclass(frozen=True, slots=True)
class Level:
    """One run of the search."""

    concurrency: int
    run_dir: str
    verdict: Verdict


@dataclass(slots=True)
class Found:
    """The search so far; `ended` says why it ended."""

    directory: Path
    objectives: list[Objective]
    levels: list[Level]
    search: Search
    ended: str = "not finished"
    signal: int | None = None

    @property
    def highest(self) -> int | None:
        """The highest number of live sessions that held; None when none did."""
        return self.search.holds or None

    def document(self) -> dict[str, Any]:
        """What find-max.json holds."""
        fails = self.search.fails
        failed = any(not level.verdict.holds for level in self.levels)
        return {
            "objectives": [one.text for one in self.objectives],
            "highest_concurrency": self.highest,
            "lowest_that_fails": fails if failed else None,
            "ended": self.ended,
            "levels": [asdict(level) for level in sorted(self.levels, key=lambda level: level.concurrency)],
        }


def find_max(options: RunOptions, objectives: list[Objective], api_key: str | None, command: Sequence[str]) -> Found:
    """Search from the scenario's concurrency. UserError where the load is not a number of live sessions."""
    scenario = options.scenario
    if scenario.arrival != "closed" or scenario.stages:
        raise UserError("--find-max varies the number of live sessions", remedy="leave out --rate and --stages")
    directory = options.out / f"find-max-{new_run_id()}"
    found = Found(directory, objectives, [], Search(scenario.concurrency))
    while (level := found.search.next) is not None:
        finished = run(_at(options, level, directory), api_key, list(command))
        verdict = judge(objectives, finished.summary)
        found.levels.append(Level(level, str(finished.directory), verdict))
        if not options.quiet:
            outcome = "holds" if verdict.holds else f"does not hold: {'; '.join(verdict.why)}"
            print(f"agentx: {level} live sessions: {outcome}", file=sys.stderr, flush=True)
        if not _goes_on(found, finished, level, verdict):
            break
        _save(found)
    else:
        found.ended = "found"
    _save(found)
    return found


def _at(options: RunOptions, concurrency: int, directory: Path) -> RunOptions:
    scenario = msgspec.structs.replace(options.scenario, concurrency=concurrency)
    rules = msgspec.structs.replace(options.rules, scenario=scenario)
    return replace(options, rules=rules, out=directory)


def _goes_on(found: Found, finished: Finished, level: int, verdict: Verdict) -> bool:
    if finished.signal is not None:
        found.signal, found.ended = finished.signal, "interrupted"
        return False
    if finished.summary["client"]["saturated"]:
        found.ended = f"the client was the bottleneck at {level}: what is beyond can't be said from this machine"
        return False
    found.search.tell(level, held=verdict.holds)
    return True


def _save(found: Found) -> None:
    """Whole or not at all: the file of the level before stands until this one is written."""
    path = found.directory / "find-max.json"
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(found.document(), indent=2, allow_nan=False) + "\n")
    os.replace(partial, path)
