"""Which flags reach a compiler: none that names a program, a file or more flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog import compiler_flags
from harness.catalog.launch_spec import parse_launch
from harness.worker.cuda.nvrtc import CudaSourceError
from harness.worker.cuda.promises import builds_of

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
