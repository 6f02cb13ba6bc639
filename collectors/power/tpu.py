"""TPUs: the runtime's metric service says duty cycle and HBM; power is what somebody stated, and marked so.

No public interface gives a TPU's power. The service is the one libtpu runs while a workload holds the chips
(`tpu.monitoring.runtime.RuntimeMetricService`, localhost:8431), asked through the messages that `tpu-info` ships.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from collectors.power.source import TIMEOUT_S, Device, Kind, Sample, Scope, SourceError, percent

ADDRESS = "localhost:8431"
_DUTY = "tpu.runtime.tensorcore.dutycycle.percent"
_USED = "tpu.runtime.hbm.memory.usage.bytes"


class TpuSource:
    """Chips of this host. `watts_per_chip`: the assumed power of a chip; None leaves power unknown."""

    name = "tpu"
    scope = Scope.ACCELERATOR

    def __init__(self, watts_per_chip: float | None = None, address: str = ADDRESS) -> None:
        self.problems: Counter[str] = Counter()
        self._watts = watts_per_chip
        self._address = address
        self._channel: Any = None

    def devices(self) -> list[Device]:
        """Chips the service knows; SourceError without the package or the service."""
        self.close()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # generated code warns about the release of its generator
                import grpc
                from tpu_info.proto import tpu_metric_service_pb2 as messages
                from tpu_info.proto import tpu_metric_service_pb2_grpc as service
        except ImportError as error:
            raise SourceError("tpu-info is not installed (pip install 'agentx-live[tpu]')") from error
        self._messages, self._error = messages, grpc.RpcError
        self._channel = grpc.secure_channel(self._address, grpc.local_channel_credentials())
        self._stub = service.RuntimeMetricServiceStub(self._channel)
        devices = [sample.device for sample in self.sample()]
        if not devices:
            raise SourceError(f"{self._address}: the TPU runtime lists no chip")
        return devices

    def sample(self) -> list[Sample]:
        """Duty cycle and HBM of every chip; SourceError when the service is gone (no workload runs)."""
        duty, used = self._metric(_DUTY), self._metric(_USED)
        # Duty cycle is per chip, memory per core; a chip's cores are numbered one after the other.
        cores = max(1, len(used) // len(duty)) if duty else 1
        samples = []
        for position, (chip, percentage) in enumerate(duty):
            memory = [int(value) for _, value in used[position * cores : (position + 1) * cores]]
            samples.append(
                Sample(
                    Device(f"tpu{int(chip)}", "TPU"),
                    Kind.ASSUMED,
                    "stated" if self._watts is not None else None,
                    watts=self._watts,
                    utilisation=percent(percentage),
                    memory_bytes=sum(memory) if memory else None,
                )
            )
        if self._watts is None:
            self.problems["a TPU does not say its power: state it with --power tpu:WATTS"] += 1
        return samples

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _metric(self, name: str) -> list[tuple[int, float]]:
        """(device number, value) by device number."""
        try:
            answer = self._stub.GetRuntimeMetric(self._messages.MetricRequest(metric_name=name), timeout=TIMEOUT_S)
        except self._error as error:
            details = error.details() if hasattr(error, "details") else str(error)
            raise SourceError(f"TPU runtime at {self._address}: {details}") from error
        found = []
        for metric in answer.metric.metrics:
            gauge = metric.gauge
            value = gauge.as_double if gauge.WhichOneof("value") == "as_double" else gauge.as_int
            found.append((int(metric.attribute.value.int_attr), float(value)))
        return sorted(found)
