"""What a kernel needs of an SM, and what its counters say."""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import replace

import pytest

from harness.process import wire
from harness.worker.cuda import resources
from harness.worker.cuda.nvrtc import Compiled, CudaSourceError, Program, compile_error
from harness.worker.cuda.promises import Build, broken, builds_of
from harness.worker.cuda.resources import KernelReport, parse_ptxas, render, with_occupancy

LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'slow' for 'sm_90a'
ptxas info    : Function properties for slow
    56 bytes stack frame, 60 bytes spill stores, 64 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 56 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'fast' for 'sm_90a'
ptxas info    : Function properties for fast
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 72 registers, used 1 barriers
"""
BOTH = {"slow": None, "fast": None}  # and the threads of a block, where the cubin says them
CALLEE = """\
ptxas info    : Function properties for callee
    8 bytes stack frame, 16 bytes spill stores, 32 bytes spill loads
"""
IGNORED = (
    "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; "
    "unable to determine register count at entry.\n"
)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


def report(**changes):
    base = {"name": "f", "arch": "sm_90a", "registers": 128, "stack_bytes": 0}
    spills = {"spill_store_bytes": 0, "spill_load_bytes": 0, "smem_static_bytes": 0}
    return KernelReport(**{**base, **spills, "smem_dynamic_bytes": 0, "threads": 128, **changes})


def test_every_number_of_ptxas_is_read():
    slow, fast = parse_ptxas(LOG, BOTH, "sm_90a")
    assert (slow.name, slow.registers, slow.stack_bytes) == ("slow", 168, 56)
    assert (slow.spill_store_bytes, slow.spill_load_bytes, slow.smem_static_bytes) == (60, 64, 1024)
    assert (fast.name, fast.registers, fast.smem_static_bytes) == ("fast", 72, 0)


def test_spills_are_warned_about_and_silence_is_kept_otherwise():
    slow, fast = parse_ptxas(LOG, BOTH, "sm_90a")
    assert "spills 60 bytes of stores, 64 of loads" in slow.warnings[0]
    assert fast.warnings == ()


@pytest.mark.parametrize("log", [CALLEE + LOG, LOG + CALLEE, CALLEE + LOG + CALLEE])
def test_what_a_callee_spills_counts_for_every_kernel(log):
    """ptxas names it behind a kernel that calls it, and it was told as 0."""
    slow, fast = parse_ptxas(log, BOTH, "sm_90a")
    assert (slow.stack_bytes, slow.spill_store_bytes, slow.spill_load_bytes) == (64, 76, 96)
    assert (fast.stack_bytes, fast.spill_store_bytes, fast.spill_load_bytes) == (8, 16, 32)
    assert [each.registers for each in (slow, fast)] == [168, 72]


def test_an_ignored_setmaxnreg_is_a_warning():
    assert all("C7508" in r.warnings[-1] and "ignored" in r.warnings[-1]
               for r in parse_ptxas(IGNORED + LOG, BOTH, "sm_90a"))  # fmt: skip


def test_lines_of_a_pragma_add_no_kernel_and_hide_nothing():
    forged = "".join(
        f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 1 registers\n"
        for name in ("slow", "forged")
    )
    for log in (forged + LOG, LOG + forged):
        assert parse_ptxas(log, BOTH, "sm_90a") == parse_ptxas(LOG, BOTH, "sm_90a")


def test_no_words_of_a_source_choose_the_architecture():
    """Of one that is unknown no blocks were counted, and a broken promise was kept."""
    forged = "#warning Compiling entry function 'slow' for 'sm_75a'\n"
    assert parse_ptxas(forged + LOG, BOTH, "sm_90a") == parse_ptxas(LOG, BOTH, "sm_90a")


def test_notes_have_an_end():
    many = "".join(f"ptxas info : (C7508) {'x' * 100_000}: {n}\n" for n in range(300))
    for found in parse_ptxas(many + LOG, BOTH, "sm_90a"):
        assert len(found.notes) <= 100
        assert sum(map(len, found.notes)) < 100_000


@pytest.mark.parametrize(
    "line",
    [
        "k.cu(1): warning: (C75 {}",
        "k.cu(1): warning: (C7500 {}",
        "ptxas info : (C7500) Loss: {} in function 'fast'",
    ],
)
@pytest.mark.parametrize("name", ["slow", "forged_" + "x" * 2000])
def test_no_lines_of_a_source_hide_a_note(line, name):
    """The preprocessor speaks first, and only so many lines were looked at."""
    flood = "".join(line.format(n) + "\n" for n in range(300))
    ours = f"ptxas info : (C7508) Potential Loss: 'setmaxnreg' ignored in function '{name}'\n"
    for log in (flood + ours + LOG, ours + flood + LOG):
        slow, _ = parse_ptxas(log, BOTH, "sm_90a")
        assert slow.notes == ("C7508: 'setmaxnreg' ignored",)


def test_notes_are_cut_as_they_are_sent():
    for letter in ("é", "😀", "\x01"):
        many = f"ptxas info : (C7508) Loss: {letter * 560}\n" * 100
        for found in parse_ptxas(many + LOG, BOTH, "sm_90a"):
            assert len(json.dumps(found.notes)) < wire.MAX_BYTES * 0.9


def test_warnings_that_nobody_is_told_are_counted():
    """101 of them kept a promise of 100."""
    for many in (IGNORED * 150, IGNORED * 50 + IGNORED.replace(";", " in function 'slow';") * 100):
        slow, _ = parse_ptxas(many + LOG, BOTH, "sm_90a")
        (said,) = replace(slow, promises={"warnings": 100}).broken
        assert said == "150 warnings of ptxas, promised at most 100"
        assert len(slow.notes) == 100


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("ptxas warning : Value for entry slow is out of range. It is ignored", (1, 0)),
        ("ptxas warning : Registers are spilled to local memory in function 'fast'", (0, 1)),
        ("ptxas warning : Too big maxrregcount value specified 999, will be ignored", (1, 1)),
        ("ptxas /tmp/k.ptx, line 9; warning : Advisory: it is deprecated", (1, 1)),
        ("k.cu(1): warning #1: (C75", (0, 0)),
    ],
)
def test_a_warning_of_ptxas_needs_no_code(line, counts):
    """A bound in __launch_bounds__ was ignored, and no warning was told."""
    found = parse_ptxas(f"{line}\n{LOG}", BOTH, "sm_90a")
    assert tuple(each.noted for each in found) == counts
    for each in found:
        assert all(note.startswith("ptxas: ") for note in each.notes)
        assert len(replace(each, promises={"warnings": 0}).broken) == each.noted


@needs_nvcc
def test_an_ignored_bound_of_blocks_is_a_warning(tmp_path):
    source = 'extern "C" __global__ void __launch_bounds__(1024, 4) f(float* q) { q[0] = 1; }\n'
    (tmp_path / "f.cu").write_text(f"// promise: warnings=0\n{source}")
    (only,) = resources.build(tmp_path, "submission.py", None, tmp_path, ["sm_90a"])
    assert only.broken == ["1 warnings of ptxas, promised at most 0"]
    assert "minnctapersm will be ignored" in only.warnings[0]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("names", [("f", "f"), ("f", "::f")])
def test_a_kernel_that_is_launched_in_two_ways_is_told_in_both(
    tmp_path, monkeypatch, names, reverse
):
    """The last one's block stood for all, and kept what the other breaks."""
    said = (
        "\ufeff// promise: spills=0\n// build: -DX=1\n// promise: blocks=8\n"
        "// build: -DX=2\n// promise: blocks=1 spills=9\n"
    )
    (tmp_path / "k.cu").write_text(said)
    monkeypatch.setattr(
        resources, "_compile_plain", lambda _: (dict.fromkeys(names, "_Z1f"), [report(name="_Z1f")])
    )
    base = {"grid": [1], "args": []}
    kernels = [
        {"name": names[0], "headdims": [256, 64], "block": ["D"], "smem_bytes": "D * 800", **base},
        {"name": names[1], "headdims": [64], "block": [32], "causal": "true", **base},
    ]
    launch = {"kernels": kernels[::-1] if reverse else kernels}
    found = resources.build(tmp_path, "k.cu", launch, tmp_path, ["sm_90a"])
    assert sorted(each.threads for each in found) == [32, 64, 256]
    assert {each.name for each in found} == set(names)
    assert [bool(each.broken) for each in found].count(True) == 2
    assert all(each.promises == {"spills": 0, "blocks": 8} for each in found)


