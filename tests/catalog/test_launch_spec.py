"""launch.yaml: kernels, their arguments and their compiler's flags."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog import compiler_flags
from harness.catalog.launch_spec import check_expression, parse_launch
from harness.worker.cuda.instances import evaluate
from harness.worker.cuda.nvrtc import CudaSourceError
from harness.worker.cuda.promises import builds_of
from tests.house import count

SIZES = {"B": 2, "H": 3, "S": 100, "D": 64, "SM": 132}
KERNEL = {
    "name": "f<{D}>",
    "headdims": [64],
    "grid": ["cdiv(S, 64)"],
    "block": [128],
    "args": ["q"],
}
REPOSITORY = Path(__file__).resolve().parents[2]


def spec(**changes):
    return {"kernels": [{**KERNEL, **changes}]}


def test_defaults_are_filled_in():
    kernel = parse_launch(spec(), "manifest.yaml").kernels[0]
    assert (kernel.causal, kernel.dtypes, kernel.smem_bytes) == ("both", ["fp16"], 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cdiv(S, 64) * B * H", 12),
        ("(64 + 4 * 32) * D * 2", 24576),
        ("min(SM, B * H)", 6),
        ("max(S % 64, -1) // 5", 7),
        (128, 128),
    ],
)
def test_checked_expressions_evaluate(text, value):
    assert evaluate(check_expression(text), SIZES) == value


@pytest.mark.parametrize(
    "text",
    ["S / 2", "__import__('os')", "S ** 2", "N", "S.bit_length()", "min(S, key=1)", "1.5", "[S]",
     "cdiv", "S(1)", "", "S if D else B", True, "'a' * 3", "S << 40"],
)  # fmt: skip
def test_anything_else_is_refused_by_both_sides(text):
    with pytest.raises(ValueError, match=r"."):
        check_expression(text)
    if isinstance(text, str):
        with pytest.raises(ValueError, match=r"."):
            evaluate(text, SIZES)


@pytest.mark.parametrize("text", ["1if 1else 2", "'\\d'"])
def test_what_is_refused_is_not_warned_of_too(text):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="is not allowed"):
            check_expression(text)
    assert not warned


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kernels": [{**KERNEL, "smem": 1}]}, "Did you mean 'smem_bytes'"),
        (spec(args=["q", "k.strides", "scale_log"]), "Did you mean 'scale_log2'"),
        (spec(args=["v_map"]), "unknown argument 'v_map'"),
        (spec(name="f<{D}>\n#define f g\n"), "a kernel's name is one line without #"),
        (spec(name="f<{D}> # g"), "a kernel's name is one line without #"),
        (spec(name="f<{Dim}>"), "unknown placeholder {Dim}; use {D}, {causal}, {dtype}"),
        (spec(grid=["S / 64"]), "launch.kernels.0.grid.0: 'S / 64': Div is not allowed"),
        (spec(causal=True), "launch.kernels.0.causal"),
        ({"kernels": []}, "launch.kernels"),
    ],
)
def test_mistakes_name_file_place_and_remedy(section, said):
    with pytest.raises(ValueError, match=r"docs/write-a-cuda-kernel\.md") as caught:
        parse_launch(section, "submissions/x/manifest.yaml")
    text = str(caught.value)
    assert said in text
    assert text.startswith("submissions/x/manifest.yaml: launch")


def test_a_tensor_map_is_an_argument():
    section = spec(args=["v_map"]) | {"tensor_maps": {"v_map": {"tensor": "v", "box": [64, "D"]}}}
    assert parse_launch(section, "m").tensor_maps["v_map"].swizzle == "none"


def every_launch_section():
    for folder in count.ours():
        launch = yaml.safe_load((folder / "manifest.yaml").read_text()).get("launch")
        if launch is not None:
            yield pytest.param(launch, id=folder.name)
        if (steps := folder / "steps" / "launch.yaml").is_file():
            for name, launch in yaml.safe_load(steps.read_text()).items():
                yield pytest.param(launch, id=f"{folder.name}/{name}")


@pytest.mark.parametrize("launch", list(every_launch_section()))
def test_every_section_in_the_house_is_valid(launch):
    assert parse_launch(launch, "here").kernels


def test_every_key_is_in_the_page():
    from harness.catalog.launch_spec import SCALARS, Kernel, LaunchSpec, TensorMap

    page = (REPOSITORY / "docs" / "write-a-cuda-kernel.md").read_text()
    for model in (LaunchSpec, Kernel, TensorMap):
        for key in model.model_fields:
            assert f"`{key}`" in page, key
    for name in SCALARS:
        assert f"`{name}`" in page, name


FINE = [
    "-DHEADDIM=64",
    "-DX=a b",
    "-DN",
    "--define-macro=T=unsigned int",
    "-UNDEBUG",
    "-Ikernels",
    "-Icsrc/include",
    "--use_fast_math",
    "-use_fast_math",
    "-maxrregcount=168",
    "--maxrregcount=96",
    "-O3",
    "-std=c++20",
    "--std=c++17",
    "-lineinfo",
    "--fmad=false",
    "--expt-relaxed-constexpr",
    "--diag-suppress=177",
    "-Xptxas=-v",
    "--ptxas-options=-O3",
    "-Xptxas=-dlcm=ca",
    "--extra-device-vectorization",
]
REFUSED = [
    "-ccbin",
    "-ccbin=./cc",
    "--compiler-bindir=./cc",
    "./cc",
    "--time=/tmp/x",
    "--fdevice-time-trace=x",
    "@flags.txt",
    "--options-file=f",
    "-optf",
    "-Xcompiler=-fplugin=./p.so",
    "-Xcompiler",
    "--compiler-options=-B.",
    "-Xlinker=-T",
    "-w",  # what is promised of warnings counts them
    "--disable-warnings",
    "-Xptxas=-w",
    "-Xptxas=-o,/tmp/x",
    "--ptxas-options=--input-as-string",
    "-o",
    "/tmp/x",
    "-I/etc",
    "-I../other",
    "-Ia/../..",
    "-I",
    "-DX=$(id)",
    "-DX=`id`",
    'X="',
    "-DX=a;b",
    "-DX=a\nb",
    "-include=/etc/passwd",
    "--pre-include=/etc/passwd",
    "-keep",
    "--keep-dir=/tmp",
    "-run",
    "-odir=/tmp",
    "--dryrun",
    "-arch=sm_80",
    "-x",
    "",
]


@pytest.mark.parametrize("flag", FINE)
def test_what_a_kernel_needs_is_allowed(flag: str) -> None:
    assert compiler_flags.refusal(flag) == ""


@pytest.mark.parametrize("flag", REFUSED)
def test_what_is_not_known_is_refused_and_the_list_is_told(flag: str) -> None:
    said = compiler_flags.refusal(flag)
    assert repr(flag) in said
    assert "-DNAME=VALUE" in said or "folder" in said


@given(st.text())
def test_nothing_that_a_shell_reads_and_no_way_out_comes_through(flag: str) -> None:
    if not compiler_flags.refusal(flag):
        assert not set(flag) & set("$`\"'\\;&|\n\0@~")
        assert flag.startswith("-")
        (placed,) = compiler_flags.placed([flag], Path("/folder"))
        if placed.startswith("-I"):
            assert Path(placed[2:]).is_relative_to("/folder")
            assert ".." not in Path(placed[2:]).parts


def test_folders_lie_below_the_submission_s() -> None:
    assert compiler_flags.placed(["-Ia/b", "-DI=1"], Path("/s")) == ["-I/s/a/b", "-DI=1"]


def test_a_refused_flag_of_a_manifest_names_its_line() -> None:
    kernel = {"name": "f", "headdims": [64], "grid": [1], "block": [1], "args": ["q"]}
    section = {"kernels": [kernel], "flags": ["-O3", "--time=/tmp/x"]}
    with pytest.raises(ValueError, match=r"m\.yaml:7: launch\.flags\.1: '--time=/tmp/x'"):
        parse_launch(section, "m.yaml", lambda part: 7 if part == ("flags", 1) else 0)


def test_a_refused_flag_of_a_build_line_names_its_line() -> None:
    with pytest.raises(CudaSourceError, match=r"k\.cu:2: '-ccbin'") as caught:
        builds_of("// build: -DN=1\n// build: -ccbin ./cc\n", "k.cu")
    assert (caught.value.file, caught.value.line) == ("k.cu", 2)
    with pytest.raises(CudaSourceError, match="No closing quotation"):
        builds_of("// build: -DN='1\n", "k.cu")
