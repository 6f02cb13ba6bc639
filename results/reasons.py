"""Why a figure of summary.json is null."""

from __future__ import annotations

from typing import Any

_SERVER = "needs the server's queue times by request, which no engine tells"
_NO_ANSWER = "no answer of the steady window has this figure"
_UNANSWERED = "no request of the steady window was answered well"
_EMPTY = "nothing happened in the window"
_OF_ANSWERS = ("latency.", "interactivity.", "tokens.", "cache.", "throughput.cached", "throughput.computed")
_REASONS = {
    "cache.theoretical": "no answer of the steady window has both the server's prompt count and a planned prefix",
    "cache.theoretical_tree": "no answer of the steady window has both the server's prompt count and a planned prefix",
    "cache.achieved": "the server's usage does not say cached tokens",
    "throughput.input_tok_s": "the server's usage does not count the prompt",
    "throughput.output_tok_s": "the server's usage does not count the output",
    "throughput.total_tok_s": "the server's usage does not count prompt and output",
    "throughput.cached_input_tok_s": "the server's usage does not say cached tokens",
    "throughput.computed_input_tok_s": "the server's usage does not say cached tokens",
    "throughput.per_gpu": "the number of accelerators is not known",
    "jobs.queue_time_share": _SERVER,
    "jobs.per_hour_per_gpu": "the number of accelerators is not known",
    "arrivals": "the load is a number of live sessions: no arrivals were due",
    "jobs": "no session tree was finished in the steady window",
    "intervals": "too few session trees, or too short a window, for an interval that would hold",
    "client.send_lag_s": "nothing was sent in the steady window",
    "client": "the client took no sample of itself in the steady window",
    "requests.error_rate": "no request was finished in the steady window",
    "scenario": "not said when the run was recorded",
    "concurrency": "not said when the run was recorded",
}
_FALLBACK = {"latency": _NO_ANSWER, "interactivity": _NO_ANSWER, "tokens": _NO_ANSWER, "throughput": _EMPTY}


def why_null(summary: dict[str, Any]) -> dict[str, str]:
    """A reason for every null: by the key of the figure, or of its group where one reason covers it."""
    reasons: dict[str, str] = {}
    _collect(summary, "", reasons)
    # What a server does not say can't be told from a server that said nothing at all.
    if not summary["requests"]["ok"]:
        reasons |= {key: _UNANSWERED for key in reasons if key.startswith(_OF_ANSWERS) and reasons[key] != _SERVER}
    if "throughput.requests_s" in reasons:
        reasons |= {key: _EMPTY for key in reasons if key.startswith("throughput.") and key.count(".") == 1}
    return reasons


def _collect(group: dict[str, Any], prefix: str, reasons: dict[str, str]) -> None:
    for name, value in group.items():
        key = f"{prefix}{name}"
        apart = any(known.startswith(f"{key}.") for known in (*_REASONS, *_FALLBACK))
        nested = isinstance(value, dict) and any(isinstance(v, dict) for v in value.values())
        if _all_null(value) and (key in _REASONS or not (apart or nested)):
            reasons[key] = _reason(key)
        elif isinstance(value, dict):
            _collect(value, f"{key}.", reasons)


def _all_null(value: Any) -> bool:
    if isinstance(value, dict):
        # `n` counts the values of a distribution: 0 beside nulls is not a figure of its own.
        return bool(value) and all(_all_null(v) or (k == "n" and v == 0) for k, v in value.items())
    return value is None


def _reason(key: str) -> str:
    """The reason of the longest known beginning of `key`."""
    path = key.replace("throughput.whole_run.", "throughput.")
    while path not in _REASONS and "." in path:
        path = path.rpartition(".")[0]
    return _REASONS.get(path) or _FALLBACK.get(path, "not known")
