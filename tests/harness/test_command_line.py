"""Wrong use of the command line: one line that names what is wrong, exit code 2."""

from __future__ import annotations

import sys

import pytest

from harness.cli.common import entry


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["run", "--concurrency", "many"], "Invalid value for '--concurrency'"),
        (["run", "--concurrency", "0"], "Invalid value for '--concurrency'"),
        (["cost", "runs"], "Missing option '--gpus'"),
        (["cost", "--nope"], "No such option"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentx", *arguments])
    with pytest.raises(SystemExit) as ended:
        entry()
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert err.startswith(f"agentx: {said}")
    assert err.count("\n") == 1


def test_no_arguments_show_the_help_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentx"])
    with pytest.raises(SystemExit) as ended:
        entry()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert "cost" in said.out + said.err
    assert "agentx: " not in said.err
