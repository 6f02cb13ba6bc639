"""What every format's decoder gives back, or refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

Row = dict[str, Any]
"""One request by the corpus file's column names (CONTRACT: "Corpus file"); `blocks` as (first, count) pairs."""


class Malformed(ValueError):
    """A trace that can't be used; the text says where and why."""


class Decoded(NamedTuple):
    """One trace: its rows ordered by lane and turn, and the fields nobody knows, counted."""

    session: str
    rows: list[Row]
    unknown: Counter[str]


def distinct(name: str, taken: dict[str, int]) -> str:
    """`name`, or `name#2`, `name#3` ... where others have it; remembers in `taken` what it returned."""
    number = taken.get(name, 0)
    if not number:
        taken[name] = 1
        return name
    number += 1
    while (unique := f"{name}#{number}") in taken:
        number += 1
    taken[name] = number
    taken[unique] = 1
    return unique
