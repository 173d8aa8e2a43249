"""TMA descriptors of a launch: a tensor as (D, S, B * H), encoded once per address and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.worker.cuda.expression import evaluate
from harness.worker.cuda.nvrtc import CudaSourceError

_SWIZZLE = {"none": "NONE", "32B": "32B", "64B": "64B", "128B": "128B"}
_TYPE = {"fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32"}
_MAX_CACHED = 512


class TensorMaps:
    """The descriptors of one .cu file on one device, by name, address, shape and type."""

    def __init__(self, driver: Any, specs: Mapping[str, Mapping[str, Any]]) -> None:
        self.driver, self.specs = driver, specs
        self.cache: dict[Any, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.specs

    def tensor(self, name: str) -> int:
        """Which of q, k, v, o (0 to 3) the descriptor `name` describes."""
        return "qkvo".index(self.specs[name]["tensor"])

    def find(
        self, name: str, address: int, shape: tuple[int, ...], dtype: str, sizes: Mapping[str, int]
    ) -> tuple[Any, Any]:
        """(error of the driver or 0, descriptor) of a contiguous (B, H, S, D) tensor."""
        key = (name, address, shape, dtype)
        if key in self.cache:
            return 0, self.cache[key]
        if len(self.cache) >= _MAX_CACHED:
            self.cache.clear()
        error, made = self._encode(name, address, shape, dtype, sizes)
        if not int(error):
            self.cache[key] = made
        return error, made

    def box(self, name: str, sizes: Mapping[str, int]) -> list[int]:
        """Elements of D, then rows of S, that one copy moves."""
        return [evaluate(extent, sizes) for extent in self.specs[name]["box"]]

    def _encode(
        self, name: str, address: int, shape: tuple[int, ...], dtype: str, sizes: Mapping[str, int]
    ) -> tuple[Any, Any]:
        cu = self.driver
        batch, heads, seqlen, headdim = shape
        row_bytes = headdim * (4 if dtype == "fp32" else 2)
        types, swizzles = cu.CUtensorMapDataType, cu.CUtensorMapSwizzle
        error, made = cu.cuTensorMapEncodeTiled(
            getattr(types, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPE[dtype]}"),
            3,
            address,
            [cu.cuuint64_t(n) for n in (headdim, seqlen, batch * heads)],
            [cu.cuuint64_t(n) for n in (row_bytes, row_bytes * seqlen)],
            [cu.cuuint32_t(n) for n in (*self.box(name, sizes), 1)],
            [cu.cuuint32_t(1)] * 3,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLE[self.specs[name]['swizzle']]}"),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return error, made


def require_contiguous(name: str, contiguous: bool) -> None:
    """Raise UNSUPPORTED unless the tensors of a call with the descriptor `name` are contiguous."""
    if not contiguous:
        raise CudaSourceError("UNSUPPORTED", f"tensor map {name}: tensors must be contiguous")
