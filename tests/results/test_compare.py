"""Two runs against each other: what is noise, what is not, and gates that hold only on known figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from results.compare import BETTER, Change, Gate, compare, pair, parse_gate
from results.dataset import find_runs
from results.errors import UserError
from results.records import TreeEnd
from tests.results.rows import Run


def finished(folder: Path, level_ms: float, *, trees: int = 40, seed: int = 1, **manifest: Any) -> Path:
    """A run whose trees have TTFTs around `level_ms`."""
    rng = np.random.default_rng(seed)
    run = Run(folder, session_ids=[f"s{k}" for k in range(trees)])
    for tree in range(trees):
        level = float(rng.normal(level_ms, 0.1 * level_ms))
        run.tree(ended=9000, session=tree, end=TreeEnd.COMPLETED)
        for _ in range(5):
            run.request(chunks=[level, level + 20, level + 40], session=tree)
    run.finish()
    document = {"corpus": {"digest": "c"}, "plan": {"digest": "p"}, "endpoint": {"model": "m"}, **manifest}
    (run.directory / "run.json").write_text(json.dumps(document))
    return run.directory


def changes(a: Path, b: Path) -> dict[str, Change]:
    return {change.metric: change for change in compare(find_runs(a)[0], find_runs(b)[0])}


def test_a_real_change_is_told_from_noise(tmp_path: Path) -> None:
    base = finished(tmp_path / "a", 500)
    same = changes(base, finished(tmp_path / "b", 500, seed=2))["ttft_p50"]
    assert same.significant is False
    slower = changes(base, finished(tmp_path / "c", 600, seed=3))["ttft_p50"]
    assert slower.significant is True
    assert slower.relative == pytest.approx(0.2, abs=0.06)
    assert slower.interval is not None
    assert slower.interval[0] < 0.2 < slower.interval[1] + 0.05
    assert slower.worse == slower.relative


def test_few_sessions_leave_the_question_open(tmp_path: Path) -> None:
    change = changes(finished(tmp_path / "a", 500, trees=3), finished(tmp_path / "b", 900, trees=3))["ttft_p90"]
    assert change.significant is None
    assert change.interval is None
    assert change.relative is not None


def test_gates(tmp_path: Path) -> None:
    gate = parse_gate("ttft_p90 worse 5%")
    assert gate == Gate("ttft_p90", 5.0)
    worse = Change("ttft_p90", 1.0, 1.2, 0.2, (0.1, 0.3), True)
    assert "20.0 % worse" in (gate.broken_by(worse) or "")
    assert gate.broken_by(Change("ttft_p90", 1.0, 1.2, 0.2, (-0.1, 0.5), False)) is None  # noise breaks no build
    assert "no interval" in (gate.broken_by(Change("ttft_p90", 1.0, 1.2, 0.2, None, None)) or "")
    assert gate.broken_by(Change("ttft_p90", 1.0, 0.5, -0.5, (-0.6, -0.4), True)) is None
    slower = Change("output_tok_s", 100.0, 80.0, -0.2, None, True)
    assert parse_gate("output_tok_s worse 10 %").broken_by(slower)


@pytest.mark.parametrize("after", [None, 0.0])
def test_p138_a_missing_figure_holds_no_gate(after: float | None) -> None:
    gate = parse_gate("output_tok_s worse 5%")
    relative = None if after is None else -1.0
    assert gate.broken_by(Change("output_tok_s", 100.0, after, relative, None, None))


@pytest.mark.parametrize("figure", ["tpot_p90", "ttft_p50", "e2e_p99", "joules_per_output_token"])
@pytest.mark.parametrize("after", [0.0, -1.0])
def test_p138_no_zero_passes_a_gate_on_a_figure_that_is_better_when_smaller(figure: str, after: float) -> None:
    gate = parse_gate(f"{figure} worse 5%")
    for significant in (True, False, None):  # not even as noise
        why = gate.broken_by(Change(figure, 0.05, after, (after - 0.05) / 0.05, None, significant))
        assert why is not None
        assert "no measurement" in why
    fixed = parse_gate("error_rate worse 5%")  # the one that may be zero
    assert fixed.broken_by(Change("error_rate", 0.05, 0.0, -1.0, None, True)) is None


@pytest.mark.parametrize(
    "text", ["", "ttft_p90", "ttft_p90 worse", "nothing worse 5%", "ttft_p90 worse -5%", "ttft_p95 worse 5%"]
)
def test_gates_are_read_strictly(text: str) -> None:
    with pytest.raises(UserError, match="--fail-if"):
        parse_gate(text)


def test_every_figure_has_a_better_direction() -> None:
    assert set(BETTER.values()) == {"lower", "higher"}
    assert BETTER["tpot_p99"] == "lower"


def test_folders_are_paired_by_point(tmp_path: Path) -> None:
    for side in ("before", "after"):
        for point in ("c1", "c2"):
            folder = finished(tmp_path / side / point, 500)
            (folder / "serving.json").write_text(json.dumps({"point": point}))
    pairs = pair(find_runs(tmp_path / "before"), find_runs(tmp_path / "after"))
    assert [(a.key, b.key) for a, b in pairs] == [(("c1",), ("c1",)), (("c2",), ("c2",))]
    with pytest.raises(UserError, match="several runs"):
        pair(find_runs(tmp_path), find_runs(tmp_path))
    with pytest.raises(UserError, match="no finished run"):
        find_runs(tmp_path / "nothing")
