"""The yardstick: a C server that logs what it really sent and when (../shared/tools/groundtruth), and its C client."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

SOURCE = Path(__file__).resolve().parent.parent.parent / "shared" / "tools" / "groundtruth"
CLIENT_CPU, SERVER_CPU = 0, 1
_RECORD = struct.Struct("<Qqqqqqqq64s")


class Missing(Exception):
    """No yardstick here: no sources, or no C compiler."""


@dataclass(frozen=True)
class Truth:
    """One request as the server saw it; times on CLOCK_MONOTONIC, ns."""

    first_byte_ns: int
    body_ns: int
    writes_ns: np.ndarray


def build(folder: Path) -> Path:
    """Compile server and client into `folder`."""
    if not SOURCE.is_dir():
        raise Missing(f"no yardstick at {SOURCE}")
    for name in ("server", "client"):
        command = ["cc", "-O2", "-w", "-pthread", "-o", str(folder / name), str(SOURCE / f"{name}.c")]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Missing(f"cannot compile the yardstick: {error}") from error
    return folder


@contextmanager
def serving(binaries: Path, *, ttft_ms: float, itl_ms: float, burst: int = 1) -> Iterator[tuple[int, Path]]:
    """(port, log file) of a server on its own core."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    log = Path(tempfile.mkstemp(suffix=".truth")[1])
    options = {"port": port, "ttft-ms": ttft_ms, "itl-ms": itl_ms, "burst": burst, "log": log}
    command = [str(binaries / "server"), *(text for k, v in options.items() for text in (f"--{k}", str(v)))]
    process = subprocess.Popen(pinned(SERVER_CPU, command), stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except httpx.HTTPError:
                continue
        yield port, log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)


def pinned(cpu: int, command: list[str]) -> list[str]:
    """`command` on one core."""
    return ["taskset", "-c", str(cpu), *command]


def read_log(path: Path) -> dict[str, Truth]:
    """What the server did, by request id."""
    data, place, out = path.read_bytes(), 16, {}
    while place + _RECORD.size <= len(data):
        _, first, body, _, tokens, _, _, _, name = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        writes = np.frombuffer(data, "<i8", tokens, place)
        place += 8 * tokens
        out[name.split(b"\0")[0].decode()] = Truth(first, body, writes)
    return out


def c_client(binaries: Path, port: int, *, streams: int, requests: int, tokens: int, body: int = 0) -> dict[str, float]:
    """The floor: CPU seconds of the C client for the same work."""
    options = {"port": port, "conc": streams, "n": requests, "tokens": tokens, **({"body": body} if body else {})}
    command = [str(binaries / "client"), *(text for k, v in options.items() for text in (f"--{k}", str(v)))]
    done = subprocess.run(pinned(CLIENT_CPU, command), capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
