"""What the requests say against what the server's counters say, over the same interval.

Per-request usage is the primary source: it is tied to requests that this run sent. Counters include what others sent,
look-ups that were repeated after a preemption, and both halves of a request whose prefill and decode are apart; the
two are shown side by side and never blended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from results.findings import Finding, Severity

LIMIT = 0.01
"""Relative difference from which the two disagree."""

_ONCE = ("frontend",)
_WORKERS = ("worker", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Increase:
    """What one canonical counter gained between two baselines, on one target.

    `labels` are canonical (tier, source, reason, direction); `origin` the source's own, which tell replicas apart.
    `resets` restarts of the server fell between: the value is then a lower bound.
    """

    name: str
    value: float
    target: str
    role: str
    dialect: str
    labels: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    resets: int = 0


@dataclass(frozen=True, slots=True)
class ClientSums:
    """Sums over the requests answered in the interval; None where not one answer says. Tokens.

    `without_usage` answers carried no usage: the sums then lack them. `unfinished` requests were sent but got no whole
    answer: the server may have counted them.
    """

    requests: int
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    without_usage: int = 0
    unfinished: int = 0


def total(increases: Iterable[Increase], name: str, **labels: str) -> float | None:
    """Sum of a counter over label sets and replicas, each request counted once; None where nothing says it.

    A frontend sees each request once, so it is asked first. Of workers, those that do prefill count prompts and look
    up prefixes; where prefill and decode are apart the decode side would count the same prompt again. Where a page
    speaks two dialects (an engine and LMCache) the engine's counts.
    """
    found = [i for i in increases if i.name == name and all(i.labels.get(k) == v for k, v in labels.items())]
    for roles in (_ONCE, _apart(found, name), ("cache",), ("unknown",)):
        chosen = [i for i in found if i.role in roles]
        engines = [i for i in chosen if i.dialect != "lmcache"]
        if chosen:
            return sum(i.value for i in engines or chosen)
    return None


def _apart(found: Sequence[Increase], name: str) -> tuple[str, ...]:
    """The worker roles that count `name` once."""
    roles = {i.role for i in found}
    if "prefill" not in roles:
        return _WORKERS
    return ("worker", "decode") if name in ("generation_tokens", "requests_finished") else ("prefill",)


def hit_rate(increases: Sequence[Increase], tier: str) -> float | None:
    """Hits over queries of a tier (tokens): the counters of all pools are added, never their rates averaged."""
    hits = total(increases, "prefix_cache_hits", tier=tier)
    queries = total(increases, "prefix_cache_queries", tier=tier)
    return hits / queries if hits is not None and queries else None


def reconcile(client: ClientSums, increases: Sequence[Increase]) -> dict[str, Any]:
    """Each quantity as the client and as the server count it.

    Per quantity: `client`, `server`, `difference` (server - client), `relative` (of the client's), `verdict` (agree,
    disagree, unknown), `primary` (client) and `reason`. The server's side is None where it has no such counter.
    """
    restarts = max((i.resets for i in increases), default=0)
    quantities = {
        "prompt_tokens": (client.input_tokens, total(increases, "prompt_tokens")),
        "cached_tokens": (client.cached_tokens, _cached(increases)),
        "generation_tokens": (client.output_tokens, total(increases, "generation_tokens")),
        "requests": (client.requests, _answered(increases)),
    }
    rows = {name: _compare(*pair, restarts) for name, pair in quantities.items()}
    return {**rows, "without_usage": client.without_usage, "unfinished": client.unfinished, "restarts": restarts}


def _answered(increases: Sequence[Increase]) -> float | None:
    """Requests that the server ended well: what a client broke off or what failed is no answer."""
    kept = [i for i in increases if i.labels.get("reason") not in ("abort", "error")]
    return total(kept, "requests_finished")


def _cached(increases: Sequence[Increase]) -> float | None:
    cached = total(increases, "cached_prompt_tokens")
    if cached is not None:
        return cached
    return total(increases, "prefix_cache_hits", tier="device")


def _compare(client: float | None, server: float | None, restarts: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "client": client,
        "server": server,
        "difference": None,
        "relative": None,
        "verdict": "unknown",
        "primary": "client" if client is not None else "server" if server is not None else None,
        "reason": "",
    }
    if client is None or server is None:
        lacks = [side for side, value in (("the answers", client), ("the server's pages", server)) if value is None]
        row["reason"] = f"{' and '.join(lacks)} do not say"
        return row
    row["difference"] = server - client
    if client:
        row["relative"] = (server - client) / client
    off = abs(server - client) > LIMIT * max(client, server)
    row["verdict"] = "disagree" if off else "agree"
    if restarts and server < client:
        row["reason"] = "the server restarted: what it had counted after its last scrape is lost"
    return row


def findings(result: dict[str, Any]) -> list[Finding]:
    """A warning for each quantity that disagrees by more than `LIMIT`."""
    found = []
    for name in ("prompt_tokens", "cached_tokens", "generation_tokens", "requests"):
        row = result[name]
        if row["verdict"] != "disagree":
            continue
        share = f" ({100 * row['relative']:+.1f} %)" if row["relative"] is not None else ""
        text = (
            f"the server counted {row['server']:,.0f} {name.replace('_', ' ')}, the answers {row['client']:,.0f}{share}"
        )
        why = row["reason"] or _why(result)
        found.append(Finding("server_disagrees", Severity.WARNING, text, why))
    return found


def _why(result: dict[str, Any]) -> str:
    if result["without_usage"]:
        return f"{result['without_usage']} answers carried no usage"
    if result["unfinished"]:
        return f"{result['unfinished']} requests got no whole answer, and the server may have counted them"
    return "other traffic, look-ups repeated after a preemption, or a counter that means something else"
