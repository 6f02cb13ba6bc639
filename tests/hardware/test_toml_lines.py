"""Lines of keys: the scanner sees the tree tomllib sees, and the lines a reader would point at."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import hardware
from hardware.toml_lines import key_lines

ODD = '''# comment with [brackets] and "quotes"
plain = 1
a.b . "c d" = { x = 1, y.z = [ [1, 2], [] ] }  # trailing = 3

[table.'q.uoted']
text = """
  [not.a.table]
  key = "}" \\""" ""'"""""
raw = \'\'\'C:\\n]
\'\'\'
list = [
  { value = 1, source = "a # b" },

  # between
  { value = 2 },
]
when = 1979-05-27 07:32:00
[[rows]]
n = 1
[[rows]]
n = 2
[rows.sub]
deep = true
[[rows.inner]]
[[rows.inner]]
m = 0x1F
'''


def paths(value: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """Every path of a parsed tree."""
    out = {path} if path else set()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        out |= paths(item, (*path, key))
    return out


@pytest.mark.parametrize(
    "text",
    [ODD, ODD.replace("\n", "\r\n"), "", "# nothing", "a = 1"]
    + [path.read_text() for path in sorted((Path(hardware.__file__).parent / "data").glob("*.toml"))],
)
def test_every_path_tomllib_sees_has_a_line_and_no_other(text: str) -> None:
    assert set(key_lines(text)) == paths(tomllib.loads(text))


def test_lines_are_those_of_the_keys() -> None:
    lines = key_lines(ODD)
    text = ODD.splitlines()
    assert text[lines["table", "q.uoted", "list", 1, "value"] - 1].strip().startswith("{ value = 2")
    assert text[lines["rows", 1, "n"] - 1] == "n = 2"
    assert text[lines["rows", 1, "inner", 1, "m"] - 1] == "m = 0x1F"
    assert text[lines["table", "q.uoted", "raw"] - 1].startswith("raw")
    assert lines["a", "b", "c d", "y", "z", 0, 1] == 3
