"""The `agentx` command line: a file per command, no logic."""

from __future__ import annotations

import importlib

from harness.cli.common import app, entry

__all__ = ["app", "entry", "register"]

COMMANDS = (
    "run",
    "compare",
    "cost",
    "pareto",
    "fast",
    "offload",
    "query",
    "sweep",
    "mock",
    "doctor",
    "traces",
    "recover",
    "hardware",
    "collect",
)


def register() -> None:
    """Import every command module; each adds itself to the application."""
    for name in COMMANDS:
        importlib.import_module(f"harness.cli.{name}")
