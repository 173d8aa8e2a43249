"""`doctor`: what works on this machine, what is missing, and what to type."""

import argparse
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from harness.errors import Exit, HarnessError, typed
from harness.measure.gpu_specs import peak_tflops
from harness.measure.machine import inspect_machine, nvml, version_of
from harness.process import project
from harness.process.bytecode import FOLDER, compiled
from harness.process.cuda.checkpoint import Checkpoint
from harness.process.sandbox import cgroup, enter, landlock
from harness.process.text import dumps
from harness.schema import Machine

Mark = Literal["ok", "missing", "note"]
SIGNS: dict[Mark, str] = {"ok": "✓", "missing": "✗", "note": "–"}
NEEDED = {
    "torch": "2.11",
    "triton": "3.6",
    "numpy": "1.26",
    "scipy": "1.11",
    "pydantic": "2.8",
    "pyyaml": "6.0",
    "rich": "13",
    "nvidia-ml-py": "12.560",
}
TOOLS = {
    "nvcc": "install the CUDA toolkit: compiles PyTorch extensions",
    "ptxas": "install the CUDA toolkit; triton brings one of its own",
    "ncu": "install nsight-compute: reads hardware counters",
    "cuobjdump": "install the CUDA toolkit: reads registers and spills",
    "compute-sanitizer": "install the CUDA toolkit: finds accesses out of bounds",
}
LOW_SPACE_GIB = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One thing looked at. `next`: what to type if it is missing."""

    mark: Mark
    what: str
    found: str
    next: str = ""


def _look(fine: object, what: str, good: str, bad: str, hint: str, lacks: Mark = "note") -> Line:
    """What was found where it is `fine`; else another mark, and what to type."""
    return Line("ok" if fine else lacks, what, good if fine else bad, hint)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument(
        "--need-gpu", action="store_true", help="exit 3 where the official suite cannot run"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """0: measuring works here; 3: something needed is missing."""
    machine = inspect_machine()
    lines = [*packages(), *bytecode(), *gpu(machine), *tools(), *walls(), *places()]
    missing = [line for line in lines if line.mark == "missing"]
    ready = not missing and (machine.has_gpu or not args.need_gpu)
    if args.json:
        print(dumps({"ready": ready, "lines": [asdict(line) for line in lines]}, indent=2))
        return Exit.OK if ready else Exit.UNAVAILABLE
    width = max(len(line.what) for line in lines)
    for line in lines:
        print(f"{SIGNS[line.mark]} {line.what.ljust(width)}  {line.found}")
        if line.next and line.mark != "ok":
            print(typed(f"  {' ' * width}  next: {line.next}"))
    print(typed(f"next: {_verdict(machine, missing, args.need_gpu)}"))
    return Exit.OK if ready else Exit.UNAVAILABLE


def _verdict(machine: Machine, missing: list[Line], need_gpu: bool) -> str:
    if missing:
        return f"mend {len(missing)} things marked ✗, the first one first"
    if need_gpu and not machine.has_gpu:
        return "a machine with an NVIDIA GPU and its driver, then: python run.py doctor --need-gpu"
    if project.find() is None:
        return "attnboard init demo && cd demo && attnboard run mine"
    suite = "" if machine.has_gpu else "   (no GPU: the CPU smoke suite, times never ranked)"
    return f"python run.py --submission triton_template{suite}"


# --------------------------------------------------------------------------- software


def packages() -> Iterator[Line]:
    """Python and the packages a run needs."""
    version = platform.python_version()
    new = sys.version_info >= (3, 10)
    yield _look(new, "python", version, version, "install Python 3.10 or newer", "missing")
    for name, least in NEEDED.items():
        if not (found := version_of(name)):
            yield Line("missing", name, "not installed", "pip install .")
        elif _numbers(found) < _numbers(least):
            old = f"{found}, at least {least} is needed"
            yield Line("missing", name, old, f"pip install '{name}>={least}'")
        else:
            yield Line("ok", name, found)


def bytecode(package: str = "torch") -> Iterator[Line]:
    """Whether Python must compile a package's thousands of files at every start, for seconds."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return
    source = Path(found.origin)
    if compiled(package):
        yield Line("ok", "bytecode", f"{package}'s is compiled")
        return
    folders = [str(source.parent.with_name(name)) for name in (package, "triton", "sympy")]
    how = shlex.join([sys.executable, "-m", "compileall", "-q", "-j", "0", *folders])
    missing = (
        f"{package} has none here: runs keep some of it in {FOLDER}, workers compile the rest again"
    )
    yield Line("note", "bytecode", missing, how)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit())


def tools() -> Iterator[Line]:
    """What compiles and looks inside; a run needs none of them."""
    for name, how in TOOLS.items():
        path = shutil.which(name)
        yield _look(path, name, _version(path) if path else "", "not on the PATH", how)


