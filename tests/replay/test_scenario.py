"""Scenarios: built-in, from a file, overridden, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import load
from replay.corpus import Corpus, builtin_path
from replay.fixed import fixed_corpus
from replay.plan import Selection, make_plan
from replay.scenario import BUILTIN, Fixed, Scenario, Stage, check, explain, load_rules
from results.errors import UserError
from tests.replay.corpora import row, write_corpus


def test_the_public_rules() -> None:
    s = BUILTIN["agentx"]
    assert (s.duration_s, s.drain_s, s.warmup_grace_s, s.seed) == (3600, 1800, 1800, 42)
    assert (s.start_min, s.start_max, s.primers, s.warmup_requests) == (0.25, 0.75, True, 10)
    assert (s.tree_idle_cap_s, s.system_idle_cap_s, s.shared_prefix) == (300, 10, "none")
    assert (s.failed_limit, s.overflow_limit, s.coverage) == (0.10, 0.01, 0.95)
    assert (s.messages, s.assistant, s.affinity) == ("plain", "recorded", "correlation")
    fast = BUILTIN["agentx-fast"]
    assert (fast.duration_s, fast.warmup_requests) == (1200, 1)
    assert fast.start_max == 0.75


@pytest.mark.parametrize("name", BUILTIN)
def test_every_built_in_scenario_holds_together(name: str) -> None:
    check(BUILTIN[name])


def test_overrides_are_kept_with_what_the_scenario_said() -> None:
    rules = load_rules("agentx", {"duration_s": 600.0, "concurrency": 64, "seed": 42})
    assert rules.overrides == {"duration_s": (3600.0, 600.0)}  # the load is free, and the same value overrides nothing
    assert rules.scenario.concurrency == 64
    assert rules.why_not_submission() == [
        "duration_s overridden: 3600.0 -> 600.0",
        "unsafe override: 600 s is shorter than 900 s",
    ]
    assert load_rules("agentx", {}).why_not_submission() == []
    where = {name: source for name, _, source in explain(rules)}
    assert where["duration_s"] == "given (the scenario says 3600.0)"
    assert where["start_min"] == "scenario agentx"
    assert where["coverage"] == "default"


def test_a_file_starts_from_a_built_in_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: agentx\nduration_s: 20m\nstages: []\nstart_max: 0.5\nfixed: null\n")
    rules = load_rules(str(path), {})
    assert rules.scenario.name == "mine"
    assert (rules.scenario.duration_s, rules.scenario.start_max, rules.scenario.warmup_requests) == (1200, 0.5, 10)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("duration_s: 10m\nwarmup_request: 3\n", r"mine\.yaml:2: warmup_request: .*unknown field"),
        ("seed: 1\noverlong: maybe\n", r"mine\.yaml:2: overlong"),
        ("duration_s: soon\n", r"mine\.yaml:1: duration_s: 'soon' is not a duration"),
        ("base: nothing\n", r"mine\.yaml:1: base: unknown nothing"),
        ("a: [1\n", r"mine\.yaml:2: not YAML"),
        ("- 1\n", "not a mapping"),
        ("stages:\n  - concurrency: 4\n    duration_s: x\n", "is not a duration"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        load_rules(str(path), {})


@pytest.mark.parametrize(
    "bad",
    [
        {"duration_s": 0.0},
        {"start_min": 0.5, "start_max": 0.4},
        {"start_max": 1.0},
        {"arrival": "poisson"},
        {"arrival": "poisson", "rate_per_min": 1.0, "start_max": 0.5},
        {"stages": (Stage(0, 5.0),)},
        {"concurrency": 0},
        {"stall_s": 0.0},
        {"turn_clock": "recorded", "start_max": 0.5},
        {"turn_clock": "recorded", "warmup_requests": 1},
        {"turn_clock": "recorded", "human_pauses": False},
    ],
)
def test_rules_that_contradict_each_other_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UserError):
        load_rules("closed-loop", bad)


def test_unknown_names_are_answered_with_the_choice() -> None:
    with pytest.raises(UserError, match="agentx-fast"):
        load_rules("agentz", {})


def test_first_starts_are_spread_over_the_ramp() -> None:
    starts = list(load.arrivals(Scenario(concurrency=4, ramp_s=8.0), 0, 1))
    assert starts == [(0, 0), (1, 2 * 10**9), (2, 4 * 10**9), (3, 6 * 10**9)]
    split = [
        *load.arrivals(Scenario(concurrency=4, ramp_s=8.0), 0, 2),
        *load.arrivals(Scenario(concurrency=4, ramp_s=8.0), 1, 2),
    ]
    assert sorted(split) == starts


def test_open_arrivals_do_not_depend_on_the_number_of_workers() -> None:
    rules = Scenario(arrival="poisson", rate_per_min=600.0)

    def first(worker: int, workers: int, count: int) -> list[tuple[int, int]]:
        iterator = iter(load.arrivals(rules, worker, workers))
        return [next(iterator) for _ in range(count)]

    whole = first(0, 1, 4000)
    assert sorted(first(0, 2, 2000) + first(1, 2, 2000)) == whole
    assert whole[-1][1] / 1e9 == pytest.approx(400, rel=0.05)


def test_recorded_arrivals_are_the_corpus_own_times(tmp_path: Path) -> None:
    """Each session once, by its first request on the corpus's clock; a corpus without such a clock is refused."""
    starts = [50.0, 12.5, 20.0]
    one: dict[str, Any] = {"ids": [1, 2], "input_tokens": 128, "output_tokens": 4, "turn": 0}
    sessions = [[row(session_id=f"s{k}", start_s=start, **one)] for k, start in enumerate(starts)]
    corpus = write_corpus(tmp_path / "timed.parquet", sessions)
    rules = Scenario(arrival="recorded", time_scale=0.5)
    plan = make_plan(corpus, Selection.of(rules))
    assert [corpus.session_ids[k] for k in plan.order] == ["s1", "s2", "s0"]
    assert plan.session_for(3) is None
    times = plan.arrivals_s(corpus).tolist()
    assert list(load.arrivals(rules, 0, 1, times)) == [(0, 0), (1, 3_750_000_000), (2, 18_750_000_000)]
    assert list(load.arrivals(rules, 1, 2, times)) == [(1, 3_750_000_000)]
    with pytest.raises(UserError, match="does not say when its sessions began"):
        make_plan(Corpus.load(builtin_path()), Selection.of(rules))


