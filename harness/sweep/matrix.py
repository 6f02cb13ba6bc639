"""The points of a sweep and their order. Pure.

Every curve (configuration × scenario) shows its ends first and then halves what lies between, on a logarithmic scale;
the curves take turns, so that all of them are there early.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.sweep.schema import Auto, Configuration, Points, Scenario, Sweep


@dataclass(frozen=True, slots=True)
class Curve:
    """One configuration under one scenario: the line through its points."""

    configuration: Configuration
    scenario: Scenario
    points: list[int] | Auto

    @property
    def name(self) -> str:
        """`configuration/scenario`."""
        return f"{self.configuration.name}/{self.scenario.name}"

    def point(self, concurrency: int) -> Point:
        """The point of this curve at a number of live sessions."""
        return Point(self, concurrency)


@dataclass(frozen=True, slots=True)
class Point:
    """One run to be done."""

    curve: Curve
    concurrency: int

    @property
    def id(self) -> str:
        """`configuration/scenario/cN`, unique in its sweep."""
        return f"{self.curve.name}/c{self.concurrency}"

    @property
    def digest(self) -> str:
        """What the result depends on, in 16 hex digits: a point that is defined anew is not done."""
        configuration = self.curve.configuration
        content: dict[str, Any] = {
            "serving": configuration.serving,
            "server": configuration.server,
            "endpoint": configuration.endpoint,
            "extra": configuration.extra,
            "variables": configuration.variables,
            "scenario": self.curve.scenario,
            "concurrency": self.concurrency,
        }
        if configuration.server:  # waiting longer for a server changes nothing that is measured
            content["server"] = {"commands": configuration.server.commands, "env": configuration.server.env}
        data = msgspec.json.encode(content, order="sorted")
        return hashlib.sha256(data).hexdigest()[:16]


def curves(sweep: Sweep) -> list[Curve]:
    """Every configuration under every scenario, run settings laid under the scenario's own."""
    return [
        Curve(configuration, _complete(sweep, scenario), _points(configuration.points or sweep.points))
        for configuration in sweep.configurations
        for scenario in sweep.scenarios
    ]


def _points(points: Points) -> list[int] | Auto:
    if isinstance(points, str):
        return Auto()
    return points


def _complete(sweep: Sweep, scenario: Scenario) -> Scenario:
    common = {name: getattr(sweep.run, name) for name in sweep.run.__struct_fields__}
    own = {name: getattr(scenario, name) for name in scenario.__struct_fields__}
    return Scenario(**{**common, **{name: value for name, value in own.items() if value is not None}})


def ends_then_bisect(values: list[int]) -> list[int]:
    """Lowest, highest, then the value nearest (in ratio) to the middle of each widest gap."""
    rest = sorted(set(values))
    if len(rest) <= 2:
        return rest
    order = [rest[0], rest[-1]]
    gaps = [(0, len(rest) - 1)]
    while gaps:
        gaps.sort(key=lambda gap: math.log(rest[gap[1]] / rest[gap[0]]), reverse=True)
        low, high = gaps.pop(0)
        if high - low < 2:
            continue
        middle = math.sqrt(rest[low] * rest[high])
        best = min(range(low + 1, high), key=lambda i: (round(abs(math.log(rest[i] / middle)), 9), i))
        order.append(rest[best])
        gaps += [(low, best), (best, high)]
    return order


def take_turns(lists: list[list[Point]]) -> Iterator[Point]:
    """First of each list, then second of each, and so on."""
    for index in range(max(map(len, lists), default=0)):
        yield from (points[index] for points in lists if index < len(points))


def select(all_curves: list[Curve], only: list[str]) -> list[tuple[Curve, int | None]]:
    """Curves (and single concurrencies) that `only` names: `configuration`, `…/scenario` or `…/scenario/cN`.

    Each with None for the whole curve. ValueError naming the first that matches nothing.
    """
    if not only:
        return [(curve, None) for curve in all_curves]
    chosen: list[tuple[Curve, int | None]] = []
    for text in only:
        parts = text.split("/")
        number = parts[2][1:] if len(parts) == 3 and parts[2][:1] == "c" else ""
        found = [
            curve
            for curve in all_curves
            if curve.configuration.name == parts[0] and (len(parts) < 2 or curve.scenario.name == parts[1])
        ]
        if not found or len(parts) > 3 or (len(parts) == 3 and not number.isdecimal()):
            raise ValueError(text)
        concurrency = int(number) if number else None
        for curve in found:
            if concurrency is not None and isinstance(curve.points, list) and concurrency not in curve.points:
                raise ValueError(text)
            chosen.append((curve, concurrency))
    return chosen
