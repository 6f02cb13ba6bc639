"""Vendor libraries of our own, built from native/*.c, and the process in which the real bindings load them."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
_WEAK = "__attribute__((weak)) int {name}(void) {{ return 2; }}\n"  # 2: AMDSMI_STATUS_NOT_SUPPORTED


def build(folder: Path) -> Path:
    """Compile both libraries into `folder`; skips where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    others = folder / "others.c"
    others.write_text("".join(_WEAK.format(name=name) for name in _amdsmi_names()))
    flags = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{HERE / 'native'}"]
    native = HERE / "native"
    for sources, name in (([native / "nvml.c"], "libnvidia-ml.so.1"), ([native / "amdsmi.c", others], "libamd_smi.so")):
        subprocess.run([*flags, *map(str, sources), "-o", str(folder / name)], check=True)
    return folder


def _amdsmi_names() -> set[str]:
    """Every function the binding looks up when it is imported (importing it needs the library)."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or not spec.submodule_search_locations:
        return set()
    wrapper = Path(next(iter(spec.submodule_search_locations))) / "amdsmi_wrapper.py"
    return set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper.read_text()))


class Smi:
    """A source in its own process, over one of the libraries; `script` sets what the library answers."""

    def __init__(self, vendor: str, libraries: Path, folder: Path, **numbers: Any) -> None:
        self._vendor = vendor
        self._file = folder / "smi.txt"
        self.environment = environment(libraries, self._file)
        self._numbers: dict[str, Any] = {}
        self.problems: dict[str, int] = {}
        self.script(numbers)

    def script(self, numbers: dict[str, Any]) -> None:
        """Change keys; None takes one away."""
        self._numbers |= numbers
        lines = [f"{key}={value}\n" for key, value in self._numbers.items() if value is not None]
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text("".join(lines))
        temporary.replace(self._file)

    def __enter__(self) -> Smi:
        command = [sys.executable, "-m", "tests.collectors.drive", self._vendor]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=self.environment
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.communicate(timeout=10)
        assert kind is not None or self._process.returncode == 0

    def ask(self, what: str) -> Any:
        """`devices` or `sample`; a SourceError comes as {"error": reason}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        document = json.loads(self._process.stdout.readline())
        self.problems = document["problems"]
        return document["answer"]

    def numbers(self) -> dict[tuple[str, str | None], Any]:
        """(device, kind) → watts or joules of one sample."""
        answer = self.ask("sample")
        assert isinstance(answer, list), answer
        return {
            (row["device"]["id"], row["kind"]): row["joules"] if row["kind"] == "counter" else row["watts"]
            for row in answer
        }


def environment(libraries: Path, script: Path) -> dict[str, str]:
    """The environment of a process that finds our libraries and their script."""
    kept = {name: value for name, value in os.environ.items() if name not in ("ROCM_HOME", "ROCM_PATH")}
    return {**kept, "LD_LIBRARY_PATH": str(libraries), "AGENTX_TEST_SMI": str(script)}
