"""What casts doubt on a run, each with its evidence and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from results.derive import Requests, as_float
from results.records import MISSING, Flag, Phase, Status

SEND_LAG_LIMIT_S = 0.050
"""p99 of sent - due. Above it the offered load is not the planned one: 50 ms is half of the shortest recorded tool
pause that matters (a tenth of a second) and 20 times what an idle client shows (benchmarks/RESULTS.md)."""

CPU_LIMIT = 0.90
"""Share of a core over the steady window at which queueing in the client grows without bound; the public runner
warns at 85 % (FACTS section 2.10), and kernel stamps make arrival times immune below full load."""

SHORT_OUTPUT_LIMIT = 0.01
HIT_EXCESS_LIMIT = 0.02


class Severity(Enum):
    """A warning explains; an invalid finding means that the figures must not be used."""

    WARNING = "warning"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Finding:
    """One doubt. `code` is stable; the sentence holds the evidence."""

    code: str
    severity: Severity
    evidence: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.evidence}; {self.remedy}" if self.remedy else self.evidence


def find(requests: Requests, summary: dict[str, Any], header: dict[str, Any]) -> list[Finding]:
    """Everything that is wrong with a run, worst first."""
    found = [Finding("run", Severity.INVALID, reason) for reason in header.get("invalid_reasons", [])]
    if header.get("interrupted"):
        found.append(Finding("interrupted", Severity.INVALID, "interrupted before its end"))
    found += _requests(summary, float(header.get("error_rate_limit", 0.10)))
    found += _client(summary)
    found += _answers(requests)
    found += _cache(summary)
    return found


def _requests(summary: dict[str, Any], limit: float) -> list[Finding]:
    counts = summary["requests"]
    if not counts["ok"]:
        return [Finding("no_answer", Severity.INVALID, "not one request was answered well")]
    rate = counts["error_rate"]
    if rate is not None and rate > limit:
        return [
            Finding(
                "error_rate",
                Severity.INVALID,
                f"{100 * rate:.1f} % of the requests failed, the limit is {100 * limit:.0f} %",
                "see `error` in requests.parquet",
            )
        ]
    if counts["failed"]:
        text = f"{counts['failed']} requests failed ({100 * rate:.2f} %) and are in no latency figure"
        return [Finding("errors", Severity.WARNING, text)]
    return []


def _client(summary: dict[str, Any]) -> list[Finding]:
    client = summary["client"]
    reasons = []
    lag = client["send_lag_s"]["p99"]
    if lag is not None and lag > SEND_LAG_LIMIT_S:
        reasons.append(f"requests left {1e3 * lag:.0f} ms late (p99)")
    cpu = client["cpu_util"]
    if cpu is not None and cpu > CPU_LIMIT:
        reasons.append(f"a worker used {100 * cpu:.0f} % of its core")
    client["saturated"] = bool(reasons)
    if not reasons:
        return []
    remedy = "give more --workers, or a client machine of its own"
    return [
        Finding("client_saturated", Severity.INVALID, f"the client was the bottleneck: {', '.join(reasons)}", remedy)
    ]


def _answers(requests: Requests) -> list[Finding]:
    rows = requests.rows[requests.rows["phase"] == Phase.STEADY]
    ok = rows[rows["status"] == Status.OK]
    found = []
    for flag, text in (
        (Flag.PARSE_ERROR, "answers held an event that could not be decoded"),
        (Flag.USAGE_MISMATCH, "answers had more content chunks than the usage counts tokens"),
        (Flag.NO_USAGE, "answers came without usage: their token counts are null"),
        (Flag.EMPTY, "answers counted tokens but held no content: they have no TTFT"),
        (Flag.COMPRESSED, "answers were compressed although identity was asked for: a proxy may hold tokens back"),
        (Flag.SATURATED_OFFSET, "answers took longer than chunk offsets can say (429 s): their last gaps are unknown"),
    ):
        count = int(((rows["flags"] & flag) != 0).sum())
        if count:
            found.append(Finding(flag.name or "flag", Severity.WARNING, f"{count} {text}"))
    user = int((ok["kernel_stamps"] == 0).sum())
    if user:
        text = f"{user} answers were timed in user space: their times include the client's own delay"
        found.append(Finding("user_stamps", Severity.WARNING, text))
    known = ok[ok["output_tokens"] != MISSING]
    planned, real = int(known["planned_output_tokens"].sum()), int(known["output_tokens"].sum())
    if planned and real < (1 - SHORT_OUTPUT_LIMIT) * planned:
        short = 100 * (1 - real / planned)
        text = f"answers were {short:.1f} % shorter than planned: the server ignores ignore_eos/min_tokens"
        found.append(Finding("short_output", Severity.WARNING, text, "throughput and E2E are of the shorter answers"))
    found += _prompts(ok)
    return found


def _prompts(ok: np.ndarray) -> list[Finding]:
    known = ok[ok["input_tokens"] != MISSING]
    wrong = int((known["input_tokens"] != known["planned_input_tokens"]).sum())
    if not wrong:
        return []
    worst = int(np.abs(known["input_tokens"] - known["planned_input_tokens"]).max())
    text = f"{wrong} of {len(known)} prompts were counted differently than planned, by up to {worst} tokens"
    return [Finding("prompt_tokens", Severity.WARNING, text, "the template or the tokenizer is not what the probe saw")]


def _cache(summary: dict[str, Any]) -> list[Finding]:
    achieved, theory = summary["cache"]["achieved"], summary["cache"]["theoretical"]
    if achieved is None or theory is None or achieved <= theory + HIT_EXCESS_LIMIT:
        return []
    text = (
        f"the server reports {100 * achieved:.1f} % cache hits, more than the {100 * theory:.1f} % this run could cause"
    )
    return [
        Finding("foreign_cache", Severity.WARNING, text, "another run's cache may have been measured: restart or flush")
    ]


def token_total(rows: np.ndarray, name: str) -> float:
    """Sum of a token column over the rows that know it."""
    return float(np.nansum(as_float(rows, name)))
