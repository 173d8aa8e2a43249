"""`pip install --no-build-isolation ./submissions/cuda_fa2_tile64` builds the extension once.

It needs the torch it will run with (hence no build isolation) and nvcc. TORCH_CUDA_ARCH_LIST picks
the architectures; the default is 8.0 and 9.0.
"""

import hashlib
import os
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

SOURCES = ["csrc/binding.cpp", "csrc/fa2_tile64.cu", "csrc/fa2_fp32.cu"]
FOLDER = Path(__file__).resolve().parent

os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0")
sha = hashlib.sha256(b"".join((FOLDER / source).read_bytes() for source in SOURCES)).hexdigest()
setup(
    packages=["cuda_fa2_tile64"],
    package_dir={"cuda_fa2_tile64": "package"},
    ext_modules=[
        CUDAExtension(
            name="cuda_fa2_tile64._C",
            sources=SOURCES,
            extra_compile_args={
                "cxx": ["-O2", f'-DFA2_SOURCE_SHA="{sha}"'],
                "nvcc": ["-O3", "-lineinfo"],
            },
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
