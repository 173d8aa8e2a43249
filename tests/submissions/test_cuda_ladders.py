"""The plain .cu submissions and their ladders: nvcc compiles all of them, a GPU checks them.

Every rung compiles without spills, or the ladder says that it spills; numbers are held against float64,
the 64 x 64 tiles of FlashAttention-2 against their Triton twin too.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import yaml

from harness.catalog.launch_spec import parse_launch
from harness.schema import Case
from harness.worker.cuda import launch as cuda_launch
from harness.worker.cuda import resources
from harness.worker.cuda.instances import instances
from tests.house import count

SUBMISSIONS = Path(__file__).resolve().parents[2] / "submissions"
FA2 = SUBMISSIONS / "cuda_fa2_tile64"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
# Rungs that spill, and are kept because the ladder shows it.
SPILLING_RUNGS = {"01_naive.cu", "01_document.cu", "02_q_tiles_in_grid.cu", "03_swizzle.cu",
                  "04_ldmatrix_swizzle.cu", "04_tensor_cores.cu", "05_wmma_pv.cu"}  # fmt: skip


#: What compiled as its test wants it: a digest of all that a compiler reads, and of its caller. The
#: same bytes compile alike again, so these are spared, but for a tenth of them each day.
#: `python -m tests.submissions.test_cuda_ladders` compiles all and writes this anew.
COMPILED = """\
4b5868596dc9bee2ab16a1c920aa66d9 3aeb78969277ba5b526d5ccfb2d7c649 e46e776a6756d24699ef69c77c71f0c0
7b8cca013470c6c4be9621b53e1783d3 1381939aacd9940f496d67d7104d56b7 8ae0fc123259e8373725f28e4960c949
86c265c5558013dcf8244d7f2773225b a692469c286f31a306cf6552b6cb2b47 e8d4dffea23a1b0ae0f8e0f44df561bd
f9a90657b28a1943e72d94f5f62b623c e10fe6b80383492caa3b7d606eac5702 3e404c7472621407d4b553f9ce083add
ca258b4f339aec273b30e6b8d75e7701 a7c32e8f9f05113f80220043713ec42d 899737d4d4c50935c9de05c018ff3807
049e6c86a827f53ed9eaacaca3ea9146 e91da5501fc0f95660d0c27ad4f4f6ba 9cf267a9cb27108508fac441217ff29e
d0d6da4df3f6c9a237a04a8b018299e0 47354e0690ccab36dc70b3542565b084 8f015c8edb545f64877a9885bb7419fb
484452bea38d1f06139dc903c2c30a5a b54122f0e29150802beb6b1c8592b7a1 e376942026c7b103ccb84603988208c4
ac799958b65365ffb791e7e9c08207a4 a7935c062540c8408a807cac25027c76 8bfbe60a4ac169dfb2b1ce738b9d2313
6868554ff0541a578a5c2db0f450349f 51da6637a06a8824dbb2b2a48386af9b 1519c7d1f89fb2c5c751f1383a3d1973
006029c60ba9b7bf28ab0f1c2f2710ef 8aaa104c70bd6367eb9e842b429381ee 9b07271e890dc4bc3c7ed27ac7ea1929
31d08b7e27fce93ae90bf4816afc2864 246e7d11bd96b8a89e301b66f6702f6a 4fa3af26cecb5caa84951d02d6803611
a4d8754f272253276dad9150896a9a11 8dd3abe2b507ae0b980a8a9636d7b9f5 a124f048eedb2c1c4c371c5c04027ce3
3f5a73e99d0470a86ab838c9caf45361
"""
DAYS = 10  # until each was compiled once more
OUTSIDE = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH")


@functools.cache
def compilers() -> str:
    """The versions of all that takes part, and their flags from outside."""
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
    said = [run([tool, "--version"]).stdout for tool in ("nvcc", "ptxas", "g++")]
    return repr((said, [os.environ.get(name) for name in OUTSIDE]))


def digest(name: str, file: str, arch: str) -> str:
    """Of every file of the submission but its notes, and of the code that has it compiled."""
    house = count.ROOT / "harness"
    code = [*(house / "worker" / "cuda").glob("*.py"), Path(__file__)]
    code += [house / "catalog" / "compiler_flags.py", house / "catalog" / "launch_spec.py"]
    kinds = {".cu", ".cuh", ".cpp", ".h", ".hpp", ".py", ".yaml"}
    own = [path for path in (SUBMISSIONS / name).rglob("*") if path.suffix in kinds]
    found = hashlib.sha256(repr((name, file, arch, compilers())).encode())
    for path in sorted((*own, *code)):
        text = path.read_bytes()
        if path == Path(__file__):  # which holds the record
            text = re.sub(rb'COMPILED = """.*?"""', b"", text, count=1, flags=re.DOTALL)
        found.update(repr((path.name, hashlib.sha256(text).hexdigest())).encode())
    return found.hexdigest()[:32]


def compiled_before(name: str, file: str, arch: str, day: int | None = None) -> bool:
    """Whether these very bytes passed their test, and are not among those due on `day` (today)."""
    found = digest(name, file, arch)
    day = datetime.date.today().toordinal() if day is None else day
    return (int(found, 16) + day) % DAYS != 0 and found in COMPILED.split()


@functools.cache
def _sections(name: str) -> dict[str, dict]:
    folder = SUBMISSIONS / name
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    sections = {"kernel.cu": manifest["launch"]} if "launch" in manifest else {}
    steps = yaml.safe_load((folder / "steps" / "launch.yaml").read_text())
    sections |= {f"steps/{file}": section for file, section in steps.items()}
    return {file: parse_launch(section, file).model_dump() for file, section in sections.items()}


def plain_kernels(name: str) -> list[str]:
    """kernel.cu (if the submission is a plain .cu), then its rungs."""
    return list(_sections(name))


def by_nvcc(source: resources.Source) -> list[resources.KernelReport]:
    """The kernels of a plain .cu, each found under one name of its launch section."""
    symbols, reports = resources.plain_by_nvcc(source)
    assert sorted(symbols.values()) == sorted(report.name for report in reports)
    assert set(symbols) == {name for name, _, _ in instances(source.launch)}
    return reports


def spills(name: str, file: str, arch: str) -> dict[str, int]:
    """Spilled bytes of each kernel that spills, as nvcc compiles `file` for `arch`."""
    launch = _sections(name)[file]
    source = SUBMISSIONS / name / file
    reports = by_nvcc(resources.Source(source.parent, source.name, launch, arch, source))
    return {r.name: r.spill_store_bytes for r in reports if r.spill_store_bytes}


def unexpected_spills(name: str, rung: str) -> dict[str, int]:
    """Spills of a rung for sm_90a, unless the ladder says that it spills."""
    found = spills(name, rung, "sm_90a")
    return {} if Path(rung).name in SPILLING_RUNGS else found


def load_plain(name: str, file: str, cache: Path):
    """The callable of `file`, compiled into `cache`."""
    path = SUBMISSIONS / name / file
    return cuda_launch.load(path.parent, path.name, _sections(name)[file], cache)


def reference(q, k, v, causal, scale):
    """Attention in float64."""
    import torch

    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        later = torch.ones(scores.shape[-2:], device=q.device, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ v


def stress_cases(headdim: int):
    """(name, q, k, v, scale) on the GPU: lengths off the tile, hard logits, odd scales."""
    import torch

    generator = torch.Generator("cuda").manual_seed(headdim)
    for name, seqlen, scale in (
        ("one row", 1, None), ("one tile", 64, None), ("off the tile", 333, None),
        ("logits x8", 333, None), ("needle", 200, None), ("offset", 200, None),
        ("later keys small", 333, None), ("tiny scale", 130, 1e-4), ("odd scale", 130, 0.37),
        ("negative scale", 130, -0.2), ("zero scale", 130, 0.0),
    ):  # fmt: skip
        q, k, v = (
            torch.randn(2, 2, seqlen, headdim, device="cuda", generator=generator) for _ in range(3)
        )
        if name == "logits x8":
            q *= 8
        elif name == "needle":
            k[:, :, seqlen // 3] *= 20
        elif name == "offset":
            v += 10
        elif name == "later keys small":  # walking from the diagonal backwards, the maximum grows
            q, k[:, :, : seqlen // 2] = q.abs(), k[:, :, : seqlen // 2].abs() * 6
        yield name, q.half(), k.half(), v.half(), scale


def compare(function, headdim: int, causal: bool) -> None:
    """Asserts the gate's bounds for every stress case: 0.1 % of the whole, 0.2 % of any row."""
    for name, q, k, v, scale in stress_cases(headdim):
        out = function(q, k, v, causal, scale).double()
        used = 1 / math.sqrt(headdim) if scale is None else scale
        expected = reference(q, k, v, causal, used)
        difference = out - expected
        whole = (difference.norm() / expected.norm()).item()
        row = (difference.norm(dim=-1) / expected.norm(dim=-1)).max().item()
        assert whole < 1e-3, (name, whole)
        assert row < 2e-3, (name, row)


