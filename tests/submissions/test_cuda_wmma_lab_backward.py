"""cuda_wmma_lab_backward, its very source compiled for the CPU, against float64. No GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from harness.problems import attention_backward_tensors as tensors  # noqa: E402
from harness.schema import Case  # noqa: E402

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "submissions" / "cuda_wmma_lab_backward"
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
def test_the_source_computes_the_gradients(tmp_path, headdim, seqlen, causal, scale):
    (tmp_path / "kernel.inc").write_text(for_cpu((FOLDER / "kernel.cu").read_text()))
    program = tmp_path / "program"
    flags = ["-O2", "-std=c++17", "-w", f"-DHEADDIM={headdim}", f"-I{HERE}"]
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
    told = re.search(r"def smem_bytes.*?(?=\n\n\n)", (FOLDER / "submission.py").read_text(), re.S)
    scope = {"ROWS": 64, "WARPS": 4}
    exec(told[0], scope)
    assert scope["smem_bytes"](headdim) == int(done.stderr)  # sizeof(Shared)
