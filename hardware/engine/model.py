"""Continuous batching on an explicit clock: requests in, tokens with their times out. No I/O, no clock of its
own.

`begin(now)` puts together the next step and says when it ends; `finish()` applies it. Between the two,
requests may be submitted and cancelled. Scheduling is first come, first served, as vLLM's: running requests
first, each with its one decode token or its next piece of prompt; then waiting requests while blocks and
places last. A prompt's blocks are all reserved at admission. When an answer needs a block and none is left,
the request admitted last gives up its blocks and waits at the head of the queue to be computed again; its
published blocks stay findable meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hardware.engine.cache import Lease, PrefixCache
from hardware.engine.profiles import Profile


@dataclass(slots=True, eq=False)
class Request:
    """One request: what was asked, and how far it has come."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    """Tokens it will generate: known beforehand, since lengths are drawn, not sampled token by token."""
    keys: list[int]
    """Keys of all full blocks of prompt and answer."""
    arrival_s: float
    admitted_s: float | None = None
    cached_tokens: int = 0
    """Prompt tokens found in the cache when first admitted."""
    computed: int = 0
    generated: int = 0
    preemptions: int = 0
    done: bool = False
    lease: Lease | None = None

    @property
    def known_tokens(self) -> int:
        """Prompt and answer so far."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True, slots=True)
class Step:
    """What one step brought, at `end_s`: one token each for `emitted`, of which `finished` are complete."""

    end_s: float
    tokens: int
    emitted: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)


class Engine:
    """One server's batch, queue and cache. Times are seconds on the caller's clock."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.cache = PrefixCache(profile.cache_blocks)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preemptions = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self._batch: list[tuple[Request, int]] = []
        self._end_s = 0.0

    def submit(self, request: Request) -> None:
        """Queue a request, in order of `arrival_s`. ValueError when it could never be served."""
        total = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request has at least one token of prompt and of answer")
        if total > self.profile.max_model_len:
            raise ValueError(f"{total} tokens exceed max_model_len {self.profile.max_model_len}")
        self.waiting.append(request)

    def cancel(self, request: Request) -> None:
        """Drop a request, waiting or running; its blocks are free at once."""
        if request.done:
            return
        (self.waiting if request.lease is None else self.running).remove(request)
        self._end(request)

    def begin(self, now_s: float) -> float | None:
        """Start the next step at `now_s`, or with the first arrival when idle until then.

        Returns when it ends; None when there is nothing to do.
        """
        assert not self._batch, "the step before has not been finished"
        if not self.running and self.waiting:
            now_s = max(now_s, self.waiting[0].arrival_s)
        budget = self._schedule_running()
        self._schedule_waiting(now_s, budget)
        if not self._batch:
            return None
        self._end_s = now_s + self._duration()
        return self._end_s

    def finish(self) -> Step:
        """Apply the step begun: computed blocks are published, complete prompts bring a token each."""
        step = Step(self._end_s, sum(tokens for _, tokens in self._batch))
        size = self.profile.block_size
        for request, tokens in self._batch:
            if request.done:
                continue
            assert request.lease is not None
            before = request.computed // size
            request.computed += tokens
            for block in range(before, request.computed // size):
                self.cache.publish(request.lease, request.keys[block])
            if request.computed == request.known_tokens:
                request.generated += 1
                step.emitted.append(request)
                if request.generated == request.output_tokens:
                    step.finished.append(request)
        for request in step.finished:
            self.running.remove(request)
            self._end(request)
        self._batch = []
        return step

    def _schedule_running(self) -> int:
        """Put running requests into the step; returns the tokens left of its budget."""
        budget = self.profile.max_num_batched_tokens
        size = self.profile.block_size
        position = 0
        while position < len(self.running) and budget:
            request = self.running[position]
            assert request.lease is not None
            tokens = min(request.known_tokens - request.computed, budget)
            if request.computed + tokens > request.lease.blocks * size and not self.cache.extend(request.lease):
                self._preempt()
                continue
            self._batch.append((request, tokens))
            budget -= tokens
            position += 1
        return budget

    def _schedule_waiting(self, now_s: float, budget: int) -> None:
        while self.waiting and budget and len(self.running) < self.profile.max_num_seqs:
            request = self.waiting[0]
            if request.arrival_s > now_s or not self._admit(request, now_s):
                return
            self.running.append(self.waiting.popleft())
            tokens = min(request.known_tokens - request.computed, budget)
            self._batch.append((request, tokens))
            budget -= tokens

    def _admit(self, request: Request, now_s: float) -> bool:
        size = self.profile.block_size
        known = request.known_tokens
        # The last token is always computed: its result is the next token.
        findable = request.keys[: (known - 1) // size]
        request.lease = self.cache.admit(findable, -(-known // size))
        if request.lease is None:
            return False
        request.computed = len(request.lease.keys) * size
        if request.admitted_s is None:
            request.admitted_s = now_s
            request.cached_tokens = request.computed
            self.queried_tokens += request.prompt_tokens
            self.hit_tokens += request.cached_tokens
        return True

    def _preempt(self) -> None:
        request = self.running.pop()
        assert request.lease is not None
        self.cache.release(request.lease)
        request.lease = None
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _end(self, request: Request) -> None:
        if request.lease is not None:
            self.cache.release(request.lease)
            request.lease = None
        request.done = True

    def _duration(self) -> float:
        prefill = decoding = context = 0
        for request, tokens in self._batch:
            if tokens == 1 and request.generated:
                decoding += 1
            else:
                prefill += tokens
            context += request.computed + tokens
        rates = self.profile
        return (
            rates.step_s
            + prefill / rates.prefill_tokens_s
            + decoding * rates.decode_request_s
            + context / rates.kv_tokens_s
        )
