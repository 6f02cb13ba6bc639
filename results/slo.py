"""Service-level objectives over a run's summary: `ttft_p90<2s,tpot_p90<50ms,error_rate<1%`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from results.errors import UserError

_LATENCIES = ("ttft", "ttft_from_due", "tpot", "itl", "full_response_itl", "e2e")
_QUANTILES = ("p50", "p75", "p90", "p95", "p99", "mean")
_TERM = re.compile(r"\s*([a-z0-9_]+)\s*<\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|%)\s*")
_UNITS = {"ms": 1e-3, "s": 1.0, "%": 0.01}


@dataclass(frozen=True, slots=True)
class Objective:
    """`figure` must stay below `limit` (seconds; a share from 0 to 1 for `error_rate`)."""

    figure: str
    limit: float
    text: str

    def value(self, summary: dict[str, Any]) -> float | None:
        """The figure in a summary; None where it is not known."""
        if self.figure == "error_rate":
            found = summary["requests"]["error_rate"]
        else:
            name, _, quantile = self.figure.rpartition("_")
            found = summary["latency"][f"{name}_s"][quantile]
        return None if found is None else float(found)

    def close(self, summary: dict[str, Any]) -> bool:
        """Whether the limit lies within the figure's own interval: another run may say the opposite."""
        name, _, quantile = self.figure.rpartition("_")
        interval = summary["intervals"].get(f"latency.{name}_s.{quantile}")
        return bool(interval) and interval[0] <= self.limit <= interval[1]


def parse_objectives(text: str) -> list[Objective]:
    """The objectives of a comma-separated list. UserError names the one that can't be read."""
    out = []
    for part in text.split(","):
        found = _TERM.fullmatch(part)
        if found is None:
            raise UserError(
                f"objective {part.strip()!r}", remedy='write FIGURE<LIMIT, such as "ttft_p90<2s,tpot_p90<50ms"'
            )
        figure, number, unit = found.groups()
        name, _, quantile = figure.rpartition("_")
        if (figure != "error_rate") if unit == "%" else (name not in _LATENCIES or quantile not in _QUANTILES):
            known = f"{', '.join(_LATENCIES)} with _{', _'.join(_QUANTILES)} in s or ms, and error_rate in %"
            raise UserError(f"objective {part.strip()!r}: no such figure", remedy=known)
        out.append(Objective(figure, float(number) * _UNITS[unit], part.strip()))
    return out


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one run holds all objectives; `why` says which it breaks, `close` which another run might turn."""

    holds: bool
    values: dict[str, float | None]
    why: tuple[str, ...]
    close: tuple[str, ...]


def judge(objectives: list[Objective], summary: dict[str, Any]) -> Verdict:
    """Hold a run against the objectives: an invalid run and an unknown figure hold none."""
    values = {one.figure: one.value(summary) for one in objectives}
    why = [str(reason) for reason in summary["invalid_reasons"]]
    for one in objectives:
        value = values[one.figure]
        if value is None:
            why.append(f"{one.figure} is not known")
        elif value >= one.limit:
            why.append(f"{one.figure} {value:.4g} is not below {one.limit:g}")
    return Verdict(not why, values, tuple(why), tuple(one.text for one in objectives if one.close(summary)))
