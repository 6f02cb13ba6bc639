"""What `agentx query` shows: rows as they come. A table, or records where a row is wider than the screen; JSON; CSV."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain, islice
from math import isfinite
from typing import IO, Any, TypeVar

from rich.console import Console

from results.query import Answer

_SIZED_BY = 200
"""Rows that the widths of a table's columns are taken from; later ones may stand out."""
_WIDEST = 60
_NO_SCREEN = 240
"""Columns of a file or pipe."""

T = TypeVar("T")


class Form(Enum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@contextmanager
def watched(runs: Iterable[T], *, quiet: bool) -> Iterator[Iterator[T]]:
    """`runs` with their count shown on standard error while they are gone through, where that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield iter(runs)
        return
    with console.status("reading runs …") as status:

        def counted() -> Iterator[T]:
            for number, run in enumerate(runs, 1):
                if not number % 100:
                    status.update(f"reading runs … {number:,}")
                yield run
            status.update("asking …")

        yield counted()


def print_answer(answer: Answer, form: Form, out: IO[str] | None = None) -> None:
    """Write all rows, holding few of them; a reader who leaves early (`| head`) is no error."""
    to = out or sys.stdout
    write = {Form.JSON: _write_json, Form.CSV: _write_csv, Form.TABLE: _write_table}[form]
    try:
        write(answer, to)
        to.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to say at exit either


def _write_json(answer: Answer, out: IO[str]) -> None:
    before = "[\n"
    for row in answer.rows:
        values = {name: plain(value) for name, value in zip(answer.columns, row, strict=True)}
        out.write(before + json.dumps(values, allow_nan=False))
        before = ",\n"
    out.write("[]\n" if before == "[\n" else "\n]\n")


def _write_csv(answer: Answer, out: IO[str]) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        values = [plain(value) for value in row]
        writer.writerow([json.dumps(v) if isinstance(v, dict | list | bool) else v for v in values])


def plain(value: Any) -> Any:
    """What JSON can say: times as ISO 8601, durations in seconds, bytes as hex; not a finite number: null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else None
        case Decimal():
            return (int(value) if value == value.to_integral_value() else float(value)) if value.is_finite() else None
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return str(value)


def _write_table(answer: Answer, out: IO[str]) -> None:
    screen = shutil.get_terminal_size().columns if out.isatty() else _NO_SCREEN
    rows = iter(answer.rows)
    sample = list(islice(rows, _SIZED_BY))
    cells = [[_cell(value) for value in row] for row in sample]
    widths = [max(map(len, column)) for column in zip(answer.columns, *cells, strict=True)]
    every = chain(sample, rows)
    if sum(widths) + 2 * (len(widths) - 1) > screen:
        count = _write_records(answer.columns, every, out)
    else:
        right = [all(_is_number(row[k]) for row in sample) for k in range(len(widths))]
        count = _write_lines(answer.columns, every, widths, right, out)
    out.write(f"{count:,} {'row' if count == 1 else 'rows'}\n")


def _write_lines(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], widths: Sequence[int], right: Sequence[bool], out: IO[str]
) -> int:
    def line(cells: Iterable[str]) -> str:
        placed = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)]
        return "  ".join(placed).rstrip() + "\n"

    out.write(line(columns))
    out.write("  ".join("─" * width for width in widths) + "\n")
    count = 0
    for row in rows:
        out.write(line(map(_cell, row)))
        count += 1
    return count


def _write_records(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> int:
    """One line for each value: a row that no screen holds can still be read."""
    width = max(map(len, columns))
    count = 0
    for row in rows:
        count += 1
        out.write(f"── row {count:,} ──\n")
        out.writelines(f"{name.ljust(width)}  {_cell(value)}\n" for name, value in zip(columns, row, strict=True))
    return count


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    """A value in a line: null is said, text is cut, nothing in it moves the cursor."""
    if value is None:
        return "null"
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str):
        shown = plain(value)
        value = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    text = value[: _WIDEST + 1]
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
