"""YAML files read strictly, with the line of every key, so that an error can say where it is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from results.errors import UserError

_T = TypeVar("_T")
_SIZE_LIMIT = 1_000_000
_NODE_LIMIT = 100_000
_WHERE = re.compile(r" - at `(?:key in )?\$(.*?)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file as plain data, and the line (from 1) of each key and item."""

    path: Path
    data: Any
    lines: dict[Path_, int]

    def where(self, steps: Path_) -> str:
        """`file:line` of a key; of the nearest one around it when it is not in the file itself."""
        while steps and steps not in self.lines:
            steps = steps[:-1]
        return f"{self.path}:{self.lines.get(steps, 1)}"

    def convert(self, data: Any, kind: type[_T], known: Iterable[str]) -> _T:
        """`data` as a `kind`. UserError with file and line where it is not; `known` are the names to suggest from."""
        try:
            return msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            raise self._explain(str(error), known) from error

    def _explain(self, text: str, known: Iterable[str]) -> UserError:
        found = _WHERE.search(text)
        steps: Path_ = ()
        if found:
            text = text[: found.start()]
            steps = tuple(name or int(index) for name, index in _STEP.findall(found[1]))
        place = " in " + _dotted(steps) if steps else ""
        unknown = _UNKNOWN.match(text)
        if unknown is None:
            return UserError(f"{self.where(steps)}: {text[:1].lower()}{text[1:]}{place}")
        name = unknown[1]
        close = difflib.get_close_matches(name, sorted(known), 1)
        remedy = f"did you mean {close[0]!r}?" if close else "remove it"
        return UserError(f"{self.where((*steps, name))}: unknown key {name!r}{place}", remedy=remedy)


def _dotted(steps: Path_) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def read(path: Path) -> Document:
    """A YAML file; UserError with file and line when it can't be read, is not YAML, or says a key twice."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", remedy="give an existing YAML file") from error
    if len(raw) > _SIZE_LIMIT:
        raise UserError(f"{path}: larger than {_SIZE_LIMIT:,} bytes", remedy="give a sweep file")
    loader = None
    try:
        loader = yaml.SafeLoader(raw.decode())
        node = loader.get_single_node()
        if node is None:
            raise UserError(f"{path}: empty", remedy="see `agentx sweep --help` for an example")
        builder = _Builder(path, loader)
        return Document(path, builder.build(node, ()), builder.lines)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text", remedy="give a YAML file") from error
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply", remedy="give a sweep file") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()


class _Builder:
    """Turns nodes into data. Aliases are followed, up to a size that no honest file has."""

    def __init__(self, path: Path, loader: yaml.SafeLoader) -> None:
        self.lines: dict[Path_, int] = {}
        self._path = path
        self._loader = loader
        self._count = 0

    def build(self, node: yaml.Node, steps: Path_) -> Any:
        self._count += 1
        line = node.start_mark.line + 1
        if self._count > _NODE_LIMIT:
            raise UserError(f"{self._path}:{line}: more than {_NODE_LIMIT:,} values", remedy="use fewer aliases")
        self.lines.setdefault(steps, line)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, steps)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*steps, index)) for index, item in enumerate(node.value)]
        if node.tag == "tag:yaml.org,2002:timestamp":
            return node.value  # a version or an image tag that looks like a date
        return self._loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, steps: Path_) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(f"{self._path}:{line}: a key must be a word")
            key = key_node.value
            if key in out:
                raise UserError(f"{self._path}:{line}: key {key!r} is there twice", remedy="keep one")
            self.lines[(*steps, key)] = line
            out[key] = self.build(value_node, (*steps, key))
        return out
