"""Where each key of a TOML text stands: the standard library's parser reads values and forgets their lines."""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]+")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every table, key and array element of a text `tomllib` has accepted.

    A path is a tuple of keys and array indices. Of a table opened twice, the first line counts.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._elements: dict[Path, int] = {}
        """Index of the last element of every array of tables."""

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._blank()
        while self._at < len(self._text):
            if self._text.startswith("[[", self._at):
                table = self._header("[[", "]]")
            elif self._text[self._at] == "[":
                table = self._header("[", "]")
            else:
                self._statement(table)
            self._blank()
        return self._lines

    def _header(self, opening: str, closing: str) -> Path:
        line = self._line()
        self._take(opening)
        *parents, last = self._key()
        self._take(closing)
        path: Path = ()
        for key in parents:
            path = self._last_element((*path, key), line)
        path = (*path, last)
        self._lines.setdefault(path, line)
        if opening == "[[":
            self._elements[path] = self._elements.get(path, -1) + 1
        return self._last_element(path, line)

    def _last_element(self, path: Path, line: int) -> Path:
        if path in self._elements:
            path = (*path, self._elements[path])
        self._lines.setdefault(path, line)
        return path

    def _statement(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._key():
            path = (*path, key)
            self._lines.setdefault(path, line)
        self._take("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        self._blank()
        self._lines.setdefault(path, self._line())
        if self._text[self._at] == "[":
            self._array(path)
        elif self._text[self._at] == "{":
            self._inline_table(path)
        elif self._text[self._at] in "\"'":
            self._string()
        else:
            self._match(_SCALAR)

    def _array(self, path: Path) -> None:
        self._take("[")
        index = 0
        while not self._at_closing("]"):
            self._value((*path, index))
            index += 1
            self._comma()

    def _inline_table(self, path: Path) -> None:
        self._take("{")
        while not self._at_closing("}"):
            self._statement(path)
            self._comma()

    def _at_closing(self, bracket: str) -> bool:
        self._blank()
        if self._text[self._at] != bracket:
            return False
        self._at += 1
        return True

    def _comma(self) -> None:
        self._blank()
        if self._text[self._at] == ",":
            self._at += 1

    def _key(self) -> list[str]:
        keys = []
        while True:
            self._blank()
            keys.append(self._string() if self._text[self._at] in "\"'" else self._match(_BARE))
            self._blank()
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _string(self) -> str:
        for pattern in _STRINGS:
            if pattern.match(self._text, self._at):
                quoted = self._match(pattern)
                return str(tomllib.loads(f"s = {quoted}")["s"])
        raise ValueError(f"no string at character {self._at}")

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError(f"not TOML at character {self._at}")
        self._at = found.end()
        return found[0]

    def _take(self, mark: str) -> None:
        self._blank()
        if not self._text.startswith(mark, self._at):
            raise ValueError(f"no {mark} at character {self._at}")
        self._at += len(mark)

    def _blank(self) -> None:
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1
