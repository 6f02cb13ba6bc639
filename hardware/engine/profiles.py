"""What a simulated server is made of: sizes and rates, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """One serving engine. A step of its batch takes, in seconds,

    step_s + prefill tokens / prefill_tokens_s + decoding requests * decode_request_s
    + context tokens / kv_tokens_s

    where the context is that of every request in the step: decode slows with load and with length.
    """

    block_size: int
    """Tokens per block of the prefix cache."""
    cache_blocks: int
    max_model_len: int
    """Tokens of prompt and answer together."""
    max_num_seqs: int
    """Requests in one batch."""
    max_num_batched_tokens: int
    """Tokens computed in one step; longer prompts take several."""
    step_s: float
    prefill_tokens_s: float
    decode_request_s: float
    kv_tokens_s: float
    """Context tokens whose keys and values are read per second."""
    answer_tokens: float = 400.0
    """Mean length of an answer that is neither forced nor cut."""
    reasoning_share: float = 0.0
    """Part of each chat answer that is thought before it is said."""

    def __post_init__(self) -> None:
        if min(self.block_size, self.cache_blocks, self.max_model_len, self.max_num_seqs) < 1:
            raise ValueError("sizes are at least 1")
        if not 0.0 <= self.reasoning_share < 1.0:
            raise ValueError("an answer is never thought alone: reasoning_share is at least 0 and below 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("a step must have room for one token of every request in the batch")
        if self.max_model_len > self.cache_blocks * self.block_size:
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit into "
                f"{self.cache_blocks} blocks of {self.block_size} tokens"
            )


PROFILES: dict[str, Profile] = {
    # 20k tokens cold in 0.4 s, 100 tokens/s for one stream: quick enough to watch on a laptop.
    "small": Profile(
        block_size=64,
        cache_blocks=32_768,
        max_model_len=262_144,
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        step_s=0.009,
        prefill_tokens_s=55_000.0,
        decode_request_s=0.000_25,
        kv_tokens_s=20e6,
    ),
    "large": Profile(
        block_size=64,
        cache_blocks=262_144,
        max_model_len=1_048_576,
        max_num_seqs=1_024,
        max_num_batched_tokens=16_384,
        step_s=0.012,
        prefill_tokens_s=150_000.0,
        decode_request_s=0.000_06,
        kv_tokens_s=200e6,
    ),
}
