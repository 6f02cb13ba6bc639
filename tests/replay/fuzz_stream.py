"""Coverage-guided fuzzing of the stream parser against the slow reader: `make fuzz` (needs atheris).

What must hold for any bytes: no exception; the same result however they are cut; as many tokens as the slow reader
sees.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import atheris

with atheris.instrument_imports():
    from replay.sse import EventParser
    from replay.stream import ChatStream
from tests.replay.reference_stream import events_of, tokens_of
from tests.replay.stream_cases import CASES


def read(data: bytes, cuts: list[int]) -> ChatStream:
    """Feed `data` cut at `cuts`, all at one time."""
    stream = ChatStream()
    places = sorted({0, len(data), *cuts})
    for low, high in pairwise(places):
        stream.feed(data[low:high], 1)
    stream.end(1, True)
    return stream


def one_input(data: bytes) -> None:
    """One case of the fuzzer: the first bytes choose the cuts."""
    if len(data) < 4:
        return
    body = data[3:]
    cuts = [byte % (len(body) + 1) for byte in data[:3]]
    whole, pieces = read(body, []), read(body, cuts)
    assert whole.output_chunks == pieces.output_chunks
    assert (whole.status, whole.output_tokens, whole.finish) == (pieces.status, pieces.output_tokens, pieces.finish)
    parser = EventParser()
    found = [(e.name, e.data) for e in (*parser.feed(body), *parser.end())]
    assert found == events_of(body)
    if b"usage" not in body:  # running counts are tokens too, which the slow reader leaves out
        assert whole.output_chunks == tokens_of(body)


if __name__ == "__main__":
    seeds = Path(tempfile.mkdtemp())
    for number, case in enumerate(CASES):
        (seeds / f"case-{number}").write_bytes(b"\x07\x33\x81" + b"".join(w.data for w in case.writes))
    atheris.Setup([*sys.argv, str(seeds)], one_input)
    atheris.Fuzz()
