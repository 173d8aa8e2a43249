"""The plain .cu submissions and their ladders: nvcc compiles all of them, a GPU checks them.

Every rung compiles without spills, or the ladder says that it spills; numbers are held against float64,
the 64 x 64 tiles of FlashAttention-2 against their Triton twin too.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


#: What passed its test: a digest of all that decides so, and one of the tools that had a part in it.
#: The same bytes compile alike again, so these are spared, but for a thirtieth of them each day.
#: `python -m tests.submissions.test_cuda_ladders` runs the tests here that it does not spare, and
#: writes it anew.
PASSED = """\
0a785127aeeb85e59926f2a22b57e3b9 8aea756803460a9f95fb4209b94e6805 bd785abad0748487920b878e4a200581
827e03b62d915ac4ccbdcd782852aa1c 109790836a87290219c8b59979905176 3259131ed55eebaca49a97e00256d928
9ec2998c52a072ad60263c9d21b59bdb 79d1bcd14a523ab9ca32673ccc4078e1 2a8ab128e42ab55aa7d6827c15451139
97822c8770d31a613eb0bd3c1eeb55ff b6669ee321827dfeb6ae1ffac8106d97 f14cb1b24d1fcd44c7d559d1dee12420
152b9a05276ae24677dff33ea4a60552 56b44e1f9b0425f6a173a37be228f243 b15caccf0ede3f38ae8dbdac102b180f
f088af214369fa895029b68630166fdb 9bd682161bae3e841d135013d35ce70f 22defaedcac1fb5f651167250f4d4f87
94c77140d484ea4c88a188d991e3c673 25df7f5eaedbbc2da9cf74f5e0e12865 22bfa5896fdd098083e9485659027417
85f4ba1794672939ada21dc115950826 33628f4114a034132ba7948479d01fe4 d12e7d036ec49d80c477a8a6eb6c3946
cb5140c293d28c64d73c70fcebf2a84f 55d642427f316cef0c0822d6cdc8e577 a9a2754e6c783e61ad8dffec1d29f7ef
ed4ec14d1acd213781fe38379c9d845a 8afd5e700c4e1af53b4cdf13ed143c36 5d818085b0383c9af74acb328d5b4085
a22426ef7c36a18891613a35e684f835 92e8b792666a9624b569a628fa10b399 0494b4e35a5c83e23d5197a59704cd4e
f5ccbca8a517292dc46e5426c73926ec e36460f96717a450b44887adf007c374 8136d8f0eb5b75f4bd56303ba6dea0b4
575b2a1237c9a716786090be222bc8f6 b26451a36b9aec644945d83bbb92b55c 35e65cfbd01f7176fb4c4ac11f030788
c5946a6725be0dba225357aae2386e8b 1045a8b48dcbb3014e46963ce87cbc6b f76e83678629815f01891ff975e4e6b5
6314552eae0836315965957602147737 57f4e991e4ad1f80c99c4602df6d3c81 cc97edfe4405fab176871d942e663296
cae12c9be74caca82b498e4a385b1a4f 663b137bbf317219881dc4c6f968b6f4 a621ae70c1eb4406e2e04e241a1077d5
d0e3054c4b33c8d107689ad43bdd81ee e7415d1d8e73cf2e9d44ae5bf1668461 e8bd27d4322075e7b51a7f628ab41ed3
5ed1307ee9cd4fd54a92c03117a966fa 994403d5ea58e818a754e3bafe0ec2e0 2e25952f498d8352905c77c2040ed24f
8d5b0cad50c6639917b76a9ae37c7019 52d564d83a946bdb842143c767489fb3 dbdf8887aacf64b198d8428f0a6983b8
c8a4856d2bde63a636a3022b45026cc8 03a5184ed016803d561f9423e1bf5d35 5c2b9c4ce71342bf40c32e048fed4731
eabd416f668dbc3bdf7390c4ffeaa16d 76105eabe3bb41454920abe202a44a30 7eb45fe0223b662f262a58acb1b00e16
528555155a854ebfbbb9c5c856679f8f cb306b7e714a4d89019670625cc1728f cdbc7ebe0a411dd96e3707442bea51f6
f3a973421bf9fd9e99ba593ab8cafea2 dc4b66cb21c0f2196030979067781f21 4ca4b5ea0f21c6e9939a5c3e5113d92b
a616962270fcd7579ed6431b07371a32 9243c9081237de15b1af09ba56fff1d1 2c5181abc827a10780abce74155feb7c
9fc65ffab99c2d9e4cbfa324fc5154c4 ed61584a480b3b86cac163f1fb574434 14e4191e6eb85b529c0849d83d723dc3
fde3efc19012227870ee3dd56603af9a 2ed0f7d050cd41ceb2fecc22264cff02 e69151010edc799a1803038ba3184152
ee09bcf02e425d2481100f7aba8e8676 4892d278d18f6b27c965ef857a8f560a c835cdd312312d3f17cc7ead60ef2248
ebb55f14f5d6d8b8d1a181aed9a4bc22 b9bd62360200000bf654ce731f821593 07a2a0a413394f3a253bffecad2b90a7
508e5b6128e1c8ce0277276fcd96218d 3cc648cd4cc42b169c9eae37a95a1b7e c1a559ea5602493b9e0e22cd44e001c3
56f787ab0edf72309a5cba583653cb43 ba073ddedfd76414843c79f9995e1762 bab0c50e6bbe0399f3e97a9e845afba1
6901542d812ac5a384bee44f69134635 de9019692d168af0582717352b3f2215 b9f5f449ccc16298ad743121ab9ceab4
c5284bafb189bd66cf05e0fe67e8f529 b32af18d23dc0c1d4307db56880cd326 46486f7a060db58d960ca43740d79ea6
65c775af7231b2b327b8f640b6c4c94c ca81fea80e1a9f5f0d223ddddd5ee63c b2ed1d7f9fa21e251dcff47d356f0204
"""
DAYS = 30  # until each was done once more
RECORD = "ATTNBOARD_RECORD"  # names the file that keeps what the tests ask for
OUTSIDE = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH")


@functools.cache
def compilers() -> str:
    """The versions of all that takes part, and their flags from outside."""
    run = functools.partial(subprocess.run, capture_output=True, text=True, check=True)
    said = [run([tool, "--version"]).stdout for tool in ("nvcc", "ptxas", "g++")]
    return repr((said, [os.environ.get(name) for name in OUTSIDE]))


source_of, NVCC = functools.cache(inspect.getsource), resources.nvcc


def hashed(*told: object) -> str:
    """Digest of what these print as."""
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


class Asked(Exception):
    """A command that is not run."""


def command_of(*asked: Any) -> list[str]:
    """The words behind `nvcc` for these arguments of `resources.nvcc`, without the folders of today."""

    def stop(words: list[str], **_: object) -> None:
        raise Asked(words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", stop)
        with pytest.raises(Asked) as caught:
            NVCC(*asked)
    _, *words = caught.value.args[0]
    scratch = Path(words[-1]).parent
    return [word.replace(f"{scratch}", "").replace(f"{SUBMISSIONS}", "") for word in words]


def digest(name: str, file: str, arch: str) -> str:
    """Of what nvcc is asked, of what it reads, of the code that judges what it says."""
    folder, launch, asked = SUBMISSIONS / name, _sections(name).get(file), list[object]()

    def nvcc(text: str, arch: str, include: Path, flags: Iterable[str], **_: str) -> list[Any]:
        read = {
            str(path.relative_to(folder)): path.read_bytes() for path in included(text, include)
        }
        told = text.replace(f"{folder}/", "").replace(resources.AT, "AT")
        asked.append((told, command_of(text, arch, include, flags), sorted(read.items())))
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "nvcc", nvcc)
        if launch is None:
            resources.build(folder, file, None, folder, [arch])
        else:
            path = folder / file
            resources.plain_by_nvcc(resources.Source(path.parent, path.name, launch, arch, folder))
    code = [*map(source_of, DECIDING), resources.SAID, resources.NOTED]
    return hashed(name, file, arch, Path(file).name in SPILLING_RUNGS, compilers(), asked, code)


def included(text: str, folder: Path) -> set[Path]:
    """The files that `text` in `folder` includes of its submission, and that those include."""
    found = {folder / name for name in re.findall(r'# *include *"(.+)"', text)}
    found = {path for path in found if path.is_file()}
    return found.union(*(included(path.read_text(), path.parent) for path in found))


def spared(found: str, tools: object, day: int | None = None) -> bool:
    """Whether `found`, a digest, passed before and is not due on `day` (today).

    With the tools of the record it fails where that does not know it: else all is done, for minutes.
    """
    known = set(PASSED.split())
    if path := os.environ.get(RECORD):
        with open(path, "a") as asked:
            print(hashed(tools), found, file=asked)
        return found in known
    if found not in known and hashed(tools) in known:
        pytest.fail("it moved; type: python -m tests.submissions.test_cuda_ladders")
    day = datetime.date.today().toordinal() if day is None else day
    return (int(found, 16) + day) % DAYS != 0 and found in known


def compiled_before(*asked: str) -> bool:
    """Whether the compilers read and said the same before."""
    return spared(digest(*asked), compilers())


@functools.cache
def _sections(name: str) -> dict[str, dict]:
    folder = SUBMISSIONS / name
    manifest = yaml.safe_load((folder / "manifest.yaml").read_text())
    sections = {"kernel.cu": manifest["launch"]} if "launch" in manifest else {}
    listed = folder / "steps" / "launch.yaml"
    steps = yaml.safe_load(listed.read_text()) if listed.exists() else {}
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


DECIDING = (
    *(resources.plain_by_nvcc, resources.parse_ptxas, resources.kernels_of),
    *(resources.KernelReport.warnings.fget, by_nvcc, spills, unexpected_spills, compile_whole),
)


@needs_nvcc
def test_what_moved_is_compiled_again(tmp_path, monkeypatch):
    """Another byte in a header, the flags or the source, another compiler: another digest. No other file's."""
    shutil.copytree(SUBMISSIONS / "cuda_hopper", tmp_path / "cuda_hopper")
    monkeypatch.setattr(f"{__name__}.SUBMISSIONS", tmp_path)
    asked = "cuda_hopper", "steps/01_wgmma.cu", "sm_90a"
    before = digest(*asked)
    found = {before, digest(*asked[:2], "sm_80"), digest(asked[0], "steps/02_tma.cu", asked[2])}
    for file in ("steps/launch.yaml", "steps/02_tma.cu", "NOTES.md"):
        with (tmp_path / "cuda_hopper" / file).open("a") as end:
            end.write(" ")
        assert digest(*asked) == before
    for file in ("steps/sm90.cuh", "steps/01_wgmma.cu"):
        with (tmp_path / "cuda_hopper" / file).open("a") as end:
            end.write(" ")
        found.add(digest(*asked))
    flags = _sections("cuda_hopper")[asked[1]] | {"flags": ["-DMORE=1"]}
    for name, moved in (
        ("_sections", lambda _: {asked[1]: flags}),
        ("compilers", lambda: "another version"),
        ("DECIDING", (by_nvcc,)),
    ):
        monkeypatch.setattr(f"{__name__}.{name}", moved)
        found.add(digest(*asked))
    assert len(found) == 8


