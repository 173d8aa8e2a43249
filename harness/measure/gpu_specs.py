"""What a GPU can do, each figure once: the vendor's tables, and what follows from them. Pure.

    SMS     one multiprocessor of a compute capability: what it holds, what it does in a clock
    PARTS   one product: peak, boost clock, bandwidth

Marketing names lie about the part, so products are known by capability, multiprocessors and memory.
Sources: CUDA C++ Programming Guide, tables "Technical Specifications per Compute Capability" and
"Throughput of Native Arithmetic Instructions"; the vendor's data sheets and white papers.
"""

from dataclasses import dataclass

from harness.schema import Machine

WARP = 32
#: Exponentials a clock and multiprocessor (the special-function units), 8.0 to 9.0.
EXP_PER_CLOCK = 16
#: Bytes of shared memory that the driver keeps of each block, from 8.0 on.
RESERVED_SMEM = 1024
SMEM_STEP = 128  # bytes
REGISTER_STEP = 256  # registers of one warp
USUAL_MHZ = 1830  # where nobody knows a clock
SCHEDULERS = 4  # a warp's registers belong to one of them


@dataclass(frozen=True, slots=True)
class Sm:
    """What one multiprocessor holds, and its tensor cores' dense 16-bit FLOP a clock."""

    warps: int
    blocks: int
    smem_bytes: int
    tensor_flop: int | None = None  # None: not known
    fp32_cores: int = 128
    registers: int = 65_536


SMS = {
    "8.0": Sm(warps=64, blocks=32, smem_bytes=164 << 10, tensor_flop=2048, fp32_cores=64),
    "8.6": Sm(warps=48, blocks=16, smem_bytes=100 << 10),
    "8.9": Sm(warps=48, blocks=24, smem_bytes=100 << 10),
    "9.0": Sm(warps=64, blocks=32, smem_bytes=228 << 10, tensor_flop=4096),
    "10.0": Sm(warps=64, blocks=32, smem_bytes=228 << 10, tensor_flop=8192),
    "12.0": Sm(warps=48, blocks=24, smem_bytes=100 << 10),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One product; of two that share a die the one with more memory comes first."""

    names: tuple[str, ...]  # as NVML says them, for nobody to call it another
    capability: str
    sms: int
    peak_tflops: float  # dense fp16 and bf16
    boost_mhz: float  # what that peak is reckoned with
    bandwidth_tb_s: float  # to device memory
    least_gib: float = 0.0


H100_SXM, H100_PCIE = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB"), ("NVIDIA H100 PCIe",)
A100_80 = ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM-80GB")
A100_40 = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM-40GB")
PARTS = (
    Part(("NVIDIA H200",), "9.0", 132, 989.5, 1830, 4.8, least_gib=100),
    Part(("NVIDIA H200 NVL",), "9.0", 132, 835.5, 1545, 4.8, least_gib=100),
    Part(H100_SXM, "9.0", 132, 989.5, 1830, 3.35),
    Part(("NVIDIA H100 NVL",), "9.0", 132, 835.5, 1545, 3.9),
    Part(H100_PCIE, "9.0", 114, 756.0, 1620, 2.0),
    Part(("NVIDIA H20",), "9.0", 78, 148.0, 1830, 4.0),
    Part(A100_80, "8.0", 108, 312.0, 1410, 2.0, least_gib=60),
    Part(A100_40, "8.0", 108, 312.0, 1410, 1.555),
    Part(("NVIDIA L40S",), "8.9", 142, 362.0, 2490, 0.864),
    Part(("NVIDIA GeForce RTX 4090",), "8.9", 128, 165.2, 2520, 1.008),
    Part(("NVIDIA B200",), "10.0", 148, 2250.0, 1855, 8.0),
)


def part_of(machine: Machine) -> Part | None:
    """The machine's GPU, or None if PARTS does not know it."""
    mine = (machine.capability, machine.sms)
    same = [part for part in PARTS if (part.capability, part.sms) == mine]
    same = [part for part in same if machine.memory_gib >= part.least_gib]
    return next((part for part in same if machine.gpu in part.names), next(iter(same), None))


def unlike(machine: Machine) -> str:
    """Why it is not the known GPU whose name it bears, or an empty string."""
    named = [part for part in PARTS if machine.gpu in part.names]
    facts = f"{machine.sms} SMs of {machine.capability}, {machine.memory_gib:g} GiB"
    other = named and part_of(machine) not in named
    return f"{machine.gpu}: none has {facts}" if other else ""


def misnamed(machine: Machine) -> str:
    """Why a known GPU's name is none that NVML tells of it, or an empty string."""
    part = part_of(machine)
    for known in (name for each in PARTS for name in each.names):
        if machine.slug == Machine(gpu=known).slug and machine.gpu != known:
            return f"{machine.gpu}: written as {known} is, it takes its folder of results"
    if machine.slug == Machine().slug if machine.has_gpu else machine.gpu != Machine().gpu:
        return f"{machine.gpu}: of {machine.sms} SMs, its rows would lie in a folder of others"
    names = part.names if part else (machine.gpu,)
    said = f"{machine.gpu}: NVML says {' or '.join(names)}, or {__name__} lacks its name"
    return unlike(machine) or ("" if machine.gpu in names else said)


def peak_tflops(machine: Machine) -> float | None:
    """Dense 16-bit peak of the machine's GPU, or None if PARTS does not know it."""
    part = part_of(machine)
    return part.peak_tflops if part else None


def boost_mhz(machine: Machine) -> float | None:
    """The clock that the peak is reckoned with, or None if PARTS does not know the GPU."""
    part = part_of(machine)
    return part.boost_mhz if part else None


def bandwidth(machine: Machine) -> float | None:
    """Bytes a second to device memory, or None if PARTS does not know it."""
    part = part_of(machine)
    return part.bandwidth_tb_s * 1e12 if part else None


def tensor_tflops(machine: Machine, mhz: float | None) -> float | None:
    """Dense 16-bit TFLOP/s at a clock; of an unknown product by its capability, else None."""
    part, sm = part_of(machine), SMS.get(machine.capability)
    if not mhz:
        return None
    if part:
        return part.peak_tflops * mhz / part.boost_mhz
    return machine.sms * sm.tensor_flop * mhz / 1e6 if sm and sm.tensor_flop else None


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a kernel one multiprocessor holds at a time, and what allows no more."""

    blocks: int
    warps: int
    limited_by: str


def occupancy(sm: Sm, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """Of blocks of `threads`, each with `registers`; 0 registers mean that nobody counted them.

    smem_bytes: static and dynamic shared memory of one block, the driver's own not counted.
    """
    warps = -(-threads // WARP)
    candidates = {}
    if registers:
        fitting = sm.registers // _round_up(registers * WARP, REGISTER_STEP)
        candidates["registers"] = fitting // SCHEDULERS * SCHEDULERS // warps
    candidates |= {
        "shared memory": sm.smem_bytes // _round_up(smem_bytes + RESERVED_SMEM, SMEM_STEP),
        "warps": sm.warps // warps,
        "block slots": sm.blocks,
    }
    limited_by = min(candidates, key=lambda what: candidates[what])
    blocks = candidates[limited_by]
    return Occupancy(blocks, blocks * warps, limited_by)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
