from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sweep.matrix import Curve, curves, ends_then_bisect, select
from harness.sweep.refine import Place, candidates, next_concurrency
from harness.sweep.run import load_time, run_command
from harness.sweep.schema import Auto, Configuration, Scenario, Server, Serving, Sweep


def make(names: list[str], points: list[int]) -> list[Curve]:
    serving = Serving(model="m", engine="vllm")
    configurations = [Configuration(name=n, serving=serving, endpoint="http://h") for n in names]
    return curves(Sweep(name="s", configurations=configurations, points=points))


def test_ends_come_first_then_the_widest_gap_is_halved() -> None:
    assert ends_then_bisect([1, 2, 4, 8, 16, 32, 64]) == [1, 64, 8, 2, 16, 4, 32]
    assert ends_then_bisect([5]) == [5]
    assert ends_then_bisect([64, 1]) == [1, 64]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40, unique=True))
def test_the_order_is_a_permutation_whose_every_start_covers_the_range(values: list[int]) -> None:
    order = ends_then_bisect(values)
    assert sorted(order) == sorted(values)
    assert order[0] == min(values)
    assert order[:2][-1] == max(values)


def test_what_is_measured_decides_the_digest_and_waiting_does_not() -> None:
    (curve,) = make(["a"], [1])
    point = curve.point(4)
    assert point.id == "a/closed-loop/c4"
    slower = Curve(msgspec.structs.replace(curve.configuration, runner=["x"], priority=3), curve.scenario, curve.points)
    assert slower.point(4).digest == point.digest
    other = Curve(curve.configuration, Scenario(name="closed-loop", time_scale=0.5), curve.points)
    assert other.point(4).digest != point.digest
    assert curve.point(5).digest != point.digest

    def digest(**changes: object) -> str:
        changed = msgspec.structs.replace(curve.configuration, endpoint=None, **changes)
        return Curve(changed, curve.scenario, curve.points).point(4).digest

    server = Server(commands={"a": ["x"]})
    same = digest(server=server)
    assert digest(server=Server(commands={"a": ["x"]}, ready_timeout="1h")) == same
    assert digest(server=Server(commands={"a": ["y"]})) != same
    assert digest(server=Server(commands={"a": ["x"]}, env={"A": 1})) != same
    assert digest(server=server, serving=Serving(model="m", engine="vllm", tp=2)) != same
    assert digest(server=server, extra={"a": ["--z"]}) != same


def test_only_names_curves_and_points() -> None:
    every = make(["a", "b"], [1, 2])
    assert [(c.name, n) for c, n in select(every, ["b", "a/closed-loop/c2"])] == [
        ("b/closed-loop", None),
        ("a/closed-loop", 2),
    ]
    for wrong in ("c", "a/other", "a/closed-loop/c3", "a/closed-loop/2", "a/closed-loop/c2/x"):
        with pytest.raises(ValueError, match=wrong):
            select(every, [wrong])


def engine(concurrency: int) -> Place:
    """Latency per token grows with the batch; throughput saturates: a curve with a knee near 20."""
    speed = 100.0 / (1 + (concurrency / 20) ** 2)
    return speed, 4_000.0 * concurrency / (concurrency + 15)


def refine(auto: Auto, measure: dict[int, Place | None] | None = None) -> dict[int, Place | None]:
    tried: dict[int, Place | None] = {}
    while (c := next_concurrency(auto, tried)) is not None:
        assert c not in tried
        tried[c] = measure.get(c, engine(c)) if measure else engine(c)
    return tried


def test_adaptive_points_show_the_ends_first_and_know_the_knee() -> None:
    tried = refine(Auto(low=1, high=256, max_points=20))
    assert list(tried)[:2] == [1, 256]
    assert len(tried) < 16
    # Interpolating linearly between measured points, no unmeasured concurrency is further off than 5 % of the range.
    order = sorted(tried)
    for c in range(1, 257):
        low = max(n for n in order if n <= c)
        high = min(n for n in order if n >= c)
        (x0, y0), (x1, y1), (x, y) = engine(low), engine(high), engine(c)
        along = 0.0 if x1 == x0 else (x - x0) / (x1 - x0)
        assert abs(y0 + along * (y1 - y0) - y) < 0.05 * 4_000, c


def test_a_straight_curve_needs_few_points_and_a_bent_one_more_where_it_bends() -> None:
    def straight(c: int) -> Place:
        return 100.0 - math.log2(c), 50.0 * math.log2(c)

    auto = Auto(low=1, high=64)
    flat = refine(auto, {c: straight(c) for c in range(1, 65)})
    assert len(flat) == 5  # pieces of √2 / 4: a quarter of their length is within the tolerance
    assert len(refine(auto)) > len(flat)


def test_beside_a_failed_point_the_limit_is_looked_for() -> None:
    tried = refine(Auto(low=1, high=256, max_points=30), dict.fromkeys(range(50, 257)))
    good, bad = [c for c, p in tried.items() if p], [c for c, p in tried.items() if not p]
    assert min(bad) / max(good) <= 1.5


def test_points_that_all_failed_are_not_refined() -> None:
    assert refine(Auto(low=1, high=256), dict.fromkeys(range(1, 257))) == {1: None, 256: None}


def test_neighbouring_numbers_leave_nothing_to_try() -> None:
    auto = Auto(low=1, high=3, tolerance=0.001)
    assert sorted(refine(auto)) == [1, 2, 3]
    assert candidates(auto, {1: (1.0, 1.0), 2: (0.5, 2.0)}) == {}


@given(st.dictionaries(st.integers(1, 64), st.none() | st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), max_size=20))
def test_refinement_always_ends_and_never_repeats(tried: dict[int, Place | None]) -> None:
    auto = Auto(low=1, high=64, max_points=25)
    c = next_concurrency(auto, tried)
    assert c is None or (1 <= c <= 64 and c not in tried)


def test_the_time_of_a_point_is_that_of_its_rules(tmp_path: Path) -> None:
    assert load_time(Scenario(name="a", rules="agentx"), tmp_path) == (3600.0, 1800.0 + 1800.0)
    assert load_time(Scenario(name="a", rules="agentx", duration="5m", drain="1m"), tmp_path) == (300.0, 60.0 + 1800.0)
    assert load_time(Scenario(name="a"), tmp_path) == (600.0, 60.0)
    assert load_time(Scenario(name="a", sessions=3), tmp_path) == (None, 60.0)
    (tmp_path / "mine.yaml").write_text("duration_s: 7s\n")
    assert load_time(Scenario(name="a", rules="mine.yaml"), tmp_path) == (7.0, 60.0)
    command = run_command(Scenario(name="a", rules="mine.yaml", corpus="c.parquet"), 4, "http://h", tmp_path, tmp_path)
    assert command[command.index("--scenario") + 1] == str(tmp_path / "mine.yaml")
    assert command[command.index("--corpus") + 1] == str(tmp_path / "c.parquet")
