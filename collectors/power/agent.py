"""`agentx collect`: a small HTTP server on a node, with the readings of that node's own devices.

`/samples?after=N` gives JSON with the readings numbered N and later (-1: the latest of each), `now_ns` on the clock
that stamps them and `boot`, which changes with the process. `/metrics` gives the latest as Prometheus text.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from time import monotonic_ns
from typing import Any
from urllib.parse import parse_qs, urlsplit

from collectors.power.choose import close, open_sources
from collectors.power.sampler import SourceSampler
from results.errors import UserError
from results.power_journal import Series

KEPT = 100_000
"""Readings held for a client that was away: an hour of eight GPUs with three numbers each."""


class Memory:
    """The sink of the agent: the last readings, numbered."""

    def __init__(self) -> None:
        self.boot = secrets.token_hex(8)
        self._rows: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._next = 0
        self._latest: dict[Series, dict[str, Any]] = {}
        self._problems: Counter[str] = Counter()
        self._lock = Lock()

    def row(
        self,
        t_ns: int,
        series: Series,
        *,
        watts: float | None,
        joules: float | None,
        utilisation: float | None,
        memory_bytes: int | None,
    ) -> None:
        """Keep a reading."""
        row = {
            **asdict(series), "t_ns": t_ns, "watts": watts, "joules_counter": joules, "utilisation": utilisation,
            "memory_bytes": memory_bytes,
        }  # fmt: skip
        with self._lock:
            self._rows.append(row)
            self._next += 1
            self._latest[series] = row

    def event(self, name: str, **facts: Any) -> None:
        """Keep what failed; it is told to the next client that asks."""
        if name == "failed":
            with self._lock:
                self._problems[f"{facts['source']}: {facts['reason']}"] += 1

    def flush(self) -> bool:
        """Nothing is written."""
        return True

    def after(self, number: int) -> dict[str, Any]:
        """The answer to `/samples`."""
        with self._lock:
            if number < 0:
                rows = list(self._latest.values())
            else:
                first = self._next - len(self._rows)
                start = 0 if number > self._next else max(0, number - first)  # a number of an earlier process
                rows = [self._rows[i] for i in range(start, len(self._rows))]
            problems = list(self._problems)
            self._problems.clear()
            return {"boot": self.boot, "next": self._next, "samples": rows, "problems": problems}

    def latest(self) -> list[dict[str, Any]]:
        """The last reading of every series."""
        with self._lock:
            return list(self._latest.values())


class Agent:
    """Sources, their threads, and the server; `serve` blocks until `stop` (from another thread) or Ctrl-C."""

    def __init__(
        self, host: str, port: int, choices: Sequence[str], *, token: str | None, interval_s: float = 1.0
    ) -> None:
        """Open the sources and the port. UserError when there is nothing to read, or the address can't be used."""
        if token is None and not _is_loopback(host):
            raise UserError(
                f"--listen {host}:{port} without a token",
                remedy="set AGENTX_COLLECT_TOKEN or give --token-file: others can reach this address",
            )
        self.memory = Memory()
        self._opened = open_sources(choices)
        if not self._opened.sources:
            reasons = "; ".join(reason for _, reason in self._opened.absent) or "no source was chosen"
            raise UserError(f"no power to read here: {reasons}", remedy="name a source with --power")
        try:
            self._server = _server(host, port, self.memory, token)
        except OSError as error:
            close(self._opened)
            raise UserError(f"--listen {host}:{port}: {error.strerror or error}", remedy="choose another") from error
        self.port: int = self._server.server_address[1]
        self._samplers = [SourceSampler(s, self.memory, interval_s=interval_s) for s, _ in self._opened.sources]

    @property
    def devices(self) -> list[tuple[str, str, str]]:
        """(source, device, name) of all that is read."""
        return [(source.name, d.id, d.name) for source, devices in self._opened.sources for d in devices]

    def serve(self) -> None:
        """Answer until stopped."""
        for sampler in self._samplers:
            sampler.start()
        try:
            self._server.serve_forever(poll_interval=0.1)
        finally:
            self._server.server_close()
            for sampler in self._samplers:
                sampler.stop()
            for sampler in self._samplers:
                sampler.join(2.0)

    def stop(self) -> None:
        """Make `serve` return."""
        self._server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    memory: Memory
    token: bytes | None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error of ours."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server(host: str, port: int, memory: Memory, token: str | None) -> _Server:
    server = (_Server6 if ":" in host else _Server)((host, port), _Handler)
    server.memory = memory
    server.token = token.encode() if token else None
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "agentx", ""
    timeout = 60
    server: _Server

    def do_GET(self) -> None:
        """Answer a request, once the token is right."""
        if not self._allowed():
            self._answer(401, b"token needed\n", "text/plain", {"WWW-Authenticate": "Bearer"})
            return
        url = urlsplit(self.path)
        if url.path == "/samples":
            try:
                after = int(parse_qs(url.query).get("after", ["-1"])[0])
            except ValueError:
                self._answer(400, b"after: not a number\n", "text/plain")
                return
            document = {**self.server.memory.after(after), "host": socket.gethostname(), "now_ns": monotonic_ns()}
            self._answer(200, json.dumps(document, allow_nan=False).encode(), "application/json")
        elif url.path == "/metrics":
            self._answer(200, prometheus_page(self.server.memory), "text/plain; version=0.0.4; charset=utf-8")
        else:
            self._answer(404, b"/samples or /metrics\n", "text/plain")

    def log_message(self, *_: Any) -> None:
        """Requests are not logged: there is one a second."""

    def _allowed(self) -> bool:
        if self.server.token is None:
            return True
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").encode("utf-8", "replace")
        return hmac.compare_digest(given, self.server.token)

    def _answer(self, status: int, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Readings:
    """The latest readings as Prometheus families."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ("host", "source", "device", "name", "kind", "field")
        families: dict[str, Any] = {
            "watts": GaugeMetricFamily("agentx_power_watts", "Power, as the kind says", labels=labels),
            "joules_counter": CounterMetricFamily(
                "agentx_energy_joules", "Energy counter of the device", labels=labels
            ),
            "utilisation": GaugeMetricFamily("agentx_utilisation_ratio", "Share of time in use", labels=labels),
            "memory_bytes": GaugeMetricFamily("agentx_memory_used_bytes", "Device memory in use", labels=labels),
        }
        for row in self._memory.latest():
            values = [str(row[name] or "") for name in labels]
            for name, family in families.items():
                if row[name] is not None:
                    family.add_metric(values, row[name])
        yield from families.values()


def prometheus_page(memory: Memory) -> bytes:
    """The latest readings as Prometheus text."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Readings(memory))
    return generate_latest(registry)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
