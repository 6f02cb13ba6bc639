"""Which runs may stand together. Pure: run manifests (run.json) in, what differs out.

A run asks a question, the *workload* (corpus, rules, model), of a *stack* (engine, precision, accelerator), at a
*load* (sessions or arrivals at once). What has to be equal depends on what is made of the runs:

| made of them | workload | load | stack |
| --- | --- | --- | --- |
| a curve, or a table of costs: `CURVE` | equal | free | equal |
| curves against each other: `CURVES` | equal | free | free: it is what is compared |
| one run against another: `PAIR` | equal | equal, to the plan's digest | free |
| one run against another that differs in a tier: `ONE_CHANGE` | equal | equal | equal |

Parallelism, offload and speculation are no part of the stack: they are what a sweep varies on the way to a frontier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from results.errors import UserError


class Aspect(Enum):
    """What of two runs may have to be equal."""

    WORKLOAD = "workload"
    LOAD = "load"
    STACK = "stack"


CURVE = frozenset({Aspect.WORKLOAD, Aspect.STACK})
CURVES = frozenset({Aspect.WORKLOAD})
PAIR = frozenset({Aspect.WORKLOAD, Aspect.LOAD})
ONE_CHANGE = frozenset(Aspect)

LOAD_RULES = frozenset({"concurrency", "stages", "rate_per_min", "ramp_s"})
"""Rules of a scenario that say how much is asked at once; all others say what."""
_TEXT_RULES = frozenset({"description"})
STACK_KEYS = ("engine", "version", "model", "context_length", "quantization", "dtype", "kv_cache_dtype", "gpu")
"""Keys of run.json `serving` that make two servers different stacks."""
SWEEP_KEYS = ("engine", "engine_version", "hardware", "precision", "kv_precision")
"""Keys of `serving` in a sweep's serving.json that do."""

_CORPUS, _PLAN = "corpus", "plan"
_SHOWN = 3
_UNKNOWN = object()


def check(
    manifests: Sequence[Mapping[str, Any]], same: frozenset[Aspect], *, allow_mixed: bool, what: str = "the runs"
) -> list[str]:
    """Lines of what differs though it should not, for the user to see; empty when the runs may stand together.

    UserError when there are any, unless `allow_mixed`.
    """
    lines = mixed(manifests, same)
    if lines and not allow_mixed:
        more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise UserError(
            f"{what} differ in {'; '.join(lines[:_SHOWN])}{more}", remedy="--allow-mixed takes them together anyway"
        )
    return lines


def mixed(manifests: Sequence[Mapping[str, Any]], same: frozenset[Aspect]) -> list[str]:
    """A line for each thing that must be equal and is not: `corpus: 3063321afb1b against 9f2c11d0aa41`.

    What a run does not know of its rules or its stack is no difference; a corpus or model that is not known is one.
    """
    alike: dict[tuple[Any, ...], tuple[Mapping[str, Any], list[tuple[str, Any]], list[int]]] = {}
    for manifest in manifests:
        facts = list(_facts(manifest, same))
        marks = tuple((key, value if value.__hash__ is not None else repr(value)) for key, value in facts)
        alike.setdefault(marks, (manifest, facts, [0]))[2][0] += 1
    found: dict[str, dict[Any, _Seen]] = {}
    for marks, (manifest, facts, (runs,)) in alike.items():
        for (_, mark), (key, value) in zip(marks, facts, strict=True):
            seen = found.setdefault(key, {}).setdefault(mark, _Seen(value, str(manifest.get("run_id"))))
            seen.runs += runs
    return [_line(key, list(values.values())) for key, values in found.items() if len(values) > 1]


class _Seen:
    """A value, the first run that has it, and how many do."""

    def __init__(self, value: Any, run_id: str) -> None:
        self.value = value
        self.run_id = run_id
        self.runs = 0

    @property
    def names(self) -> str:
        return self.run_id if self.runs == 1 else f"{self.run_id} and {self.runs - 1} more"


def _line(key: str, seen: list[_Seen]) -> str:
    if len(seen) == 2 and {s.runs for s in seen} == {1}:
        return f"{key}: {_shown(key, seen[0].value)} against {_shown(key, seen[1].value)}"
    seen.sort(key=lambda s: -s.runs)
    parts = [
        f"{_shown(key, s.value)} ({s.run_id}{f' and {s.runs - 1} more' if s.runs > 1 else ''})" for s in seen[:_SHOWN]
    ]
    more = f" and {len(seen) - _SHOWN} other values" if len(seen) > _SHOWN else ""
    return f"{key}: {' against '.join(parts)}{more}"


def _shown(key: str, value: Any) -> str:
    if value is _UNKNOWN:
        return "not known"
    return str(value)[:12] if key in (_CORPUS, _PLAN) else str(value)


def _facts(manifest: Mapping[str, Any], same: frozenset[Aspect]) -> Iterator[tuple[str, Any]]:
    if Aspect.WORKLOAD in same:
        yield from _workload(manifest)
    if Aspect.LOAD in same:
        yield from _load(manifest)
    if Aspect.STACK in same:
        yield from _stack(manifest)


def _workload(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield _CORPUS, _of(manifest, "corpus", "digest", absent=_UNKNOWN)
    yield "model", _of(manifest, "endpoint", "model", absent=_UNKNOWN)
    for name, where in (
        ("planned requests", ("plan", "requests")),
        ("forced output lengths", ("endpoint", "request_fields", "ignore_eos")),
    ):
        if (value := _of(manifest, *where)) is not None:
            yield name, value
    for rule, value in _rules(manifest):
        if rule not in LOAD_RULES:
            yield rule, value


def _load(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield _PLAN, _of(manifest, "plan", "digest", absent=_UNKNOWN)
    for rule, value in _rules(manifest):
        if rule in LOAD_RULES:
            yield rule, value


def stack_of(manifest: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What is known of the stack, in words and value: what one curve has in common."""
    return list(_stack(manifest))


def _stack(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if count := _endpoints(manifest):
        yield "served by", f"{count} endpoint{'s' if count > 1 else ''}"
    for key in STACK_KEYS:
        if (value := _of(manifest, "serving", key, "value")) is not None:
            yield f"serving {key}", value
    for key in SWEEP_KEYS:
        if (value := _of(manifest, "sweep", "serving", key)) is not None:
            yield f"configured {key}", value


def _endpoints(manifest: Mapping[str, Any]) -> int:
    """How many servers answered; runs of before there could be several say `endpoint` only. 0: not known."""
    several = manifest.get("endpoints")
    if isinstance(several, list) and several:
        return len(several)
    return 1 if isinstance(manifest.get("endpoint"), Mapping) else 0


def _rules(manifest: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rules = _of(manifest, "scenario", "rules")
    known = rules if isinstance(rules, dict) else {}
    return [(rule, known[rule]) for rule in sorted(known) if rule not in _TEXT_RULES]


def _of(document: Any, *path: str, absent: Any = None) -> Any:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return absent if document is None else document
