"""Start and stop real servers: own process session, lowered priority, log kept, readiness awaited."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import httpx

from tests.servers.environments import (
    dynamo_environment,
    sglang_environment,
    tiny_llama,
    tiny_model,
    tiny_tokenizer,
    vllm_environment,
)

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    log: Path

    def metrics(self) -> dict[str, float]:
        """Every sample of the metrics page, `name{labels}` -> value."""
        samples = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def total(self, family: str, **labels: str) -> float:
        """Sum of a family's samples that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for name, value in self.metrics().items()
            if name.partition("{")[0] == family and all(label in name for label in wanted)
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in its own session, ended with its whole group."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env={**os.environ, **OFFLINE, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        lower_priority(child.pid)
        yield child
    finally:
        for number, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
            try:
                os.killpg(child.pid, number)
                child.wait(patience)
                break
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def lower_priority(pid: int) -> None:
    """An engine that busy-polls starves the client on few cores: its whole session yields to ours."""
    try:
        Path(f"/proc/{pid}/autogroup").write_text("10")
    except OSError:
        os.setpriority(os.PRIO_PROCESS, pid, 10)


def wait_ready(url: str, child: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        if child.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/v1/models", timeout=2).json()["data"]:
                return
        except (httpx.HTTPError, ValueError, KeyError):
            pass
        sleep(0.5)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise RuntimeError(f"{child.args!r} is not ready; {log}:\n{tail}")


@contextmanager
def vllm_server(folder: Path, *flags: str) -> Iterator[Server]:
    """Real vLLM on the CPU with prefix caching and a cache of 2 GiB (4.2 M tokens of the tiny model)."""
    port, log = free_port(), folder / "vllm.log"
    command = [
        *(str(vllm_environment() / "bin" / "vllm"), "serve", str(tiny_model()), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "65536"),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--enforce-eager", *flags),
    ]
    with process(command, log, {"VLLM_CPU_KVCACHE_SPACE": "2"}) as child:
        wait_ready(f"http://127.0.0.1:{port}", child, log, 240)
        yield Server(f"http://127.0.0.1:{port}", log)


@contextmanager
def sglang_server(folder: Path, kernels: Path, *flags: str) -> Iterator[Server]:
    """Real SGLang with attention in plain torch, its radix cache and its metrics."""
    port, log = free_port(), folder / "sglang.log"
    command = [
        *(str(sglang_environment(kernels) / "bin" / "python"), "-m", "sglang.launch_server"),
        *("--model-path", str(tiny_llama(kernels)), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch", "--dtype", "bfloat16", "--disable-overlap-schedule"),
        *("--context-length", "65536", "--max-total-tokens", "131072", "--max-running-requests", "16"),
        *("--page-size", "1", "--mem-fraction-static", "0.1", "--enable-metrics", "--enable-cache-report"),
        *("--skip-server-warmup", *flags),
    ]
    environment = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with process(command, log, environment) as child:
        wait_ready(f"http://127.0.0.1:{port}", child, log, 240)
        yield Server(f"http://127.0.0.1:{port}", log)


@contextmanager
def dynamo_server(folder: Path, *, workers: int = 2, blocks: int = 32_768) -> Iterator[Server]:
    """The real Dynamo frontend with its KV router and mock engines, on loopback, without etcd or NATS."""
    port = free_port()
    python = str(dynamo_environment() / "bin" / "python")
    store = folder / "store"
    store.mkdir()
    loopback = dict.fromkeys(("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST"), "127.0.0.1")
    environment = {"DYN_FILE_KV": str(store), **loopback}
    plane = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
    frontend = [
        *(python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)),
        *("--router-mode", "kv", "--kv-cache-block-size", "64", *plane),
    ]
    engines = [
        *(python, "-m", "dynamo.mocker", "--model-path", str(tiny_tokenizer()), "--model-name", "tiny"),
        *("--num-workers", str(workers), "--block-size", "64", "--num-gpu-blocks-override", str(blocks)),
        *("--speedup-ratio", "10", *plane),
    ]
    with ExitStack() as stack:
        child = stack.enter_context(process(frontend, folder / "frontend.log", environment))
        stack.enter_context(process(engines, folder / "engines.log", environment))
        wait_ready(f"http://127.0.0.1:{port}", child, folder / "frontend.log", 90)
        yield Server(f"http://127.0.0.1:{port}", folder / "frontend.log")