def check_on_gpu(name: str, file: str, causal: bool, cache: Path) -> None:
    """`compare` for every head dimension the file serves."""
    function = load_plain(name, file, cache)
    headdims = sorted({d for k in _sections(name)[file]["kernels"] for d in k["headdims"]})
    for headdim in headdims:
        compare(function, headdim, causal)


LADDERS = ("cuda_cuflash", "cuda_fa2_tile64", "cuda_hopper", "cuda_wmma_lab")
FILES = [(name, file) for name in LADDERS for file in plain_kernels(name)]
RUNGS = [(name, file) for name, file in FILES if file.startswith("steps/")]


@needs_nvcc
@pytest.mark.parametrize(("name", "rung"), RUNGS)
def test_every_rung_compiles(name, rung):
    assert compiled_before(name, rung, "sm_90a") or unexpected_spills(name, rung) == {}


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "file"), FILES)
@pytest.mark.parametrize("causal", [True, False])
def test_against_float64(name, file, causal, tmp_path):
    check_on_gpu(name, file, causal, tmp_path)


def cuda_submissions():
    for folder in count.ours():
        manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
        if manifest["language"] == "cuda":
            capability = str(manifest.get("needs", {}).get("compute_capability", "0.0"))
            for arch in resources.archs_for(capability):
                yield pytest.param(folder, manifest, arch, id=f"{folder.name}-{arch}")


