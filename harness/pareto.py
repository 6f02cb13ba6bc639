"""`agentx pareto` and curves in `agentx compare`: runs in, curves and their ratios out."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cost_inputs import CostOptions, resolve
from results.axes import PERCENTILES, TOKENS, X_AXES, Y_AXES, Money, need
from results.comparable import CURVE, CURVES, check
from results.curves import Ratio, StackCurve, View, by_stack, compare_curves, devices_of, hardware_of, point_of
from results.dataset import RunFiles, read, usable
from results.errors import UserError
from results.run_columns import WANTED


@dataclass(frozen=True, slots=True)
class ParetoOptions:
    """The options as given; None is not given."""

    x: str = "interactivity"
    percentile: str = "p90"
    tokens: str = "total"
    per: str = "gpu"
    gpus: int | None = None
    price: float | None = None
    kw_per_gpu: float | None = None
    hardware: str | None = None
    hardware_file: Path | None = None
    tier: str = "rental-3y"
    include_invalid: bool = False
    allow_mixed: bool = False


def view_of(options: ParetoOptions) -> View:
    """UserError naming what there is for an axis that does not exist."""
    for option, value, known in (
        ("--x", options.x, tuple(X_AXES)),
        ("--percentile", options.percentile, PERCENTILES),
        ("--tokens", options.tokens, TOKENS),
        ("--per", options.per, tuple(Y_AXES)),
    ):
        if value not in known:
            raise UserError(f"{option} {value}", remedy=f"one of {', '.join(known)}")
    if options.per == "joule-measured" and options.tokens not in ("total", "output"):
        raise UserError(f"--per joule-measured --tokens {options.tokens}", remedy="--tokens total or output")
    return View(X_AXES[options.x], options.percentile, Y_AXES[options.per], options.tokens)


def curves_below(paths: Sequence[str], options: ParetoOptions) -> tuple[list[StackCurve], list[str]]:
    """A curve for each stack below `paths`, and lines about what was left out, is mixed, or was assumed.

    UserError when no run is left, when the runs answer different questions, or an axis lacks its price or power.
    """
    view = view_of(options)
    found = read(*paths, summary=WANTED)
    gc.freeze()  # what was read stays until the end: going through it again and again takes a second at 10,000 runs
    runs, notes = usable(found, include_invalid=options.include_invalid)
    differ = check([r.manifest for r in runs], CURVES, allow_mixed=options.allow_mixed)
    notes += [f"differ in {line}" for line in differ]
    return [curve_of(name, members, view, options, notes) for name, members in by_stack(runs).items()], notes


def curve_of(name: str, runs: Sequence[RunFiles], view: View, options: ParetoOptions, notes: list[str]) -> StackCurve:
    """One curve of `runs`; adds what was assumed or left out to `notes`."""
    money = _money(name, runs[0], options, notes) if runs else Money()
    need(options.per, money, name)
    if view.y.measured:
        return _placed(StackCurve(name, [point_of(run, view, None) for run in runs], view, money), notes)
    devices = [devices_of(run, options.gpus) for run in runs]
    known = sum(count is not None for count in devices)
    if known == 0:
        if options.per != "gpu":
            raise UserError(f"--per {options.per}: {name}: its accelerators are not known", remedy="--gpus N")
        notes.append(f"{name}: how many accelerators served it is not known (--gpus N): taken as one")
    points, where = [], f"{name}: how many accelerators served it is not known: --gpus N"
    for run, count in zip(runs, devices, strict=True):
        if known and count is None:
            notes.append(f"{run.folder}: {where}")
        else:
            points.append(point_of(run, view, count))
    return _placed(StackCurve(name, points, view, money), notes)


def _placed(curve: StackCurve, notes: list[str]) -> StackCurve:
    """The curve, after a note for each point that has no place on it."""
    left_out = frozenset(curve.frontier.excluded)
    notes += [f"{p.folder}: {p.reason or 'not a finite number'}" for p in curve.points if p.folder in left_out]
    return curve


@dataclass(frozen=True, slots=True)
class ComparedCurves:
    """Two folders of runs as curves: how many times better the second is."""

    base: StackCurve
    ratio: Ratio
    wanted: tuple[float, ...]


def compare_sides(
    before: tuple[str, Sequence[RunFiles]],
    after: tuple[str, Sequence[RunFiles]],
    wanted: Sequence[float],
    *,
    allow_mixed: bool,
) -> ComparedCurves | None:
    """Two sides (name, runs) as curves of throughput per accelerator; None when one has fewer than two valid runs.

    UserError when the runs of a side are no points of one curve.
    """
    options = ParetoOptions()
    sides = []
    for name, runs in (before, after):
        valid = [run for run in runs if run.summary.get("valid") is True]
        if len(valid) < 2:
            return None
        check([run.manifest for run in valid], CURVE, allow_mixed=allow_mixed, what=f"the runs of {name}")
        notes: list[str] = []
        sides.append(curve_of(name, valid, view_of(options), options, notes))
    places = tuple(sorted(set(wanted)))
    return ComparedCurves(sides[0], compare_curves(sides[0], sides[1], places), places)


def _money(name: str, run: RunFiles, options: ParetoOptions, notes: list[str]) -> Money:
    """Price and power of an accelerator of the curve; looked up only where the axis needs one of them."""
    if options.per in ("gpu", "joule-measured"):
        return Money()
    hardware = options.hardware or _in_registry(hardware_of(run), options)
    inputs = resolve(
        CostOptions(
            gpus=1,
            price=options.price,
            kw_per_gpu=options.kw_per_gpu,
            hardware=hardware,
            hardware_file=options.hardware_file,
            tier=options.tier,
        )
    )
    wanted = "price" if options.per in ("usd", "million") else "kW"
    notes += [f"{name}: {text}" for what, text in inputs.origins.items() if what == wanted]
    return Money(inputs.assumed.usd_per_device_hour, inputs.assumed.kw_per_device)


def _in_registry(hardware: str | None, options: ParetoOptions) -> str | None:
    from hardware.registry import load_registry

    found = load_registry(options.hardware_file).find(hardware) if hardware else None
    return found.name if found else None
