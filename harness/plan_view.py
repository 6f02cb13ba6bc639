"""What will be sent and what will not, shown before anything is sent."""

from __future__ import annotations

import sys

from replay.corpus import Corpus
from replay.plan import Plan
from replay.scenario import Rules


def print_plan(corpus: Corpus, plan: Plan, rules: Rules, *, quiet: bool, why: str = "") -> None:
    """Write the plan to standard error."""
    if quiet:
        return
    for line in plan_lines(corpus, plan, rules, why):
        print(line, file=sys.stderr)


def plan_lines(corpus: Corpus, plan: Plan, rules: Rules, why: str = "") -> list[str]:
    """The plan in a few lines of text."""
    selection = plan.selection
    name = corpus.meta.get("name") or corpus.meta.get("source") or "corpus"
    limit = f", context limit {selection.max_context:,}" if selection.max_context else ""
    sessions = len(plan.order) if selection.sessions is None else min(selection.sessions, len(plan.order))
    lines = [
        f"plan: {name} {corpus.digest[:12]}{f' ({why})' if why else ''}",
        f"  {sessions:,} of {len(corpus.session_ids):,} sessions, "
        f"{plan.requests:,} of {len(corpus.turn):,} requests{limit}",
        f"  {plan.input_tokens:,} input and {plan.output_tokens:,} output tokens, "
        f"longest context {plan.longest_context:,}",
        f"  {selection.concurrency} live sessions, seed {selection.seed}, plan {plan.digest[:12]}",
    ]
    given = ", ".join(rules.overrides)
    lines.append(f"  scenario {rules.scenario.name}{f', overridden: {given}' if given else ''}")
    lines += [f"  left out: {count:,} {reason}" for reason, count in plan.dropped.items()]
    return lines
