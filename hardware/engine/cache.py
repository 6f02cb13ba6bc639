"""A paged prefix cache: blocks named by the hash of their whole prefix, idle ones dropped least recently used
first.

A block is in one of three states, and their sum never exceeds the capacity:

- *shared*: published under a key and held by one or more running requests;
- *private*: held by one request, not (or not yet) findable: part of a prompt still to be computed, or a
  partial block;
- *idle*: published, held by nobody; found again by its key until the space is needed.

What is neither is free. Only idle blocks are evicted, so a hit is always a block that is really there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


def chain_keys(blocks: Iterable[bytes]) -> list[int]:
    """Key of each block given the contents of all blocks from the first: equal keys mean equal prefixes.

    64-bit keys of this process only (Python's own hash, seeded anew in each process).
    """
    keys = []
    parent = 0
    for content in blocks:
        parent = hash((parent, content))
        keys.append(parent)
    return keys


class Lease:
    """The blocks that one running request holds."""

    __slots__ = ("keys", "private")

    def __init__(self, keys: list[int], private: int) -> None:
        self.keys = keys
        self.private = private

    @property
    def blocks(self) -> int:
        """Number of blocks held."""
        return len(self.keys) + self.private


class PrefixCache:
    """Blocks of a fixed number; sizes in blocks throughout."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a cache needs at least one block")
        self.capacity = capacity
        self.evictions = 0
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    @property
    def used(self) -> int:
        """Blocks that running requests hold."""
        return len(self._holders) + self._private

    @property
    def idle(self) -> int:
        """Blocks kept for later requests only."""
        return len(self._idle)

    def resident(self, keys: Sequence[int]) -> int:
        """How many of `keys`, counted from the first, are in the cache without a gap."""
        for position, key in enumerate(keys):
            if key not in self._holders and key not in self._idle:
                return position
        return len(keys)

    def admit(self, keys: Sequence[int], blocks: int) -> Lease | None:
        """Lease `blocks` blocks, the leading ones shared where found under `keys`; None: no room now."""
        hits = keys[: self.resident(keys)]
        woken = sum(key in self._idle for key in hits)
        fresh = blocks - len(hits)
        if fresh > self.capacity - self.used - woken:
            return None
        for key in hits:
            if key in self._idle:
                del self._idle[key]
            self._holders[key] = self._holders.get(key, 0) + 1
        self._take(fresh)
        return Lease(list(hits), fresh)

    def extend(self, lease: Lease) -> bool:
        """Add one private block to a lease; False: no room now."""
        if self.used >= self.capacity:
            return False
        self._take(1)
        lease.private += 1
        return True

    def publish(self, lease: Lease, key: int) -> None:
        """Make a private block of the lease findable under `key`.

        Where another request has computed the same block meanwhile, ours stays private: one key is one block.
        """
        if key in self._holders or key in self._idle:
            return
        lease.private -= 1
        lease.keys.append(key)
        self._private -= 1
        self._holders[key] = 1

    def release(self, lease: Lease) -> None:
        """Give back all blocks of a lease; its tail is evicted before its beginning."""
        self._private -= lease.private
        for key in reversed(lease.keys):
            holders = self._holders[key] - 1
            if holders:
                self._holders[key] = holders
            else:
                del self._holders[key]
                self._idle[key] = None
        lease.keys, lease.private = [], 0

    def clear(self) -> None:
        """Forget every idle block; running requests keep theirs."""
        self._idle.clear()

    def _take(self, blocks: int) -> None:
        free = self.capacity - self.used - len(self._idle)
        for _ in range(blocks - free):
            self._idle.popitem(last=False)
            self.evictions += 1
        self._private += blocks
