"""The public AgentX runner (`agentx-harness` on PyPI), where it is installed: started, and its records read.

It is measured as its users start it, in an environment of its own that nothing of ours imports. It makes its prompts
with a tokenizer; here it gets one whose tokens are exactly those of the simulated endpoint, so that what the server
counts differs from the trace only by what the runner does to the text.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.mock_text import Prompt

VERSION = "1.0.12"
"""The version that docs/public-runner.md speaks of."""
TOKENS = r" ?[A-Za-z]+|[0-9]{1,3}|[\s\S]"
"""The simulated endpoint's tokens (harness/mock_text.py), for ASCII."""
_COMMON = (
    "--endpoint-type", "chat", "--custom-dataset-type", "weka-trace", "--prompt-corpus", "sonnet",
    "--random-seed", "42", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics",
    "--ui", "none", "--export-level", "raw", "--unsafe-override",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sent:
    """One request, of either client: what the trace says of it, what was asked, and what the server counted."""

    request_id: str
    session: str
    stream: str
    warmup: bool
    recorded_input: int
    asked_output: int
    sent_ns: int
    start_s: float = 0.0
    """When the recording sent it, in seconds of the slice."""
    end_s: float = 0.0
    """When it ended there; its start where the duration is not recorded."""


def find_runner(environment: Path) -> Path | None:
    """The runner's command in a virtual environment; None where there is none."""
    command = environment / "bin" / "agentx"
    library = next(environment.glob("lib/python*/site-packages/aiperf"), None)
    return command if command.is_file() and library is not None else None


def missing(environment: Path) -> str:
    """What is said where there is none."""
    return f"no public runner in {environment}: pip install agentx-harness=={VERSION} into a venv there"


def installed_version(environment: Path) -> str:
    """As its package says, such as `1.0.12`."""
    found = next(environment.glob("lib/python*/site-packages/agentx_harness-*.dist-info"), None)
    return "unknown" if found is None else found.name.removeprefix("agentx_harness-").removesuffix(".dist-info")


def write_tokenizer(environment: Path, folder: Path) -> None:
    """A tokenizer folder whose words are all of the text that the runner cuts its prompts from."""
    text = next(environment.glob("lib/python*/site-packages/aiperf/dataset/generator/assets/shakespeare.txt"))
    pieces = {piece.decode("ascii", "ignore") for piece in Prompt.of_text(text.read_bytes()).pieces()}
    words = {piece.strip() for piece in pieces if piece.strip().isalpha()}
    numbers = {f"{number:0{width}}" for number in range(1000) for width in (1, 2, 3)}
    vocabulary = ["<unk>", *sorted({*map(chr, range(128)), *words, *(f" {word}" for word in words), *numbers})]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": TOKENS}, "behavior": "Isolated", "invert": False},
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(vocabulary)}, "unk_token": "<unk>"},
    }  # fmt: skip
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "model_max_length": 10**9}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "clean_up_tokenization_spaces": False}))


def command_line(
    runner: Path,
    *,
    port: int,
    model: str,
    traces: Path,
    tokenizer: Path,
    out: Path,
    concurrency: int,
    warmup: int,
    duration_s: float,
) -> list[str]:
    """The runner's command: whole sessions once each, or (with `warmup` requests a lane) its own rules, for so long."""
    rules = ["--scenario", "agentx", "--warmup-requests-per-lane", str(warmup)]
    if not warmup:
        rules = ["--scenario", "inferencex-agentx-mvp", "--num-dataset-entries", str(concurrency)]
        rules += ["--trajectory-start-min-ratio", "0", "--trajectory-start-max-ratio", "0"]
        rules += ["--num-sessions", str(concurrency)]
    return [
        str(runner), "profile", "-m", model, "--url", f"http://127.0.0.1:{port}", "--tokenizer", str(tokenizer),
        "--input-file", str(traces), "--concurrency", str(concurrency), "--output-artifact-dir", str(out),
        "--benchmark-duration", f"{duration_s:g}", *_COMMON, *rules,
    ]  # fmt: skip


