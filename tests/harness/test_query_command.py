"""`agentx query`: its forms, its exit codes, what it says of runs it can't use, and the documentation's examples."""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from harness.cli.common import entry
from harness.query_view import Form, plain, print_answer
from results.query import Answer
from tests.results.rows import Run

pytest.importorskip("duckdb")

ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["agentx", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            entry()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for concurrency in (1, 4):
        run = Run(tmp_path / "runs" / str(concurrency), run_id=f"run{concurrency}", concurrency=concurrency)
        for k in range(concurrency):
            run.request(chunks=[100, 110], output_tokens=2 + k)
        run.finish()
    return tmp_path / "runs"


SQL = "SELECT run_id, concurrency, latency_ttft_s_p90 AS ttft, jobs_latency_s_p50 AS job FROM runs ORDER BY concurrency"


def test_a_table_says_null(runs: Path, ask: Ask) -> None:
    code, out, err = ask("query", SQL, runs)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["run_id", "concurrency", "ttft", "job"]
    assert lines[2].split() == ["run1", "1", "0.1", "null"]
    assert lines[4] == "2 rows"


def test_json_and_csv_hold_the_whole_values(runs: Path, ask: Ask) -> None:
    code, out, _ = ask("query", SQL, runs, "--json")
    assert code == 0
    assert json.loads(out)[1] == {"run_id": "run4", "concurrency": 4, "ttft": 0.1, "job": None}
    code, out, _ = ask("query", SQL, runs, "--csv")
    assert list(csv.reader(io.StringIO(out)))[1:] == [["run1", "1", "0.1", ""], ["run4", "4", "0.1", ""]]
    assert json.loads(ask("query", "SELECT * FROM runs WHERE false", runs, "--json")[1]) == []
    code, _, err = ask("query", SQL, runs, "--csv", "--json")
    assert (code, err) == (2, "agentx: --json and --csv are two forms; give one\n")


def test_sums_and_fractions_are_numbers(runs: Path, ask: Ask) -> None:
    sql = "SELECT sum(output_tokens) AS n, 0.5 AS half, 1 / 0 AS no FROM requests"
    assert json.loads(ask("query", sql, runs, "--json")[1]) == [{"n": 16, "half": 0.5, "no": None}]


def test_wrong_sql_and_wrong_paths_are_one_line_and_exit_2(runs: Path, ask: Ask) -> None:
    for sql, path, said in (
        ("SELEC 1", runs, "agentx: SQL: Parser Error: syntax error"),
        ("SELECT x FROM requests", runs, 'agentx: SQL: Binder Error: Referenced column "x" not found'),
        ("SELECT 1", runs / "nothing", f"agentx: {runs}/nothing: no finished run there: no such folder"),
    ):
        code, out, err = ask("query", sql, path)
        assert (code, out) == (2, "")
        assert err.startswith(said)
        assert err.count("\n") == 1


def test_runs_that_can_not_be_used_are_named_unless_quiet(runs: Path, ask: Ask) -> None:
    for k in range(12):
        (runs / f"x{k:02}").mkdir()
        (runs / f"x{k:02}" / "run.json").write_text("{}")
    code, out, err = ask("query", "SELECT count(*) AS n FROM runs WHERE valid", runs, "--json")
    assert (code, json.loads(out)) == (0, [{"n": 2}])
    lines = err.splitlines()
    assert lines[0] == f"agentx: {runs}/x00: not finished: no summary.json and no journal"
    assert lines[-1] == "agentx: and 2 more like that"
    assert len(lines) == 11
    assert ask("query", "SELECT 1", runs, "--quiet")[2] == ""


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(answer: Answer, form: Form = Form.TABLE, out: io.StringIO | None = None) -> str:
    to = out or io.StringIO()
    print_answer(answer, form, to)
    return to.getvalue()


def test_a_row_wider_than_the_screen_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    answer = [f"column_{k}" for k in range(12)]
    wide = shown(Answer(answer, iter([tuple(range(12))])), out=Screen())
    assert wide.splitlines()[:2] == ["── row 1 ──", "column_0   0"]
    assert max(map(len, wide.splitlines())) <= 60
    assert wide.endswith("column_11  11\n1 row\n")


def test_texts_are_cut_and_can_not_write_to_the_terminal() -> None:
    out = shown(Answer(["a", "b"], iter([("\x1b[31mred\nline\u202e", "z" * 10_000_000)])))
    line = out.splitlines()[2]
    assert line.startswith(" [31mred line")
    assert line.endswith("zzz…")
    assert len(line) < 100


def test_p126_rows_are_written_as_they_come() -> None:
    """Neither form waits for the end of a large answer: the first rows are out before the last are made."""

    class Out(io.StringIO):
        seen = 0

        def write(self, text: str) -> int:
            self.seen += len(text)
            return len(text)

    for form in Form:
        out = Out()

        def rows(out: Out = out) -> Iterator[tuple[Any, ...]]:
            for k in range(5_000):
                if k == 1_000:
                    assert out.seen > 1_000
                yield (k, "text")

        print_answer(Answer(["k", "t"], rows()), form, out)
        assert out.seen > 25_000


def test_values_that_json_does_not_have() -> None:
    assert plain(float("nan")) is None
    assert plain(Decimal("12")) == 12
    assert plain(Decimal("0.25")) == 0.25
    assert plain(datetime.datetime(2026, 1, 2, 3, 4, 5)) == "2026-01-02T03:04:05"
    assert plain(datetime.timedelta(milliseconds=1500)) == 1.5
    assert plain({1: [b"\x01", True]}) == {"1": ["01", True]}


def test_a_reader_who_leaves_early_is_no_error(runs: Path) -> None:
    sql = "SELECT i FROM range(1000000) t(i), runs"
    command = f"{sys.executable} -m agentx query {shlex.quote(sql)} {shlex.quote(str(runs))} | head -n 3"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[2].strip() == "0"


def test_every_query_of_the_documentation_runs(runs: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "analysis.md").read_text()
    commands = re.findall(r"^agentx query .*?(?=^agentx |^```)", text, re.MULTILINE | re.DOTALL)
    assert len(commands) >= 4
    monkeypatch.chdir(runs.parent)
    for command in commands:
        code, out, err = ask(*shlex.split(command.replace("\\\n", " "))[1:])
        assert (code, err) == (0, ""), command
        assert out
