"""Round trip and clock offset: the estimators against known clocks, the probe against a real server."""

from __future__ import annotations

import json
import math
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic_ns
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.network import Exchange, NetworkProbe, OffsetEstimator
from results.network import clock_offset, read_network, summarise_network
from tests.collectors.power_pages import serving
from tests.raw_server import self_signed

MS = 10**6
S = 10**9


@given(
    st.integers(-(10**15), 10**15),
    st.lists(st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS)), min_size=1, max_size=40),
)
def test_the_offset_is_within_its_stated_error(offset: int, ways: list[tuple[int, int]]) -> None:
    estimator = OffsetEstimator()
    now = 0
    for there, back in ways:
        now += S
        estimator.add(Exchange(now, now + there + offset, now + there + back))
    assert estimator.offset_ns is not None
    assert estimator.error_ns is not None
    assert abs(estimator.offset_ns - offset) <= estimator.error_ns + 1
    assert estimator.error_ns <= min(there + back for there, back in ways) // 2 + 1


def test_a_queue_in_one_direction_does_not_move_the_offset() -> None:
    estimator = OffsetEstimator()
    for k in range(20):
        there = MS if k == 7 else 40 * MS
        estimator.add(Exchange(k * S, k * S + there + 5 * S, k * S + there + MS))
    assert estimator.offset_ns == 5 * S
    assert estimator.error_ns == MS


def test_old_exchanges_are_forgotten_and_backward_ones_left_out() -> None:
    estimator = OffsetEstimator(window=4)
    estimator.add(Exchange(10, 0, 5))
    assert estimator.offset_ns is None
    estimator.add(Exchange(0, 100, 2))
    for k in range(4):
        estimator.add(Exchange(k * S, k * S + 500 * MS + 10 * MS, k * S + 20 * MS))
    assert estimator.offset_ns == 500 * MS


def dated(offset_s: float, sent_s: float, way_s: float = 0.01, age_s: float = 0.0) -> dict[str, Any]:
    return {
        "date_sent_ns": round(sent_s * S),
        "date_received_ns": round((sent_s + 2 * way_s) * S),
        "date_s": math.floor(sent_s + way_s + offset_s - age_s),
    }


@given(st.floats(-1000, 1000), st.booleans())
def test_whole_seconds_bound_the_offset_also_when_the_date_is_old(offset: float, cached: bool) -> None:
    sends = [2000 + 2.0137 * k for k in range(80)]
    ages = [(sent + 0.4) % 1.0 if cached else 0.0 for sent in sends]  # renewed once a second, at .6
    found, reason = clock_offset([dated(offset, sent, age_s=age) for sent, age in zip(sends, ages, strict=True)])
    assert reason is None
    assert found["low"] is not None
    assert found["high"] is not None
    assert found["low"] - 1e-6 <= offset <= found["high"] + 1e-6
    assert found["high"] - found["low"] < 2.1


def test_two_clocks_behind_one_address_are_said() -> None:
    found, reason = clock_offset([dated(0, 2000), dated(30, 2002)])
    assert found["estimate"] is None
    assert reason is not None
    assert "several machines" in reason


def test_ttft_less_the_round_trip_is_exact_at_every_percentile() -> None:
    rows = [{"t_ns": k, "rtt_ns": rtt} for k, rtt in enumerate((30 * MS, 20 * MS, 90 * MS))]
    ttft = {"mean": 0.5, "p50": 0.4, "p75": None, "p90": 0.9, "p95": 1.0, "p99": 1.5, "n": 9}
    network = summarise_network(rows, ttft)
    assert network["rtt_s"]["min"] == pytest.approx(0.02)
    assert network["rtt_s"]["p50"] == pytest.approx(0.03)
    assert network["ttft_less_rtt_s"]["p50"] == pytest.approx(0.38)
    assert network["ttft_less_rtt_s"]["p75"] is None
    assert network["reasons"] == {"network.clock_offset_s": "the endpoint's answers carry no date"}


def test_nothing_measured_is_null_with_the_reason() -> None:
    network = summarise_network([{"t_ns": 1, "error": "Connection refused"}], {"mean": 0.5})
    assert network["ttft_less_rtt_s"]["mean"] is None
    assert network["reasons"]["network.rtt_s"] == "Connection refused"
    json.dumps(network, allow_nan=False)


def probe(
    folder: Path, host: str, port: int, seconds: float, tls: ssl.SSLContext | None = None
) -> list[dict[str, Any]]:
    with NetworkProbe(folder, host, port, tls=tls, interval_s=0.03):
        time.sleep(seconds)
    return read_network(folder, 0)


def test_probe_of_a_real_server(tmp_path: Path) -> None:
    before = monotonic_ns()
    with serving() as server:
        rows = probe(tmp_path, "127.0.0.1", int(server.url.rpartition(":")[2]), 0.4)
    assert len(rows) >= 5
    assert all(0 < row["rtt_ns"] < 50 * MS for row in rows)
    assert all(before < row["t_ns"] < monotonic_ns() for row in rows)
    offset, reason = clock_offset(rows)
    assert reason is None
    assert offset["low"] is not None
    assert offset["high"] is not None
    assert offset["low"] <= 0 <= offset["high"]


def test_probe_through_tls(tmp_path: Path) -> None:
    context, certificate = self_signed()
    with serving(context) as server:
        port = int(server.url.rpartition(":")[2])
        rows = probe(tmp_path, "127.0.0.1", port, 0.2, ssl.create_default_context(cafile=certificate))
    assert any("date_s" in row for row in rows)
    assert not any("error" in row for row in rows)


@contextmanager
def silent_server() -> Iterator[int]:
    """Accepts, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_server_that_is_gone_or_hangs_up_is_a_row_with_the_reason(tmp_path: Path) -> None:
    with silent_server() as port:
        pass
    rows = probe(tmp_path, "127.0.0.1", port, 0.1)
    assert rows
    assert all("refused" in row["error"] for row in rows)


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "network.rows").write_text('{"t_ns": 5, "rtt_ns": 7}\nnot json\n{"t_ns": 9, "rt')
    assert read_network(tmp_path, 2) == [{"t_ns": 3, "rtt_ns": 7}]
    assert read_network(tmp_path / "none", 0) == []


def test_the_probe_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with silent_server() as port:
        measured = NetworkProbe(tmp_path, "127.0.0.1", port)
        measured.start()
        time.sleep(0.05)
        thread = Thread(target=measured.stop)
        thread.start()
        thread.join(2)
        assert not thread.is_alive()
