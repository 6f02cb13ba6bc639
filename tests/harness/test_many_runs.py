"""`agentx compare` and `agentx cost` over many runs: which stand together, which are refused or left out, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli.common import entry
from tests.results.rows import Run

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


def finished(
    folder: Path, *, corpus: str = "c", load: int = 4, engine: str = "vLLM", interrupted: bool = False
) -> Path:
    run = Run(folder, run_id=folder.name, concurrency=load)
    for k in range(5):
        run.request(sent=100 * k, chunks=[50, 70], cached_tokens=4)
    run.finish(interrupted=interrupted)
    manifest: dict[str, Any] = {
        "run_id": folder.name,
        "corpus": {"digest": corpus * 64},
        "plan": {"digest": str(load), "requests": 5},
        "scenario": {"rules": {"concurrency": load, "seed": 1}},
        "endpoint": {"model": "m"},
        "serving": {"engine": {"value": engine}},
    }
    (run.directory / "run.json").write_text(json.dumps(manifest))
    return run.directory


COST = ("--gpus", 1, "--price", 2, "--json")


def test_a_curve_is_costed_together_and_a_mix_is_refused(tmp_path: Path, ask: Ask) -> None:
    for load in (1, 2, 4):
        finished(tmp_path / "curve" / f"c{load}", load=load)
    code, out, err = ask("cost", tmp_path / "curve", *COST)
    assert (code, err, len(json.loads(out))) == (0, "", 3)
    finished(tmp_path / "curve" / "odd", corpus="d", engine="SGLang")
    code, out, err = ask("cost", tmp_path / "curve", *COST)
    assert (code, out) == (2, "")
    assert err.startswith(
        "agentx: the runs differ in corpus: cccccccccccc (c1 and 2 more) against dddddddddddd (odd); "
    )
    assert "serving engine: vLLM (c1 and 2 more) against SGLang (odd)" in err
    assert err.count("\n") == 1
    code, out, err = ask("cost", tmp_path / "curve", *COST, "--allow-mixed")
    assert (code, len(json.loads(out))) == (0, 4)
    assert err.splitlines()[0].startswith("agentx: differ in corpus: ")


def test_what_is_not_valid_or_broken_is_left_out_and_named(tmp_path: Path, ask: Ask) -> None:
    finished(tmp_path / "good")
    finished(tmp_path / "cut", interrupted=True)
    (finished(tmp_path / "half") / "summary.json").write_text("{")
    code, out, err = ask("cost", tmp_path, *COST)
    assert code == 0
    assert [row["run_id"] for row in json.loads(out)] == ["good"]
    broken, invalid = err.splitlines()
    assert broken.startswith(f"agentx: {tmp_path}/half/run: not a readable run: summary.json: ")
    assert invalid.startswith(f"agentx: {tmp_path}/cut/run: not valid: ")
    assert "interrupted" in invalid
    assert len(json.loads(ask("cost", tmp_path, *COST, "--include-invalid")[1])) == 2
    code, _, err = ask("cost", tmp_path / "cut", *COST)
    assert (code, err.count("\n")) == (2, 1)
    assert "no valid run there" in err


def test_two_engines_are_compared_and_two_questions_are_not(tmp_path: Path, ask: Ask) -> None:
    a, b = finished(tmp_path / "a"), finished(tmp_path / "b", engine="SGLang")
    code, out, err = ask("compare", a, b, "--json")
    assert (code, err) == (0, "")
    (pair,) = json.loads(out)["pairs"]
    assert pair["stacks"] == ["serving engine: vLLM against SGLang"]
    assert pair["differences"] == []
    assert "stack: serving engine: vLLM against SGLang" in ask("compare", a, b)[1]
    for change, said in (({"corpus": "d"}, "corpus: "), ({"load": 8}, "plan: 4 against 8; concurrency: 4 against 8")):
        other = finished(tmp_path / said[:4], **change)
        code, out, err = ask("compare", a, other)
        assert (code, out) == (2, "")
        assert f"{a} and {other} differ in {said}" in err
        assert "differs in" in ask("compare", a, other, "--allow-mixed")[1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for name in ("a", "b"):
        finished(tmp_path / "x" / name)
    memory.put(str(tmp_path / "x"), "/bucket/x", recursive=True)
    yield "memory://bucket/x"
    memory.rm("/bucket", recursive=True)


def test_runs_in_an_object_store_are_compared_and_costed(store: str, ask: Ask) -> None:
    code, out, _ = ask("compare", f"{store}/a", f"{store}/b", "--json")
    assert code == 0
    assert json.loads(out)["pairs"][0]["before"].startswith("memory://")
    code, out, err = ask("cost", store, *COST)
    assert (code, err, len(json.loads(out))) == (0, "", 2)
