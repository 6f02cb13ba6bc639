"""A server for sweeps in tests: the simulated endpoint with quick rates, and the ways in which a server goes wrong."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep
from typing import Any

from harness.mock_server import MockConfig, serve
from tests.harness.mock_thread import FAST

QUICK: dict[str, Any] = {
    "block_size": 64,
    "cache_blocks": 16_384,
    "max_model_len": 65_536,
    "kv_tokens_s": 1e12,
    "step_s": 0.000_2,
    "prefill_tokens_s": 1e7,
}


def main(mode: str, port: int, *rest: str) -> None:
    if mode == "broken":
        print("CUDA error: out of memory", flush=True)
        sys.exit(3)
    if mode == "deaf":
        print("loading weights", flush=True)
        sleep(300)
    if mode == "tells":
        print(f"arguments: {rest} token {os.environ.get('HF_TOKEN')} \rprogress {rest}", flush=True)
    if mode == "family":  # one child in the group, one that leaves the session
        pids = [subprocess.Popen(["sleep", "300"]).pid, subprocess.Popen(["setsid", "sleep", "300"]).pid]
        Path(rest[0]).write_text(" ".join(map(str, [os.getpid(), *pids])))
    if mode == "dies":
        threading.Timer(4.0, lambda: (print("Xid 79", flush=True), os._exit(9))).start()
    if mode == "stubborn":  # takes its time to end
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(rest[0]).write_text(str(os.getpid()))
        sleep(300)
    if mode == "counted":
        with Path(rest[0]).open("a") as file:
            file.write("start\n")
    profile = dataclasses.replace(FAST, **QUICK)
    serve(MockConfig(profile, "quick"), "127.0.0.1", port, lambda bound: print(f"listening on {bound}", flush=True))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