def _version(tool: str) -> str:
    try:
        done = subprocess.run(
            [tool, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{tool} does not start: {error}"
    lines = [line for line in done.stdout.splitlines() if "elease" in line or "ersion" in line]
    return lines[-1].strip() if lines else tool


# --------------------------------------------------------------------------- GPU


def gpu(machine: Machine) -> Iterator[Line]:
    """The GPU: its driver, clocks and company; whether processes can share its memory."""
    if not machine.has_gpu:
        yield Line(
            "note", "gpu", "none found by NVML", "install the NVIDIA driver, then: nvidia-smi"
        )
        return
    size = f"{machine.sms} SMs, {machine.memory_gib:.0f} GiB, sm {machine.capability}"
    yield Line("ok", "gpu", f"{machine.gpu}, {size}")
    yield Line("ok", "driver", f"{machine.driver}, CUDA {machine.cuda}")
    peak = peak_tflops(machine)
    good, bad = f"{peak or 0:.0f} TFLOP/s dense fp16", "not in the table: % of peak stays empty"
    yield _look(peak, "peak", good, bad, "add the chip to PARTS in harness/measure/gpu_specs.py")
    yield lock()
    with nvml() as lib:
        if lib is not None:
            yield from _state(lib, lib.nvmlDeviceGetHandleByUUID(machine.uuid), machine)


def lock(library: str = "libcuda.so.1") -> Line:
    """Whether a worker's kernels can be kept out of the others' turns."""
    missing = Checkpoint(library).missing
    good, bad = "the driver can lock a process", f"{missing}: rows will say 'unlocked'"
    how = "install the NVIDIA driver 570 or newer"
    return _look(not missing, "lock between turns", good, bad, how)


def _state(lib: ModuleType, handle: object, machine: Machine) -> Iterator[Line]:
    mode = lib.nvmlDeviceGetComputeMode(handle)
    shared = mode == lib.NVML_COMPUTEMODE_DEFAULT and "microsoft" not in platform.release().lower()
    what = "judge beside worker (shared device memory)"
    bad = "not here: rows will say 'cooperative'"
    yield _look(shared, what, "possible", bad, "sudo nvidia-smi -c DEFAULT")
    now = lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)
    most = lib.nvmlDeviceGetMaxClockInfo(handle, lib.NVML_CLOCK_SM)
    yield Line("ok", "clocks", f"{now} of {most} MHz, power limit {machine.power_limit_w:.0f} W")
    others = len(lib.nvmlDeviceGetComputeRunningProcesses(handle))
    how = "nvidia-smi, and wait or end what is yours"
    yield _look(not others, "other processes", "none", str(others), how)
    heat = lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)
    yield Line("ok", "temperature", f"{heat} °C")


# --------------------------------------------------------------------------- walls and places


def walls() -> Iterator[Line]:
    """What can keep a submission inside its folder, and the usual level that follows."""
    abi = landlock.abi()
    how = "a Linux kernel of 5.13 or newer"
    yield _look(abi, "landlock", f"ABI {abi}", "not in this kernel", how)
    refused = enter.no_namespaces()
    how = (
        "sudo sysctl user.max_user_namespaces=10000 kernel.apparmor_restrict_unprivileged_userns=0"
    )
    yield _look(not refused, "namespaces", "possible", refused, how)
    share = enter.share_of_processes(1) // 2
    good, how = f"{share} of each submission", "raise pids.max: docker run --pids-limit -1"
    bad = f"{share} of a submission, of {cgroup.room()} that the container or the kernel allow"
    yield _look(share >= enter.Rules.processes // 2, "processes and threads", good, bad, how)
    level, how = enter.usual_level(), enter.lacking(2) or "SECURITY.md says what each level holds"
    found = f"{level} ({enter.LEVELS[level]})"
    yield _look(level == 2, "usual sandbox level", found, found, how)


def places() -> Iterator[Line]:
    """Whose project this is, room and rights to write, and whether every suite can be read."""
    root = project.find()
    none = f"none: no file {project.MARK} in {Path.cwd()} or above it"
    yield _look(root, "project", str(root), none, "attnboard init demo && cd demo, or --root DIR")
    if root:
        yield from _room(root)
    yield from _suites((root or project.HOME) / "configs")


def _room(root: Path) -> Iterator[Line]:
    results = root / "results"
    where = results if results.exists() else root
    how, bad = f"chmod u+w {where}", f"cannot write {where}"
    yield _look(os.access(where, os.W_OK), "results/", "writable", bad, how, "missing")
    free = shutil.disk_usage(where).free / 2**30
    found, how = f"{free:.0f} GiB free", "builds and caches want a few GiB"
    yield _look(free >= LOW_SPACE_GIB, "disk", found, found, how)


def _suites(configs: Path) -> Iterator[Line]:
    from harness.catalog.suites import known_suites, load_suite

    names = sorted(known_suites(configs))
    broken = []
    for name in names:
        try:
            load_suite(name, configs)
        except HarnessError as error:  # noqa: PERF203 - every broken file is told
            broken.append(Line("missing", f"suite {name}", error.message, error.hint))
    yield from broken
    if not broken:
        yield Line("ok", "suites", ", ".join(names))
