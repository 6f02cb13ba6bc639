"""A source driven by lines on stdin, in a process of its own: vendor libraries are found when a process starts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from collectors.power.amd import AmdSource
from collectors.power.nvidia import NvidiaSource
from collectors.power.source import Source, SourceError


def main() -> None:
    source: Source = NvidiaSource() if sys.argv[1] == "nvidia" else AmdSource()
    for line in sys.stdin:
        try:
            if line.strip() == "devices":
                answer: object = [asdict(device) for device in source.devices()]
            else:
                answer = [asdict(sample) for sample in source.sample()]
        except SourceError as error:
            answer = {"error": str(error)}
        print(json.dumps({"answer": answer, "problems": source.problems}), flush=True)
    source.close()


main()
