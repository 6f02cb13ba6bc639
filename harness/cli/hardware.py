"""`agentx hardware`: the registry of accelerators, and what is in this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.common import app

hardware_app = typer.Typer(no_args_is_help=True, help="Accelerators: sizes, rates, power, prices; what is here.")
app.add_typer(hardware_app, name="hardware")

_File = Annotated[
    Path | None,
    typer.Option("--hardware-file", help="TOML file of accelerators to add, or values that override ours."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@hardware_app.command("list", epilog="[bold]Example[/bold]\n\nagentx hardware list --json")
def list_command(hardware_file: _File = None, as_json: _Json = False) -> None:
    """All accelerators of the registry with the values in use."""
    from hardware.registry import load_registry
    from harness.hardware_view import print_registry, registry_as_data

    registry = load_registry(hardware_file)
    if as_json:
        _write(registry_as_data(registry))
    else:
        print_registry(registry)


@hardware_app.command("show", epilog="[bold]Example[/bold]\n\nagentx hardware show b200 --hardware-file ours.toml")
def show_command(
    name: Annotated[str, typer.Argument(help="Name, alias, or what the driver calls the device.")],
    hardware_file: _File = None,
    as_json: _Json = False,
) -> None:
    """One accelerator: every value with source and date, the alternatives, and why a value is unknown."""
    from hardware.registry import load_registry
    from harness.hardware_view import accelerator_as_data, print_accelerator

    accelerator = load_registry(hardware_file).get(name)
    if as_json:
        _write(accelerator_as_data(accelerator))
    else:
        print_accelerator(accelerator)


@hardware_app.command("detect", epilog="[bold]Example[/bold]\n\nagentx hardware detect")
def detect_command(hardware_file: _File = None, as_json: _Json = False) -> None:
    """Name this machine's accelerators, and say how that is known."""
    from dataclasses import asdict

    from hardware.detect import detect
    from hardware.registry import load_registry
    from harness.hardware_view import print_detection

    detection = detect(load_registry(hardware_file))
    if as_json:
        _write(asdict(detection))
    else:
        print_detection(detection)


def _write(data: Any) -> None:
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
