"""What casts doubt on a run, each with its evidence and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from results.derive import Requests
from results.records import MISSING, Flag, Phase, Status
from results.redact import redact

SEND_LAG_LIMIT_S = 0.050
"""p99 of sent - due. Above it the offered load is not the planned one: it is 1.7 % of a short recorded pause between
turns (3 s at the 5th percentile of 44,296 pauses of the weka traces; the median is 10 s)."""

CPU_LIMIT = 0.90
"""Share of its core that one worker used over the steady window. Near full use queueing in the client grows without
bound; the public benchmark warns at 85 %, and here kernel stamps keep arrival times true until the core is full."""

COVERAGE_FROM_S = 900.0
"""Shorter measured parts may well end with a long prefill (the public gate's own floor)."""

SHORT_OUTPUT_LIMIT = 0.01
HIT_EXCESS_LIMIT = 0.02
BUNDLED_LIMIT = 1.05
"""Tokens per chunk, on average, from which the gaps between chunks are no longer gaps between tokens."""


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


def find(requests: Requests, summary: dict[str, Any], header: dict[str, Any], torn: int) -> list[Finding]:
    """Everything that is wrong with a run. Also fills `saturated` and `limited` of `summary["client"]`."""
    found = [Finding("run", Severity.INVALID, redact(reason)) for reason in header.get("invalid_reasons", [])]
    if header.get("interrupted"):
        found.append(Finding("interrupted", Severity.INVALID, "interrupted before its end"))
    found += _requests(summary, float(header.get("error_rate_limit", 0.10)))
    if torn:
        found.append(Finding("torn", Severity.WARNING, f"{torn} journal rows were cut by a crash and are incomplete"))
    found += _rules(requests, summary, header)
    found += _client(summary, header)
    found += _answers(requests)
    found += _raised(header)
    found += _chunks(summary)
    found += _cache(summary)
    found += _reasoning(requests, header)
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


def _rules(requests: Requests, summary: dict[str, Any], header: dict[str, Any]) -> list[Finding]:
    """The scenario's own limits."""
    found = []
    counts, limit = summary["requests"], header.get("overflow_limit")
    answered = counts["ok"] + counts["failed"]
    if limit is not None and answered and counts["context_overflow"] / answered > limit:
        share = f"{100 * counts['context_overflow'] / answered:.1f} %"
        text = f"{share} of the requests were longer than the model takes, the limit is {100 * limit:g} %"
        found.append(Finding("overflow_rate", Severity.INVALID, text, "give --max-context"))
    start, duration, least = header.get("steady_start_ns"), header.get("duration_s"), header.get("coverage")
    if least is not None and start is not None and duration is not None and duration >= COVERAGE_FROM_S:
        rows = requests.rows[requests.rows["phase"] == Phase.STEADY]
        last = max(int(rows["last_token_ns"].max(initial=0)), int(rows["first_token_ns"].max(initial=0)))
        reached = (last - start) * 1e-9 / duration
        if reached < least and not header.get("interrupted"):
            text = (
                f"the last token came after {100 * max(0.0, reached):.0f} % of the measured part, not {100 * least:g} %"
            )
            found.append(Finding("coverage", Severity.INVALID, text, "did the server stop answering?"))
    arrivals = summary["arrivals"]
    if arrivals is not None and arrivals["over_saturated"]:
        text = (
            f"over-saturated: {arrivals['in_flight'][-1]:.0f} requests in flight at the end and still rising, "
            f"{arrivals['ended_per_min']:.1f} sessions ended a minute of {arrivals['started_per_min']:.1f} started"
        )
        found.append(Finding("over_saturated", Severity.INVALID, text, "give a lower --rate"))
    if "steady_found" in header and header["steady_found"] is None:
        text = "no steady part was found in the measured time (MSER-5): all of it counts"
        found.append(Finding("not_steady", Severity.WARNING, text, "give a longer --duration"))
    return found


def _client(summary: dict[str, Any], header: dict[str, Any]) -> list[Finding]:
    client = summary["client"]
    reasons = []
    lag = client["send_lag_s"]["p99"]
    late = lag is not None and lag > SEND_LAG_LIMIT_S
    if header.get("rate_limits"):
        client["limited"] = late or bool(client["unsent"])
    elif late:
        reasons.append(f"requests left {1e3 * lag:.0f} ms late (p99)")
    cpu = client["cpu_util"]["max"]
    if cpu is not None and cpu > CPU_LIMIT:
        reasons.append(f"a worker used {100 * cpu:.0f} % of its core")
    client["saturated"] = bool(reasons)
    found = [_limited(client, header)] if client["limited"] else []
    if reasons:
        remedy = "give more --workers, or a client machine of its own"
        text = f"the client was the bottleneck: {', '.join(reasons)}"
        found.append(Finding("client_saturated", Severity.INVALID, text, remedy))
    return found


def _limited(client: dict[str, Any], header: dict[str, Any]) -> Finding:
    """A limit that was asked for is no fault of the client; but offered arrivals that it left behind did not happen."""
    unsent, lag = client["unsent"], client["send_lag_s"]["p99"] or 0.0
    text = (
        f"{' and '.join(header['rate_limits'])} held requests back: they left {lag:.2f} s late (p99), {unsent} never; "
        "ttft_s counts from the send, ttft_from_due_s from when a request was due"
    )
    behind = unsent > 0 and header.get("arrival", "closed") != "closed"
    return Finding("client_limited", Severity.INVALID if behind else Severity.WARNING, text, "lower the load offered")


def _answers(requests: Requests) -> list[Finding]:
    rows = requests.rows[requests.rows["phase"] == Phase.STEADY]
    ok = rows[rows["status"] == Status.OK]
    found = []
    for flag, text in (
        (Flag.PARSE_ERROR, "answers held an event that could not be decoded"),
        (
            Flag.USAGE_MISMATCH,
            "answers had more content chunks than the usage counts tokens: no time per token from them",
        ),
        (Flag.NO_USAGE, "answers came without usage: their token counts are null"),
        (Flag.EMPTY, "answers held no content: they have no TTFT"),
        (
            Flag.RECORDED_INSTEAD,
            "prompts of this live history hold recorded words: the answer before was a tool call alone, or not counted",
        ),
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


def _raised(header: dict[str, Any]) -> list[Finding]:
    raised = header.get("raised")
    if not raised or not raised["requests"]:
        return []
    text = (
        f"{raised['requests']} of {raised['of']} planned prompts ask for less than the {raised['to']} tokens "
        f"of one word with the chat template ({raised['template']} of them): they were sent with {raised['to']}"
    )
    return [Finding("raised_prompts", Severity.WARNING, text, "--surface completions has no template")]


def _chunks(summary: dict[str, Any]) -> list[Finding]:
    mean = summary["tokens"]["per_chunk"]["mean"]
    if mean is None or mean <= BUNDLED_LIMIT:
        return []
    text = f"chunks held {mean:.1f} tokens on average: itl_s is the gap between chunks, tpot_s the time per token"
    return [Finding("bundled_tokens", Severity.WARNING, text)]


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


def _reasoning(requests: Requests, header: dict[str, Any]) -> list[Finding]:
    """Histories without what the model thought: from the answer on, the server computes what it had in its cache."""
    rows = requests.rows[requests.rows["phase"] == Phase.STEADY]
    dropped = (rows["flags"] & Flag.REASONING_DROPPED) != 0
    if not dropped.any():
        return []
    text = f"{int(dropped.sum())} prompts leave out what the model thought before the answer they continue"
    lost, of = reuse_lost(requests.rows, int(header.get("cache_block") or 1))
    if of:
        text += f": {lost:,} tokens ({100 * lost / of:.1f} % of these prompts) that it had in its cache were not hit"
    keeps = header.get("reasoning") == "keep"
    remedy = "the chat template does not keep it" if keeps else "as agents do that drop it; --reasoning keep sends it"
    return [Finding("reasoning_dropped", Severity.WARNING, text, remedy)]


def reuse_lost(rows: np.ndarray, block: int) -> tuple[int, int]:
    """(tokens, of so many prompt tokens): what prompts without the reasoning lost of their conversation's last turn.

    The turn before had left its prompt and all but the last token of its answer in the cache, in whole blocks; what the
    next prompt did not find of them it lost. Only where both answers' counts are known, and only prompts marked so.
    """
    order = np.lexsort((rows["sent_ns"], rows["lane"], rows["slot"], rows["pass"], rows["session"]))
    before, after = rows[order[:-1]], rows[order[1:]]
    pair = (after["flags"] & Flag.REASONING_DROPPED) != 0
    for name in ("session", "pass", "slot", "lane"):
        pair &= before[name] == after[name]
    for counts in (before["input_tokens"], before["output_tokens"], after["input_tokens"], after["cached_tokens"]):
        pair &= counts != MISSING
    before, after = before[pair], after[pair]
    held = (before["input_tokens"].astype(np.int64) + before["output_tokens"] - 1) // block * block
    held = np.minimum(held, (after["input_tokens"].astype(np.int64) - 1) // block * block)
    return int(np.maximum(0, held - after["cached_tokens"]).sum()), int(after["input_tokens"].sum())
