"""Which flags the shipped recipes use, and which ones the real programs take.

`python -m tests.servers.recipe_flags SGLANG.whl` writes harness/sweep/recipes/flags.json anew: for every program its
version, where its flags were read, and those of them that recipes use. SGLang has no CPU build on the package index, so
its declarations are read from the wheel (pip download --no-deps sglang); Dynamo's engine workers need their engines,
so theirs are read from the source of the installed package.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from harness.sweep.load import RECIPES, load_recipe, recipe_names
from tests.servers.environments import DYNAMO_VERSION, VLLM_VERSION, dynamo_environment, vllm_environment

RECORD = RECIPES / "flags.json"
_FLAG = re.compile(r"^--[a-z][a-z0-9_-]*$")
_HELP_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_PASSED_ON = {"dynamo.vllm": "vllm", "dynamo.sglang": "sglang"}
"""Workers that hand what they do not know themselves to their engine."""


def used() -> dict[str, set[str]]:
    """Flags by program, over every recipe that ships."""
    found: dict[str, set[str]] = {}
    for name in recipe_names():
        recipe, _ = load_recipe(name, Path())
        for process, command in recipe.server.commands.items():
            words = [str(word) for word in command]
            more = [str(w) for option in recipe.options.values() for w in option.get(process, ())]
            for program, flags in split(words, more).items():
                found.setdefault(program, set()).update(flags)
    return found


def split(words: list[str], more: list[str]) -> dict[str, set[str]]:
    """The program of a command and its flags; `docker run` has an image's program in it."""
    if words[0] == "docker":
        image = words.index("{image}")
        return {"docker": _flags(words[:image]), "vllm": _flags(words[image:] + more)}
    if "-m" in words:
        place = words.index("-m") + 1
        return {words[place].replace("sglang.launch_server", "sglang"): _flags(words[place:] + more)}
    return {"trtllm" if words[0] == "trtllm-serve" else "vllm": _flags(words + more)}


def _flags(words: list[str]) -> set[str]:
    return {word for word in words if _FLAG.match(word)}


def taken_by_vllm() -> set[str]:
    """Flags of `vllm serve`, as it says itself."""
    return _of_help([str(vllm_environment() / "bin" / "vllm"), "serve", "--help=all"])


def taken_by_dynamo(module: str) -> set[str]:
    """Flags of a Dynamo program that runs without an engine, as it says itself."""
    return _of_help([str(dynamo_environment() / "bin" / "python"), "-m", module, "--help"])


def declared_by_dynamo(engine: str) -> set[str]:
    """Flags that the source of a Dynamo worker (`vllm`, `sglang`, `trtllm`) declares, shared ones included."""
    (root,) = dynamo_environment().glob("lib/python3*/site-packages/dynamo")
    files = [*(root / engine).glob("*args*.py"), root / "common" / "configuration" / "groups" / "runtime_args.py"]
    return {flag for file in files for flag in re.findall(r'"(--[a-z][a-z0-9-]*)"', file.read_text())}


def declared_by_sglang(wheel: Path) -> set[str]:
    """Flags of SGLang: a field `tp_size` is `--tp-size`."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith("sglang/srt/arg_groups/fields/") and n.endswith(".py")]
        text = "\n".join(archive.read(name).decode() for name in names)
    fields = re.findall(r"^    ([a-z]\w*): A\[(?!bool, Arg\(no_cli)", text, re.M)
    return {"--" + name.replace("_", "-") for name in fields}


def _of_help(command: list[str]) -> set[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return set(_HELP_FLAG.findall(done.stdout))


def record(sglang: Path) -> None:
    """Write flags.json. ValueError when a recipe uses a flag that its program does not take."""
    vllm, of_sglang = taken_by_vllm(), declared_by_sglang(sglang)
    dynamo = f"ai-dynamo {DYNAMO_VERSION}"
    sources = {
        "vllm": (f"vLLM {VLLM_VERSION}", "vllm serve --help=all", vllm),
        "sglang": (f"SGLang {sglang.name.split('-')[1]}", "argument declarations", of_sglang),
        "dynamo.frontend": (dynamo, "--help", taken_by_dynamo("dynamo.frontend")),
        "dynamo.mocker": (dynamo, "--help", taken_by_dynamo("dynamo.mocker")),
        "dynamo.vllm": (dynamo, "its source; what it passes on: vllm", declared_by_dynamo("vllm") | vllm),
        "dynamo.sglang": (dynamo, "its source; what it passes on: sglang", declared_by_dynamo("sglang") | of_sglang),
        "dynamo.trtllm": (dynamo, "its source", declared_by_dynamo("trtllm")),
    }
    out = {}
    for program, flags in sorted(used().items()):
        version, source, taken = sources.get(program, (None, "documentation, not checked", flags))
        if missing := flags - taken:
            raise ValueError(f"{program} does not take {sorted(missing)}")
        out[program] = {"version": version, "source": source, "flags": sorted(flags)}
    RECORD.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