PLAIN = """// promise: blocks=64
__device__ int n = 3; __device__ int* at_n = &n; constexpr int N = 64;
__global__ void void_k(float* p) { p[0] = 1; }
template<unsigned D, int W = 4> __global__ void t(const float* p, const float*, float* o) {
  o[0] = p[0] * D * W;
}
extern "C" __global__ void c(float* p) { p[0] = 1; }
namespace { template<int D> __global__ void hidden(float* p) { p[0] = D; } }
namespace a { __global__ void inner(float* p) { p[0] = 1; } }
using namespace a;
template<int D> __global__ void attnboard_at(float* p) { p[0] = D; }  // as a helper of ours once
namespace a { extern "C" __global__ void d(float* p) { p[0] = 1; } }
template<int D, void (*)(float*) = &c> __global__ void one(float* p) { p[0] = D; }
template<int D, void (*)(float*) = &c, void (*)(float*) = &inner> __global__ void two(float* p) {
  p[0] = D;
}
"""


@needs_nvcc
@pytest.mark.parametrize("arch", resources.ARCHS)
def test_by_nvcc_a_kernel_has_its_launch_however_its_name_is_written(tmp_path, monkeypatch, arch):
    """c++filt spelt it otherwise: threads unknown, and the promise of blocks was kept unasked.

    A kernel with the address of another in its name was taken for that one, or for none.
    """
    without = CudaSourceError("UNAVAILABLE", "no NVRTC")
    monkeypatch.setattr(resources, "compile_source", lambda _: (_ for _ in ()).throw(without))
    (tmp_path / "k.cu").write_text(PLAIN)
    names = ["void_k", "t<{D}>", "(c)", "::c", "hidden<N>", "inner", "hidden< {D} * 2 >"]
    names += ["attnboard_at<{D}>", "a::d", "one<{D}>", "two<{D}>"]
    base = {"headdims": [64], "grid": [1], "block": [32], "args": []}
    launch = {"kernels": [{"name": name, **base} for name in names]}
    found = resources.build(tmp_path, "k.cu", launch, tmp_path, [arch])
    assert {each.name for each in found} == {name.replace("{D}", "64") for name in names}
    assert all(each.threads == 32 and each.broken for each in found)
    assert {each.registers for each in found if "t<" not in each.name} <= set(range(13))


