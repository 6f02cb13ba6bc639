"""Coverage-guided fuzzing of the stream parser against the slow reader: `make fuzz` (needs atheris).

What must hold for any bytes, however cut and with any arrival times: no exception, and every public attribute as the
slow reader has it.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import atheris

with atheris.instrument_imports():
    from replay.stream import ChatStream
from tests.replay.reference_stream import held, read_plainly
from tests.replay.stream_cases import CASES

HEAD = 4
"""Bytes of the input that choose where it is cut and what length was forced."""


def one_input(data: bytes) -> None:
    """One case of the fuzzer."""
    body, choices = data[HEAD:], data[:HEAD]
    places = [0, *sorted(byte * len(body) // 256 for byte in choices[:3]), len(body)]
    pieces = [(body[low:high], t_ns) for t_ns, (low, high) in enumerate(pairwise(places))]
    forced = choices[3] if choices[3:] and choices[3] < 128 else None
    stream = ChatStream(forced)
    for piece, t_ns in pieces:
        stream.feed(piece, t_ns)
    stream.end(len(pieces), True)
    found = held(stream)
    expected = read_plainly(pieces, forced=forced, end_ns=len(pieces))
    assert found == expected, {name: (found[name], expected[name]) for name in found if found[name] != expected[name]}


if __name__ == "__main__":
    seeds = Path(tempfile.mkdtemp())
    for number, case in enumerate(CASES):
        whole = b"".join(w.data for w in case.writes)
        (seeds / f"case-{number}").write_bytes(b"\x07\x33\x81\xff" + whole[:4000])
    atheris.Setup([*sys.argv, str(seeds)], one_input)
    atheris.Fuzz()
