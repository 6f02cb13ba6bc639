"""From the journal to the result files: whole files become Arrow columns, no Python object per row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from results.derive import Requests, as_float, busy_seconds, delivered_share, derive, endpoint_of, span
from results.errors import UserError
from results.journal import WorkerJournal, read_journal
from results.metrics_table import write_metrics
from results.network import read_network
from results.power_journal import write_power
from results.records import CHUNK_UNIT_NS, CLIENT, MISSING, TREE, Finish, Flag, Phase, Status, TreeEnd, lane_name
from results.server_view import ServerView
from results.steady import find_window
from results.summary import Around, summarise, tree_index


def finalize(
    run_dir: Path, header: dict[str, Any], *, keep_chunks: bool, server: ServerView | None = None
) -> dict[str, Any]:
    """Write the Parquet files and summary.json of a run from its journal, then remove the journal; returns the summary.

    Every file appears under its name only when it is complete. UserError when they can't be written: the journal stays.
    """
    journal = run_dir / "journal"
    parts = read_journal(journal)
    requests, header = find_window(derive(parts, header), header)
    trees, tree_worker = _join(parts, "trees", TREE)
    client, client_worker = _join(parts, "client", CLIENT)
    torn = sum(part.torn for part in parts)
    clients = {part.worker: part.client for part in parts}
    t0 = header.get("t0_monotonic_ns", 0)
    network = read_network(journal, t0)
    try:
        write_metrics(run_dir, header["run_id"])
        power = write_power(run_dir, header["run_id"], t0)
        around = Around(power=power, network=network, server=server)
        summary = summarise(requests, trees, clients, header, torn=torn, around=around)
        _write(requests_table(requests, header), run_dir / "requests.parquet")
        _write(sessions_table(requests, trees, tree_worker, header), run_dir / "sessions.parquet")
        _write(client_table(client, client_worker, header), run_dir / "client.parquet")
        if keep_chunks:
            _write_chunks(parts, header, run_dir / "chunks.parquet")
        write_json(run_dir / "summary.json", summary)
    except OSError as error:
        remedy = f"nothing is lost: make room, then run `agentx recover {run_dir}`"
        raise UserError(f"{run_dir}: the results could not be written: {error}", remedy=remedy) from error
    remove_journal(run_dir)
    return summary


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a JSON file; readers see the old or the new one, never half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)


def remove_journal(run_dir: Path) -> None:
    """Remove the journal, or what a crash in here left of it."""
    journal, used = run_dir / "journal", run_dir / "journal.used"
    if journal.is_dir():
        journal.rename(used)  # at once: half a journal would be recovered over the complete results
    shutil.rmtree(used, ignore_errors=True)


def _join(parts: list[WorkerJournal], kind: str, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    arrays = [getattr(part, kind) for part in parts]
    rows = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    workers = [np.full(len(a), p.worker, np.int32) for a, p in zip(arrays, parts, strict=True)]
    return rows, np.concatenate(workers) if workers else np.zeros(0, np.int32)


def _write(table: pa.Table, path: Path) -> None:
    temporary = path.with_name(path.name + ".tmp")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)


def _integers(values: np.ndarray, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(np.ascontiguousarray(values), type=kind or pa.int64(), mask=np.asarray(values == MISSING))


def _floats(values: np.ndarray) -> pa.Array:
    return pa.array(np.asarray(values, dtype=np.float64), mask=np.isnan(values))


def _named(codes: np.ndarray, names: list[str]) -> pa.Array:
    """Strings by index; -1 is null."""
    return pa.array(names, pa.string()).take(_integers(codes.astype(np.int64)))


def _lanes(codes: np.ndarray, names: list[str]) -> pa.Array:
    """Lane names; those of chains that the replay found go beyond the corpus' own."""
    distinct, index = np.unique(codes, return_inverse=True)
    return pa.array([lane_name(names, lane) for lane in distinct.tolist()], pa.string()).take(pa.array(index))


def _enum(codes: np.ndarray, kind: Any) -> pa.Array:
    return _named(codes, [member.name.lower() for member in kind])


def _constant(value: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows)


def _request_ids(run_id: str, worker: np.ndarray, seq: np.ndarray) -> pa.Array:
    """`<run id>-<worker>-<number>`, as sent in X-Request-ID."""
    numbers = [pc.cast(pa.array(values), pa.string()) for values in (worker, seq.astype(np.int64))]
    return pc.binary_join_element_wise(_constant(run_id, len(seq)), *numbers, "-")


def _flag_lists(flags: np.ndarray) -> pa.Array:
    distinct, index = np.unique(flags, return_inverse=True)
    lists = [[flag.name.lower() for flag in Flag if value & flag and flag.name] for value in distinct.tolist()]
    return pa.array(lists, pa.list_(pa.string())).take(pa.array(index))


