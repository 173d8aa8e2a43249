"""`profile NAME`: ncu's counters on one call of each case, a roofline, the likely limiter in words.

It runs the submission outside the sandbox and without the judge: profile what you trust.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.catalog.entrants import find_entrants, stage
from harness.catalog.suites import load_suite
from harness.cli.commands import build as build_command
from harness.engine.assign_roles import gpu_env
from harness.errors import Exit, UnavailableError
from harness.measure.machine import inspect_machine
from harness.measure.roofline import Ceilings, ceilings
from harness.problems import get_problem
from harness.process.child import bare_env
from harness.process.project import HOME, base
from harness.process.scratch import replacing
from harness.schema import Case, Entrant, Kind, Machine, Suite
from harness.worker.cuda import counters

# Warm-up first (compilation, allocation), then one call inside the range that ncu records.
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
import importlib
from harness.problems import get_problem
from harness.problems.base import by_name, keywords
from harness.schema import Case, Manifest
from harness.worker.load import load_function
folder, manifest = Path(sys.argv[2]), Manifest.model_validate_json(sys.argv[3])
case = Case.model_validate_json(sys.argv[4])
problem = get_problem(manifest.problem)
function, kwargs = load_function(folder, manifest, problem.function), problem.kwargs(case)
function = by_name(function, keywords(problem.inputs(case)))
tensors, device = importlib.import_module(problem.tensors_module), torch.device("cuda")
torch.set_grad_enabled(False)
inputs = tensors.make_inputs(case, "normal", torch.Generator(device).manual_seed(0), device, kwargs)
for _ in range(2):
    function(*inputs, **kwargs)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStart()
function(*inputs, **kwargs)
torch.cuda.synchronize()
torch.cuda.cudart().cudaProfilerStop()
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--suite", default="fa3")
    parser.add_argument("--kernel", default=".*", metavar="REGEX", help="only kernels of this name")
    parser.add_argument("--out", type=Path, default=Path("roofline"), metavar="STEM")


def run(args: argparse.Namespace) -> int:
    """0 with counters or with what static data allow; 3 if there is neither."""
    suite = load_suite(args.suite, base() / "configs")
    problem = get_problem(suite.problem)
    entrants = find_entrants([args.name], base() / "submissions", Kind.SUBMISSION, problem)
    machine = inspect_machine()
    return max(profile(entrant, suite, machine, args, entrants) for entrant in entrants)


def profile(
    entrant: Entrant,
    suite: Suite,
    machine: Machine,
    args: argparse.Namespace,
    named: Iterable[Entrant],
) -> int:
    """Every case of `suite` that `entrant` claims; a ladder's rungs get a picture each."""
    stem = args.out
    if "/" in entrant.name:
        stem = stem.with_name(f"{stem.name}_{entrant.name.replace('/', '-')}")
    try:
        if not machine.has_gpu:
            raise counters.ProfileUnavailableError("no GPU here, so no counters")
        print(f"{entrant.name} runs outside all walls, as you: read it first", file=sys.stderr)
        made = tempfile.TemporaryDirectory(prefix="attnboard-profile-", ignore_cleanup_errors=True)
        with made as own:
            stage(entrant, Path(own, "source"))
            for case in suite.cases:
                if not entrant.manifest.claims.refusal(case):
                    one(entrant, case, machine, args.kernel, stem, Path(own))
    except counters.ProfileUnavailableError as cause:
        print(f"UNAVAILABLE: {cause}")
        if entrant.manifest.language != "cuda":
            hint = "a CUDA submission: python run.py build cuda_hopper"
            raise UnavailableError("nothing static to show either", hint) from None
        entered = build_command.note_walls(named)
        code, built = build_command.one(entrant, None, False, entered)
        print(built["text"])
        return code
    return Exit.OK


