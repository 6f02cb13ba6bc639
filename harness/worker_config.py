"""What the parent tells a worker process: one JSON object on its standard input, so that keys never touch disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from harness.starts import Starts
from replay.body import BodyFormat
from replay.causes import TreeRules
from replay.chat_shape import ChatShape
from replay.corpus import Corpus
from replay.endpoint import Endpoint, Limits
from replay.plan import Plan, Selection
from replay.scenario import Scenario
from replay.scheduler import Pacing

STARTS = "starts"


class CounterSource(msgspec.Struct, frozen=True):
    """Who counts the tokens of a text: a directory with tokenizer files, or a route of the server."""

    directory: str | None
    route: str = ""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs; corpus and plan are mapped from `plan_dir`, shared by all workers."""

    run_id: str
    worker: int
    workers: int
    journal_dir: str
    plan_dir: str
    endpoints: tuple[Endpoint, ...]
    """All serve the same; slot `s` sends to number `s % len(endpoints)`."""
    limits: Limits
    body: BodyFormat
    shape: ChatShape
    words: tuple[str, ...]
    salt: str
    server_block: int | None
    scenario: Scenario
    selection: Selection
    counter: CounterSource | None
    """Needed where answers become prompts; None: nobody can."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no record may hold."""
        return tuple(dict.fromkeys(secret for endpoint in self.endpoints for secret in endpoint.secrets))

    @property
    def pacing(self) -> Pacing:
        """The scenario's pauses, as the scheduler takes them."""
        rules = self.scenario
        recorded = rules.turn_clock == "recorded"
        return Pacing(rules.time_scale, rules.tree_idle_cap_s, rules.system_idle_cap_s, rules.warmup_requests, recorded)

    @property
    def tree_rules(self) -> TreeRules:
        """The scenario's rules that shape a tree."""
        rules = self.scenario
        return TreeRules(rules.messages == "tools", rules.flat_agents, rules.cross_stream_order, rules.human_pauses)


def share_plan(plan_dir: Path, corpus: Corpus, plan: Plan) -> None:
    """Write corpus and plan as plain arrays that workers map instead of loading."""
    plan_dir.mkdir(parents=True)
    Starts.create(plan_dir / STARTS, plan.selection.concurrency)  # the slots' own first trees come before
    arrays = corpus.arrays()
    for name, array in {**arrays, "plan.order": plan.order, "plan.kept": plan.kept}.items():
        np.save(plan_dir / f"{name}.npy", array, allow_pickle=False)
    (plan_dir / "tables.json").write_bytes(msgspec.json.encode(corpus.tables()))


def map_plan(plan_dir: Path) -> tuple[Corpus, np.ndarray, np.ndarray]:
    """The corpus, the order of its sessions and the kept rows, mapped read-only."""
    # As plain arrays on the mapped pages: numpy's memmap class is several times slower to index.
    arrays = {p.stem: np.asarray(np.load(p, mmap_mode="r", allow_pickle=False)) for p in plan_dir.glob("*.npy")}
    order, kept = arrays.pop("plan.order"), arrays.pop("plan.kept")
    tables = msgspec.json.decode((plan_dir / "tables.json").read_bytes())
    return Corpus.from_arrays(arrays, tables), order, kept
