"""The simulated endpoint's /metrics page: vLLM's names, labels and buckets, from what this server did.

Every latency is on the clock that stamps the truth log, from the last byte of the request to the write of the
token, queueing included; the queue is also a histogram of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from time import time_ns

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hardware.engine.model import Engine, Request

# vLLM's bucket bounds.
_SECONDS = (0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, *_SECONDS, 160.0, 640.0, 2560.0)
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, *_SECONDS)
_MINUTES = (10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_LONG = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, *_MINUTES)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))[:-2]

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _GAP),
    "request_time_per_output_token_seconds": (
        "Histogram of time_per_output_token_seconds per request.",
        _GAP,
    ),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LONG),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LONG),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LONG),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LONG),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LONG),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _TOKENS),
    "request_generation_tokens": ("Number of generation tokens processed.", _TOKENS),
    "request_prefill_kv_computed_tokens": (
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        _TOKENS,
    ),
}


class _Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        names = [str(bound) for bound in self.bounds] + ["+Inf"]
        return [(name, float(count)) for name, count in zip(names, accumulate(self.counts), strict=True)]


class ServerMetrics(Collector):
    """Counts what happened, and says it as a Prometheus page."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model
        self._created = time_ns() / 1e9
        self._histograms = {name: _Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self._gaps = self._histograms["inter_token_latency_seconds"]
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0
        self._finished = {"stop": 0, "length": 0, "abort": 0}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def first_token(self, request: Request, ttft_s: float) -> None:
        """A request's prompt is computed and its first token sent."""
        self._prompt_tokens += request.prompt_tokens
        self._cached_tokens += request.cached_tokens
        self._generation_tokens += 1
        self._histograms["time_to_first_token_seconds"].add(ttft_s)

    def next_token(self, gap_s: float) -> None:
        """A further token sent."""
        self._generation_tokens += 1
        self._gaps.add(gap_s)

    def finished(self, request: Request, reason: str, first_token_s: float, last_token_s: float) -> None:
        """A request is complete; times on the engine's clock."""
        assert request.admitted_s is not None
        self._finished[reason] += 1
        observed = {
            "e2e_request_latency_seconds": last_token_s - request.arrival_s,
            "request_queue_time_seconds": request.admitted_s - request.arrival_s,
            "request_inference_time_seconds": last_token_s - request.admitted_s,
            "request_prefill_time_seconds": first_token_s - request.admitted_s,
            "request_decode_time_seconds": last_token_s - first_token_s,
            "request_prompt_tokens": request.prompt_tokens,
            "request_generation_tokens": request.generated,
            "request_prefill_kv_computed_tokens": request.prompt_tokens - request.cached_tokens,
        }
        if request.generated > 1:
            observed["request_time_per_output_token_seconds"] = (last_token_s - first_token_s) / (request.generated - 1)
        for name, value in observed.items():
            self._histograms[name].add(value)

    def aborted(self) -> None:
        """A client left before its answer was complete."""
        self._finished["abort"] += 1

    def page(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Callback of the registry."""
        yield from self._gauges()
        yield from self._counters()
        for name, (text, _) in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
            histogram = self._histograms[name]
            family.add_metric(("0", self._model), histogram.cumulative(), histogram.total)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        engine = self._engine
        waiting = len(engine.waiting)
        profile = engine.profile
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", len(engine.running))
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting)
        used = engine.cache.used / engine.cache.capacity
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", used)
        info = {
            "block_size": str(profile.block_size),
            "enable_prefix_caching": "True",
            "engine": "0",
            "kv_cache_size_tokens": str(profile.block_size * profile.cache_blocks),
            "num_gpu_blocks": str(profile.cache_blocks),
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=tuple(info)
        )
        family.add_metric(tuple(info.values()), 1.0)
        yield family

    def _counters(self) -> Iterator[Metric]:
        engine = self._engine
        cached, computed = self._cached_tokens, self._prompt_tokens - self._cached_tokens
        unit = "in terms of number of"
        yield self._counter(
            "prefix_cache_queries",
            f"Prefix cache queries, {unit} queried tokens.",
            {"": engine.queried_tokens},
        )
        yield self._counter("prefix_cache_hits", f"Prefix cache hits, {unit} cached tokens.", {"": engine.hit_tokens})
        yield self._counter(
            "num_preemptions", "Cumulative number of preemption from the engine.", {"": engine.preemptions}
        )
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", {"": self._prompt_tokens})
        by_source = {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": 0}
        yield self._counter("prompt_tokens_by_source", "Number of prompt tokens by source.", by_source, "source")
        yield self._counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", {"": cached})
        yield self._counter(
            "generation_tokens", "Number of generation tokens processed.", {"": self._generation_tokens}
        )
        yield self._counter(
            "request_success", "Count of successfully processed requests.", self._finished, "finished_reason"
        )

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
        family.add_metric(("0", self._model), value)
        return family

    def _counter(self, name: str, text: str, values: dict[str, int], label: str = "") -> Metric:
        labels = ("engine", "model_name", label) if label else ("engine", "model_name")
        family = CounterMetricFamily(f"vllm:{name}", text, labels=labels)
        for value, count in values.items():
            family.add_metric(("0", self._model, value)[: len(labels)], count, created=self._created)
        return family
