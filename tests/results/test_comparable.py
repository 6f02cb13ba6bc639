"""Which runs may stand together: what has to be equal, and for what."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from results.comparable import CURVE, CURVES, PAIR, Aspect, check, mixed
from results.errors import UserError


def manifest(run_id: str = "a", **changes: Any) -> dict[str, Any]:
    """A run.json; `changes` are values by path, written `scenario__rules__seed`."""
    document: dict[str, Any] = {
        "run_id": run_id,
        "corpus": {"digest": "c" * 64},
        "plan": {"digest": "p" * 64, "requests": 948},
        "scenario": {"rules": {"concurrency": 4, "seed": 42, "time_scale": 1.0, "stages": [], "description": "x"}},
        "endpoint": {"model": "m", "url": "http://one", "request_fields": {"ignore_eos": True}},
        "serving": {"engine": {"value": "vLLM"}, "version": {"value": "1"}, "tensor_parallel": {"value": 4}},
    }
    for path, value in changes.items():
        *folders, name = path.split("__")
        at = document
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = value
    return document


ROLES = {"curve": CURVE, "curves": CURVES, "pair": PAIR}


@pytest.mark.parametrize(
    ("change", "refused", "said"),
    [
        ({"corpus__digest": "d" * 64}, {"curve", "curves", "pair"}, "corpus: cccccccccccc against dddddddddddd"),
        ({"endpoint__model": "n"}, {"curve", "curves", "pair"}, "model: m against n"),
        ({"plan__requests": 900}, {"curve", "curves", "pair"}, "planned requests: 948 against 900"),
        ({"scenario__rules__seed": 1}, {"curve", "curves", "pair"}, "seed: 42 against 1"),
        ({"scenario__rules__time_scale": 0.5}, {"curve", "curves", "pair"}, "time_scale: 1.0 against 0.5"),
        ({"endpoint__request_fields__ignore_eos": False}, {"curve", "curves", "pair"}, "forced output lengths"),
        ({"scenario__rules__concurrency": 8}, {"pair"}, "concurrency: 4 against 8"),
        ({"scenario__rules__stages": [{"concurrency": 2}]}, {"pair"}, "stages: [] against [{'concurrency': 2}]"),
        ({"plan__digest": "q" * 64}, {"pair"}, "plan: pppppppppppp against qqqqqqqqqqqq"),
        ({"serving__engine__value": "SGLang"}, {"curve"}, "serving engine: vLLM against SGLang"),
        ({"serving__version__value": "2"}, {"curve"}, "serving version: 1 against 2"),
        ({"serving__tensor_parallel__value": 8}, set(), ""),
        ({"endpoints": [{"url": "http://one"}, {"url": "b"}]}, {"curve"}, "served by: 1 endpoint against 2 endpoints"),
        ({"endpoints": [{"url": "http://two"}]}, set(), ""),
        ({"serving__engine": None}, set(), ""),  # what one does not know is no difference
        ({"scenario__rules__description": "other words"}, set(), ""),
        ({"scenario__rules__a_rule_of_later_versions": 1}, set(), ""),
        ({"endpoint__url": "http://two"}, set(), ""),
    ],
)
def test_what_must_be_equal_for_what(change: dict[str, Any], refused: set[str], said: str) -> None:
    both = [manifest("a"), manifest("b", **change)]
    for name, same in ROLES.items():
        lines = mixed(both, same)
        assert bool(lines) == (name in refused), (name, lines)
        assert not lines or lines[0].startswith(said)


def test_the_configured_stack_of_a_sweep_counts() -> None:
    both = [manifest(sweep={"serving": {"hardware": hw, "tp": tp}}) for hw, tp in (("h100", 4), ("b200", 8))]
    assert mixed(both, CURVE) == ["configured hardware: h100 against b200"]
    assert mixed(both, frozenset({Aspect.STACK})) == mixed(both, CURVE)


def test_numbers_of_endpoints_are_told_where_stacks_are_compared() -> None:
    both = [manifest(endpoints=[{"url": "a"}] * n) for n in (1, 2)]
    assert mixed(both, frozenset({Aspect.STACK})) == ["served by: 1 endpoint against 2 endpoints"]
    assert mixed(both, PAIR) == []
    with pytest.raises(UserError, match="served by: 1 endpoint against 2 endpoints"):
        check(both, CURVE, allow_mixed=False)


def test_many_runs_are_named_by_example() -> None:
    runs = [manifest(f"r{k}", corpus__digest="c" if k < 9 else "d") for k in range(10)]
    assert mixed(runs, CURVE) == ["corpus: c (r0 and 8 more) against d (r9)"]
    runs = [manifest(f"r{k}", scenario__rules__seed=k) for k in range(10)]
    assert mixed(runs, CURVE) == ["seed: 0 (r0) against 1 (r1) against 2 (r2) and 7 other values"]


def test_an_unknown_corpus_is_not_taken_for_the_same() -> None:
    unknown = manifest("b")
    del unknown["corpus"]
    assert mixed([manifest("a"), unknown], CURVE) == ["corpus: cccccccccccc against not known"]
    assert mixed([unknown, copy.deepcopy(unknown)], CURVE) == []


@pytest.mark.parametrize("odd", [{}, {"serving": []}, {"scenario": {"rules": 3}}, {"plan": "x", "endpoint": None}])
def test_odd_manifests_are_no_traceback(odd: dict[str, Any]) -> None:
    for same in ROLES.values():
        assert mixed([odd, odd], same) == []


def test_mixed_runs_are_refused_in_a_line_or_told() -> None:
    odd = manifest("b", corpus__digest="d", endpoint__model="n", plan__requests=1, scenario__rules__seed=2)
    with pytest.raises(UserError) as error:
        check([manifest("a"), odd], CURVES, allow_mixed=False)
    said = str(error.value)
    assert said.startswith("the runs differ in corpus: cccccccccccc against d; model: m against n")
    assert "and 1 more" in said
    assert "--allow-mixed" in said
    assert "\n" not in said
    assert len(check([manifest("a"), odd], CURVES, allow_mixed=True)) == 4
    assert check([manifest("a"), manifest("b")], CURVE, allow_mixed=False) == []
    assert check([], CURVE, allow_mixed=False) == []
