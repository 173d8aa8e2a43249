"""Clocks, power, temperature and throttling while a run goes on, by NVML, in the engine."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from harness.schema import Machine, Telemetry

#: Throttle reasons that say something about the figures (NVML clocks event reasons).
REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


class Monitor:
    """One GPU, watched. On a machine without one it says zeros."""

    def __init__(self, machine: Machine) -> None:
        self._lib: ModuleType | None = None
        self._handle: Any = None
        if machine.has_gpu:
            import pynvml

            pynvml.nvmlInit()
            self._lib = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(machine.uuid)
        #: Whether a process draws with this GPU: it takes turns with what somebody shows.
        self.has_display = bool(self._told("nvmlDeviceGetGraphicsRunningProcesses"))

    def snapshot(self, foreign_pids: int = 0) -> Telemetry:
        """Read everything once (about 1 ms); `foreign_pids` used the GPU and are not the run's."""
        lib = self._lib
        if lib is None:
            return Telemetry()
        reasons = self._told("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return Telemetry(
            sm_mhz=lib.nvmlDeviceGetClockInfo(self._handle, lib.NVML_CLOCK_SM),
            mem_mhz=lib.nvmlDeviceGetClockInfo(self._handle, lib.NVML_CLOCK_MEM),
            power_w=lib.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            temperature_c=lib.nvmlDeviceGetTemperature(self._handle, lib.NVML_TEMPERATURE_GPU),
            throttle=tuple(name for bit, name in REASONS.items() if reasons & bit),
            foreign_pids=foreign_pids,
        )

    def sm_mhz(self) -> int:
        """SM clock now; 0 without a GPU."""
        lib = self._lib
        return int(lib.nvmlDeviceGetClockInfo(self._handle, lib.NVML_CLOCK_SM)) if lib else 0

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded; None where the GPU does not count them."""
        told = self._told("nvmlDeviceGetTotalEnergyConsumption")
        return None if told is None else float(told) / 1000

    def memory_by_pid(self) -> dict[int, int]:
        """Bytes of device memory each process holds, as far as the driver tells."""
        processes = self._told("nvmlDeviceGetComputeRunningProcesses") or ()
        return {process.pid: process.usedGpuMemory or 0 for process in processes}

    def unnamed_bytes(self) -> int:
        """Device memory in use that no process is named for: managed memory, and the driver's."""
        memory = self._told("nvmlDeviceGetMemoryInfo")
        return memory.used - sum(self.memory_by_pid().values()) if memory else 0

    def _told(self, question: str) -> Any:
        """NVML's answer about this GPU; None without one, and where the driver does not tell."""
        if self._lib is None:
            return None
        try:
            return getattr(self._lib, question)(self._handle)
        except self._lib.NVMLError:
            return None

    def close(self) -> None:
        """Let NVML go."""
        if self._lib is not None:
            self._lib.nvmlShutdown()
            self._lib = None
