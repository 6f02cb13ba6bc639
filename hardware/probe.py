"""Ask a maker's library what is in this machine, in a process of its own.

`python -P hardware/probe.py nvml` (or `amdsmi`) prints one JSON object: `driver`, `devices` (name, memory_bytes,
mig, mig_devices), or `error`. A library that hangs, crashes or writes to standard output can't hurt the caller.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def nvml() -> dict[str, Any]:
    """NVIDIA's devices by NVML; MIG is null where a device has no such mode."""
    import pynvml

    def known(call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except pynvml.NVMLError:
            return None

    pynvml.nvmlInit()
    try:
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = known(pynvml.nvmlDeviceGetMemoryInfo, handle)
            mode = known(pynvml.nvmlDeviceGetMigMode, handle)
            slots = known(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) if mode and mode[0] else 0
            parts = [known(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot) for slot in range(slots or 0)]
            devices.append(
                {
                    "name": pynvml.nvmlDeviceGetName(handle),
                    "memory_bytes": memory.total if memory else None,
                    "mig": bool(mode[0]) if mode else None,
                    "mig_devices": sum(part is not None for part in parts),
                }
            )
        return {"driver": known(pynvml.nvmlSystemGetDriverVersion), "devices": devices}
    finally:
        pynvml.nvmlShutdown()


def amdsmi() -> dict[str, Any]:
    """AMD's devices by amdsmi."""
    try:
        import amdsmi as smi
    except KeyError as error:  # how its wrapper says so
        raise RuntimeError("the C library libamd_smi.so is not installed (ROCm's amd-smi-lib)") from error

    def known(call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except smi.AmdSmiException:
            return None

    smi.amdsmi_init()
    try:
        devices = []
        driver = None
        for handle in smi.amdsmi_get_processor_handles():
            driver = driver or (known(smi.amdsmi_get_gpu_driver_info, handle) or {}).get("driver_version")
            memory = known(smi.amdsmi_get_gpu_memory_total, handle, smi.AmdSmiMemoryType.VRAM)
            name = smi.amdsmi_get_gpu_asic_info(handle)["market_name"]
            devices.append({"name": name, "memory_bytes": memory, "mig": None, "mig_devices": 0})
        return {"driver": driver, "devices": devices}
    finally:
        smi.amdsmi_shut_down()


def main() -> None:
    """Print the answer of the library named on the command line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints goes to standard error
    library = sys.argv[1]
    try:
        answer = {"nvml": nvml, "amdsmi": amdsmi}[library]()
    except ImportError as error:
        answer = {"error": f"{error}; pip install agentx-live[{'nvidia' if library == 'nvml' else 'amd'}]"}
    except BaseException as error:  # a library may even call sys.exit
        name = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        answer = {"error": f"{name}{error}"}
    json.dump(answer, answers)
    answers.flush()


if __name__ == "__main__":
    main()
