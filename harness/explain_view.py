"""The rules in force, for reading before a run."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from replay.scenario import Rules, explain


def print_rules(rules: Rules, *, as_json: bool) -> None:
    """Write every rule, its value and where it comes from to standard output."""
    rows = explain(rules)
    if as_json:
        document = {
            "scenario": rules.scenario.name,
            "rules": {name: {"value": value, "from": where} for name, value, where in rows},
            "not_submission": rules.why_not_submission(),
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    table = Table(title=f"{rules.scenario.name}: {rules.scenario.description}", title_justify="left")
    for heading in ("rule", "value", "from"):
        table.add_column(heading)
    for name, value, where in rows:
        table.add_row(name, _text(value), where)
    console = Console(highlight=False)
    console.print(table)
    for reason in rules.why_not_submission():
        console.print(f"not the scenario itself: {reason}", markup=False, soft_wrap=True)


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | dict):
        return json.dumps(value)
    return str(value)
