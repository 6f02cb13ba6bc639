"""Sub-agents that a trace recorded flat: requests of one lane parted into chains by what their prompts share.

A request continues a chain when its prompt begins with the whole prompt of the chain's last request, that request had
ended, and the model is the same. A request that shares less than that with every chain is either the same agent after
an edit of its context (a *seam*: a compaction, say) or another agent (a *spawn*). It is a seam when nobody ever comes
back to the longer prompt that it left; a long gap with little in common is never one. The public AgentX loader decides
the same way (FACTS 2.9); the limits below are its defaults.

A session may open with a *preamble*: a call for its title, say, that nothing ever continues. It is the main agent's
first request, but what it shares with others says nothing, so chains are found without it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from replay.prefix import Runs, common_blocks

SEAM_GAP_S = 3600.0
SEAM_OVERLAP = 0.5
AUX_REQUESTS = 1
AUX_INPUT_TOKENS = 16_384
AUX_INPUT_SHARE = 0.10
REDUCTION_OUTPUT_TOKENS = 4000
REDUCTION_RATIO = 20
PREAMBLE_OUTPUT_TOKENS = 64
_TOUCH_S = 1e-6


@dataclass(frozen=True, slots=True)
class Recorded:
    """What chain detection looks at of one request; `end_s` is `start_s` where the duration is not known."""

    start_s: float
    end_s: float
    model: int
    runs: Runs
    blocks: int
    """Whole blocks of the prompt, all of `runs`."""
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Chain:
    """One agent: indices of its requests in time order, and where it forked off."""

    requests: list[int] = field(default_factory=list)
    parent: int = -1
    """Chain whose prompt the first request shared, -1 for none."""
    fork: int = -1
    """Request whose prompt it was."""
    depth: int = 0
    """Blocks shared there."""
    tail: int = -1
    """The last request that has blocks."""
    merged_into: int = -1
    auxiliary: bool = False
    """A single side call (another model, a small fresh context, or a digest of a large one), not an agent."""


def find_chains(requests: Sequence[Recorded]) -> list[Chain]:
    """Part `requests` (ordered by start) into chains; the first is the main agent's.

    Chains are ordered by their first request. Requests without blocks stay with the main agent.
    """
    preamble = _has_preamble(requests)
    finder = _Finder(requests)
    for index in range(int(preamble), len(requests)):
        finder.place(index)
    finder.merge_seams()
    live = [k for k, chain in enumerate(finder.chains) if chain.merged_into < 0]
    place = {old: new for new, old in enumerate(live)}
    chains = [finder.chains[k] for k in live]
    for chain in chains:
        chain.requests.sort()
        chain.parent = place.get(finder.resolve(chain.parent), -1) if chain.parent >= 0 else -1
    _mark_auxiliary(requests, chains)
    if preamble:
        chains[0].requests.insert(0, 0)
    return chains


def _has_preamble(requests: Sequence[Recorded]) -> bool:
    """Whether the first request begins like no other, and is short or has no block in common with any."""
    if len(requests) < 2 or not requests[0].blocks:
        return False
    first, others = requests[0], [other for other in requests[1:] if other.blocks]
    if any(common_blocks(first.runs, other.runs, 1) for other in others):
        return False
    return first.output_tokens <= PREAMBLE_OUTPUT_TOKENS or not any(
        a < other_a + other_count and other_a < a + count
        for a, count in first.runs
        for other in others
        for other_a, other_count in other.runs
    )


class _Finder:
    def __init__(self, requests: Sequence[Recorded]) -> None:
        self.requests = requests
        self.chains: list[Chain] = []
        self.owner: dict[int, int] = {}
        self.forks: dict[int, list[int]] = {}
        """Chains that forked off a request."""

    def place(self, index: int) -> None:
        """First pass, in time order: continue a chain, or fork on every shrink."""
        request = self.requests[index]
        if not request.blocks or not self.chains:
            if not self.chains:
                self.chains.append(Chain())
            self._append(0, index)
            return
        extended = self._extended(request)
        if extended >= 0:
            self._append(extended, index)
            return
        parent, depth = self._closest(request)
        if parent < 0 and all(chain.tail < 0 for chain in self.chains):
            self._append(0, index)  # the first request with blocks is the main agent's
            return
        fork = self.chains[parent].tail if parent >= 0 else -1
        self.chains.append(Chain(parent=parent, fork=fork, depth=depth))
        self._append(len(self.chains) - 1, index)
        if depth:
            self.forks.setdefault(fork, []).append(len(self.chains) - 1)

    def _append(self, chain: int, index: int) -> None:
        self.chains[chain].requests.append(index)
        self.owner[index] = chain
        if self.requests[index].blocks:
            self.chains[chain].tail = index

    def _extended(self, request: Recorded) -> int:
        """The chain whose whole last prompt this one begins with (the longest), -1 for none."""
        best, best_blocks = -1, 0
        for k, chain in enumerate(self.chains):
            if chain.tail < 0:
                continue
            tail = self.requests[chain.tail]
            if tail.blocks <= best_blocks or tail.blocks > request.blocks or tail.model != request.model:
                continue
            if tail.end_s <= request.start_s + _TOUCH_S and _common(tail, request) == tail.blocks:
                best, best_blocks = k, tail.blocks
        return best

    def _closest(self, request: Recorded) -> tuple[int, int]:
        """The chain whose last prompt shares most (of equals the longer, then the first), and how many blocks."""
        best, key = -1, (0, 0)
        for k, chain in enumerate(self.chains):
            if chain.tail >= 0:
                tail = self.requests[chain.tail]
                shared = _common(tail, request)
                if shared and (shared, tail.blocks) > key:
                    best, key = k, (shared, tail.blocks)
        return best, key[0]

    def resolve(self, chain: int) -> int:
        """The live chain that `chain` has become part of."""
        while self.chains[chain].merged_into >= 0:
            chain = self.chains[chain].merged_into
        return chain

    def merge_seams(self) -> None:
        """Second pass: where nobody came back to a longer prompt, its best successor is the same agent."""
        waiting = list(self.forks)
        heapq.heapify(waiting)
        seen: set[int] = set()
        while waiting:
            fork = heapq.heappop(waiting)
            if fork in seen:
                continue
            seen.add(fork)
            owner = self.resolve(self.owner[fork])
            if self.chains[owner].tail != fork:
                continue  # the longer prompt was continued: all that left it are other agents
            candidates = [k for k in self.forks[fork] if self.chains[k].merged_into < 0]
            chosen = self._successor(fork, candidates)
            if chosen < 0:
                continue
            chain = self.chains[chosen]
            self.chains[owner].requests += chain.requests
            self.chains[owner].tail = chain.tail
            chain.merged_into = owner
            if self._fork_again(owner, [k for k in candidates if k != chosen]):
                seen.discard(chain.tail)
                heapq.heappush(waiting, chain.tail)

    def _successor(self, fork: int, candidates: list[int]) -> int:
        tail = self.requests[fork]
        fitting = []
        for k in candidates:
            chain = self.chains[k]
            first = self.requests[chain.requests[0]]
            late = first.start_s - tail.end_s > SEAM_GAP_S and chain.depth < SEAM_OVERLAP * tail.blocks
            if first.model == tail.model and tail.end_s <= first.start_s + _TOUCH_S and not late:
                fitting.append((-chain.depth, first.start_s, k))
        return min(fitting)[2] if fitting else -1

    def _fork_again(self, owner: int, others: list[int]) -> bool:
        """The chains not chosen are looked at again from the merged chain's new end."""
        tail = self.chains[owner].tail
        found = False
        for k in others:
            chain = self.chains[k]
            shared = _common(self.requests[tail], self.requests[chain.requests[0]])
            if shared:
                chain.fork, chain.depth, chain.parent = tail, shared, owner
                self.forks.setdefault(tail, []).append(k)
                found = True
        return found


def _common(a: Recorded, b: Recorded) -> int:
    return common_blocks(a.runs, b.runs, min(a.blocks, b.blocks))


def _mark_auxiliary(requests: Sequence[Recorded], chains: list[Chain]) -> None:
    main = chains[0].requests
    peak = max(requests[k].input_tokens for k in main)
    small = max(AUX_INPUT_TOKENS, int(AUX_INPUT_SHARE * peak))
    for chain in chains[1:]:
        if len(chain.requests) > AUX_REQUESTS:
            continue
        only = requests[chain.requests[0]]
        reduction = 0 < only.output_tokens < REDUCTION_OUTPUT_TOKENS and (
            only.input_tokens > REDUCTION_RATIO * only.output_tokens and only.input_tokens >= AUX_INPUT_TOKENS
        )
        other_model = only.model != requests[main[0]].model
        chain.auxiliary = other_model or only.input_tokens < small or reduction
