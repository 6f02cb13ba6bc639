"""TPUs: the runtime's metric service says duty cycle and HBM; power is what somebody stated, and marked so.

No public interface gives a TPU's power. The service is the one libtpu runs while a workload holds the chips
(`tpu.monitoring.runtime.RuntimeMetricService`, localhost:8431), asked through the messages that `tpu-info` ships.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from collectors.power.source import TIMEOUT_S, Device, Kind, Sample, Scope, SourceError, percent

ADDRESS = "localhost:8431"
_DUTY = "tpu.runtime.tensorcore.dutycycle.percent"
_USED = "tpu.runtime.hbm.memory.usage.bytes"


class TpuSource:
    """Chips of this host. `watts_per_chip`: the assumed power of a chip; None leaves power unknown.

    Where the service does not answer, stated watts still count for every chip that has a device file in `devices_dir`.
    """

    name = "tpu"
    scope = Scope.ACCELERATOR

    def __init__(
        self, watts_per_chip: float | None = None, address: str = ADDRESS, devices_dir: Path = Path("/dev")
    ) -> None:
        self.problems: Counter[str] = Counter()
        self._watts = watts_per_chip
        self._address = address
        self._devices_dir = devices_dir
        self._channel: Any = None
        self._silent: list[Device] = []

    def devices(self) -> list[Device]:
        """Chips the service knows, or that have a device file; SourceError when power can't even be assumed."""
        self.close()
        try:
            self._connect()
            devices = [sample.device for sample in self.sample()]
            if devices:
                return devices
            raise SourceError(f"{self._address}: the TPU runtime lists no chip")
        except SourceError as error:
            self.close()
            files = [*self._devices_dir.glob("accel[0-9]*"), *self._devices_dir.glob("vfio/[0-9]*")]  # to v4, from v5
            chips = sorted(path.name.removeprefix("accel") for path in files)
            if self._watts is None or not chips:
                raise
            self.problems[str(error)] += 1
            self._silent = [Device(f"tpu{chip}", "TPU") for chip in chips]
            return self._silent

    def _connect(self) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else the library writes to stderr when a server goes
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

    def sample(self) -> list[Sample]:
        """Duty cycle and HBM of every chip; SourceError when the service is gone (no workload runs)."""
        if self._silent:
            return [Sample(device, Kind.ASSUMED, "stated", watts=self._watts) for device in self._silent]
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
        self._silent = []
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