def surroundings(home: Path) -> dict[str, str]:
    """Its environment variables: a home of its own, so that it finds no prompts that an earlier run has cached."""
    return {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


def nth(session: str, times_before: int) -> str:
    """The name of a session's tree: sessions come again when all have been replayed."""
    return session if not times_before else f"{session} #{times_before + 1}"


def read_sent(out: Path, traces: dict[str, Any]) -> list[Sent]:
    """All requests in the order sent; `traces` by id, as the runner read them."""
    with (out / "profile_export_raw.jsonl").open() as lines:
        records = sorted((json.loads(line) for line in lines), key=lambda r: int(r["metadata"]["request_start_ns"]))
    trees: dict[str, list[str]] = defaultdict(list)
    sent = []
    for record in records:
        said = record["metadata"]
        root = said.get("root_correlation_id") or said["x_correlation_id"]
        trace = said["source_trace_id"]
        if root not in trees[trace]:
            trees[trace].append(root)
        request = traces[trace]["requests"][said["source_outer_idx"]]
        if said.get("source_inner_idx") is not None:
            request = request["requests"][said["source_inner_idx"]]
        asked = record["payload"].get("max_completion_tokens") or record["payload"].get("max_tokens")
        start = float(request["t"])
        sent.append(
            Sent(
                said["x_request_id"], nth(trace, trees[trace].index(root)), said["conversation_id"],
                said["benchmark_phase"] == "warmup", int(request["in"]), int(asked), int(said["request_start_ns"]),
                start, start + (request.get("api_time") or 0.0),
            )
        )  # fmt: skip
    return sent


def theoretical_hit_rate(out: Path) -> float | None:
    """Its own figure, by blocks of the measured requests (share from 0 to 1)."""
    result = json.loads((out / "profile_export_aiperf.json").read_bytes())
    found = result.get("theoretical_prefix_cache_hit") or {}
    return float(found["avg"]) / 100 if found.get("avg") is not None else None


Streams = list[tuple[tuple[int, int], ...]]


def streams_of(sent: list[Sent], *, warmup: bool) -> dict[str, Streams]:
    """Session -> its streams, each as (recorded input, asked output) of its requests in order; streams by content.

    What the two call a stream differs, what is in it must not.
    """
    streams: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for request in sent:
        if request.warmup == warmup:
            streams[request.session, request.stream].append((request.recorded_input, request.asked_output))
    out: dict[str, Streams] = defaultdict(list)
    for (session, _), requests in streams.items():
        out[session].append(tuple(requests))
    return {session: sorted(found) for session, found in out.items()}


def difference(ours: Streams, theirs: Streams, *, cut_off: bool) -> str | None:
    """Where a session's streams first part, in words; `cut_off`: runs ended by time are alike as far as both came."""
    if not cut_off and len(ours) != len(theirs):
        return f"{len(ours)} streams, theirs {len(theirs)}"
    begun = {stream[0]: stream for stream in theirs}
    for k, a in enumerate(ours):
        b = begun.get(a[0], a) if cut_off else theirs[k]
        at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        if at < min(len(a), len(b)) or (len(a) != len(b) and not cut_off):
            return f"request {at} of a stream of {len(a)}, theirs {len(b)}"
    return None


def differences(ours: list[Sent], theirs: list[Sent], *, warmup: bool, cut_off: bool) -> dict[str, str | None]:
    """Session -> where its streams first part, None where they do not."""
    mine, other = streams_of(ours, warmup=warmup), streams_of(theirs, warmup=warmup)
    every = sorted({*mine, *other})
    return {name: difference(mine.get(name, []), other.get(name, []), cut_off=cut_off) for name in every}


def beginnings(sent: list[Sent]) -> dict[str, float]:
    """Session -> seconds from the first measured request of all to its own first."""
    measured = [request for request in sent if not request.warmup]
    found: dict[str, float] = {}
    for request in measured:
        found.setdefault(request.session, (request.sent_ns - measured[0].sent_ns) / 1e9)
    return found


def lateness_s(sent: list[Sent], seen: dict[str, dict[str, Any]]) -> list[float]:
    """By how much measured turns came later than their stream's previous answer plus the recorded pause, seconds.

    By the endpoint's clock: last token written to whole body read. What a turn waited for another stream is in it too.
    """
    before: dict[tuple[str, str], Sent] = {}
    late = []
    for request in sent:
        previous = before.get((request.session, request.stream))
        before[request.session, request.stream] = request
        if previous is None or previous.warmup or request.warmup:
            continue
        there, here = seen.get(previous.request_id), seen.get(request.request_id)
        if there is not None and here is not None and there["last_token_ns"]:
            pause = max(0.0, request.start_s - previous.end_s)
            late.append((here["body_ns"] - there["last_token_ns"]) / 1e9 - pause)
    return late