def test_by_nvcc_a_kernel_that_cannot_be_told_is_an_error(tmp_path, monkeypatch):
    """One named with two addresses had no launch, and its promise of blocks was kept unasked."""
    without = CudaSourceError("UNAVAILABLE", "no NVRTC")
    monkeypatch.setattr(resources, "compile_source", lambda _: (_ for _ in ()).throw(without))
    (tmp_path / "k.cu").touch()
    launch = {
        "kernels": [{"name": "k<{D}>", "headdims": [64], "grid": [1], "block": [32], "args": []}]
    }
    for symbols in ({}, {"k<64>": ""}):
        monkeypatch.setattr(
            resources, "plain_by_nvcc", lambda _, s=symbols: (s, [report(name="_Z1k")])
        )
        monkeypatch.setattr(resources.shutil, "which", str)
        with pytest.raises(CudaSourceError, match="which kernel k<64> is; no NVRTC") as told:
            resources.build(tmp_path, "k.cu", launch, tmp_path, ["sm_90a"])
        assert told.value.status == "COMPILE_ERROR", "the machine lacks nothing: it is the source's"
        monkeypatch.setattr(resources.shutil, "which", lambda _: None)
        with pytest.raises(CudaSourceError, match=r"^no NVRTC"):  # nor c++filt
            resources.build(tmp_path, "k.cu", launch, tmp_path, ["sm_90a"])


def test_nvcc_reads_each_name_once(tmp_path):
    """A macro with __COUNTER__ in it was another kernel the second time."""
    text = resources.instantiating_source(tmp_path / "k.cu", ["k<64>", "k<128>"])
    assert [text.count(name) for name in ("k<64>", "k<128>")] == [1, 1]


@needs_nvcc
def test_a_flag_that_no_program_takes_is_told(tmp_path):
    (tmp_path / "k.cu").write_text(f"// build: -DX={'1' * 200_000}\n")
    with pytest.raises(CudaSourceError, match="too long"):
        resources.build(tmp_path, "submission.py", None, tmp_path, ["sm_90a"])


