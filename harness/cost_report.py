"""The rows of `agentx cost`: each run's cost and profit with what was assumed, and how far profit moves with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.cost_inputs import CostInputs
from results.errors import UserError


@dataclass(frozen=True, slots=True)
class Doubt:
    """Which sensitivities are wanted; `draws` None is no Monte Carlo."""

    tornado: bool = False
    draws: int | None = None
    seed: int = 0
    ranges: Path | None = None

    @property
    def any(self) -> bool:
        """Whether any is."""
        return self.tornado or self.draws is not None


def cost_rows(
    paths: Sequence[str], inputs: CostInputs, doubt: Doubt, *, include_invalid: bool, allow_mixed: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """One JSON-ready row for each run, and lines about what was left out or is mixed.

    UserError when no run is left, or the runs are no points of one curve and not `allow_mixed`.
    """
    from results.comparable import CURVE, check
    from results.dataset import read, usable
    from results.run_cost import run_cost

    if doubt.any and inputs.assumed.prices is None:
        raise UserError("--tornado and --monte-carlo move the profit", remedy="give --prices")
    if doubt.ranges is not None and not doubt.any:
        raise UserError("--ranges alone does nothing", remedy="give --tornado or --monte-carlo N")
    given = _read_ranges(doubt.ranges)
    runs, notes = usable(read(*paths), include_invalid=include_invalid)
    notes += [f"differ in {line}" for line in check([r.manifest for r in runs], CURVE, allow_mixed=allow_mixed)]
    rows = []
    for run in runs:
        row = run_cost(run.summary, inputs.assumed)
        row["assumed"] = _assumed(inputs)
        row |= _sensitivities(run.summary, inputs, doubt, given)
        rows.append(row)
    return rows, notes


def _read_ranges(path: Path | None) -> dict[str, Any]:
    from hardware.toml_file import read_text
    from results.sensitivity import parse

    return {} if path is None else parse(read_text(path, "ranges file"), str(path))


def _assumed(inputs: CostInputs) -> dict[str, Any]:
    assumed = inputs.assumed
    prices, tco = assumed.prices, assumed.tco
    return {
        "usd_per_device_hour": assumed.usd_per_device_hour,
        "kw_per_device": assumed.kw_per_device,
        "utilisation": assumed.utilisation,
        "licence_share": assumed.licence_share,
        "rack_devices": assumed.rack_devices,
        "usd_per_million": prices and {"input": prices.input, "cached_input": prices.cached, "output": prices.output},
        "tco": tco and {"usd_per_device_hour": tco.items(), "capital_usd_per_device": tco.capital_usd},
        "origins": inputs.origins,
    }


def _sensitivities(summary: dict[str, Any], inputs: CostInputs, doubt: Doubt, given: dict[str, Any]) -> dict[str, Any]:
    from results.run_cost import point_of
    from results.sensitivity import monte_carlo, ranges_for, tornado

    if not doubt.any:
        return {}
    point = point_of(summary, inputs.assumed)
    if isinstance(point, str):  # the row's reasons say why
        return {"ranges": None, "tornado": None, "monte_carlo": None}
    ranges = ranges_for(
        point, summary, published_usd=inputs.published_usd, published_kw=inputs.published_kw, given=given
    )
    out: dict[str, Any] = {"ranges": {name: asdict(span) for name, span in ranges.items()}}
    if doubt.tornado:
        out["tornado"] = [{**asdict(bar), "swing": bar.swing} for bar in tornado(point, ranges)]
    if doubt.draws is not None:
        out["monte_carlo"] = monte_carlo(point, ranges, doubt.draws, doubt.seed)
    return out
