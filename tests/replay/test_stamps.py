from __future__ import annotations

import socket
import time

import pytest

from replay import stamps
from replay.stamps import ANCILLARY_BYTES, StampClock


class FakeClocks:
    """Two clocks a test can turn: `monotonic` advances, `wall` is it plus an offset that may step."""

    def __init__(self, offset: int) -> None:
        self.now = 1_000_000_000
        self.offset = offset

    def monotonic(self) -> int:
        self.now += 10
        return self.now

    def wall(self) -> int:
        self.now += 10
        return self.now + self.offset


def test_stamp_is_converted_by_the_offset() -> None:
    clocks = FakeClocks(offset=5_000_000_000)
    clock = StampClock(clocks.monotonic, clocks.wall)
    arrival = clocks.now + 1_000
    assert clock.to_monotonic(arrival + clocks.offset, clocks.now, arrival + 2_000) == pytest.approx(arrival, abs=50)


@pytest.mark.parametrize("step", [3_600_000_000_000, -3_600_000_000_000, 2_000_000])
def test_a_step_of_the_wall_clock_is_noticed_at_the_next_stamp(step: int) -> None:
    clocks = FakeClocks(offset=5_000_000_000)
    clock = StampClock(clocks.monotonic, clocks.wall)
    clocks.offset += step
    arrival = clocks.now + 1_000
    got = clock.to_monotonic(arrival + clocks.offset, clocks.now, arrival + 2_000)
    assert got == pytest.approx(arrival, abs=50)
    assert clock.steps == 1
    assert clock.rejected == 0


def test_a_stamp_taken_before_the_step_still_converts_after_it() -> None:
    clocks = FakeClocks(offset=5_000_000_000)
    clock = StampClock(clocks.monotonic, clocks.wall)
    arrival = clocks.now + 1_000
    stamp = arrival + clocks.offset
    clocks.offset += 10_000_000_000
    clock.refresh()
    assert clock.to_monotonic(stamp, clocks.now, arrival + 2_000) == pytest.approx(arrival, abs=50)


def test_a_stamp_that_fits_no_offset_is_refused() -> None:
    clocks = FakeClocks(offset=5_000_000_000)
    clock = StampClock(clocks.monotonic, clocks.wall)
    assert clock.to_monotonic(77, clocks.now, clocks.now + 1_000) == -1
    assert clock.rejected == 1


def test_slew_moves_both_clocks_and_is_no_step() -> None:
    clocks = FakeClocks(offset=5_000_000_000)
    clock = StampClock(clocks.monotonic, clocks.wall)
    for _ in range(100):
        clocks.now += 1_000_000
        clock.refresh()
    assert clock.steps == 0


def test_never_later_than_now() -> None:
    clocks = FakeClocks(offset=0)
    clock = StampClock(clocks.monotonic, clocks.wall)
    now = clocks.now + 100
    assert clock.to_monotonic(now + 20_000, clocks.now, now) == now


def test_the_kernel_stamps_a_segment_when_it_arrives_not_when_it_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            if not stamps.enable(client):
                pytest.skip("no SO_TIMESTAMPING on this system")
            clock = StampClock()
            before = time.monotonic_ns()
            peer.sendall(b"x")
            sent = time.monotonic_ns()
            time.sleep(0.05)  # the reader is busy elsewhere
            _, ancillary, _, _ = client.recvmsg(16, ANCILLARY_BYTES)
            arrival = clock.to_monotonic(stamps.stamp_ns(ancillary), before, time.monotonic_ns())
    assert before - 1_000_000 <= arrival <= sent + 1_000_000


def test_unix_sockets_have_no_stamps() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert stamps.enable(left) is False
