"""`agentx cost` as a user runs it, on result files made from journals; the examples of its documentation."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.common import entry
from results.price_list import shipped
from results.sensitivity import PARAMETERS
from tests.results.rows import Run

DOCS = Path(__file__).parents[2] / "docs" / "cost.md"
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["agentx", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as ended:
            entry()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def finished(folder: Path, *, cached: int | None = 90_000, trees: int = 20) -> Path:
    """A run of 100,000-token prompts, 25 s long; the server says `cached` tokens of each, or nothing."""
    run = Run(folder, session_ids=[f"s{tree}" for tree in range(trees)])
    counts: dict[str, Any] = {"input_tokens": 100_000} | ({} if cached is None else {"cached_tokens": cached})
    for tree in range(trees):
        for turn in range(5):
            sent = 1000.0 * tree + 1000.0 * turn
            run.request(sent=sent, chunks=[300.0 + 20 * n for n in range(30)], session=tree, **counts)
        run.tree(ended=25_000, session=tree)
    summary = run.finish()
    (run.directory / "run.json").write_text("{}")
    summary["valid"] = True
    (run.directory / "summary.json").write_text(json.dumps(summary))
    return run.directory


def rows(said: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, err = said
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    return found


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of docs/cost.md, by the name in their first line, and a run in `runs`."""
    for block in blocks("toml"):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    finished(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_of_the_documentation_runs(documented: Path, ask: Ask) -> None:
    assert {"tco.toml", "prices.toml", "ranges.toml"} <= {file.name for file in documented.iterdir()}
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        code, out, err = ask(*shlex.split(line)[1:])
        assert (code, err) == (0, ""), line
        assert "$/M total" in out
        (row,) = rows(ask(*shlex.split(line)[1:], "--json"))
        assert row["usd_per_million"]["total"] > 0


def test_the_documentation_names_every_list_and_assumption() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert [name for name in (*shipped(), *PARAMETERS) if f"`{name}`" not in text] == []


def test_documented_prices_and_cost_of_owning(documented: Path, ask: Ask) -> None:
    (row,) = rows(ask("cost", "runs", "--gpus", 8, "--tco", "tco.toml", "--prices", "prices.toml", "--json"))
    items = row["assumed"]["tco"]["usd_per_device_hour"]
    assert sum(items.values()) == pytest.approx(row["assumed"]["usd_per_device_hour"])
    assert items["electricity"] == pytest.approx(1.4 * 1.25 * 0.8 * 0.08)
    assert row["assumed"]["kw_per_device"] == pytest.approx(1.75)
    assert row["assumed"]["usd_per_million"] == {"input": 0.60, "cached_input": 0.10, "output": 3.00}
    assert row["assumed"]["licence_share"] == 0.15
    hour = row["profit"]
    assert hour["cost"] == pytest.approx(sum(items.values()))
    assert hour["licence"] == pytest.approx(0.15 * hour["revenue"])
    assert hour["months_to_pay_back"] > 0
    (older,) = rows(
        ask("cost", "runs", "--gpus", 8, "--price", 1, "--prices", "prices.toml", "--as-of", "2026-07", "--json")
    )
    assert older["assumed"]["usd_per_million"]["cached_input"] == pytest.approx(0.08)
    assert older["reasons"]["cached_price"].startswith("not listed: 10 %")


def test_the_profit_of_a_run_by_hand(tmp_path: Path, ask: Ask) -> None:
    directory = finished(tmp_path)
    summary = json.loads((directory / "summary.json").read_bytes())
    arguments = ("--gpus", 2, "--price", 3, "--prices", "zai", "--utilisation", 0.5, "--json")
    (row,) = rows(ask("cost", directory, *arguments))
    inputs, outputs = (summary["throughput"][f"{kind}_tok_s"] / 2 for kind in ("input", "output"))
    assert summary["cache"]["achieved"] == pytest.approx(0.9)
    revenue = 0.5 * 3600 / 1e6 * (inputs * (0.1 * 1.40 + 0.9 * 0.26) + outputs * 4.40)
    assert row["profit"]["revenue"] == pytest.approx(revenue)
    assert row["profit"]["profit"] == pytest.approx(0.9 * revenue - 3)  # the list's licence share is 10 %
    (free,) = rows(ask("cost", directory, *arguments, "--licence", 0))
    assert free["profit"]["profit"] == pytest.approx(revenue - 3)


def test_an_unknown_hit_rate_gives_costs_and_no_profit(tmp_path: Path, ask: Ask) -> None:
    directory = finished(tmp_path, cached=None)
    arguments = ("cost", directory, "--gpus", 1, "--price", 3, "--prices", "zai", "--tornado", "--monte-carlo", 9)
    (row,) = rows(ask(*arguments, "--json"))
    assert row["profit"] is row["tornado"] is row["monte_carlo"] is None
    assert "cache hits" in row["reasons"]["profit"]
    code, out, _ = ask(*arguments)
    assert code == 0
    assert "profit: not known: cache hits" in out
    code, _, err = ask(*arguments, "--html", tmp_path / "t.html")
    assert code == 2
    assert "nothing to draw; not known: cache hits" in err


def test_sensitivities_use_the_run_s_own_intervals_and_the_tiers(tmp_path: Path, ask: Ask) -> None:
    directory = finished(tmp_path)
    common = ("cost", directory, "--gpus", 8, "--hardware", "b200", "--prices", "zai", "--monte-carlo", 200, "--json")
    (row,) = rows(ask(*common, "--tornado", "--seed", 3))
    assert row["ranges"]["throughput_factor"]["why"] == "the run's 95 % interval"
    assert row["ranges"]["usd_per_device_hour"]["low"] == 1.73
    assert [bar["swing"] for bar in row["tornado"]] == sorted((bar["swing"] for bar in row["tornado"]), reverse=True)
    drawn = row["monte_carlo"]["profit_per_device_hour"]
    assert drawn["p5"] < drawn["p50"] < drawn["p95"]
    assert rows(ask(*common, "--seed", 3))[0]["monte_carlo"] == row["monte_carlo"]
    assert rows(ask(*common, "--seed", 4))[0]["monte_carlo"] != row["monte_carlo"]


def test_the_tornado_page_needs_no_network(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, page = finished(tmp_path), tmp_path / "t.html"
    arguments = ("cost", directory, "--gpus", 8, "--hardware", "b200", "--prices", "zai", "--html")
    assert ask(*arguments, page)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert "usd_per_device_hour" in text
    assert "<script src" not in text
    code, _, err = ask(*arguments, tmp_path / "no" / "t.html")
    assert (code, err.count("\n")) == (2, 1)
    assert "No such file or directory" in err
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    code, _, err = ask(*arguments, page)
    assert (code, err) == (2, "agentx: --html needs plotly; pip install 'agentx-live[analysis]'\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--price", "nan"), "--price"),
        (("--price", "-1"), "--price"),
        (("--price", "inf"), "price inf"),
        (("--utilisation", "nan", "--price", "1", "--prices", "zai"), "--utilisation"),
        (("--kw-per-gpu", "0", "--price", "1"), "kW per device 0"),
        (("--hardware", "b200", "--as-of", "July"), "--as-of July; write 2026, 2026-07"),
        (
            ("--hardware", "b200", "--as-of", "2020"),
            "--as-of, --source: b200 has no such rental-3y price; there are: ",
        ),
        (("--hardware", "b200", "--source", "nobody"), "--as-of, --source: b200 has no such rental-3y price"),
        (("--hardware", "b200", "--tier", "cheap"), "price tier 'cheap'"),
        (("--price", "1", "--tco", "x.toml"), "--price and --tco; give one"),
        (("--tco", "gone.toml"), "TCO file gone.toml: No such file"),
        (("--price", "1", "--tornado"), "give --prices"),
        (("--price", "1", "--prices", "zai", "--ranges", "r.toml"), "--ranges alone does nothing"),
        (("--price", "1", "--prices", "zai", "--tornado", "--ranges", "r.toml"), "ranges file r.toml: No such file"),
        (("--monte-carlo", "0"), "--monte-carlo"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(tmp_path: Path, ask: Ask, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = ask("cost", finished(tmp_path, trees=1), "--gpus", 1, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("agentx: ")
    assert err.count("\n") == 1
    assert said in err


def test_a_summary_of_impossible_figures_is_refused_by_name(tmp_path: Path, ask: Ask) -> None:
    directory = finished(tmp_path, trees=1)
    summary = json.loads((directory / "summary.json").read_bytes())
    summary["throughput"]["output_tok_s"] = float("nan")
    (directory / "summary.json").write_text(json.dumps(summary))
    code, _, err = ask("cost", directory, "--gpus", 1, "--price", 1)
    assert (code, err) == (2, "agentx: run run: throughput.output_tok_s nan; give a finite number, 0 or more\n")


def test_many_runs_stay_a_table(tmp_path: Path, ask: Ask) -> None:
    for name in "abcde":
        finished(tmp_path / name, trees=1)
    code, out, _ = ask("cost", tmp_path, "--gpus", 1, "--price", 1, "--prices", "zai")
    assert code == 0
    assert "profit $/h" in out
    assert "k$/rack-year" not in out
    assert "fewer runs, or --json" in out


def test_the_price_tables_can_be_chosen_by_date_and_source(tmp_path: Path, ask: Ask) -> None:
    directory = finished(tmp_path, trees=1)

    def paid(*arguments: str) -> tuple[float, float]:
        (row,) = rows(ask("cost", directory, "--gpus", 1, "--hardware", "h200", *arguments, "--json"))
        return row["assumed"]["usd_per_device_hour"], row["assumed"]["kw_per_device"]

    assert paid() == (2.9, 1.37)
    assert paid("--as-of", "2026-06-30") == (2.05, 1.37)
    assert paid("--source", "constants.ts") == (1.60, 1.73)
    assert paid("--tier", "hyperscaler") == (1.22, 1.37)