@needs_nvcc
@pytest.mark.parametrize(("folder", "manifest", "arch"), list(cuda_submissions()))
def test_nvcc_compiles_every_cuda_submission(folder, manifest, arch, tmp_path):
    """Every .cu an entry runs, for every architecture it claims to run on; none spills."""
    if not compiled_before(folder.name, manifest["entry"], arch):
        compile_whole(folder, manifest, arch, tmp_path)


def compile_whole(folder, manifest, arch, tmp_path):
    """Asserts that there are kernels, and that none of them is warned of."""
    launch = manifest.get("launch")
    if launch is None:
        reports = resources.build(folder, manifest["entry"], None, tmp_path, [arch])
    else:
        reports = by_nvcc(resources.Source(folder, manifest["entry"], launch, arch, tmp_path))
    assert reports, "no kernel was compiled"
    assert {r.name: r.warnings for r in reports if r.warnings} == {}


@needs_nvcc
def test_what_moved_is_compiled_again(tmp_path, monkeypatch):
    """Another byte in a header, the flags or the source, another compiler: another digest."""
    shutil.copytree(SUBMISSIONS / "cuda_hopper", tmp_path / "cuda_hopper")
    monkeypatch.setattr(f"{__name__}.SUBMISSIONS", tmp_path)
    asked = "cuda_hopper", "steps/01_wgmma.cu", "sm_90a"
    before = digest(*asked)
    assert digest(*asked) == before
    found = {before, digest(*asked[:2], "sm_80"), digest(asked[0], "steps/02_tma.cu", asked[2])}
    for file in ("steps/sm90.cuh", "steps/launch.yaml", "steps/01_wgmma.cu"):
        with (tmp_path / "cuda_hopper" / file).open("a") as end:
            end.write(" ")
        found.add(digest(*asked))
    monkeypatch.setattr(f"{__name__}.compilers", lambda: "another version")
    assert len({*found, digest(*asked)}) == 7


