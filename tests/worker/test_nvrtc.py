"""From a .cu to cubins: NVRTC, its cache, and the builder that fills it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.catalog.launch_spec import parse_launch
from harness.process.messages import BuilderReply, understood
from harness.schema import Manifest
from harness.worker import build_main as builder
from harness.worker.cuda import nvrtc
from harness.worker.cuda.instances import instances, with_defaults
from harness.worker.cuda.nvrtc import Compiled, CudaSourceError, Program, Source, compile_source

GOOD = 'extern "C" __global__ void f(float* q) {\n  q[0] = 1.0f;\n}\n'


def nvrtc_missing():
    try:
        nvrtc.bindings("nvrtc").nvrtcVersion()
    except (CudaSourceError, RuntimeError) as error:  # no package, or no library behind it
        return str(error)
    return ""


MISSING = nvrtc_missing() if importlib.util.find_spec("cuda") else "cuda-bindings is not installed"
needs_nvrtc = pytest.mark.skipif(bool(MISSING), reason=f"no NVRTC: {MISSING}")


def launch_of(name="f", args=("q",), **changes):
    kernel = {"name": name, "headdims": [64], "grid": [1], "block": [1], "args": list(args)}
    return parse_launch({"kernels": [{**kernel, **changes}]}, "manifest.yaml").model_dump()


def compile_text(text, tmp_path, arch="sm_90a", **kernel):
    (tmp_path / "kernel.cu").write_text(text)
    return compile_source(
        Source(tmp_path, "kernel.cu", launch_of(**kernel), arch, tmp_path / "cache")
    )


def test_instances_fill_in_the_placeholders():
    launch = launch_of(name="f<{D}, {causal}, {dtype}>", headdims=[64, 128], dtypes=["bf16"])
    assert [name for name, _, _ in instances(launch)] == [
        "f<64, true, __nv_bfloat16>",
        "f<64, false, __nv_bfloat16>",
        "f<128, true, __nv_bfloat16>",
        "f<128, false, __nv_bfloat16>",
    ]


def test_a_section_as_written_means_the_same_as_a_filled_in_one():
    raw = {
        "kernels": [{"name": "f<{D}>", "headdims": [64], "grid": [1], "block": [1], "args": ["q"]}]
    }
    raw["tensor_maps"] = {"m": {"tensor": "q", "box": [64, 64]}}
    assert with_defaults(raw) == parse_launch(raw, "manifest.yaml").model_dump()


def test_one_mask_gives_one_instance():
    assert len(list(instances(launch_of(causal="true")))) == 1


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a")]
)
def test_arch_name(capability, name):
    assert nvrtc.arch_name(*capability) == name


def test_an_nvrtc_log_becomes_a_place_and_a_trimmed_text():
    log = 'ptxas info : noise\nkernel.cu(7): error: expected a ";"\n' + "context\n" * 50
    error = nvrtc.compile_error(log, "kernel.cu")
    assert (error.status, error.file, error.line) == ("COMPILE_ERROR", "kernel.cu", 7)
    assert error.message.startswith("kernel.cu(7): error")
    assert error.message.endswith("more lines")
    assert len(error.message.splitlines()) == nvrtc.MAX_MESSAGE_LINES + 1


@pytest.mark.parametrize(
    "said",
    ["inc/n.h:4:10: fatal error: x.h: No such file", "inc/n.h:4: error: y", "inc/n.h(4): error"],
)
def test_the_host_s_compiler_names_a_place_too(said):
    error = nvrtc.compile_error(f"In file included from kernel.cu:2:\n{said}\n", "kernel.cu")
    assert (error.file, error.line, error.message) == ("inc/n.h", 4, said)


def test_missing_bindings_say_what_to_install(monkeypatch):
    def refuse(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(nvrtc.importlib, "import_module", refuse)
    with pytest.raises(CudaSourceError, match="pip install cuda-bindings") as caught:
        nvrtc.bindings("nvrtc")
    assert caught.value.status == "UNAVAILABLE"


def cached(compiled):
    """Of each program whether nothing was compiled."""
    return [program.cached for program in compiled.programs]


@needs_nvrtc
def test_the_second_build_compiles_nothing(tmp_path):
    first = compile_text(GOOD, tmp_path)
    again = compile_text(GOOD, tmp_path)
    assert (cached(first), cached(again)) == ([False], [True])
    assert again.holding("f").cubin.read_bytes()[:4] == b"\x7fELF"
    assert again.symbols == {"f": "f"}
    assert "Used" in again.programs[0].log


@needs_nvrtc
@pytest.mark.parametrize("change", ["source", "flags", "arch", "header"])
def test_whatever_matters_is_in_the_key(tmp_path, change):
    (tmp_path / "own.cuh").write_text("#define ONE 1\n")
    first = compile_text('#include "own.cuh"\n' + GOOD, tmp_path)
    launch, arch = launch_of(), "sm_90a"
    if change == "source":
        (tmp_path / "kernel.cu").write_text('#include "own.cuh"\n' + GOOD.replace("1.0f", "2.0f"))
    elif change == "flags":
        launch["flags"] = ["-DX=1"]
    elif change == "arch":
        arch = "sm_80"
    else:
        (tmp_path / "own.cuh").write_text("#define ONE 2\n")
    second = compile_source(Source(tmp_path, "kernel.cu", launch, arch, tmp_path / "cache"))
    assert cached(second) == [False]
    assert second.holding("f").cubin != first.holding("f").cubin


def test_a_folder_called_like_a_header_is_in_no_key(tmp_path):
    (tmp_path / "inc.h").mkdir()
    (tmp_path / "kernel.cu").write_text(GOOD)
    assert nvrtc._digest_of(Source(tmp_path, "kernel.cu", {}, "sm_90a", tmp_path))


@needs_nvrtc
def test_templates_and_cuda_headers(tmp_path):
    text = (
        "#include <cuda.h>\n#include <cuda_fp16.h>\n#include <cstdint>\n"
        "template <int D, bool C> __global__ void f(const __grid_constant__ CUtensorMap map,\n"
        "    __half* q, uint32_t n) { if (C) q[n] = __float2half(D); }\n"
    )
    compiled = compile_text(text, tmp_path, name="f<{D}, {causal}>")
    assert set(compiled.symbols) == {"f<64, true>", "f<64, false>"}
    assert compiled.symbols["f<64, true>"].startswith("_Z1fILi64ELb1E")


TEMPLATE = "template <int D> __global__ void f(float* q) { q[0] = D; }\n"


@needs_nvrtc
def test_each_instance_of_a_template_is_a_program(tmp_path):
    compiled = compile_text(TEMPLATE, tmp_path, name="f<{D}>", headdims=[64, 128])
    assert len(compiled.programs) == 2
    assert compiled.holding("f<64>").cubin != compiled.holding("f<128>").cubin
    assert all("Compiling entry function" in each.log for each in compiled.programs)
    more = compile_text(TEMPLATE, tmp_path, name="f<{D}>", headdims=[64, 128, 256])
    assert cached(more) == [True, False, True]  # 128, 256, 64


@needs_nvrtc
def test_kernels_that_are_no_templates_are_compiled_once(tmp_path):
    text = GOOD + GOOD.replace("f(", "g(") + TEMPLATE.replace("f(", "h(")
    (tmp_path / "kernel.cu").write_text(text)
    kernels = [launch_of(name=name)["kernels"][0] for name in ("f", "g", "h<{D}>")]
    launch = {**launch_of(), "kernels": kernels}
    compiled = compile_source(Source(tmp_path, "kernel.cu", launch, "sm_90a", tmp_path / "cache"))
    assert len(compiled.programs) == 1
    assert set(compiled.symbols) == {"f", "g", "h<64>"}


@needs_nvrtc
@pytest.mark.parametrize(
    ("text", "kernel", "status", "line", "said"),
    [
        (GOOD.replace("1.0f;", "1.0f"), {}, "COMPILE_ERROR", 3, 'expected a ";"'),
        (GOOD, {"name": "g"}, "COMPILE_ERROR", 0, "kernel.cu has no kernel 'g'"),
        ('#include "nope.cuh"\n' + GOOD, {}, "COMPILE_ERROR", 1, "cannot open source file"),
        (
            GOOD.replace("q[0]", "__shared__ float x[99999]; x[threadIdx.x] = q[0]; q[0]")
            .replace("1.0f", "x[q[1] > 0]"),
            {}, "COMPILE_ERROR", 0, "too much shared data",
        ),
        (
            GOOD.replace("q[0]", 'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); q[0]'),
            {"arch": "sm_80"}, "UNSUPPORTED", 0, "sm_80",
        ),
    ],
    ids=["syntax", "missing kernel", "missing header", "shared memory", "architecture"],
)  # fmt: skip
def test_errors_keep_the_compilers_words(tmp_path, text, kernel, status, line, said):
    with pytest.raises(CudaSourceError) as caught:
        compile_text(text, tmp_path, **kernel)
    error = caught.value
    assert (error.status, error.line) == (status, line)
    assert said in error.message
    assert error.file == "kernel.cu"


@needs_nvrtc
def test_a_failed_build_leaves_nothing_in_the_cache(tmp_path):
    with pytest.raises(CudaSourceError):
        compile_text("nonsense", tmp_path)
    assert not list((tmp_path / "cache").rglob("*"))


@needs_nvrtc
def test_the_record_beside_the_cubin_is_readable(tmp_path):
    compiled = compile_text(GOOD, tmp_path)
    record = json.loads((compiled.holding("f").cubin.parent / "build.json").read_text())
    assert (record["arch"], record["symbols"]) == ("sm_90a", {"f": "f"})


def test_a_missing_file_is_named(tmp_path):
    if MISSING:
        pytest.skip(f"no NVRTC: {MISSING}")
    with pytest.raises(CudaSourceError, match=r"cannot read kernel\.cu"):
        compile_source(
            Source(tmp_path, "kernel.cu", launch_of(), "sm_90a", Path(tmp_path) / "cache")
        )


ROOT = Path(__file__).resolve().parents[2]
# the builder has one thread; a test runner may have more, which Python 3.12 minds at a fork
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
KERNEL = {"name": "f", "headdims": [64], "grid": [1], "block": [1], "args": ["q"]}
MANIFEST = Manifest(name="mine", entry="kernel.cu", launch={"kernels": [KERNEL]}).model_dump()


def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, manifest=MANIFEST):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATTNBOARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kernel.cu").write_text(text)
    told = builder.build(tmp_path, manifest, "9.0/132")
    if "libnvrtc" in told.get("message", ""):
        pytest.skip("no NVRTC library here")
    return told


def test_a_good_file_is_built_into_the_cache(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, 'extern "C" __global__ void f(float* q) { q[0] = 1; }')
    assert told["op"] == "built"
    assert len(list((tmp_path / "cache").rglob("kernel.cubin"))) == 1


def test_a_bad_file_is_answered_in_the_compiler_s_words(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, "\n\nvoid f(float* q) { q[0] = }")
    assert (told["op"], told["status"]) == ("failed", "COMPILE_ERROR")
    assert "kernel.cu(3): error" in told["message"]


SLOWER_TEMPLATE = (
    "template <int D> __global__ void f(float* q) { static_assert(D < 256); q[0] = D; }"
)


def of_headdims(*headdims: int) -> dict[str, object]:
    kernel = {**KERNEL, "name": "f<{D}>", "headdims": list(headdims)}
    return {**MANIFEST, "launch": {"kernels": [kernel]}}


def test_every_instance_has_its_seconds(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, SLOWER_TEMPLATE, manifest=of_headdims(64, 128))
    assert told["op"] == "built"
    assert set(told["steps"]) == {"NVRTC loaded", "f<64>", "f<128>"}
    assert told["steps"]["f<64>"] > 0


def test_one_bad_instance_among_good_ones_is_told(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, SLOWER_TEMPLATE, manifest=of_headdims(64, 128, 256))
    assert (told["op"], told["status"]) == ("failed", "COMPILE_ERROR")
    assert "static assertion failed" in told["message"]
    assert len(list((tmp_path / "cache").rglob("kernel.cubin"))) == 2


def test_what_a_builder_tells_of_its_steps_fits_into_a_message(tmp_path, monkeypatch):
    programs = [Program(tmp_path, {"f" * 300 + str(n): ""}, "", True, 1.0) for n in range(99)]
    monkeypatch.setattr(builder, "compile_apart", lambda *_: Compiled(tuple(programs)))
    told = understood(answer(tmp_path, monkeypatch, "//"), BuilderReply)
    assert told.op == "built"


def test_it_compiles_for_a_gpu_that_is_not_here(tmp_path, monkeypatch):
    answer(tmp_path, monkeypatch, 'extern "C" __global__ void f(float* q) { q[0] = 1; }')
    assert builder.build(tmp_path, MANIFEST, "8.0/108")["op"] == "built"
    records = (tmp_path / "cache").rglob("build.json")
    assert {json.loads(path.read_text())["arch"] for path in records} == {"sm_90a", "sm_80"}


def test_it_imports_neither_torch_nor_pydantic():
    code = "import sys, harness.worker.build_main; sys.exit(bool({'torch', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
