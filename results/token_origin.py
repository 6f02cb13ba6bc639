"""Where every input token came from: never seen, served from a cache tier, or computed again although seen.

    input = cold + theoretical            theoretical: what an infinite cache would have served, given what was sent
    theoretical = achieved + lost         achieved: served from cache, as each answer's usage says
    achieved = device + host + external   by the server's counters
    lost = evicted + routing + mismatch   each by evidence, or None with the reason

Routing lost what some worker held and the chosen one did not (a router's best minus selected tokens; nothing with one
replica). Evictions lost nothing where all that the run computed fits the pool, or where the engine counts evictions
and counted none. Mismatch is what a run at concurrency 1 loses with no eviction and one replica: tokenisation or
template drift. Where two of the three are known the third is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from results.reconcile import LIMIT, ClientSums, Increase, total

_BELOW = ("disk", "p2p", "external", "unspecified")
_PARTS = ("lost_evicted", "lost_routing", "lost_mismatch")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the server beside its counters; None where it is not known.

    `replicas` engines that each have a cache of their own; `pool_tokens` size of the smallest of their device pools;
    `block_tokens` of one KV block; `mismatch_at_one` share of the theoretical hits that a run at concurrency 1 of the
    same corpus lost on the same server.
    """

    replicas: int | None = None
    pool_tokens: float | None = None
    block_tokens: float | None = None
    mismatch_at_one: float | None = None


def token_origin(
    client: ClientSums, theoretical: int | None, increases: Sequence[Increase], evidence: Evidence
) -> dict[str, Any]:
    """Tokens and fractions of the input by origin over one interval (the run, or any part of it).

    Returns `input_tokens`, `tokens` and `fractions` (keys theoretical, achieved, device, host, external, cold, lost,
    lost_evicted, lost_routing, lost_mismatch; None where unknown) and `why`: evidence or reason per key. Fractions of
    device, host and external are of the prompt tokens that the server counted, the others of the client's input.
    """
    why: dict[str, str] = {}
    tokens: dict[str, float | None] = dict.fromkeys(
        ("theoretical", "achieved", "device", "host", "external", "cold", "lost", *_PARTS)
    )
    tokens["theoretical"] = theoretical
    tokens["achieved"] = _achieved(client, increases, why)
    counted = _tiers(tokens, increases, why)
    given = client.input_tokens
    if given is None:
        why["input_tokens"] = "the answers carry no usage"
    if given is not None and theoretical is not None:
        tokens["cold"] = given - max(theoretical, tokens["achieved"] or 0)
        why["cold"] = "not sent before in this run"
    else:
        why["cold"] = "input or theoretical hits are not known"
    _lost(tokens, client, increases, evidence, why)
    fractions = {
        name: _over(value, counted if name in ("device", "host", "external") else given)
        for name, value in tokens.items()
    }
    return {"input_tokens": given, "tokens": tokens, "fractions": fractions, "why": why}


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _achieved(client: ClientSums, increases: Sequence[Increase], why: dict[str, str]) -> float | None:
    selected = total(increases, "router_selected_cached_tokens")
    if client.cached_tokens is None:
        why["achieved"] = "the answers do not say how many tokens were cached"
        return None
    if client.cached_tokens == 0 and selected:
        why["achieved"] = (
            f"usage says 0, but the router chose workers that held {selected:,.0f} of these tokens (known of Dynamo "
            "with prefill and decode apart): the router's count is taken, an upper bound"
        )
        return selected
    why["achieved"] = "usage of the answers"
    return client.cached_tokens


def _tiers(tokens: dict[str, float | None], increases: Sequence[Increase], why: dict[str, str]) -> float | None:
    """Fill device, host and external; returns the prompt tokens that the same pages counted."""
    sources = {i.labels.get("source") for i in increases if i.name == "prompt_tokens_by_source"}
    if sources & {"device", "host", *_BELOW}:
        tokens["device"] = total(increases, "prompt_tokens_by_source", source="device")
        tokens["host"] = total(increases, "prompt_tokens_by_source", source="host")
        below = [total(increases, "prompt_tokens_by_source", source=source) for source in _BELOW]
        known = [value for value in below if value is not None]
        tokens["external"] = sum(known) if known else None
        used = "prompt tokens by source"
    else:
        for tier in ("device", "host", "external"):
            tokens[tier] = total(increases, "prefix_cache_hits", tier=tier)
        used = "prefix cache hits"
    found = [tokens[tier] for tier in ("device", "host", "external")]
    for tier, value in zip(("device", "host", "external"), found, strict=True):
        why[tier] = f"the server's {used}" if value is not None else "no page counts hits of this tier"
    served, achieved = sum(value or 0.0 for value in found), tokens["achieved"]
    counted = any(value is not None for value in found)
    if counted and achieved is not None and abs(served - achieved) > LIMIT * max(served, achieved):
        why["device"] += f"; its tiers add up to {served:,.0f}, the answers say {achieved:,.0f}"
    workers = [i for i in increases if i.role != "frontend"]
    return total(workers, "prompt_tokens")