def one(entrant: Entrant, case: Case, machine: Machine, kernel: str, stem: Path, own: Path) -> None:
    """Counters and picture of one case; `own` holds a copy of what was hashed."""
    command = command_for(own / "source", entrant.manifest.model_dump_json(), case)
    private = dict.fromkeys(("HOME", "TMPDIR", "ATTNBOARD_CACHE"), str(own))
    env = {**bare_env(HOME), **gpu_env(machine), **private}
    profiles = counters.parse_ncu(counters.run_ncu(command, kernel, env=env, cwd=own))
    print(f"{entrant.name} · {case.name}\n{counters.render(profiles)}")
    heaviest = max(profiles, key=lambda profile: profile.duration_us)
    problem = get_problem(entrant.manifest.problem)
    flops = problem.flops(case)
    if (chip := roofs(ceilings(case, machine, 0, problem), flops, problem.io_bytes(case))) is None:
        print("no picture: add this GPU to PARTS in harness/measure/gpu_specs.py")
        return
    name, place = f"{entrant.name} {case.name}", stem.with_name(f"{stem.name}_{case.name}")
    intensity = flops / (heaviest.dram_bytes or 1.0)
    for path in draw_roofline(name, intensity, flops / heaviest.duration_us / 1e6, chip, place):
        print(f"picture: {path}")


def command_for(folder: Path, manifest: str, case: Case) -> list[str]:
    """What `run_ncu` runs: one call inside a profiler range; `manifest`: the submission's, JSON."""
    words = [str(HOME), str(folder), manifest, case.model_dump_json()]
    return [sys.executable, "-c", PROGRAM, *words]


@dataclass(frozen=True)
class Roofs:
    """What the chip could do at its boost clock."""

    tensor_tflops: float
    exp_tflops: float  # FLOP rate at which the exponentials alone would fill the time
    memory_tb_s: float


def roofs(floor: Ceilings, flops: float, io_bytes: float) -> Roofs | None:
    """The same limits as rates, or None where the chip is not known."""
    if not (floor.tensor_ms and floor.exp_ms and floor.memory_ms):
        return None
    tensor, exp = flops / floor.tensor_ms / 1e9, flops / floor.exp_ms / 1e9
    return Roofs(tensor, exp, memory_tb_s=io_bytes / floor.memory_ms / 1e9)


def draw_roofline(name: str, intensity: float, tflops: float, chip: Roofs, at: Path) -> list[Path]:
    """Writes `at`.png and `at`.svg: log-log, FLOP per DRAM byte against TFLOP/s.

    The memory roof rises, the tensor and exp roofs are flat. Raises ProfileUnavailableError without
    matplotlib.
    """
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        said = "the roofline picture needs matplotlib; run: pip install '.[profile]'"
        raise counters.ProfileUnavailableError(said) from None
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    tensor, memory = chip.tensor_tflops, chip.memory_tb_s
    ridge = tensor / memory
    left, right = min(intensity, ridge) / 8, max(intensity, ridge) * 8
    axes.plot([left, ridge, right], [left * memory, tensor, tensor], color="black")
    axes.text(right, tensor, f"tensor {tensor:.0f}", ha="right", va="bottom")
    axes.axhline(chip.exp_tflops, color="tab:red", linestyle="--")
    axes.text(left, chip.exp_tflops, f" exp {chip.exp_tflops:.0f}", color="tab:red", va="bottom")
    axes.text(
        left * 1.3, left * 1.3 * memory, f"memory {memory:.1f} TB/s",
        rotation=45, rotation_mode="anchor", transform_rotates_text=True, va="bottom",
    )  # fmt: skip
    axes.plot([intensity], [tflops], marker="o", linestyle="none")
    place = (intensity, tflops)
    axes.annotate(f"{name} {tflops:.0f}", place, textcoords="offset points", xytext=(6, -4))
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte of DRAM traffic", ylabel="TFLOP/s")
    axes.set_xlim(left, right)
    axes.set_ylim(min(tflops, left * memory) / 2, tensor * 2)
    written = [at.with_suffix(".png"), at.with_suffix(".svg")]
    for path in written:
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix[1:], dpi=150)
    return written
