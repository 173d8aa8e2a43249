"""Kernels launched from a manifest, and what their errors say."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.worker.cuda import launch as cuda_launch
from harness.worker.cuda.instances import with_defaults
from harness.worker.cuda.launch import Device, Launch
from harness.worker.cuda.nvrtc import Compiled, CudaSourceError, Program, Source
from harness.worker.load import describe

# ruff: noqa: N802  (the names are the driver's)

KERNEL = {"name": "f<{D}>", "headdims": [64], "grid": ["cdiv(S, 64) * B * H"], "block": [128]}
MAPS = {name: {"tensor": name[0], "box": [64, 64]} for name in ("q_map", "k_map", "v_map")}


class Names:
    """Any enumeration: every member is its own name."""

    def __getattr__(self, name: str) -> str:
        return name


class TensorMap:
    """128 bytes at an address that is wrong once the object is gone."""

    def __init__(self, address: int) -> None:
        self.memory = ctypes.create_string_buffer(struct.pack("Q", address), 128)

    def getPtr(self) -> int:
        return ctypes.addressof(self.memory)

    def __del__(self) -> None:
        ctypes.memset(self.memory, 0xFF, 128)


class Driver:
    """As much of cuda.bindings.driver as a launch uses."""

    def __init__(self) -> None:
        self.launched: list[tuple] = []
        self.reads: list[int] = []  # bytes of each parameter, set by the test
        for enum in ("CUdevice_attribute", "CUfunction_attribute", "CUtensorMapDataType",
                     "CUtensorMapSwizzle", "CUtensorMapInterleave", "CUtensorMapL2promotion",
                     "CUtensorMapFloatOOBfill"):  # fmt: skip
            setattr(self, enum, Names())
        self.cuuint32_t = self.cuuint64_t = int

    def cuCtxGetDevice(self):
        return 0, 0

    def cuDeviceGetAttribute(self, name, device):
        return 0, {"MAJOR": 9, "MINOR": 0, "COUNT": 132}.get(name.rsplit("_", 1)[-1], 232448)

    def cuModuleLoadData(self, cubin):
        return 0, cubin

    def cuModuleGetFunction(self, module, symbol):
        return 0, (module, symbol)

    def cuFuncGetAttribute(self, attribute, function):
        return 0, 16

    def cuFuncSetAttribute(self, function, attribute, value):
        return (0,)

    def cuTensorMapEncodeTiled(self, dtype, rank, address, *rest):
        return 0, TensorMap(address)

    def cuLaunchKernel(self, function, *rest):
        pointers = ctypes.cast(rest[-2], ctypes.POINTER(ctypes.c_void_p))
        cells = [ctypes.string_at(pointers[i], size) for i, size in enumerate(self.reads)]
        self.launched.append((function, rest[:-2], cells))
        return (0,)


class Tensor:
    """Shape, strides and type of a (B, H, S, D) tensor."""

    dtype = "torch.float16"

    def __init__(self, *shape: int, stride: tuple[int, ...] | None = None) -> None:
        self.shape = shape
        _, h, s, d = shape
        self._stride = stride or (h * s * d, s * d, d, 1)

    def stride(self) -> tuple[int, ...]:
        return self._stride


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    fake = Driver()
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(b"cubin")
    program = Program(cubin, {"f<64>": "_Z1f"}, "", cached=True)
    monkeypatch.setattr(cuda_launch, "bindings", lambda _: fake)
    monkeypatch.setattr(cuda_launch, "compile_source", lambda *_: Compiled((program,)))
    return fake


def launch_with(args: list, tensor: Tensor, scale: float = 0.5, **section) -> Launch:
    launch = with_defaults({"kernels": [{**KERNEL, "args": args}], **section})
    device = Device(Source(Path(), "kernel.cu", launch, "sm_90a", Path()))
    return Launch(device, tensor, tensor, tensor, True, scale)


def test_every_argument_has_its_c_type(driver: Driver) -> None:
    args = [
        "q",
        "o",
        "S",
        "scale_log2",
        "causal",
        "k.stride_h",
        {"i64": "S // 2"},
        {"i32": "B * H"},
    ]
    launch = launch_with(args, Tensor(2, 3, 100, 64))
    driver.reads = [8, 8, 4, 4, 4, 8, 8, 4]
    launch((11, 12, 13, 14), stream=77)
    ((function, shape, cells),) = driver.launched
    assert function == (b"cubin", b"_Z1f")
    assert shape == (12, 1, 1, 128, 1, 1, 0, 77)
    told = [struct.unpack(code, cell)[0] for code, cell in zip("QQifiqqi", cells, strict=True)]
    assert told == [11, 14, 100, pytest.approx(0.5 * 1.44269504), 1, 6400, 50, 6]


def test_a_launch_holds_its_descriptors_until_they_are_copied(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_launch, "_MAX_CACHED", 2)
    launch = launch_with(list(MAPS), Tensor(1, 1, 64, 64), tensor_maps=MAPS)
    driver.reads = [8, 8, 8]
    for start in (100, 200, 100):
        launch((start, start + 1, start + 2, 0), stream=0)
    seen = [[struct.unpack("Q", cell)[0] for cell in cells] for _, _, cells in driver.launched]
    assert seen == [[100, 101, 102], [200, 201, 202], [100, 101, 102]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"smem_bytes": 232448}, "needs 232464 bytes of shared memory (16 static, 232448 dynamic)"),
        ({"headdims": [128]}, "no kernel of the manifest serves headdim 64, causal True, fp16"),
        ({"dtypes": ["bf16"]}, "no kernel of the manifest serves headdim 64"),
    ],
)
def test_what_cannot_be_launched_is_unsupported(driver: Driver, change: dict, said: str) -> None:
    kernels = [{**KERNEL, "args": ["q"], **change}]
    with pytest.raises(CudaSourceError) as caught:
        launch_with(["q"], Tensor(1, 1, 64, 64), kernels=kernels)
    assert said in caught.value.message
    assert caught.value.status == "UNSUPPORTED"


def test_a_descriptor_wants_contiguous_tensors(driver: Driver) -> None:
    tensor = Tensor(1, 2, 64, 64, stride=(8192, 64, 128, 1))
    launch = launch_with(["q_map"], tensor, tensor_maps=MAPS)
    with pytest.raises(CudaSourceError, match="tensors must be contiguous"):
        launch((1, 2, 3, 4), stream=0)


ROOT = Path(__file__).resolve().parents[2]
KERNELS = '''\
import triton
import triton.language as tl

@triton.jit
def helper(x):
    y = x + 1
    return tl.maxx(y)

@triton.jit
def nested(p, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(p + at, helper(tl.load(p + at)))

@triton.jit
def direct(p, N: tl.constexpr):
    """A kernel longer than what an error shows of it."""
    at = tl.arange(0, N)
    x = tl.load(p + at)
    tl.store(p + at, x.nothing)

def custom_attention_forward(kernel):
    globals()[kernel][(1,)](torch.ones(16), 16)
'''
CHILD = """\
import json, os, sys
from pathlib import Path
import torch
from harness.worker.load import describe
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
for how in ("interpreted", "compiled"):
    if os.fork():
        os.wait()
        continue
    os.environ["TRITON_INTERPRET"] = "1" if how == "interpreted" else "0"
    import submission
    submission.torch = torch
    for name in ("nested", "direct"):
        try:
            if how == "interpreted":
                submission.custom_attention_forward(name)
            else:
                import triton
                from triton.backends.compiler import GPUTarget
                source = triton.compiler.ASTSource(
                    getattr(submission, name), {"p": "*fp32", "N": "constexpr"}, {(1,): 16}
                )
                triton.compile(source, target=GPUTarget("cuda", 90, 32))
        except Exception as error:
            print(json.dumps([how, name, describe(error, folder)]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What is told of each kernel, interpreted and compiled; one child, which imports torch once."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "submission.py").write_text(KERNELS)
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    told = map(json.loads, done.stdout.splitlines())
    return {(how, name): words for how, name, words in told}


@pytest.mark.parametrize("how", ["interpreted", "compiled"])
@pytest.mark.parametrize(
    ("name", "line", "says"),
    [
        ("nested", 7, "module 'triton.language' has no attribute 'maxx'"),
        ("direct", 19, "'tensor' object has no attribute 'nothing'"),
    ],
)
def test_an_error_inside_a_kernel_names_its_line(
    errors: dict[tuple[str, str], str], how: str, name: str, line: int, says: str
) -> None:
    told = errors[how, name]
    assert told.startswith(f"submission.py:{line}: "), told
    assert says in told.splitlines()[0]  # what is wrong comes before the source


def raised(source: str, folder: Path) -> BaseException:
    path = folder / "submission.py"
    path.write_text(source)
    try:
        exec(compile(source, str(path), "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing raised")


def test_the_last_frame_of_the_submission(tmp_path: Path) -> None:
    error = raised("import json\ndef f():\n    json.loads('{')\nf()\n", tmp_path)
    assert describe(error, tmp_path).startswith("submission.py:3: JSONDecodeError: Expecting")


def test_what_an_author_raises_from_another_is_told_as_raised(tmp_path: Path) -> None:
    source = (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('mine') from e\n"
    )
    assert describe(raised(source, tmp_path), tmp_path) == "submission.py:4: ValueError: mine"


def test_a_folder_called_like_a_source_hides_no_place(tmp_path: Path) -> None:
    (tmp_path / "a.py").mkdir()
    (tmp_path / "submission.py").write_text("\ndef k(): pass\n")
    error: Any = KeyError("x")  # as Triton's compiler says where it is
    error.src, error.node = "def k(): pass", SimpleNamespace(lineno=1)
    assert describe(error, tmp_path).startswith("submission.py:2: ")


def test_what_happens_elsewhere_has_no_place(tmp_path: Path) -> None:
    assert describe(KeyError(65), tmp_path) == "KeyError: 65"
