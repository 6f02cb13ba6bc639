"""What the public runner makes of traces, without sending anything; run by its own Python, not by ours.

    RUNNER/bin/python -P benchmarks/runner_plans.py CONCURRENCY < traces.jsonl > plans.jsonl

One trace a line in; out come one line per trace (`streams`) and then one per lane (`lane`): where it starts with
seed 42. Prompts are left unmade, for that is most of the runner's time and bears on nothing here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any


class NoPrompts:
    """In the place of what makes messages."""

    def __init__(self, **_: Any) -> None: ...

    def init_turn_0(self, **_: Any) -> None:
        """Nothing is made."""

    def advance_turn(self, **_: Any) -> None:
        """Nothing is made."""

    def turn_delta(self) -> Any:
        """A message must be there."""
        return SimpleNamespace(delta_messages=[{"role": "user", "content": "-"}], reset_context=False)


def make_loader() -> Any:
    """Its loader of weka traces, without configuration and tokenizer."""
    import_module("aiperf.dataset.loader.weka_synth_buf").ConversationReconstructor = NoPrompts  # type: ignore[attr-defined]
    kind = import_module("aiperf.dataset.loader.weka_trace").WekaTraceLoader

    class Loader(kind):  # type: ignore[misc, valid-type]
        bpe_stable_terminator_tokens: Any = ()
        sample_partial_tail_tokens = _decode_block_tokens = _decode_tokens_to_text = None
        _max_osl = _path = _inter_turn_delay_cap_seconds = None
        _ignore_trace_delays = _use_think_time_only = _tool_shaped_messages = False
        _configured_model_names: Any = ()

        def _request_passes_filters(self, _: Any) -> bool:
            return True

        def _block_size_for_trace(self, trace: Any) -> int:
            return int(trace.block_size or 64)

        def _resolved_context_mode(self) -> None:
            return None

    loader = object.__new__(Loader)
    loader._delay_cap_tracker = import_module("aiperf.dataset.loader._delay_cap").DelayCapTracker(cap_seconds=None)
    scope = SimpleNamespace(set_trace_id=lambda _: None)
    loader.prompt_generator = SimpleNamespace(_cache={}, _hash_id_corpus_rng=scope)
    return loader


def streams_of(conversations: list[Any]) -> list[dict[str, Any]]:
    """Its conversations as plain data. `after`: turns whose end a turn waits for, as [stream, turn]."""
    place = {c.session_id: k for k, c in enumerate(conversations)}
    branches = {b.branch_id: b for c in conversations for b in c.branches}
    after: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for c in conversations:
        for k, turn in enumerate(c.turns):
            waits = [(r.conversation_id, r.turn_index) for r in turn.replay_predecessors or ()]
            waits += [(c.session_id, k - 1)] if k else []
            for joined in turn.prerequisites:
                children = branches[joined.branch_id].child_conversation_ids
                waits += [(child, len(conversations[place[child]].turns) - 1) for child in children]
            after[c.session_id, k] = [wait for wait in waits if wait[1] >= 0]
    for c in conversations:
        for k, turn in enumerate(c.turns):
            for branch in (branches[b] for b in turn.branch_ids):
                # What began while the spawning turn ran is sent with it, not after it.
                overlaps = branch.start_timestamp_ms < turn.timestamp + (turn.api_time_ms or 0.0)
                for child in branch.child_conversation_ids:
                    if (child, 0) in after:
                        after[child, 0] += after[c.session_id, k] if overlaps else [(c.session_id, k)]
    return [
        {
            "name": c.session_id,
            "turns": [
                {
                    "t": turn.timestamp / 1e3,
                    "out": turn.max_tokens,
                    "pause": None if turn.delay is None else turn.delay / 1e3,
                    "after": [[place[name], k] for name, k in after[c.session_id, n]],
                    "hit_blocks": turn.theoretical_prefix_cache_hit_blocks,
                    "blocks": turn.theoretical_prefix_cache_total_blocks,
                }
                for n, turn in enumerate(c.turns)
            ],
        }
        for c in conversations
    ]


def lanes(names: list[str], metadata: list[Any], concurrency: int, sampling: Any) -> Iterator[dict[str, Any]]:
    """Where its first tree of every lane starts: moment in seconds, and the primers as (stream, turn)."""
    models, source = import_module("aiperf.common.models"), import_module("aiperf.timing.trajectory_source")

    class InOrder:
        """Sessions in file order, round and round."""

        asked = 0

        def next_conversation_id(self) -> str:
            self.asked += 1
            return names[(self.asked - 1) % len(names)]

    trajectories = source.TrajectorySource(
        dataset_metadata=models.DatasetMetadata(conversations=metadata, sampling_strategy=sampling),
        dataset_sampler=InOrder(), concurrency=concurrency, random_seed=42, cache_bust_enabled=True,
    ).trajectories  # fmt: skip
    for lane, trajectory in enumerate(trajectories):
        states = trajectory.snapshot.states
        primers = [(s.conversation_id, s.warmup_turn_index) for s in states if s.warmup_turn_index is not None]
        moment = trajectory.snapshot.t_star_ms / 1e3
        yield {"lane": lane, "session": trajectory.conversation_id, "moment_s": moment, "primers": primers}


def main() -> None:
    """Read traces, write what is made of them."""
    trace_model = import_module("aiperf.dataset.loader.weka_trace_models").WekaTrace
    loader, names, metadata = make_loader(), [], []
    for line in sys.stdin.buffer:
        trace = trace_model.model_validate_json(line)
        conversations = loader.convert_to_conversations({trace.id: [trace]})
        print(json.dumps({"session": trace.id, "streams": streams_of(conversations)}))
        names.append(trace.id)
        metadata += [conversation.to_metadata() for conversation in conversations]
    for lane in lanes(names, metadata, int(sys.argv[1]), loader.get_preferred_sampling_strategy()):
        print(json.dumps(lane))


if __name__ == "__main__":
    main()