@needs_nvcc
def test_what_has_no_record_or_is_due_is_compiled(monkeypatch):
    asked = "cuda_hopper", "steps/01_wgmma.cu", "sm_90a"
    for record, spared in ((digest(*asked), DAYS - 1), ("", 0)):
        monkeypatch.setattr(f"{__name__}.COMPILED", record)
        assert sum(compiled_before(*asked, day) for day in range(DAYS)) == spared


@pytest.mark.gpu
def test_tensors_described_by_strides(tmp_path):
    import torch

    # memory (B, S, H, D), seen as (B, H, S, D): nothing is copied, the strides say where rows lie
    q, k, v = (
        torch.randn(2, 300, 3, 64, device="cuda", dtype=torch.float16).transpose(1, 2)
        for _ in range(3)
    )
    out = load_plain("cuda_cuflash", "kernel.cu", tmp_path)(q, k, v)
    expected = reference(q, k, v, True, 0.125)
    assert ((out.double() - expected).norm() / expected.norm()).item() < 1e-3


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_triton_twin_against_float64_on_the_cpu(dtype, causal):
    """Interpreted in a child: TRITON_INTERPRET is read when triton is imported."""
    program = f"""
        import sys, torch
        sys.path.insert(0, {str(FA2)!r})
        from crosscheck import triton_attention
        for seqlen in (1, 64, 130):
            q, k, v = (torch.randn(1, 2, seqlen, 64, dtype=torch.{dtype}) for _ in range(3))
            expected = torch.nn.functional.scaled_dot_product_attention(
                q.double(), k.double(), v.double(), is_causal={causal})
            out = triton_attention(q, k, v, {causal}).double()
            error = ((out - expected).norm() / expected.norm()).item()
            assert error < {1e-3 if dtype == "float16" else 1e-5}, (seqlen, error)
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def submission():
    """submission.py, imported: builds the extension or loads what an earlier run built."""
    spec = importlib.util.spec_from_file_location("fa2_submission", FA2 / "submission.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def crosscheck():
    spec = importlib.util.spec_from_file_location("fa2_crosscheck", FA2 / "crosscheck.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", [64, 128, 256])
@pytest.mark.parametrize("causal", [True, False])
def test_the_extension_against_float64(submission, headdim, causal):
    compare(submission.custom_attention_forward, headdim, causal)


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_against_the_triton_twin(submission, crosscheck, headdim, causal):
    for name, q, k, v, scale in stress_cases(headdim):
        if name in ("negative scale", "zero scale"):
            continue  # the twin masks with -inf before scaling
        ours = submission.custom_attention_forward(q, k, v, causal, scale).float()
        twin = crosscheck.triton_attention(q, k, v, causal, scale).float()
        assert ((ours - twin).norm() / twin.norm()).item() < 1e-3, name


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_float32_against_pytorch(submission, headdim, causal):
    import torch

    for seqlen in (1, 64, 333, 1024):
        q, k, v = (torch.randn(2, 3, seqlen, headdim, device="cuda") for _ in range(3))
        out = submission.custom_attention_forward(q, k, v, causal)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal, scale=1 / math.sqrt(headdim)
        )
        assert ((out.double() - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.gpu
def test_what_it_does_not_do_is_said(submission):
    import torch

    q = torch.randn(1, 1, 64, 96, device="cuda", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="headdim must be 64 or 128 or 256, got 96"):
        submission.custom_attention_forward(q, q, q)


HERE = Path(__file__).resolve().parent
LAB_BACKWARD = SUBMISSIONS / "cuda_wmma_lab_backward"
COPY = re.compile(r"const unsigned dst =.*?\"r\"\(inside \? 16 : 0\)\);", re.DOTALL)
NOT_FOR_A_CPU = re.compile(r'asm volatile\("cp\.async\.\w+( 0)?;"( ::: "memory")?\);')


def for_cpu(source: str) -> str:
    """kernel.cu without CUDA's headers and asm; what cp.async did, memcpy does at once."""
    source = re.sub(r"#include <(cuda_fp16|mma)\.h>\n", "", source)
    source, copies = COPY.subn("copy_now(smem, global, inside);", source)
    source, waits = NOT_FOR_A_CPU.subn("", source)
    source = source.replace("extern __shared__ __align__(128) unsigned char raw[];", "")
    assert (copies, waits) == (1, 4)
    assert "asm" not in source
    return source


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("headdim", "seqlen", "causal", "scale"), [(64, 100, True, 0.17), (128, 75, False, 0.1)]
)
def test_the_lab_s_backward_computes_the_gradients(tmp_path, headdim, seqlen, causal, scale):
    """Its very source compiled for the CPU, against float64."""
    torch = pytest.importorskip("torch")
    from harness.problems import attention_backward_tensors as tensors

    (tmp_path / "kernel.inc").write_text(for_cpu((LAB_BACKWARD / "kernel.cu").read_text()))
    program = tmp_path / "program"
    flags = ["-Og", "-std=c++17", "-w", f"-DHEADDIM={headdim}", f"-I{HERE}"]
    flags.append(f'-DKERNEL="{tmp_path / "kernel.inc"}"')
    main = HERE / "wmma_backward_on_cpu.cpp"
    subprocess.run(["g++", *flags, "-o", str(program), str(main)], check=True)
    case = Case(name="emulated", batch=1, heads=1, seqlen=seqlen, headdim=headdim, causal=causal)
    kwargs = {"causal": causal, "sm_scale": scale}
    generator = torch.Generator().manual_seed(headdim)
    inputs = tensors.make_inputs(case, "normal", generator, torch.device("cpu"), kwargs)
    q, k, v, o, lse, do = inputs
    done = subprocess.run(
        [str(program), str(seqlen), str(int(causal)), str(scale)],
        input=b"".join(x.numpy().tobytes() for x in (q, k, v, o, do, lse)),
        capture_output=True,
        check=True,
        timeout=120,
    )
    found = torch.frombuffer(bytearray(done.stdout), dtype=torch.float16).view(3, *q.shape)
    for mine, want in zip(found, tensors.exact(inputs, kwargs), strict=True):
        assert (mine.double() - want).norm() < 6e-4 * want.norm()
    told = re.search(
        r"def smem_bytes.*?(?=\n\n\n)", (LAB_BACKWARD / "submission.py").read_text(), re.S
    )
    scope = {"ROWS": 64, "WARPS": 4}
    exec(told[0], scope)
    assert scope["smem_bytes"](headdim) == int(done.stderr)  # sizeof(Shared)


def write_record() -> None:
    """Compile everything, and keep the digests of what passes in this file."""
    passed = [(name, rung, "sm_90a") for name, rung in RUNGS if not unexpected_spills(name, rung)]
    for folder, manifest, arch in (each.values for each in cuda_submissions()):
        with tempfile.TemporaryDirectory() as scratch:
            compile_whole(folder, manifest, arch, Path(scratch))
        passed.append((folder.name, manifest["entry"], arch))
    words = textwrap.fill(" ".join(digest(*each) for each in passed), 99)
    path = Path(__file__)
    path.write_text(path.read_text().replace(COMPILED, f"{words}\n", 1))


if __name__ == "__main__":
    write_record()