@needs_nvcc
def test_a_name_of_any_length_is_told(tmp_path):
    """One beyond 128 KiB is no argument of a program, and no message holds it."""
    many = ",".join(map(str, range(24_000)))
    (tmp_path / "k.cu").write_text(
        "template<int...> struct S {};\ntemplate<class T> __global__ void t(float* y) { *y = 1; }\n"
        f"template __global__ void t<S<{many}>>(float*);\n"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBOARD_CACHE", str(tmp_path))
        asked = {"folder": str(tmp_path), "entry": "submission.py", "launch": None}
        wire.send(ours, {**asked, "archs": ["sm_90a"]})
        resources.answer(theirs)
        assert len(wire.receive(ours)["kernel"]["name"]) <= resources.MOST_NOTE
        assert wire.receive(ours) == {"op": "done"}


def test_a_number_without_end_is_none_of_ptxas():
    """A pragma's; its sum with another had too many digits to be shown."""
    forged = LOG.replace(
        "properties for slow\n", f"properties for slow\n {'9' * 4300} bytes spill stores\n"
    )
    assert parse_ptxas(forged, BOTH, "sm_90a") == parse_ptxas(LOG, BOTH, "sm_90a")
    long = LOG.replace("Used 168 registers", f"Used {'1' * 5000} registers")
    assert [each.registers for each in parse_ptxas(long, BOTH, "sm_90a")] == [0, 72]
    assert compile_error(f"k.cu({'1' * 5000}): error: bad\n", "k.cu").line == 0


@needs_nvcc
def test_kernels_are_those_of_the_cubin(tmp_path):
    said = "Compiling entry function '{}' for 'sm_90a'\\nptxas info : Used 1 registers".format
    (tmp_path / "k.cu").write_text(
        '__device__ char text[] = ".text.forged";\n'
        f'#pragma message("{said("f")}")\n'
        'extern "C" __global__ void f(float* q) {\n'
        f'  asm volatile(".pragma \\"{said("f")}\\";");\n'
        f'  asm volatile(".pragma \\"{said("forged")}\\";");\n'
        "  q[text[threadIdx.x]] = 1;\n}\n"
    )
    (found,) = resources.build(tmp_path, "submission.py", None, tmp_path / "cache", ["sm_90a"])
    assert (found.name, found.arch) == ("f", "sm_90a")
    assert found.registers > 1


def test_a_note_that_names_a_function_stays_there():
    text = (
        LOG
        + "ptxas info : (C7512) Potential Performance Loss: wgmma serialized in function 'fast'\n"
    )
    slow, fast = parse_ptxas(text, BOTH, "sm_90a")
    assert not slow.notes
    assert fast.notes == ("C7512: wgmma serialized",)
    slow, fast = parse_ptxas(text.replace("'fast'\n", "'callee'\n"), BOTH, "sm_90a")
    assert slow.notes == fast.notes == ("C7512: wgmma serialized",)


@pytest.mark.parametrize(
    ("changes", "blocks", "limited_by"),
    [
        # the first three were read from Nsight Compute's launch__occupancy_limit_* on an H200
        ({"registers": 72, "smem_dynamic_bytes": 40_960}, 5, "shared memory"),
        ({"registers": 72}, 7, "registers"),
        ({"registers": 147, "smem_dynamic_bytes": 40_960}, 3, "registers"),
        ({"registers": 24}, 16, "warps"),
        ({"registers": 24, "threads": 32}, 32, "block slots"),
        ({"registers": 128, "smem_dynamic_bytes": 87_296, "arch": "sm_80"}, 1, "shared memory"),
    ],
)
def test_occupancy(changes, blocks, limited_by):
    found = with_occupancy(report(**changes))
    assert (found.blocks_per_sm, found.limited_by) == (blocks, limited_by)
    warps = -(-changes.get("threads", 128) // 32)
    assert found.occupancy_pct == pytest.approx(100 * blocks * warps / 64)


def test_what_is_not_known_is_not_invented():
    assert with_occupancy(report(threads=None)).blocks_per_sm is None
    assert with_occupancy(report(arch="sm_35")).occupancy_pct is None
    assert "not counted" in with_occupancy(report(smem_dynamic_bytes=None)).limited_by


def test_the_page_aligns_and_puts_warnings_under_their_kernel():
    lines = render([with_occupancy(r) for r in parse_ptxas(LOG, BOTH, "sm_90a")]).splitlines()
    assert lines[0].split()[:4] == ["kernel", "arch", "regs", "smem"]
    assert lines[1].startswith("slow")
    assert lines[2].startswith("    warning: spills")
    assert lines[3].split()[:3] == ["fast", "sm_90a", "72"]


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(resources.shutil, "which", lambda name: None)
    with pytest.raises(resources.CudaSourceError, match="pip install cuda-bindings"):
        resources.nvcc("", "sm_80", resources.Path(), ())


def test_steps_and_folders_are_not_part_of_an_extension(tmp_path):
    """A folder called like a source ended in a traceback of the harness."""
    (tmp_path / "x.cu").mkdir()
    for name in ("csrc/a.cu", "steps/01.cu"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [path.name for path in resources.extension_sources(tmp_path)] == ["a.cu"]


@needs_nvcc
def test_nvcc_reports_names_threads_and_errors(tmp_path):
    (tmp_path / "k.cu").write_text(
        "namespace { template <int D> __global__ void __launch_bounds__(96) f(float* q)"
        " { q[0] = D; } }\nvoid g(float* q) { f<64><<<1, 96>>>(q); }\n"
    )
    (found,) = resources.build(tmp_path, "submission.py", None, tmp_path / "cache", ["sm_90a"])
    assert (found.name, found.threads, found.arch) == ("f<64>", 96, "sm_90a")
    (tmp_path / "k.cu").write_text("__global__ void f( {}\n")
    with pytest.raises(resources.CudaSourceError) as caught:
        resources.build(tmp_path, "submission.py", None, tmp_path / "cache", ["sm_90a"])
    assert caught.value.line == 1


SPILLING = """
{} float f(const float* x, float* y, int n) {{
  float v[200], s = 0;
  #pragma unroll
  for (int i = 0; i < 200; ++i) v[i] = x[i * n];
  #pragma unroll 1
  for (int r = 0; r < n; ++r)
    #pragma unroll
    for (int i = 0; i < 200; ++i) v[i] = v[i] * v[(i * 7 + 3) % 200] + x[r];
  #pragma unroll
  for (int i = 0; i < 200; ++i) s += v[i];
  return y[0] = s;
}}
__global__ void {} k(const float* x, float* y, int n) {{ f(x, y, n); }}
"""
INLINE = SPILLING.format("static __device__ __forceinline__", "")


@needs_nvcc
@pytest.mark.parametrize("arch", resources.ARCHS)
@pytest.mark.parametrize(
    ("source", "registers"),
    [
        (SPILLING.format("__device__ __noinline__", "__launch_bounds__(1024)"), 64),
        ("// build: -maxrregcount=32\n" + INLINE, 32),
        ("// build: -Xptxas=-O1 --maxrregcount=40\n" + INLINE, 40),
    ],
)
def test_what_spills_is_told(tmp_path, arch, source, registers):
    """A callee's bytes were not, and ptxas was given none of the flags."""
    (tmp_path / "k.cu").write_text(f"// promise: spills=0\n{source}")
    (found,) = resources.build(tmp_path, "submission.py", None, tmp_path / "cache", [arch])
    assert found.registers <= registers
    assert min(found.spill_store_bytes, found.spill_load_bytes) > 0
    assert found.broken


@needs_nvcc
@pytest.mark.parametrize("arch", resources.ARCHS)
def test_threads_are_those_of_the_cubin(tmp_path, arch):
    """A comment of inline PTX said others."""
    (tmp_path / "k.cu").write_text(
        "// promise: blocks=8 smem_bytes=0\n"
        'extern "C" __global__ void __launch_bounds__(1024) big(float* y) {\n'
        '  asm volatile("// .entry big( .maxntid 32");\n  y[threadIdx.x] = 1;\n}\n'
        "__device__ __noinline__ float g(float x) { return x + 1; }\n"
        "__device__ float (*of_no_kernel)(float) = g;\n"
        'extern "C" __global__ void none() {}\n'
        'extern "C" __global__ void __launch_bounds__(0x7fffffff) most(float* y) { *y = 1; }\n'
    )
    found = resources.build(tmp_path, "submission.py", None, tmp_path / "cache", [arch])
    threads = {"big": 1024, "none": None, "most": 1024}
    assert {each.name: each.threads for each in found} == threads
    assert {each.name for each in found if each.broken} == set(threads)
    (said,) = next(each.broken for each in found if each.name == "none")
    assert said.startswith("2 blocks of 1024 threads (it has no __launch_bounds__) fit an SM")


@needs_nvcc
def test_a_comment_need_not_be_utf_8(tmp_path):
    """It ended in a traceback of the harness, and so did an error beside it."""
    kernel = 'extern "C" __global__ void f(float* q) { q[0] = 1; }\n'
    (tmp_path / "k.cu").write_bytes(b"// caf\xe9\n" + kernel.encode())
    (found,) = resources.build(tmp_path, "submission.py", None, tmp_path / "cache", ["sm_90a"])
    assert found.name == "f"
    (tmp_path / "k.cu").write_bytes(b"#error caf\xe9\n")
    with pytest.raises(resources.CudaSourceError, match="caf"):
        resources.build(tmp_path, "submission.py", None, tmp_path / "cache", ["sm_90a"])


def test_archs_follow_the_capability_that_is_needed():
    assert resources.archs_for("8.0") == ("sm_80", "sm_90a")
    assert resources.archs_for("0.0") == ("sm_80", "sm_90a")
    assert resources.archs_for("9.0") == ("sm_90a",)


def test_a_broken_promise_is_under_its_kernel():
    spilling, fast = parse_ptxas(LOG, BOTH, "sm_90a")
    promises = {"spills": 0, "registers": 168}
    page = render([replace(spilling, promises=promises), replace(fast, promises=promises)])
    assert page.count("broken promise") == 1
    assert "    broken promise: 124 bytes spilled, promised at most 0" in page


@needs_nvcc
def test_a_promise_tells_the_launch_s_shared_memory(tmp_path):
    source = (
        "// build: -DN=1\n// promise: smem_bytes=65536 registers=255 spills=0 blocks=4\n"
        'extern "C" __global__ void __launch_bounds__(128) f(float* q) { q[0] = N; }\n'
    )
    (tmp_path / "f.cu").write_text(source)
    (only,) = resources.build(tmp_path, "submission.py", None, tmp_path, ["sm_90a"])
    assert (only.smem_dynamic_bytes, only.blocks_per_sm) == (65536, 3)
    assert only.broken == ["3 blocks fit an SM, promised at least 4"]


FOUND = {"registers": 168, "spills": 0, "warnings": 0}


def test_build_lines_give_one_build_each():
    text = "// build: -DHEADDIM=64 -DX='a b'\n// build: -DHEADDIM=128\nint x;  // build: no\n"
    assert builds_of(text) == [Build(("-DHEADDIM=64", "-DX=a b")), Build(("-DHEADDIM=128",))]
    assert builds_of("int x;") == [Build()]
    assert builds_of("/* a form feed begins no line\f// build: -DX */\n") == [Build()]
    assert builds_of("// build: -DX\r\n") == [Build(("-DX",))]


def test_a_promise_belongs_to_the_build_above_it_or_to_all():
    text = "// promise: spills=8\n// build: -DA\n// promise: registers=96 spills=9\n// build: -DB\n"
    first, second = builds_of(text)
    assert first.promises == {"spills": 8, "registers": 96}
    assert second.promises == {"spills": 8}
    loose = "// promise: registers=1 registers=255\n// promise: registers=255 blocks=2 blocks=1\n"
    assert builds_of(loose)[0].promises == {"registers": 1, "blocks": 2}
    assert builds_of("// promise: blocks=2\n")[0].promises == {"blocks": 2}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("spils=0", "'spils=0' is no promise; Did you mean 'spills'?"),
        ("registers=many", "'registers=many' is no promise; write smem_bytes=N"),
        ("spills", "'spills' is no promise"),
    ],
)
def test_a_promise_that_is_none_names_its_line(line: str, said: str):
    with pytest.raises(CudaSourceError) as caught:
        builds_of(f"int x;\n// promise: {line}\n", "kernel.cu")
    assert caught.value.message.startswith(f"kernel.cu:2: {said}")
    assert (caught.value.file, caught.value.line) == ("kernel.cu", 2)


@pytest.mark.parametrize(
    ("promises", "blocks", "count"),
    [
        ({}, 1, 0),
        ({"registers": 168, "spills": 0, "warnings": 0, "blocks": 1, "smem_bytes": 9}, 1, 0),
        ({"registers": 167}, 1, 1),
        ({"blocks": 2}, 1, 1),
        ({"blocks": 2}, None, 0),
        ({"registers": 96, "blocks": 2}, 1, 2),
    ],
)
def test_what_breaks_a_promise(promises: dict[str, int], blocks: int | None, count: int):
    assert len(broken(promises, FOUND, blocks)) == count


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (
            {"block": [-31]},
            "f<64>: block [-31], smem_bytes 0 at D = 64: write a block of 1 to 1024",
        ),
        ({"block": [64, 17]}, "f<64>: block [64, 17], smem_bytes 0 at"),
        ({"block": ["cdiv(S, 0)"]}, "f<64>: cannot evaluate 'cdiv(S, 0)'"),
        ({"block": ["max(1)"]}, "f<64>: cannot evaluate 'max(1)'"),
        ({"smem_bytes": "0 - D"}, "f<64>: block [32], smem_bytes -64 at"),
    ],
)
def test_a_block_that_no_gpu_launches_is_its_author_s_to_mend(monkeypatch, tmp_path, numbers, said):
    (tmp_path / "k.cu").touch()
    monkeypatch.setattr(resources, "_compile_plain", lambda *_: ({}, []))
    kernel = {"name": "f<{D}>", "headdims": [64], "grid": [1], "block": [32], "args": ["q"]}
    with pytest.raises(CudaSourceError) as caught:
        resources.build(tmp_path, "k.cu", {"kernels": [{**kernel, **numbers}]}, None)
    assert caught.value.status == "INVALID_SUBMISSION"
    assert said in caught.value.message