def requests_table(requests: Requests, header: dict[str, Any]) -> pa.Table:
    """requests.parquet, ordered by send time."""
    r = requests.rows
    seconds = {
        "send_lag_s": span(r, "scheduled_ns", "sent_ns"),
        "ttft_s": requests.ttft_s,
        "ttft_text_s": requests.ttft_text_s,
        "e2e_s": requests.e2e_s,
        "tpot_s": requests.tpot_s,
        "itl_p50_s": requests.itl_p50_s,
        "itl_p99_s": requests.itl_p99_s,
        "itl_max_s": requests.itl_max_s,
        "connect_s": as_float(r, "connect_ns") * 1e-9,
        "delivered_share": delivered_share(r),
    }
    times = ("scheduled_ns", "sent_ns", "headers_ns", "first_token_ns", "first_text_ns", "last_token_ns", "done_ns")
    counts = (
        "planned_input_tokens", "planned_output_tokens", "input_tokens", "output_tokens", "reasoning_tokens",
        "cached_tokens",
        "theoretical_cached_tokens", "output_chunks", "first_chunk_tokens", "parse_errors", "coalesced_chunks",
    )  # fmt: skip
    error = pc.utf8_trim_whitespace(pa.array(np.ascontiguousarray(r["error"])).cast(pa.string()))
    finish = _enum(np.where(r["finish"] == Finish.NONE, MISSING, r["finish"].astype(np.int64)), Finish)
    stamps = _named(r["kernel_stamps"], ["user", "kernel"])
    columns: dict[str, pa.Array] = {
        "run_id": _constant(header["run_id"], len(r)),
        "phase": _enum(r["phase"], Phase),
        "session_id": _named(r["session"], header["session_ids"]),
        "lane_id": _lanes(r["lane"], header["lane_names"]),
        "turn": _integers(r["turn"]),
        "pass": _integers(r["pass"]),
        "slot": _integers(r["slot"]),
        "endpoint": _integers(endpoint_of(r, header), pa.int32()),
        "worker": _integers(requests.worker),
        "request_id": _request_ids(header["run_id"], requests.worker, r["seq"]),
        **{name: _integers(r[name]) for name in times},
        **{name: _floats(values) for name, values in seconds.items()},
        **{name: _integers(r[name]) for name in counts},
        "theoretical_tree_cached_tokens": _integers(requests.tree_theory),
        "finish_reason": finish,
        "http_status": _integers(r["http_status"]),
        "status": _enum(r["status"], Status),
        "error": pc.if_else(pc.equal(error, ""), None, error),
        "flags": _flag_lists(r["flags"]),
        "timestamps": stamps,
    }
    return pa.table(columns)


def sessions_table(requests: Requests, trees: np.ndarray, worker: np.ndarray, header: dict[str, Any]) -> pa.Table:
    """sessions.parquet: one row per session tree that ended.

    Tokens and times are sums over the answers with status ok, null where one of them does not say.
    """
    rows = requests.rows
    index = tree_index(rows, trees)
    mine = index >= 0
    answered = mine & (rows["status"] == Status.OK)
    wall = (trees["ended_ns"] - trees["started_ns"]) * 1e-9
    busy = busy_seconds(index, rows, len(trees))

    def count(mask: np.ndarray) -> pa.Array:
        return _integers(np.bincount(index[mine & mask], minlength=len(trees)))

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(index[answered], weights=values[answered], minlength=len(trees))

    status = rows["status"]
    return pa.table(
        {
            "run_id": _constant(header["run_id"], len(trees)),
            "session_id": _named(trees["session"], header["session_ids"]),
            "pass": _integers(trees["pass"]),
            "slot": _integers(trees["slot"]),
            "worker": _integers(worker),
            "started_ns": _integers(trees["started_ns"]),
            "ended_ns": _integers(trees["ended_ns"]),
            "end": _enum(trees["end"], TreeEnd),
            "partial": pa.array(trees["partial"].astype(bool)),
            "wall_s": _floats(wall),
            "planned_requests": _integers(trees["planned_requests"]),
            "sent_requests": _integers(trees["sent_requests"]),
            "ok_requests": count(status == Status.OK),
            "failed_requests": count((status != Status.OK) & (status != Status.CANCELLED)),
            **{
                name: _floats(total(as_float(rows, name))).cast(pa.int64())
                for name in ("input_tokens", "output_tokens", "cached_tokens")
            },
            "prefill_s": _floats(total(requests.ttft_s)),
            "decode_s": _floats(total(requests.e2e_s - requests.ttft_s)),
            "tool_s": _floats(np.maximum(0.0, wall - busy)),
        }
    )


def client_table(client: np.ndarray, worker: np.ndarray, header: dict[str, Any]) -> pa.Table:
    """client.parquet: the client measuring itself, one row per worker and half second."""
    return pa.table(
        {
            "run_id": _constant(header["run_id"], len(client)),
            "worker": _integers(worker),
            **{name: _integers(client[name]) for name in CLIENT.names or ()},
        }
    )


def _write_chunks(parts: list[WorkerJournal], header: dict[str, Any], path: Path) -> None:
    """chunks.parquet: one row per content chunk, a row group per worker slice."""
    schema = pa.schema([("request_id", pa.string()), ("offset_ns", pa.int64())])
    temporary = path.with_name(path.name + ".tmp")
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for part in parts:
            for low in range(0, len(part.requests), 4096):
                rows = part.requests[low : low + 4096]
                counts = rows["chunk_count"].astype(np.int64)
                ids = _request_ids(header["run_id"], np.full(len(rows), part.worker), rows["seq"])
                within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
                offsets = np.asarray(part.chunks)[np.repeat(rows["chunk_start"], counts) + within]
                columns = [
                    ids.take(pa.array(np.repeat(np.arange(len(rows)), counts))),
                    pa.array(offsets.astype(np.int64) * CHUNK_UNIT_NS),
                ]
                writer.write_table(pa.table(columns, schema=schema))
    temporary.replace(path)