@needs_nvcc
def test_an_extension_is_compiled_again_by_its_own_lines(tmp_path, monkeypatch):
    shutil.copytree(SUBMISSIONS / "cuda_hopper", tmp_path / "cuda_hopper")
    monkeypatch.setattr(f"{__name__}.SUBMISSIONS", tmp_path)
    asked = "cuda_hopper", "submission.py", "sm_90a"
    found = [digest(*asked)]
    for file in ("submission.py", "kernels/sm90.cuh", "kernels/attention.cu"):
        with (tmp_path / "cuda_hopper" / file).open("a") as end:
            end.write("\n// build: -DMORE=1\n")
        found.append(digest(*asked))
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_what_has_no_record_or_is_due_is_done(monkeypatch, tmp_path):
    found = hashed("kernel")
    monkeypatch.delenv(RECORD, raising=False)
    for record, times in ((found, DAYS - 1), ("", 0), (hashed("tools") + " " + found, DAYS - 1)):
        monkeypatch.setattr(f"{__name__}.PASSED", record)
        assert sum(spared(found, "tools", day) for day in range(DAYS)) == times
    with pytest.raises(pytest.fail.Exception, match="python -m tests"):
        spared(hashed("moved"), "tools")
    monkeypatch.setenv(RECORD, str(tmp_path / "asked"))
    assert [spared(each, "tools") for each in (found, hashed("moved"))] == [True, False]
    asked = f"{hashed('tools')} {found}\n{hashed('tools')} {hashed('moved')}\n"
    assert (tmp_path / "asked").read_text() == asked


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