@pytest.mark.parametrize("of", ["S", "B", "H", "SM"])
@pytest.mark.parametrize("what", ["block", "smem_bytes"])
def test_where_blocks_are_promised_a_launch_depends_on_the_head_dimension_alone(
    monkeypatch, tmp_path, of, what
):
    """It was asked at S = 4096 alone: a promise that every other length broke was told as kept."""
    monkeypatch.setattr(resources, "_compile_plain", lambda _: ({"f": "f"}, [report()]))
    kernel = {"name": "f", "headdims": [64], "grid": ["S"], "block": ["D"], "smem_bytes": "D"}
    wrong = {**kernel, what: [f"0 * {of} + 32"] if what == "block" else f"0 * {of}"}
    source = tmp_path / "k.cu"
    source.write_text("// promise: registers=255\n")
    assert resources.build(tmp_path, "k.cu", {"kernels": [wrong]}, tmp_path)
    source.write_text("// build: -DX=1\n// promise: blocks=1\n// build: -DX=2\n")
    assert resources.build(tmp_path, "k.cu", {"kernels": [kernel]}, tmp_path)
    with pytest.raises(CudaSourceError, match=f"cannot evaluate .*{of}.*blocks .* D alone") as told:
        resources.build(tmp_path, "k.cu", {"kernels": [kernel, wrong]}, tmp_path)
    assert told.value.status == "INVALID_SUBMISSION"