def _lost(
    tokens: dict[str, float | None],
    client: ClientSums,
    increases: Sequence[Increase],
    evidence: Evidence,
    why: dict[str, str],
) -> None:
    theoretical, achieved = tokens["theoretical"], tokens["achieved"]
    if theoretical is None or achieved is None:
        for key in ("lost", *_PARTS):
            why[key] = "theoretical or achieved hits are not known"
        return
    lost = tokens["lost"] = max(0.0, theoretical - achieved)
    why["lost"] = "theoretical minus achieved"
    if achieved > theoretical * (1 + LIMIT):
        why["lost"] = f"{achieved - theoretical:,.0f} more tokens were served than this run had sent before: another's"
    if lost == 0:
        tokens.update(dict.fromkeys(_PARTS, 0.0))
        why.update(dict.fromkeys(_PARTS, "nothing was lost"))
        return
    parts: dict[str, float | None] = {
        "lost_evicted": _evicted(client, achieved, increases, evidence, why),
        "lost_routing": _routing(increases, evidence, why),
        "lost_mismatch": _mismatch(theoretical, evidence, why),
    }
    known = {name: min(value, lost) for name, value in parts.items() if value is not None}
    missing = [name for name in _PARTS if name not in known]
    if len(missing) == 1:
        known[missing[0]] = max(0.0, lost - sum(known.values()))
        rest = "the rest of what was lost, prefixes among it that were still being computed when they were asked for"
        why[missing[0]] = f"{rest} ({why[missing[0]]})"
    tokens.update(known)


def _evicted(
    client: ClientSums, achieved: float, increases: Sequence[Increase], evidence: Evidence, why: dict[str, str]
) -> float | None:
    if evidence.pool_tokens is not None and client.input_tokens is not None and client.output_tokens is not None:
        needed = client.input_tokens - achieved + client.output_tokens
        needed += client.requests * (evidence.block_tokens or 0)
        if needed <= evidence.pool_tokens:
            why["lost_evicted"] = f"the pool of {evidence.pool_tokens:,.0f} tokens holds all {needed:,.0f} computed"
            return 0.0
        room = f"the pool holds {evidence.pool_tokens:,.0f} of the {needed:,.0f} tokens computed"
    else:
        room = "the pool's size is not known"
    evicted = total(increases, "kv_evicted_tokens")
    if evicted == 0:
        why["lost_evicted"] = "the engine counts evictions and counted none"
        return 0.0
    blocks = sum(
        i.value for i in increases if i.name == "kv_block_lifetime_seconds" and i.labels.get("part") == "count"
    )
    seen = (
        f"; {evicted:,.0f} tokens were evicted"
        if evicted
        else f"; {blocks:,.0f} evictions were sampled"
        if blocks
        else ""
    )
    why["lost_evicted"] = f"{room}{seen}; what a prefix that did not match cost is not known: run once at concurrency 1"
    return None


def _routing(increases: Sequence[Increase], evidence: Evidence, why: dict[str, str]) -> float | None:
    best = total(increases, "router_best_cached_tokens")
    selected = total(increases, "router_selected_cached_tokens")
    if best is not None and selected is not None:
        why["lost_routing"] = f"the router: best eligible {best:,.0f}, selected {selected:,.0f} tokens"
        return max(0.0, best - selected)
    if evidence.replicas == 1:
        why["lost_routing"] = "one replica"
        return 0.0
    count = "an unknown number of" if evidence.replicas is None else str(evidence.replicas)
    why["lost_routing"] = f"{count} replicas, and no router counts what they held"
    return None


def _mismatch(theoretical: float, evidence: Evidence, why: dict[str, str]) -> float | None:
    if evidence.mismatch_at_one is None:
        why["lost_mismatch"] = "no run at concurrency 1 on this server"
        return None
    why["lost_mismatch"] = f"a run at concurrency 1 lost {100 * evidence.mismatch_at_one:.1f} % of its possible hits"
    return evidence.mismatch_at_one * theoretical