def test_stages_add_slots_and_let_them_run_out() -> None:
    rules = Scenario(stages=(Stage(2, 10.0), Stage(4, 10.0), Stage(1, 10.0)))
    assert [slot for slot, _ in load.arrivals(rules, 0, 1)] == [0, 1, 2, 3]
    refill = load.refill(rules)
    assert [refill(slot, 15 * 10**9) for slot in range(4)] == [True] * 4
    assert [refill(slot, 25 * 10**9) for slot in range(4)] == [True, False, False, False]
    assert load.duration_s(rules) == 30.0


def test_overlong_requests_are_skipped_end_their_lane_or_stop_the_run() -> None:
    corpus = Corpus.load(builtin_path())
    skip = make_plan(corpus, Selection(8, max_context=30_000, overlong="skip"))
    end = make_plan(corpus, Selection(8, max_context=30_000, overlong="end"))
    assert skip.requests >= end.requests > 0
    assert (skip.kept | ~end.kept).all()
    fits = corpus.input_tokens + corpus.output_tokens <= 30_000
    assert not (skip.kept & ~fits).any()
    with pytest.raises(UserError, match="overlong fail"):
        make_plan(corpus, Selection(8, max_context=30_000, overlong="fail"))
    make_plan(corpus, Selection(8, max_context=10**9, overlong="fail"))


def test_sequential_order_is_the_corpus_own() -> None:
    corpus = Corpus.load(builtin_path())
    plan = make_plan(corpus, Selection(8, order="sequential"))
    assert plan.order.tolist() == sorted(plan.order.tolist())


def test_fixed_requests_share_nothing() -> None:
    corpus = fixed_corpus(Fixed(1000, 50))
    plan = make_plan(corpus, Selection(4))
    assert (plan.input_tokens, plan.longest_context) == (1000 * len(corpus.session_ids), 1050)
