"""What each engine calls things: the tables in `dialects/`, and the vocabulary that they map to.

A table lists, per canonical series, the engine's names in order of preference over its versions, and what becomes of
labels and units. `dialects/canonical.toml` defines the vocabulary.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Term:
    """One word of the vocabulary (`dialects/canonical.toml`)."""

    name: str
    kind: str
    unit: str
    combine: str
    definition: str


@dataclass(frozen=True, slots=True)
class Split:
    """A source label that becomes a canonical one; `only` drops values that `values` does not name."""

    label: str
    to: str
    values: dict[str, str]
    only: bool
    missing: str | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a table. `names` in order of preference: the first that is on the page counts."""

    to: str
    names: tuple[str, ...]
    unless: tuple[str, ...]
    labels: Labels
    split: Split | None
    where: dict[str, tuple[str, ...]]
    scale: float
    part: str | None
    label_value: str | None
    zero_is_unknown: bool
    blocks_by_help: bool


@dataclass(frozen=True, slots=True)
class Dialect:
    """One engine's table. `enable` says how to switch its metrics on."""

    engine: str
    title: str
    detect: tuple[str, ...]
    role: str
    enable: str
    rank_labels: tuple[str, ...]
    extends: str | None
    rules: tuple[Rule, ...]


@cache
def vocabulary() -> dict[str, Term]:
    """Every canonical series by name."""
    return {name: Term(name, **row) for name, row in _read("canonical").items()}


@cache
def dialects() -> dict[str, Dialect]:
    """Every table by engine; one that extends another comes before it."""
    files = [file.name for file in resources.files("collectors").joinpath("dialects").iterdir()]
    names = sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    tables = {name: _read(name) for name in names if name != "canonical"}
    return {
        name: _dialect(table, tables.get(table.get("extends", "")))
        for name, table in sorted(tables.items(), key=lambda item: "extends" not in item[1])
    }


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("collectors").joinpath("dialects", f"{name}.toml").read_text("utf-8"))


def _dialect(table: dict[str, Any], base: dict[str, Any] | None) -> Dialect:
    rows = table["series"] + (base["series"] if base else [])
    return Dialect(
        engine=table["engine"],
        title=table["title"],
        detect=tuple(plain(prefix) for prefix in table["detect"]),
        role=table["role"],
        enable=table["enable"],
        rank_labels=tuple(table.get("rank_labels", ())),
        extends=table.get("extends"),
        rules=tuple(_rule(row) for row in rows),
    )


def _rule(row: dict[str, Any]) -> Rule:
    split = row.get("split")
    return Rule(
        to=row["to"],
        names=tuple(plain(name) for name in row["names"]),
        unless=tuple(plain(name) for name in row.get("unless", ())),
        labels=tuple(sorted(row.get("labels", {}).items())),
        split=Split(
            split["label"], split["as"], split.get("values", {}), split.get("only", False), split.get("missing")
        )
        if split
        else None,
        where={label: tuple(values) for label, values in row.get("where", {}).items()},
        scale=row.get("scale", 1.0),
        part=row.get("part"),
        label_value=row.get("label_value"),
        zero_is_unknown=row.get("zero_is_unknown", False),
        blocks_by_help=row.get("blocks_by_help", False),
    )


def plain(name: str) -> str:
    """A name without colons: collectors in between write them as underscores."""
    return name.replace(":", "_")
