"""A sweep on a terminal and as JSON: the matrix, the time it takes, and how far it is."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.sweep.matrix import Curve, Point, ends_then_bisect, take_turns
from harness.sweep.run import Driver, load_time, place, read_summary
from harness.sweep.schema import Auto, seconds


@dataclass(frozen=True, slots=True)
class Time:
    """Bounds of what is left of a sweep, in seconds. `low` is the load alone; `high` also takes every server start,
    warm-up and drain at its limit. None: a scenario has no time limit."""

    low: float | None
    high: float | None


def time_left(driver: Driver, chosen: list[tuple[Curve, int | None]]) -> Time:
    """Bounds from durations, `ready_timeout`, warm-up and drain; an adaptive curve takes 2 to `max_points` points."""
    low = high = 0.0
    for curve, concurrency in chosen:
        fewest, most = _points_left(driver, curve, concurrency)
        load, limits = load_time(curve.scenario, driver.beside)
        if load is None:
            if most:
                return Time(None, None)
            continue
        server = curve.configuration.server
        limits += seconds(server.ready_timeout) + seconds(server.stop_timeout) if server else 0.0
        low += fewest * load
        high += most * (load + limits)
    return Time(low, high)


def _points_left(driver: Driver, curve: Curve, concurrency: int | None) -> tuple[int, int]:
    if concurrency is not None:
        left = int(driver.next_point(curve, concurrency) is not None)
        return left, left
    if isinstance(curve.points, Auto):
        if driver.next_point(curve, None) is None:
            return 0, 0
        tried = len(driver.tried(curve))
        room = min(curve.points.max_points, curve.points.high - curve.points.low + 1)
        return max(1, 2 - tried), max(1, room - tried)
    left = sum(driver.next_point(curve, c) is not None for c in curve.points)
    return left, left


def matrix(driver: Driver, chosen: list[tuple[Curve, int | None]]) -> dict[str, Any]:
    """The sweep as one JSON object: every curve, its points in order, and what is known of each."""
    return {
        "schema": 1,
        "sweep": driver.name,
        "folder": str(driver.state.folder),
        "order": [point.id for point in take_turns([_listed(*entry) for entry in chosen])],
        "curves": [_curve(driver, curve, concurrency) for curve, concurrency in chosen],
    }


def _listed(curve: Curve, concurrency: int | None) -> list[Point]:
    """Points that are known beforehand, in their order; of an adaptive curve its ends."""
    if concurrency is not None:
        return [curve.point(concurrency)]
    points = curve.points
    numbers = [points.low, points.high] if isinstance(points, Auto) else ends_then_bisect(points)
    return [curve.point(number) for number in numbers]


def _curve(driver: Driver, curve: Curve, concurrency: int | None) -> dict[str, Any]:
    auto = curve.points if isinstance(curve.points, Auto) else None
    known = [int(name.rpartition("/c")[2]) for name in driver.state.records if name.rpartition("/c")[0] == curve.name]
    if concurrency is not None:
        numbers = [concurrency]
    else:
        numbers = sorted(known) if auto else [point.concurrency for point in _listed(curve, None)]
    return {
        "configuration": curve.configuration.name,
        "scenario": curve.scenario.name,
        "points_rule": json.loads(msgspec.json.encode(auto)) if auto else "list",
        "serving": json.loads(msgspec.json.encode(curve.configuration.serving)),
        "accelerators": curve.configuration.serving.accelerator_count,
        "points": [_point(driver, curve, number) for number in numbers],
    }


def _point(driver: Driver, curve: Curve, number: int) -> dict[str, Any]:
    point = curve.point(number)
    record = driver.state.records.get(point.id)
    if record is None or record.digest != point.digest:
        return {"point": point.id, "concurrency": number, "status": "to do"}
    where = place(driver.state.folder, record)
    summary = read_summary(driver.state.folder, record) if record.status == "done" else None
    return {
        "point": point.id,
        "concurrency": number,
        "status": record.status,
        "attempt": record.attempt,
        "valid": record.valid,
        "reason": record.reason,
        "run": f"runs/{record.run_id}" if record.status == "done" else None,
        "interactivity_p90_tok_s_user": where[0] if where else None,
        "total_tok_s": where[1] if where else None,
        "ttft_p90_s": summary["latency"]["ttft_s"]["p90"] if summary else None,
        "cache_achieved": summary["cache"]["achieved"] if summary else None,
        "start_s": record.start_s,
        "seconds": record.seconds,
    }


def ci_matrix(chosen: list[tuple[Curve, int | None]]) -> dict[str, Any]:
    """A GitHub Actions matrix: one job per point, one per curve where the points are adaptive; priority first."""
    include: list[dict[str, Any]] = []
    for curve, concurrency in sorted(chosen, key=lambda entry: -entry[0].configuration.priority):
        if concurrency is not None:
            numbers: list[int | None] = [concurrency]
        elif isinstance(curve.points, Auto):
            numbers = [None]
        else:
            numbers = list(ends_then_bisect(curve.points))
        runner = curve.configuration.runner or ["self-hosted"]
        for number in numbers:
            name = curve.name if number is None else curve.point(number).id
            include.append(
                {
                    "only": name,
                    "artifact": name.replace("/", "-"),
                    "runner": runner,
                    "group": "-".join(runner),
                    "priority": curve.configuration.priority,
                }
            )
    return {"include": include}


def print_matrix(data: dict[str, Any], time: Time | None, *, as_json: bool) -> None:
    """Show the matrix: a table, or JSON with the time it will take."""
    if time is not None:
        data = {**data, "time_left_s": {"least": time.low, "most": time.high}}
    if as_json:
        sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    table = Table(title=f"{data['sweep']} in {data['folder']}", title_justify="left")
    rows = _rows(data, by_order=time is not None)
    headings = ("point", "GPUs", "status", "tok/s/user\np90", "tok/s", "TTFT\np90", "cached")
    used = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    for index in used:
        longest = max(len(row[index]) for row in rows)
        left = headings[index] in ("point", "status")
        table.add_column(
            headings[index], justify="left" if left else "right", min_width=min(36, longest), overflow="fold"
        )
    for row in rows:
        table.add_row(*(escape(row[index]) for index in used))
    console.print(table)
    for curve in data["curves"]:
        for point in curve["points"]:
            if point.get("reason"):
                console.print(f"{point['point']}: {point['reason']}", markup=False, soft_wrap=True)
    if time is not None:
        console.print(_time_text(time), markup=False)


def _rows(data: dict[str, Any], *, by_order: bool) -> list[tuple[str, ...]]:
    """A row per point, in the order they are done in or by curve and concurrency; adaptive curves say their rule."""
    rows: dict[str, tuple[str, ...]] = {}
    rules: list[tuple[str, ...]] = []
    for curve in data["curves"]:
        for point in sorted(curve["points"], key=lambda point: point["concurrency"]):
            rows[point["point"]] = (point["point"], str(curve["accelerators"]), _status(point), *_figures(point))
        if (rule := curve["points_rule"]) != "list":
            name = f"{curve['configuration']}/{curve['scenario']}/c{rule['low']}…c{rule['high']}"
            rules.append((name, str(curve["accelerators"]), f"adaptive, ≤ {rule['max_points']} points", "", "", "", ""))
    if by_order:
        place = {name: index for index, name in enumerate(data["order"])}
        rows = dict(sorted(rows.items(), key=lambda row: place.get(row[0], len(place))))
    return [*rows.values(), *rules]


def _status(point: dict[str, Any]) -> str:
    if point["status"] != "done":
        return str(point["status"])
    return "done" if point["valid"] else "not valid"


def _figures(point: dict[str, Any]) -> tuple[str, str, str, str]:
    def show(key: str, form: str) -> str:
        value = point.get(key)
        return "" if value is None else form.format(value)

    return (
        show("interactivity_p90_tok_s_user", "{:.1f}"),
        show("total_tok_s", "{:,.0f}"),
        show("ttft_p90_s", "{:.3f} s"),
        show("cache_achieved", "{:.1%}"),
    )


def _time_text(time: Time) -> str:
    if time.low is None or time.high is None:
        return "time left: unknown, a scenario has no duration"
    if not time.high:
        return "nothing left to do"
    most = f"at most {_hours(time.high)} with every start, warm-up and drain at its limit"
    return f"time left: {_hours(time.low)} of load; {most}"


def _hours(value: float) -> str:
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    hours, minutes = divmod(-(-whole // 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
