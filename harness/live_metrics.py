"""The run's own figures as a Prometheus page while it runs, for Grafana to watch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.progress import ProgressView
from results.errors import UserError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_COUNTERS = {
    "ok": ("agentx_requests_ok", "Requests answered well."),
    "failed": ("agentx_requests_failed", "Requests that failed."),
    "trees_ended": ("agentx_sessions_ended", "Session trees that are over."),
    "input_tokens": ("agentx_input_tokens", "Prompt tokens by the server's usage."),
    "output_tokens": ("agentx_output_tokens", "Generated tokens by the server's usage."),
    "cached_tokens": ("agentx_cached_input_tokens", "Prompt tokens from a cache by the server's usage."),
}
_GAUGES = {
    "in_flight": ("agentx_requests_in_flight", "Requests sent and not ended."),
    "trees_live": ("agentx_sessions_live", "Session trees that are live."),
}
_QUANTILES = (50, 90, 99)


class RunCollector:
    """Makes the page from the workers' latest reports when it is asked for."""

    def __init__(self, view: ProgressView, run_id: str) -> None:
        self._view = view
        self._run_id = run_id

    def collect(self) -> Iterator[Metric]:
        """All families, labelled by run."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for field, (name, text) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["run_id"])
            counter.add_metric([self._run_id], self._view.total(field))
            yield counter
        for field, (name, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["run_id"])
            gauge.add_metric([self._run_id], self._view.total(field))
            yield gauge
        for name, label, values in self._view.recent():
            family = GaugeMetricFamily(name, label, labels=["run_id", "quantile"])
            for q in _QUANTILES:
                if values is not None:
                    family.add_metric([self._run_id, str(q / 100)], values[q])
            yield family


@contextmanager
def live_metrics(address: tuple[str, int] | None, view: ProgressView, run_id: str) -> Iterator[None]:
    """Serve the page at (host, port) while the run lasts; nothing without one. UserError when it can't be had."""
    if address is None:
        yield
        return
    host, port = address
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(view, run_id))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise UserError(f"--prometheus-port {host}:{port}: {error.strerror}", remedy="choose another port") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
