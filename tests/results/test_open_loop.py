"""Open loops above capacity: latency that grows with the run is no latency."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from results.open_loop import BATCHES, in_flight, rises
from tests.harness.test_run import agentx, only_run, simulated, summary_of


def test_requests_in_flight_are_the_integral_of_their_times() -> None:
    rows = np.array([(0, 10), (5, 15), (18, -1)], dtype=[("scheduled_ns", "i8"), ("done_ns", "i8")])
    assert in_flight(rows, 0, 20, 4).tolist() == [1.0, 2.0, 1.0, 0.4]


def test_noise_and_steps_do_not_rise() -> None:
    rng = np.random.default_rng(1)
    noisy = [rises(10 + rng.normal(size=BATCHES)) for _ in range(500)]
    assert sum(noisy) <= 5  # of one series; the verdict takes two
    assert rises(np.linspace(5, 10, BATCHES) + 0.1 * rng.normal(size=BATCHES))
    assert not rises(np.full(BATCHES, 3.0))
    assert not rises(np.array([np.nan] * 4 + [1.0, 2.0, 3.0, 4.0]))


@pytest.mark.parametrize(("per_min", "over"), [(120, False), (1200, True)])
def test_a_rate_above_capacity_is_not_valid(tmp_path: Path, per_min: int, over: bool) -> None:
    """P101: one request at a time of about 0.2 s, offered 2 and 20 a second; most of the 20 are cut off unanswered."""
    fixed = ("--scenario", "fixed", "--isl", "64", "--osl", "20", "--duration", "8s", "--drain", "4s")
    with simulated(step_s=0.009, max_num_seqs=1) as url:
        done = agentx(
            *("run", "--endpoint", url, *fixed, "--rate", str(per_min), "--quiet", "--out", str(tmp_path)),
        )
    summary = summary_of(only_run(tmp_path))
    arrivals = summary["arrivals"]
    assert arrivals["offered_per_min"] == per_min
    assert arrivals["started_per_min"] == pytest.approx(per_min, rel=0.4)
    if over:
        assert arrivals["over_saturated"]
        assert arrivals["ended_per_min"] < 0.6 * arrivals["started_per_min"]
        assert any("over-saturated" in reason for reason in summary["invalid_reasons"])
        assert done.returncode == 1
    else:
        assert not arrivals["over_saturated"]
        assert done.returncode == 0, done.stderr
