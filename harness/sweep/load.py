"""A sweep file with its recipes laid under it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.sweep.document import read
from harness.sweep.features import with_options
from harness.sweep.schema import Machine, Recipe, Sweep, known_names
from replay.scenario import load_rules
from results.errors import UserError

RECIPES = Path(__file__).parent / "recipes"
_T = TypeVar("_T")


def recipe_names() -> list[str]:
    """Recipes that ship: whole ones, and `machine-engine` for every engine that a machine's file names."""
    whole = [path.stem for path in RECIPES.glob("*.yaml")]
    machines = {path.stem: _read(path, Machine)[0] for path in (RECIPES / "machines").glob("*.yaml")}
    return sorted([*whole, *(f"{name}-{engine}" for name, machine in machines.items() for engine in machine.engines)])


def load_recipe(name: str, beside: Path) -> tuple[Recipe, dict[str, Any]]:
    """A recipe that ships, or a YAML file (relative to the sweep file), and the plain data it was made from.

    UserError when there is none of that name, or it is not right.
    """
    if name.endswith((".yaml", ".yml")):
        return _read(beside / name, Recipe)
    if "/" not in name and (RECIPES / f"{name}.yaml").is_file():
        return _read(RECIPES / f"{name}.yaml", Recipe)
    machine_name, _, engine_name = name.partition("-")
    path = RECIPES / "machines" / f"{machine_name}.yaml"
    if "/" in name or not path.is_file():
        raise UserError(f"no recipe {name}", remedy=f"choose one of: {', '.join(recipe_names())}; or give a .yaml")
    machine, _ = _read(path, Machine)
    if engine_name not in machine.engines:
        raise UserError(
            f"no recipe for {engine_name} on {machine_name}", remedy=f"there are {', '.join(machine.engines)}"
        )
    return _on_machine(name, machine, engine_name)


def _on_machine(name: str, machine: Machine, engine_name: str) -> tuple[Recipe, dict[str, Any]]:
    here = machine.engines[engine_name]
    path = RECIPES / "engines" / f"{engine_name}.yaml"
    _, engine = _read(path, Recipe)
    data = copy.deepcopy(engine)
    data["name"] = name
    data["accelerators_per_node"] = machine.accelerators_per_node
    data["serving"] = _merge(_merge(data["serving"], machine.serving), here.serving)
    data["server"]["env"] = _merge(data["server"].get("env", {}), here.env)
    data["variables"] = _merge(data.get("variables", {}), here.variables)
    return msgspec.convert(data, Recipe), data


def _read(path: Path, kind: type[_T]) -> tuple[_T, dict[str, Any]]:
    document = read(path)
    return document.convert(document.data, kind, known_names()), document.data


def load_sweep(path: Path) -> Sweep:
    """The validated sweep. UserError with file and line where it is not right."""
    document = read(path)
    if not isinstance(document.data, dict):
        raise UserError(f"{path}:1: a sweep file is a mapping of keys", remedy="see `agentx sweep --help`")
    data = copy.deepcopy(document.data)
    configurations = data.get("configurations")
    recipes: dict[int, Recipe] = {}
    for index, raw in enumerate(configurations if isinstance(configurations, list) else ()):
        if isinstance(raw, dict) and isinstance(raw.get("recipe"), str):
            try:
                recipes[index] = _lay_under(raw, path.parent)
            except UserError as error:
                where = document.where(("configurations", index, "recipe"))
                raise UserError(f"{where}: {error.message}", remedy=error.remedy) from error
    sweep = document.convert(data, Sweep, known_names())
    for steps, rules in _rules(sweep):
        try:
            load_rules(rules_path(rules, path.parent), {})
        except UserError as error:
            raise UserError(f"{document.where(steps)}: {error.message}", remedy=error.remedy) from error
    complete = []
    for index, configuration in enumerate(sweep.configurations):
        try:
            complete.append(with_options(configuration, recipes.get(index)))
        except UserError as error:
            where = document.where(("configurations", index))
            raise UserError(f"{where}: {error.message}", remedy=error.remedy) from error
    return msgspec.structs.replace(sweep, configurations=complete)


def _rules(sweep: Sweep) -> list[tuple[tuple[str | int, ...], str]]:
    """Every `rules` of a sweep, and where it is."""
    found = [(("scenarios", index, "rules"), scenario.rules) for index, scenario in enumerate(sweep.scenarios)]
    return [(steps, rules) for steps, rules in (*found, (("run", "rules"), sweep.run.rules)) if rules is not None]


def rules_path(rules: str, beside: Path) -> str:
    """What `--scenario` takes: a file of rules is relative to the sweep file."""
    return str((beside / rules).resolve()) if rules.endswith((".yaml", ".yml")) else rules


def _lay_under(raw: dict[str, Any], beside: Path) -> Recipe:
    """Complete a configuration by its recipe; what the configuration says itself wins."""
    recipe, data = load_recipe(raw["recipe"], beside)
    base = copy.deepcopy(data)
    raw["serving"] = _merge(base.get("serving", {}), raw.get("serving", {}))
    raw["server"] = _merge(base["server"], raw.get("server", {}))
    raw["variables"] = _merge(base.get("variables", {}), raw.get("variables", {}))
    return recipe


def _merge(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    merged = dict(base)
    for key, value in over.items():
        merged[key] = _merge(base[key], value) if key in base and key != "commands" else value
    return merged
