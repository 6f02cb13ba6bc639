"""What a cache tier in host memory or on SSD gains: runs with it against runs without, at the same load. Pure.

A gain is told from noise when the 95 % intervals of the two runs' summaries do not overlap, as in `results.compare`;
without intervals the question stays open. Figures that are not known are None, and `reasons` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from results.cost import require_amount
from results.dataset import RunFiles
from results.errors import UserError
from results.profit import HOURS_PER_YEAR

GB_PER_GIB = 2**30 / 1e9
RATES = ("input_tok_s", "output_tok_s", "total_tok_s")
_NO_SIZE = "the tier's size is neither in the run's serving metadata nor given (--gb)"


@dataclass(frozen=True, slots=True)
class Assumed:
    """What the runs do not say; None is not given."""

    gb: float | None = None
    """GB (1e9 bytes) by which the tier of the whole server is larger with it than without."""
    devices: int | None = None
    usd_per_device_hour: float | None = None

    def __post_init__(self) -> None:
        require_amount("--gb", self.gb, positive=True)
        require_amount("--price", self.usd_per_device_hour)


@dataclass(frozen=True, slots=True)
class Gain:
    """A figure without and with the tier, in its own unit; `significant` None: no intervals to tell by."""

    without: float | None
    with_tier: float | None
    gain: float | None
    significant: bool | None


@dataclass(frozen=True, slots=True)
class Tier:
    """Size of a cache tier in GB (1e9 bytes) over the whole server, what it is made of, and who says so."""

    gb: float | None
    kind: str | None
    origin: str | None


def pair_up(
    with_tier: Sequence[RunFiles], without: Sequence[RunFiles]
) -> tuple[list[tuple[RunFiles, RunFiles]], list[str]]:
    """(without, with) by operating point, ordered by load, and a line for each run that has no partner.

    A point is scenario and live sessions: configurations of a sweep differ in name, which is what is compared.
    UserError when nothing pairs, or one side has several runs of one point.
    """
    left, right = _by_point(with_tier, "with the tier"), _by_point(without, "without the tier")
    both = sorted(left.keys() & right.keys(), key=lambda point: (point[0], point[1] is None, point[1] or 0))
    if not both:
        raise UserError(
            "no run with the tier has the scenario and load of one without", remedy="run both at the same load"
        )
    alone = [run for side, other in ((left, right), (right, left)) for point, run in side.items() if point not in other]
    notes = [f"{run.folder}: the other side has no run of its scenario and load" for run in alone]
    return [(right[point], left[point]) for point in both], notes


def _by_point(runs: Sequence[RunFiles], side: str) -> dict[tuple[str, int | None], RunFiles]:
    found: dict[tuple[str, int | None], RunFiles] = {}
    for run in runs:
        point = (str(run.summary.get("scenario")), run.summary.get("concurrency"))
        if point in found:
            where = f"{found[point].folder} and {run.folder}"
            raise UserError(f"{where}: several runs {side} of one scenario and load", remedy="give one of each")
        found[point] = run
    return found


def tier_of(manifest: Mapping[str, Any]) -> Tier:
    """What a run's metadata say of its tier: the sweep's `kv_offload`, else what was seen of the server or stated.

    A sweep that says `kind: none` has a tier of 0 GB.
    """
    configured = _at(manifest, "sweep", "serving", "kv_offload")
    kind = configured.get("kind") if isinstance(configured, Mapping) else None
    size = 0.0 if kind == "none" else _number(_at(configured, "gigabytes"))
    if size is not None:
        return Tier(size, kind, "serving.json")
    gib = _number(_at(manifest, "serving", "kv_offload_gib", "value"))
    if gib is not None:
        return Tier(
            gib * GB_PER_GIB, kind, f"run.json serving ({_at(manifest, 'serving', 'kv_offload_gib', 'origin')})"
        )
    return Tier(None, kind, None)


def offload_row(without: RunFiles, with_tier: RunFiles, assumed: Assumed) -> dict[str, Any]:
    """All gains at one operating point, and by GB of the tier; JSON-ready.

    Hit-rate points are percentage points of the input tokens. A dollar gained is what the added tokens would have cost
    without the tier: devices x $/device-hour x (total tokens/s with / without - 1), before what the tier itself costs.
    """
    reasons: dict[str, str] = {}
    tier, added = _added(without, with_tier, assumed, reasons)
    hits = _gain(without, with_tier, "cache", "achieved", 100.0)
    rates = {name: _gain(without, with_tier, "throughput", name, 1.0) for name in RATES}
    if hits.gain is None:
        reasons["hit_rate_points"] = "a run's server does not say cached tokens"
    for name, rate in rates.items():
        if rate.gain is None:
            reasons[name] = "a run does not know its throughput"
    usd = _dollars(rates["total_tok_s"], with_tier, assumed, reasons)
    gains = {"hit_rate_points": hits.gain, **{name: rates[name].gain for name in RATES}, "usd_per_hour": usd}
    return {
        "scenario": with_tier.summary.get("scenario"),
        "concurrency": with_tier.summary.get("concurrency"),
        "without": without.run_id,
        "with": with_tier.run_id,
        "tier": asdict(tier),
        "added_gb": added,
        "hit_rate_points": asdict(hits),
        "tier_hit_share": _served_by_tier(with_tier, reasons),
        "throughput": {name: asdict(rate) for name, rate in rates.items()},
        "usd_per_hour": usd,
        "per_gb": {name: None if gain is None or added is None else gain / added for name, gain in gains.items()},
        "usd_per_gb_year": None if usd is None or added is None else usd / added * HOURS_PER_YEAR,
        "reasons": reasons,
    }


def _added(
    without: RunFiles, with_tier: RunFiles, assumed: Assumed, reasons: dict[str, str]
) -> tuple[Tier, float | None]:
    """The tier, and the GB that it has more than the other run's."""
    tier, other = tier_of(with_tier.manifest), tier_of(without.manifest)
    if assumed.gb is not None:
        return Tier(assumed.gb, tier.kind, "--gb"), assumed.gb
    if tier.gb is None:
        reasons["per_gb"] = _NO_SIZE
        return tier, None
    # Of a server that shows no tier the user says that it has none.
    added = tier.gb - (other.gb or 0.0)
    if added <= 0:
        reasons["per_gb"] = f"the tier has {tier.gb:g} GB with and {other.gb or 0.0:g} GB without: are they swapped?"
        return tier, None
    return tier, added


