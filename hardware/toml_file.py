"""TOML files that users write: read, converted to typed structs, refused with file, line and key."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hardware.errors import UserError
from hardware.toml_lines import key_lines

KeyPath = tuple[str | int, ...]
T = TypeVar("T")

DATE_PATTERN = r"^\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?$"
"""A year, a month or a day."""


def first_day(date: str) -> datetime.date:
    """First day of a year, month or day that matches `DATE_PATTERN`; ValueError for a day no calendar has."""
    return datetime.date.fromisoformat((date + "-01-01")[:10])


def read_text(path: Path, what: str) -> str:
    """The file's text; UserError calling it `what` when it can't be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UserError(f"{what} {path}: {reason}") from error


def parse_tables(text: str, origin: str) -> dict[str, Any]:
    """The document with TOML's own dates as text; UserError with the line when it is not TOML."""
    try:
        document: dict[str, Any] = _dates_as_text(tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # also numbers of too many digits, too deep nesting
        raise _not_toml(error, text, origin) from error
    return document


def convert(
    value: Any, kind: type[T], text: str, origin: str, at: KeyPath, known_keys: Callable[[KeyPath], tuple[str, ...]]
) -> T:
    """`value`, which stands at the path `at` of `text`, as a `kind`.

    UserError with file, line and key of what does not fit; `known_keys` gives the keys of the table that holds the
    last key of a path.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at ")
        raise _explained(text, origin, (*at, *_path(where)), message, known_keys) from error


def refusal(text: str, origin: str, path: KeyPath, message: str, remedy: str = "") -> UserError:
    """The error that names file, line and key: the line of `path`, or of the nearest table above it."""
    lines = key_lines(text)
    known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in lines), ())
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
    return UserError(f"{origin}, line {lines.get(known, 1)}: {key}: {message}", remedy=remedy)


def _explained(
    text: str, origin: str, path: KeyPath, message: str, known_keys: Callable[[KeyPath], tuple[str, ...]]
) -> UserError:
    remedy = ""
    if field := re.search(r"unknown field `([^`]+)`", message):
        path, message = (*path, field[1]), "unknown key"
        remedy = f"known keys: {', '.join(known_keys(path))}"
    elif missing := re.search(r"missing required field `([^`]+)`", message):
        message = f"the key {missing[1]} is missing"
    elif "matching regex" in message:
        example = "a date as 2026, 2026-07 or 2026-07-15" if path[-1] == "date" else "vendor:device as 10de:2901"
        message = f"write {example}"
    elif "object | array" in message:
        message = 'write a list of { value, source, date }, or { unknown = "why" }'
    return refusal(text, origin, path, message, remedy)


def _dates_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _dates_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_dates_as_text(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _path(where: str) -> KeyPath:
    """Keys and indices of msgspec's `$.usd_device_hour.rental-3y[0].value`."""
    steps = re.findall(r"\.([^.\[`]+)|\[(\d+)\]", where)
    return tuple(key or int(index) for key, index in steps)


def _not_toml(error: Exception, text: str, origin: str) -> UserError:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
    message, line = (found[1], found[2]) if found else (str(error), None)
    return UserError(f"{origin}, line {line or text.count(chr(10)) + 1}: not TOML: {message}")