@pytest.mark.parametrize("other", ["z<64>", "m<1*64>"])
def test_what_two_programs_make_of_one_kernel_is_told_of_both(monkeypatch, tmp_path, other):
    """The last one's numbers stood for both: its author chose which, and a run launched the first.

    A template sees what another one of its program has instantiated.
    """
    said = "Compiling entry function '{0}' for 'sm_90a'\nUsed {1} registers\n"
    each = {
        "m<64>": ("m", said.format("m", 255)),
        other: (other[0], said.format("m", 20) + said.format("z", 24)),
        "v": ("v", said.format("z", 24)),  # a variable
    }
    (tmp_path / "k.cu").write_text("// promise: registers=40\n")

    def told(*names):
        made = (Program(tmp_path / "k.cu", {n: each[n][0]}, each[n][1], False) for n in names)
        monkeypatch.setattr(resources, "compile_source", lambda _: Compiled(tuple(made)))
        monkeypatch.setattr(resources, "kernels_of", lambda _: {"m": 128, "z": 128})
        base = {"headdims": [64], "grid": [1], "block": [32], "args": []}
        launch = {"kernels": [{"name": name, **base} for name in names]}
        return resources.build(tmp_path, "k.cu", launch, tmp_path, ["sm_90a"])

    found = {(one.name, one.registers): bool(one.broken) for one in told("m<64>", other)}
    assert found[("m<64>", 255)]
    assert not found[("z" if other[0] == "m" else other, 24)]
    assert len(told("m<64>", "m<64>")) == 1
    with pytest.raises(CudaSourceError, match="no compiler tells which kernel v is"):
        told("m<64>", "v")
