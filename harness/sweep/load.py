"""A sweep file with its recipes laid under it."""

from __future__ import annotations

import copy
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from harness.sweep.document import Document, read
from harness.sweep.features import with_options
from harness.sweep.schema import Recipe, Sweep, known_names
from results.errors import UserError


def recipe_names() -> list[str]:
    """Recipes that ship."""
    return sorted(p.name.removesuffix(".yaml") for p in _shipped().iterdir() if p.name.endswith(".yaml"))


def load_recipe(name: str, beside: Path) -> tuple[Recipe, Document]:
    """A recipe that ships, or a YAML file (relative to the sweep file). UserError when there is none."""
    if name.endswith((".yaml", ".yml")):
        path = beside / name
    else:
        path = Path(str(_shipped() / f"{name}.yaml"))
        if name not in recipe_names():
            raise UserError(f"no recipe {name}", remedy=f"choose one of: {', '.join(recipe_names())}; or give a .yaml")
    document = read(path)
    return document.convert(document.data, Recipe, known_names()), document


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
    complete = []
    for index, configuration in enumerate(sweep.configurations):
        try:
            complete.append(with_options(configuration, recipes.get(index)))
        except UserError as error:
            where = document.where(("configurations", index))
            raise UserError(f"{where}: {error.message}", remedy=error.remedy) from error
    return msgspec.structs.replace(sweep, configurations=complete)


def _lay_under(raw: dict[str, Any], beside: Path) -> Recipe:
    """Complete a configuration by its recipe; what the configuration says itself wins."""
    recipe, document = load_recipe(raw["recipe"], beside)
    base = copy.deepcopy(document.data)
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


def _shipped() -> Any:
    return resources.files("harness.sweep") / "recipes"