TWIN = f"""
import json, sys, torch
sys.path.insert(0, {str(FA2)!r})
from crosscheck import triton_attention

def error(dtype, causal, seqlen):
    q, k, v = (torch.randn(1, 2, seqlen, 64, dtype=getattr(torch, dtype)) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=causal)
    out = triton_attention(q, k, v, causal).double()
    return ((out - expected).norm() / expected.norm()).item()

print(json.dumps([error(*each) for each in json.load(sys.stdin)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_triton_twin_against_float64_on_the_cpu():
    """Interpreted in a child: TRITON_INTERPRET is read when triton is imported."""
    cases = list(itertools.product(("float16", "float32"), (True, False), (1, 64, 130)))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TWIN], input=json.dumps(cases),
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for case, error in zip(cases, json.loads(done.stdout), strict=True):
        assert error < (1e-3 if case[0] == "float16" else 1e-5), case


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


ASKING = "compiles or mistake or fits_the or scores_run or lse_costs or tightest_tiles"


def write_record() -> None:
    """Run the tests that ask `spared`, and keep the digests that they ask for, if all pass."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, path = Path(scratch) / "asked", Path(__file__)
        command = [sys.executable, "-m", "pytest", "-q", str(HERE), "-k", ASKING]
        subprocess.run(command, env={**os.environ, RECORD: str(asked)}, check=True)
        words = textwrap.fill(" ".join(dict.fromkeys(asked.read_text().split())), 99)
        path.write_text(path.read_text().replace(PASSED, f"{words}\n", 1))


if __name__ == "__main__":
    write_record()