def _gain(without: RunFiles, with_tier: RunFiles, group: str, key: str, scale: float) -> Gain:
    sides = [_number(_at(run.summary, group, key)) for run in (without, with_tier)]
    before, after = (None if value is None else value * scale for value in sides)
    bounds = [_at(run.summary, "intervals", f"{group}.{key}") for run in (without, with_tier)]
    apart = None
    if all(isinstance(ends, list) and len(ends) == 2 for ends in bounds):
        apart = bounds[0][1] < bounds[1][0] or bounds[1][1] < bounds[0][0]
    return Gain(before, after, None if before is None or after is None else after - before, apart)


def _served_by_tier(run: RunFiles, reasons: dict[str, str]) -> float | None:
    """Share of the input that the server says came from host memory or beyond."""
    known = [_number(_at(run.summary, "cache", name)) for name in ("host", "external")]
    shares = [share for share in known if share is not None]
    if not shares:
        reasons["tier_hit_share"] = "the server does not say which tier served its hits"
        return None
    return sum(shares)


def _dollars(total: Gain, with_tier: RunFiles, assumed: Assumed, reasons: dict[str, str]) -> float | None:
    devices = assumed.devices or _number(_at(with_tier.manifest, "sweep", "serving", "accelerators"))
    price = assumed.usd_per_device_hour
    if total.gain is None or not total.without:
        reasons["usd_per_hour"] = "total tokens/s without the tier are not known, or zero"
    elif price is None:
        reasons["usd_per_hour"] = "no price per accelerator-hour (--price)"
    elif not devices:
        reasons["usd_per_hour"] = "the number of accelerators is not known (--gpus)"
    else:
        return devices * price * total.gain / total.without
    return None


def _at(document: Any, *path: str) -> Any:
    for name in path:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
