"""What this machine is: asked of NVML and of package metadata, never of torch."""

import contextlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Literal

from harness.errors import UnavailableError
from harness.measure.gpu_specs import SMS
from harness.schema import Machine, Manifest, Needs

MOST = 500  # letters of a version, as a record takes them
AUTO: Literal["auto"] = "auto"  # the first GPU that CUDA_VISIBLE_DEVICES leaves


@contextlib.contextmanager
def nvml() -> Iterator[ModuleType | None]:
    """NVML, initialised, or None where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, no driver, no GPU: all mean "no GPU here"
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpu_uuids() -> list[str]:
    """UUIDs of all GPUs in NVML's order."""
    with nvml() as lib:
        if lib is None:
            return []
        numbers = range(lib.nvmlDeviceGetCount())
        return [lib.nvmlDeviceGetUUID(lib.nvmlDeviceGetHandleByIndex(i)) for i in numbers]


def visible(uuids: list[str], environment: Mapping[str, str] = os.environ) -> list[int]:
    """NVML indices that CUDA_VISIBLE_DEVICES (numbers or UUIDs) leaves; all where it is not set.

    Numbers are taken as NVML's. CUDA may count in another order where the GPUs of a host differ,
    but both are numberings of the same set, and the run itself is bound to the UUID.
    """
    if (text := environment.get("CUDA_VISIBLE_DEVICES")) is None:
        return list(range(len(uuids)))
    found = []
    for word in (part.strip() for part in text.split(",")):
        matches = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        if word.isdigit() and int(word) < len(uuids):
            matches = [int(word)]
        if not matches:  # as CUDA does: what follows an unknown one does not count
            break
        found.append(matches[0])
    return found


def inspect_machine(gpu: int | Literal["auto"] | None = AUTO) -> Machine:
    """Describe this machine and its GPU number `gpu` (NVML order); None asks for the CPU alone."""
    index = next(iter(visible(gpu_uuids())), None) if isinstance(gpu, str) else gpu
    base: dict[str, Any] = {name: version_of(name) for name in ("torch", "triton")}
    base |= {"cudnn": _cudnn(), "python": platform.python_version()}
    base |= {"cpu": _cpu_name(), "platform": platform.platform()}
    with nvml() as lib:
        if lib is None or index is None or lib.nvmlDeviceGetCount() == 0:
            return Machine(**base)
        if index >= (count := lib.nvmlDeviceGetCount()):
            hint = f"use --gpu 0 … {count - 1}"
            raise UnavailableError(f"--gpu {index}: this machine has {count}", hint)
        return _describe(lib, index, base)


def _describe(lib: ModuleType, gpu: int, base: dict[str, Any]) -> Machine:
    handle = lib.nvmlDeviceGetHandleByIndex(gpu)
    capability = ".".join(map(str, lib.nvmlDeviceGetCudaComputeCapability(handle)))
    cores = SMS[capability].fp32_cores if capability in SMS else 128  # of one: NVML counts cores
    cuda = lib.nvmlSystemGetCudaDriverVersion_v2()
    power = 0.0
    with contextlib.suppress(lib.NVMLError):
        power = lib.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    return Machine(
        gpu=lib.nvmlDeviceGetName(handle),
        uuid=lib.nvmlDeviceGetUUID(handle),
        sms=lib.nvmlDeviceGetNumGpuCores(handle) // cores,
        capability=capability,
        memory_gib=round(lib.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
        power_limit_w=power,
        driver=lib.nvmlSystemGetDriverVersion(),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        **base,
    )


def minor_of(machine: Machine) -> int | None:
    """Number of the GPU's device node, 3 for /dev/nvidia3; None where the driver does not tell."""
    with nvml() as lib:
        if lib and machine.uuid:
            with contextlib.suppress(lib.NVMLError):
                handle = lib.nvmlDeviceGetHandleByUUID(machine.uuid)
                return int(lib.nvmlDeviceGetMinorNumber(handle))
    return None


def missing(needs: Needs) -> str:
    """What `needs` asks for and this machine lacks, or an empty string."""
    absent = [package for package in needs.packages if not version_of(package)]
    lacking = [f"Python package '{package}' is not installed" for package in absent]
    lacking += [f"'{tool}' is not on the PATH" for tool in needs.tools if not shutil.which(tool)]
    return next(iter(lacking), "")


def too_old(needs: Needs, machine: Machine) -> str:
    """Why this GPU cannot run it, or an empty string."""
    wanted = tuple(map(int, needs.compute_capability.split(".")))
    if machine.has_gpu and tuple(map(int, machine.capability.split("."))) < wanted:
        least = needs.compute_capability
        return f"needs compute capability {least}, this GPU has {machine.capability}"
    return ""


def without_gpu(manifest: Manifest, machine: Machine) -> str:
    """Why a machine without a GPU cannot run it, or an empty string."""
    least, interpreted = manifest.needs.compute_capability, manifest.language == "triton"
    runs = machine.has_gpu or least == "0.0" or interpreted
    return "" if runs else f"needs a GPU of capability {least}"


def version_of(package: str) -> str:
    """Installed version of a distribution, or an empty string, whatever `package` is."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError, OSError):
        # 3.10 finds some for "", and None where its METADATA are gone.
        return ((importlib.metadata.version(package) if package else "") or "")[:MOST]
    return ""


def _cudnn() -> str:
    """Version of the cuDNN wheel beside torch, which torch loads whatever is first on sys.path."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError, OSError):
        beside = [str(importlib.metadata.distribution("torch").locate_file(""))]
        for name in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
            for wheel in importlib.metadata.distributions(name=name, path=beside):
                return (wheel.version or "")[:MOST]  # None where its METADATA are gone
    return ""


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()} x{os.cpu_count()}"
    return platform.processor()
