"""A configuration's server: commands filled in, started, waited for, asked for its KV pool, stopped."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import msgspec

from harness.credentials import control_headers
from harness.sweep.guarded import Guarded, tail
from harness.sweep.schema import Argument, Configuration, Server, Serving, seconds
from results.errors import UserError
from results.redact import redact

_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_PORT = re.compile(r"port[2-9]?")
_POOL_LOG = (
    re.compile(r"KV cache size: ([\d,]+) tokens"),  # vLLM, once per engine
    re.compile(r"max_total_num_tokens=(\d+)"),  # SGLang
)
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Stopped(Exception):
    """The sweep was asked to stop while it waited."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A server's commands for one start."""

    port: int
    commands: dict[str, list[str]]
    env: dict[str, str]
    after: list[list[str]]
    url: str


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was ready after `start_s` seconds."""

    start_s: float
    processes: dict[str, Guarded]
    secrets: Sequence[str]

    def gone(self) -> str | None:
        """Which process has ended meanwhile, how, and its last words; None while all live."""
        for name, process in self.processes.items():
            if (code := process.poll()) is not None:
                return f"{name} ended with code {code} during the run: {redact(tail(process.log), self.secrets)}"
        return None


def values(serving: Serving) -> dict[str, str]:
    """What a recipe may name in braces: the metadata, flat (`tp`, `speculative_tokens`, `prefill_tp`, …)."""
    flat: dict[str, str] = {"python": sys.executable, "accelerators": str(serving.accelerator_count)}
    _flatten("", json.loads(msgspec.json.encode(serving)), flat)
    if serving.disaggregation:
        for role in ("prefill", "decode"):
            _flatten(f"{role}_", json.loads(msgspec.json.encode(getattr(serving.disaggregation, role))), flat)
    if serving.speculative and serving.speculative.tokens:
        flat["speculative_tokens_and_one"] = str(serving.speculative.tokens + 1)
    if serving.kv_offload and serving.kv_offload.gigabytes:
        budget = serving.kv_offload.gigabytes
        flat["kv_offload_gib"] = str(int(budget * 1e9 / 2**30))
        flat["kv_offload_gb_per_accelerator"] = str(int(budget / max(1, serving.accelerator_count)))
    return flat


def _flatten(prefix: str, value: dict[str, Any], into: dict[str, str]) -> None:
    for name, item in value.items():
        if isinstance(item, dict):
            _flatten(f"{prefix}{name}_", item, into)
        elif item is not None and f"{prefix}{name}" not in into:
            into[f"{prefix}{name}"] = str(item).lower() if isinstance(item, bool) else str(item)


def placeholders(server: Server, extra: dict[str, list[Argument]]) -> set[str]:
    """Names in braces of all commands and variables."""
    words = [*server.env.values(), *(word for command in server.after for word in command)]
    for name, command in server.commands.items():
        words += [*command, *extra.get(name, ())]
    return {name for word in words for name in _PLACE.findall(str(word))}


def check_placeholders(configuration: Configuration) -> None:
    """UserError when a command names what the metadata does not say."""
    if configuration.server is None:
        return
    known = values(configuration.serving).keys() | configuration.variables.keys() | {"folder"}
    asked = placeholders(configuration.server, configuration.extra)
    missing = sorted(name for name in asked - known if not _PORT.fullmatch(name))
    if missing:
        raise UserError(
            f"configuration {configuration.name}: a command needs {{{missing[0]}}}, which nothing says",
            remedy=f"give {missing[0]} under `variables` or `serving`",
        )


def fill(configuration: Configuration, folder: Path) -> Filled:
    """Commands with ports chosen free and everything in braces replaced."""
    server = configuration.server
    assert server is not None
    asked = {name for name in placeholders(server, configuration.extra) if _PORT.fullmatch(name)} | {"port"}
    ports = dict(zip(sorted(asked), free_ports(len(asked)), strict=True))
    known = values(configuration.serving) | {name: str(value) for name, value in configuration.variables.items()}
    known |= {name: str(number) for name, number in ports.items()} | {"folder": str(folder.resolve())}

    def word(text: Argument) -> str:
        return _PLACE.sub(lambda found: known.get(found[1], found[0]), str(text))

    return Filled(
        ports["port"],
        {
            name: [word(text) for text in (*command, *configuration.extra.get(name, ()))]
            for name, command in server.commands.items()
        },
        {name: word(value) for name, value in server.env.items()},
        [[word(text) for text in command] for command in server.after],
        f"http://127.0.0.1:{ports['port']}",
    )


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextmanager
def running(
    filled: Filled, server: Server, folder: Path, secrets: Sequence[str], stopped: Callable[[], bool], hold: int | None
) -> Iterator[Running]:
    """The server answers within the block. Its logs stay in `folder`; `hold` as of Guarded.

    UserError with the reason when it ends or does not answer in time; Stopped when `stopped()` says so meanwhile.
    """
    began = monotonic()
    patience = seconds(server.stop_timeout)
    try:
        with ExitStack() as stack:
            processes = {
                name: stack.enter_context(
                    Guarded(
                        argv,
                        folder / f"{name}.log",
                        secrets=secrets,
                        env={**filled.env},
                        patience_s=patience,
                        hold=hold,
                    )
                )
                for name, argv in filled.commands.items()
            }
            _wait(filled.url, processes, seconds(server.ready_timeout), secrets, stopped)
            yield Running(monotonic() - began, processes, secrets)
    finally:
        for command in filled.after:
            _after(command, folder / "after.log")


def _wait(
    url: str,
    processes: dict[str, Guarded],
    limit_s: float,
    secrets: Sequence[str],
    stopped: Callable[[], bool],
) -> None:
    """Ready is `/v1/models` listing a model: `/health` alone answers before a router knows its workers."""
    deadline = monotonic() + limit_s
    last = "no answer"
    with httpx.Client(timeout=5, trust_env=False) as client:
        while True:
            if stopped():
                raise Stopped
            for name, process in processes.items():
                if (code := process.poll()) is not None:
                    said = redact(tail(process.log), secrets)
                    raise UserError(f"{name} ended with code {code} before it was ready: {said}")
            ready, last = _ready(client, url)
            if ready:
                return
            if monotonic() > deadline:
                said = " | ".join(redact(tail(p.log), secrets) for p in processes.values())
                raise UserError(
                    f"not ready after {limit_s:.0f} s ({last}); last log line: {said or 'none'}",
                    remedy="raise ready_timeout if it only needs longer",
                )
            sleep(0.1 if monotonic() - deadline + limit_s < 5 else 0.5)


def _ready(client: httpx.Client, url: str) -> tuple[bool, str]:
    try:
        answer = client.get(f"{url}/v1/models", headers=control_headers())
        if answer.status_code != 200:
            return False, f"/v1/models says HTTP {answer.status_code}"
        if not answer.json().get("data"):
            return False, "/v1/models lists no model yet"
        health = client.get(f"{url}/health")
        return health.status_code in (200, 404), f"/health says HTTP {health.status_code}"
    except httpx.HTTPError as error:
        return False, type(error).__name__
    except (ValueError, AttributeError):
        return False, "/v1/models is not JSON"


def _after(command: list[str], log: Path) -> None:
    with log.open("ab") as output:
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=120, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            output.write(f"{command[0]}: {error}\n".encode())


def kv_pool(url: str, logs: Sequence[Path]) -> dict[str, Any]:
    """`{"tokens", "source"}` of the prefix cache, over all engines; tokens is None where nothing says it."""
    try:
        page = httpx.get(f"{url}/metrics", timeout=10, trust_env=False, headers=control_headers())
        if page.status_code == 200 and (tokens := pool_from_metrics(page.text)):
            return {"tokens": tokens, "source": "/metrics"}
    except httpx.HTTPError:
        pass
    for log in logs:
        if tokens := pool_from_log(log.read_text(errors="replace")):
            return {"tokens": tokens, "source": log.name}
    return {"tokens": None, "source": None}


def pool_from_metrics(page: str) -> int | None:
    """Tokens from vLLM's `cache_config_info` (blocks × block size, every engine) or SGLang's `max_total_num_tokens`."""
    blocks: dict[str, int] = {}
    tokens: dict[str, int] = {}
    for line in page.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        name, labels = sample[1], dict(_LABEL.findall(sample[2] or ""))
        try:
            if name == "vllm:cache_config_info":
                size = int(labels["num_gpu_blocks"]) * int(labels["block_size"])
                blocks[labels.get("engine", "0")] = size
            elif name == "sglang:max_total_num_tokens":
                # Ranks of one tensor-parallel group hold parts of the same tokens.
                tokens[labels.get("dp_rank", "0")] = int(float(sample[3]))
        except (KeyError, ValueError):
            continue
    return sum(blocks.values()) or sum(tokens.values()) or None


def pool_from_log(text: str) -> int | None:
    """Tokens as the engine logged them at start; vLLM's engines add up, SGLang's ranks repeat one number."""
    vllm, sglang = (pattern.findall(text) for pattern in _POOL_LOG)
    if vllm:
        return sum(int(found.replace(",", "")) for found in vllm)
    return int(sglang[0]) if sglang else None
