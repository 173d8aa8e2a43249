"""cuda_hopper: its shapes and its source on any machine, its numbers on a Hopper GPU (marker `gpu`)."""

import ctypes
import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from hopper_on_cpu import forward as on_cpu_forward
from hopper_on_cpu import have_compiler
from hopper_on_cpu.forward import Case, Forward

from harness.worker.cuda.promises import builds_of

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "submissions" / "cuda_hopper"
SMEM_LIMIT_BYTES = 227 << 10
LIMITS = {False: (1e-3, 2e-3), True: (5e-3, 1e-2)}  # the gate's: whole and worst row, fp16 and bf16
HEADDIMS = (64, 128, 256)
BUILDS = [(64, False), (128, False), (128, True), (256, False)]


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The submission's module, compiling into a folder of this test run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNBOARD_CACHE", str(tmp_path_factory.mktemp("cubins")))
        spec = importlib.util.spec_from_file_location("cuda_hopper", FOLDER / "submission.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "cuda_hopper", module)
        spec.loader.exec_module(module)
        yield module


# ---------------------------------------------------------------------- without a GPU
def test_every_claimed_headdim_has_a_shape(submission: ModuleType) -> None:
    claims = yaml.safe_load((FOLDER / "manifest.yaml").read_text())["claims"]
    assert sorted(claims["headdims"]) == submission.HEADDIMS == list(HEADDIMS)
    for headdim in HEADDIMS:
        for causal in (True, False):
            for seqlen_k in (100, 300):
                assert submission._build(headdim, causal, 100, seqlen_k) in submission.SHAPES


def test_a_chunk_over_a_long_cache_takes_the_tile_of_even_items(submission: ModuleType) -> None:
    for seqlen_q, seqlen_k, even in ((512, 8192, True), (512, 1024, True), (512, 1023, False)):
        assert submission._build(128, True, seqlen_q, seqlen_k) == (128, even)
    assert submission._build(64, True, 512, 8192) == (64, False)  # it has one tile


@pytest.mark.parametrize("build", BUILDS)
def test_shared_memory_fits_and_holds_every_tile(
    submission: ModuleType, build: tuple[int, bool]
) -> None:
    headdim, shape = build[0], submission.SHAPES[build]
    q = shape.q_stages * shape.block_m * headdim * 2
    kv = (shape.k_stages + shape.v_stages) * shape.block_n * headdim * 2
    assert q + kv < shape.smem_bytes(headdim) <= SMEM_LIMIT_BYTES


@pytest.mark.parametrize("build", BUILDS)
def test_tiles_keep_the_swizzle_aligned(submission: ModuleType, build: tuple[int, bool]) -> None:
    shape = submission.SHAPES[build]
    assert shape.block_n % 16 == 0  # one wgmma of PV takes 16 kv rows
    assert shape.block_n * 128 % 1024 == 0  # a 128-byte swizzled panel starts at a 1024-byte line


def test_the_build_report_compiles_what_is_launched(submission: ModuleType) -> None:
    source = (FOLDER / "kernels" / "attention.cu").read_text()
    builds = {build.flags: build for build in builds_of(source)}
    assert len(builds) == 4 * len(submission.SHAPES)
    for (headdim, full_only), shape in submission.SHAPES.items():
        flags = (f"-DHEADDIM={headdim}", *(["-DFULL_ONLY=1"] if full_only else []))
        for packed in (False, True):
            more = ("-DPACKED=1",) if packed else ()
            for one in (builds[(*flags, *more)], builds[(*flags, *more, "-DBF16=1")]):
                assert one.promises["smem_bytes"] == shape.smem_bytes(headdim, packed)


def test_the_host_knows_the_kernel_s_shapes(submission: ModuleType) -> None:
    source = (FOLDER / "kernels" / "attention.cu").read_text()
    shape = (
        r"struct Shape<(\d+), (\w+)> \{.*?"
        r"N = (\d+), WGS = (\d+), SK = (\d+), SV = (\d+), SQ = (\d+),"
    )
    in_kernel = {
        (int(headdim), full == "true"): tuple(map(int, sizes))
        for headdim, full, *sizes in re.findall(shape, source, re.S)
    }
    assert {build: tuple(shape) for build, shape in submission.SHAPES.items()} == in_kernel


def test_the_problem_is_the_kernel_s_field_by_field(submission: ModuleType) -> None:
    source = (FOLDER / "kernels" / "attention.cu").read_text()
    body = re.sub(r"//.*", "", re.search(r"struct Problem \{(.*?)\};", source, re.S).group(1))
    c_types = {"int": ctypes.c_int, "float": ctypes.c_float, "uint64_t": ctypes.c_uint64}
    c_types["Divisor"] = submission.Divisor
    body = body.replace("const ", "")
    in_kernel = []
    for declaration in filter(str.strip, body.split(";")):
        c_type, names = declaration.strip().split(" ", 1)
        in_kernel += [
            (name.strip(), c_types.get(c_type, ctypes.c_void_p)) for name in names.split(",")
        ]
    assert submission.Problem._fields_ == in_kernel
    on_cpu = [(name, getattr(c_type, "_fields_", c_type)) for name, c_type in on_cpu_forward.Problem._fields_]  # fmt: skip
    assert on_cpu == [(name, getattr(c_type, "_fields_", c_type)) for name, c_type in in_kernel]


@pytest.mark.parametrize("d", [1, 2, 3, 5, 7, 12, 31, 64, 65, 127, 40961, 65535, 65536])
def test_a_division_by_multiplying_is_exact(submission: ModuleType, d: int) -> None:
    by, last = submission.Divisor.of(d), (1 << 31) - 1
    assert by.times == -(-(1 << by.shift) // d)  # it fits 32 bits
    multiples = [last // d * d, last // d // 2 * d, d, 2 * d]
    for n in [0, 1, last, *multiples, *(n - 1 for n in multiples)]:
        assert n * by.times >> by.shift == n // d


def test_the_last_rung_s_shapes_are_the_kernel_s() -> None:
    def shapes(path: Path) -> str:
        return re.search(r"template <int D, bool FULL> struct Shape;.*?\n\};\n(?=\n|// counter)", path.read_text(), re.S).group()  # fmt: skip

    rung, kernel = FOLDER / "steps" / "12_every_length.cu", FOLDER / "kernels" / "attention.cu"
    assert shapes(kernel) == shapes(rung)


def test_bad_input_names_the_tensor(submission: ModuleType) -> None:
    q = torch.zeros(1, 1, 16, 64)
    with pytest.raises(ValueError, match=r"q is .*float32 on cpu; wanted three fp16 or bf16 CUDA"):
        submission.custom_attention_forward(q, q, q)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 1, 1 << 30, 64), f"seqlen {1 << 30}; it takes at most {(1 << 30) - 1024}"),
        ((1 << 14, 1 << 16, 64, 128), "16384 x 65536 heads of 64 rows .*; split the batch in 2"),
        ((1 << 16, 1, 64, 128), "65536 x 1 heads of 64 rows .*; split the batch in 3"),
        ((1, 65537, 64, 128), "65537 heads; it takes at most 65536"),
        ((1, 1, 64, 96), "headdim 96; it is built for"),
    ],
)
def test_what_it_cannot_count_is_refused(submission: ModuleType, shape: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        submission._check_size(shape, 64, causal=True)
    submission._check_size((1, 1, (1 << 30) - 1024, 64), (1 << 30) - 1024, causal=True)
    submission._check_size(((1 << 15) - 1, 2, 64, 64), 64, causal=True)


@pytest.mark.parametrize(
    ("q", "k", "causal", "says"),
    [
        ((1, 6, 8, 64), (1, 4, 8, 64), True, "6 query heads over 4 kv heads; wanted a multiple"),
        ((1, 6, 8, 64), (1, 0, 8, 64), True, "6 query heads over 0 kv heads"),
        ((1, 6, 9, 64), (1, 6, 8, 64), True, "9 queries over 8 keys, causal: some query would see"),
        ((1, 6, 9, 64), (1, 6, 0, 64), False, "9 queries over 0 keys: some query would see no key"),
    ],
)
def test_rows_without_keys_and_heads_without_partners_are_refused(
    submission: ModuleType, q: tuple, k: tuple, causal: bool, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        submission._check_heads(q, k, causal)
    submission._check_heads((1, 6, 9, 64), (1, 2, 8, 64), causal=False)


def packing(q: object = None, k: object = None, longest: int = 5) -> dict[str, object]:
    """The keywords of three sequences, or of what is given."""
    begin = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    q, k = (begin if given is None else given for given in (q, k))
    return {
        "cu_seqlens_q": q, "cu_seqlens_k": k, "max_seqlen_q": longest, "max_seqlen_k": longest,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "packed", "says"),
    [
        ((2, 2, 9, 64), packing(), "batch 2; packed sequences are one row of tokens, batch 1"),
        ((1, 2, 9, 64), {"cu_seqlens_q": 0}, r"keywords \['cu_seqlens_q'\]; packed sequences need"),
        ((1, 2, 9, 64), packing(torch.zeros(4)), r"cu_seqlens_q is \(4,\) torch.float32 on cpu"),
        (
            (1, 2, 9, 64),
            packing(k=torch.zeros(3).int()),
            r"cu_seqlens_k is \(3,\) .*two of one len",
        ),
        (
            (1, 2, 9, 64),
            packing(*[torch.zeros(1).int()] * 2),
            r"cu_seqlens_q is \(1,\) torch.int32",
        ),
    ],
)
def test_what_packed_sequences_lack_is_named(
    submission: ModuleType, shape: tuple, packed: dict, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        submission._sequences(torch.empty(shape), packed)
    found = submission._sequences(torch.empty(1, 2, 9, 64), packing(longest=20))
    assert (found.count, found.longest) == (3, 9)  # no sequence is longer than the row


def memory(*shape: int, dtype=torch.float16):
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize(
    ("t", "as_it_is"),
    [
        (memory(2, 3, 8, 64), True),
        (memory(2, 8, 3, 64).transpose(1, 2), True),
        (memory(2, 8, 3, 3, 64)[:, :, 1].transpose(1, 2), True),  # of a packed (q, k, v)
        (memory(2, 3, 8, 72)[..., :64], True),
        (memory(2, 3, 8, 68)[..., :64], False),  # a row of 136 bytes is no multiple of 16
        (memory(2, 3, 8, 72)[..., 4:68], False),  # starts at byte 8
        (memory(2, 3, 64, 8).transpose(2, 3), False),  # headdim is not contiguous
        (memory(2, 1, 8, 64).expand(2, 3, 8, 64), False),  # stride 0
        (memory(1, 1, 1, 64).as_strided((1, 1, 1, 64), (3, 5, 7, 1)), True),  # strides of one row
    ],
)
def test_what_a_tensor_map_can_describe_is_not_copied(
    submission: ModuleType, t, as_it_is: bool
) -> None:
    assert submission._is_mappable(t) == as_it_is
    copy = submission._dense(t)
    assert submission._is_mappable(copy)
    assert torch.equal(copy, t)


def test_other_chips_are_refused_by_name(
    submission: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA B200")
    with pytest.raises(NotImplementedError, match=r"NVIDIA B200 has 10\.0\. Run `triton_champion`"):
        submission._load(64, False, False, False, 0)


def test_a_plan_belongs_to_the_shapes_and_dtypes_of_all_three(submission: ModuleType) -> None:
    q, k = memory(2, 3, 8, 64), memory(2, 3, 8, 64)
    views = [k, k[:, :, :4], k[:1], k.bfloat16().view(torch.float16)]
    others = [k.view(2, 3, 4, 128), k.view(torch.bfloat16), *views]
    others.append(k.view(2, 8, 3, 64).transpose(1, 2))  # the same shape, other strides
    for at in (1, 2):
        keys = set()
        for other in others:
            qkv = [q, q, q]
            qkv[at] = other
            assert other.data_ptr() == k.data_ptr() or other is views[3]
            keys.add(submission._key(*qkv, True, None, None))
        assert len(keys) == len(others)


def test_no_two_launches_in_flight_share_a_counter(submission: ModuleType) -> None:
    counters, ring = submission.Counters(1 << 20), submission.Counters.RING
    captured = [counters.take(capturing=True) for _ in range(100)]
    eager = [counters.take(capturing=False) for _ in range(ring)]
    captured += [counters.take(capturing=True) for _ in range(100)]
    taken = captured + eager
    assert len(set(taken)) == len(taken)
    assert min(taken) == 1 << 20
    assert max(taken) + 8 <= (1 << 20) + submission.Counters.BYTES
    assert counters.take(capturing=False) == eager[0]  # one turn later


def test_a_process_that_captures_without_end_is_told(submission: ModuleType) -> None:
    counters = submission.Counters(0)
    for _ in range(counters.RING):
        counters.take(capturing=True)
    with pytest.raises(RuntimeError, match="32768 launches were captured into CUDA graphs"):
        counters.take(capturing=True)


class FakeDriver:
    """Stands in for cuda.bindings.driver on an H200: every call succeeds, launches are kept."""

    def __init__(self) -> None:
        self.launches: list[tuple] = []
        self.status = 0  # of a launch
        self.capture_modes: list[object] = ["global"]
        self.boxes: list[list[int]] = []
        self.dims: list[list[int]] = []
        self.strides: list[list[int]] = []

    def __getattr__(self, name: str):
        if name[:2] != "cu":
            return SimpleNamespace()
        if name in ("cuuint32_t", "cuuint64_t"):
            return int
        return lambda *_arguments: (0, SimpleNamespace())

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def cuThreadExchangeStreamCaptureMode(self, mode: object) -> tuple:  # noqa: N802
        self.capture_modes.append(mode)
        return 0, self.capture_modes[-2]

    def cuMemAlloc(self, size_bytes: int) -> tuple:  # noqa: N802
        assert self.capture_modes[-1] == "relaxed"
        assert size_bytes == 1 << 19
        return 0, 1 << 20

    def cuModuleGetFunction(self, *_arguments) -> tuple:  # noqa: N802
        return 0, 99

    def cuTensorMapEncodeTiled(self, *arguments) -> tuple:  # noqa: N802
        self.dims.append(arguments[3])
        self.strides.append(arguments[4])
        self.boxes.append(arguments[5])
        return 0, SimpleNamespace(getPtr=lambda: 64)

    def cuLaunchKernel(self, *arguments) -> tuple:  # noqa: N802
        self.launches.append(arguments)
        return (0,)


@pytest.fixture
def fake(submission: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The submission's host code on a machine that it takes for an H200."""
    driver = FakeDriver()
    for name in ("CUtensorMapDataType", "CUtensorMapInterleave", "CUtensorMapSwizzle",
                 "CUtensorMapL2promotion", "CUtensorMapFloatOOBfill", "CUfunction_attribute",
                 "CUresult"):  # fmt: skip
        setattr(driver, name, getattr(submission.driver, name))
    chip = SimpleNamespace(multi_processor_count=132, L2_cache_size=60 << 20)
    monkeypatch.setattr(submission, "driver", driver)
    monkeypatch.setattr(submission, "compile_cubin", lambda *_build: b"")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: chip)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def launch(config, _function, arguments, _extra) -> int:
        kept = ctypes.string_at(config.value, ctypes.sizeof(submission.LaunchConfig))
        driver.launches.append((submission.LaunchConfig.from_buffer_copy(kept), arguments.value))
        return driver.status

    monkeypatch.setattr(submission, "_launcher", lambda: launch)
    submission._load.cache_clear()
    yield driver
    submission._load.cache_clear()


@pytest.mark.parametrize(
    ("headdim", "seqlen", "causal", "block_rows", "kv_rows", "section"),
    [
        (64, 512, True, 256, 64, 128),  # short: half of the section
        (64, 4096, True, 256, 64, 32),
        (64, 4096, False, 256, 64, 1),  # full attention: one head after the other
        (128, 2048, True, 192, 64, 16),
        (128, 8192, True, 192, 64, 8),
        (128, 512, False, 128, 128, 1),  # its own build
        (256, 16384, True, 128, 80, 2),
        (256, 1024, False, 128, 80, 1),
    ],
)
def test_the_class_of_a_problem_chooses_tile_and_order(
    submission: ModuleType, fake: FakeDriver, headdim: int, seqlen: int, causal: bool,
    block_rows: int, kv_rows: int, section: int,
) -> None:  # fmt: skip
    heads = 16384 // seqlen * (2048 // headdim)
    q = torch.empty(1, heads, seqlen, headdim, dtype=torch.float16)
    plan = submission.Plan(q, q, q, causal, 0.5)
    assert [box[1] for box in fake.boxes] == [64, kv_rows, kv_rows]
    in_kernel = 1 << plan.problem.section.bit_length() - 1  # it takes the power of two below
    assert in_kernel == min(section, heads)
    assert plan.config.grid_x == min(132, heads * -(-seqlen // block_rows))


def test_a_thread_without_a_context_gets_the_gpu_s(
    submission: ModuleType, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd calls from a thread of its own; a tensor map cannot be encoded without a context."""
    bound: list[int] = []
    monkeypatch.setattr(
        fake, "cuCtxGetCurrent", lambda: (0, bound[-1] if bound else 0), raising=False
    )
    monkeypatch.setattr(fake, "cuDevicePrimaryCtxRetain", lambda gpu: (0, 40 + gpu), raising=False)
    monkeypatch.setattr(
        fake, "cuCtxSetCurrent", lambda ctx: (bound.append(ctx) or 0,), raising=False
    )
    submission._bind_context(2)
    submission._bind_context(2)
    assert bound == [42]


def test_a_launch_has_its_own_output_and_counter(submission: ModuleType, fake: FakeDriver) -> None:
    q = torch.empty(1, 2, 300, 64, dtype=torch.float16)
    plan, seen = submission.Plan(q, q, q, True, 0.5), []
    for o, lse in ((4096, None), (8192, 12288)):
        plan.launch(o, lse, stream=7)
        config, addresses = fake.launches[-1]
        pointers = (ctypes.c_void_p * 4).from_address(addresses)
        problem = submission.Problem.from_address(pointers[3])
        assert (config.grid_x, config.block_x, config.stream) == (4, 640, 7)
        assert (problem.o, problem.lse) == (o, lse)
        assert (problem.seqlen_q, problem.seqlen_k, problem.reach) == (300, 300, 0)
        seen.append(problem.counter)
    assert seen == [1 << 20, (1 << 20) + 8]
    assert fake.capture_modes == ["global", "relaxed", "global"]


def test_a_launch_that_fails_is_named(submission: ModuleType, fake: FakeDriver) -> None:
    q = torch.empty(1, 2, 300, 64, dtype=torch.float16)
    plan = submission.Plan(q, q, q, True, 0.5)
    fake.status = 1
    with pytest.raises(RuntimeError, match="cuLaunchKernelEx failed with CUDA_ERROR_INVALID_VALUE"):
        plan.launch(4096, None, stream=7)


def test_an_output_is_written_where_it_lies_as_the_kernel_writes(
    submission: ModuleType, fake: FakeDriver
) -> None:
    q = memory(2, 300, 3, 2, 64).select(2, 0).transpose(1, 2)  # of packed q, k and v
    plan = submission.Plan(q, q, q, True, 0.5)
    like = torch.empty_like(q)
    assert plan.fits(like)
    assert plan.fits(memory(*like.shape).as_strided(like.shape, like.stride()))
    others = {
        "as q lies": q,
        "other strides": torch.empty(q.shape, dtype=q.dtype),
        "another shape": torch.empty_like(q[:1]),
        "another dtype": like.bfloat16(),
        "two bytes on": memory(like.numel() + 1)[1:].as_strided(like.shape, like.stride()),
    }
    assert [name for name, out in others.items() if plan.fits(out)] == []
    with pytest.raises(ValueError, match=r"out is \(1, 2, 300, 64\)"):
        submission._copied(like, like[:1])


def test_the_short_way_takes_only_what_it_has_seen(
    submission: ModuleType, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    qkv, scale = [memory(1, 2, 64, 64) for _ in range(3)], 0.125
    out = torch.empty_like(qkv[0])

    def launched(*tensors: torch.Tensor, causal: bool = True) -> bool:
        return submission._launched_into(*tensors, causal, scale, 0)

    assert not launched(out, *qkv)  # no plan yet
    key = submission._key(*qkv, True, scale, None)
    submission._plans[key] = submission.Plan(*qkv, True, scale)
    assert [launched(out, *qkv) for _ in range(3)] == [True] * 3  # the first remembers
    assert len(fake.launches) == 3
    assert fake.launches[-1][0].stream == 7
    q, k, v = qkv
    others = {
        "other strides at one address": (out, q, k, v.as_strided(v.shape, (8192, 64, 128, 1))),
        "another dtype at one address": (out, q, k, v.view(torch.bfloat16)),
        "fewer rows": (out[:, :, :32], q[:, :, :32], k, v),
        "an output of other strides": (out.transpose(1, 2).contiguous().transpose(1, 2), q, k, v),
        "an output of two bytes on": (memory(out.numel() + 1)[1:].view(out.shape), q, k, v),
    }
    assert [name for name, tensors in others.items() if launched(*tensors)] == []
    assert not launched(out, *qkv, causal=False)
    assert launched(out, *qkv)  # and still


def test_grouped_heads_over_a_longer_cache_as_they_lie(
    submission: ModuleType, fake: FakeDriver
) -> None:
    q = memory(2, 100, 8, 128, dtype=torch.bfloat16).transpose(1, 2)
    packed = memory(2, 4096, 2, 2, 128, dtype=torch.bfloat16)
    k, v = packed.unbind(2)
    plan = submission.Plan(q, k.transpose(1, 2), v.transpose(1, 2), True, 0.5)
    assert fake.dims == [[128, 100, 8, 2], [128, 4096, 2, 2], [128, 4096, 2, 2]]
    assert fake.strides == [[2048, 256, 204800], [1024, 256, 4194304], [1024, 256, 4194304]]
    problem = plan.problem
    assert (problem.o_batch, problem.o_head, problem.o_row) == (102400, 128, 1024)  # as q lies
    assert (problem.batch, problem.heads, problem.group) == (2, 8, 4)
    assert (problem.seqlen_q, problem.seqlen_k, problem.reach) == (100, 4096, 3996)
    assert problem.section == 16  # all of them: 4 kv heads of 2 MB
    assert (
        submission.Plan(q, k.transpose(1, 2), v.transpose(1, 2), False, 0.5).problem.reach == 4096
    )


def test_packed_sequences_are_listed_on_the_device_first(
    submission: ModuleType, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = memory(1, 8, 1000, 64), memory(1, 2, 1000, 64)
    begins = torch.tensor([0, 300, 301, 1000], dtype=torch.int32)
    sequences = submission._sequences(q, packing(begins, begins, longest=699))
    plan = submission.Plan(q, k, k, True, 0.5, sequences)
    plan.launch(4096, None, stream=7)
    (listing, (config, addresses)) = fake.launches
    assert listing[1:4] == (1, 1, 1)
    pointers = (ctypes.c_void_p * 5).from_address(listing[9])
    begin = ctypes.c_void_p.from_address(pointers[0]).value
    counts = [ctypes.c_int.from_address(pointers[i]).value for i in (2, 3)]
    assert begin == begins.data_ptr()
    assert counts == [3, 3]  # sequences; blocks of 256 rows of the longest
    problem = submission.Problem.from_address((ctypes.c_void_p * 4).from_address(addresses)[3])
    assert problem.list == ctypes.c_void_p.from_address(pointers[4]).value
    assert config.grid_x == 8 * (1000 // 256 + 3)  # no fewer than there can be
    assert config.smem_bytes == submission.SHAPES[64, False].smem_bytes(64, packed=True)
    assert submission._key(q, k, k, True, None, sequences) != submission._key(
        q, k, k, True, None, sequences._replace(longest=700)
    )


def test_a_section_has_the_query_heads_of_the_kv_heads_that_fit_l2(
    submission: ModuleType, fake: FakeDriver
) -> None:
    q, k = (torch.empty(2, heads, 8192, 128, device="meta") for heads in (32, 8))
    kernel = submission.Kernel(None, None, 132, 32 << 20, None)
    assert submission._section(kernel, q, k, causal=True) == 8 * 4
    assert submission._section(kernel, q, q, causal=True) == 8
    assert submission._section(kernel, q, k, causal=False) == 1


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("build", BUILDS)
def test_it_compiles_without_a_gpu(
    submission: ModuleType, build: tuple[int, bool], bf16: bool, packed: bool
) -> None:
    build = (*build, bf16, packed)
    try:
        cubin = submission.compile_cubin(*build)
    except (RuntimeError, ImportError, AttributeError) as cause:
        if "libnvrtc" in str(cause):
            pytest.skip(f"no NVRTC library here: {cause}")
        raise
    assert cubin[:4] == b"\x7fELF"
    assert submission.compile_cubin(*build) == cubin  # from the cache


@pytest.fixture(
    scope="module", params=[(*b, bf16) for b in BUILDS for bf16 in (False, True)], ids=str
)
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forward:
    """One build of the kernel, on a CPU."""
    if not have_compiler():
        pytest.skip("no g++ here")
    return Forward(tmp_path_factory.mktemp("twin"), *request.param)


def masks(twin: Forward) -> list[bool]:
    """The masks that a build serves."""
    return [False] if twin.kv_rows == 128 else [True, False]


def whole(twin: Forward) -> float:
    """Largest relative L2 error of an output: two roundings to 11 bits, or to 8."""
    return 3.2e-3 if twin.bf16 else 4e-4


def test_output_and_lse_on_the_twin(twin: Forward) -> None:
    for causal in masks(twin):
        for seqlen in (1, 65, 330):
            error, lse_error = twin.errors(Case(seqlen, causal))
            assert error < whole(twin), (seqlen, causal)
            assert lse_error < 2e-5, (seqlen, causal)


#: seqlen_q, seqlen_k, heads, kv_heads, whether rows lie outside heads
APART = [
    (1, 200, 4, 2, True), (63, 64, 3, 1, False), (100, 333, 4, 2, True), (257, 300, 3, 1, False),
    (300, 301, 2, 2, True),
]  # fmt: skip


@pytest.mark.parametrize("sizes", APART, ids=str)
def test_a_longer_cache_and_grouped_heads_on_the_twin(twin: Forward, sizes: tuple) -> None:
    if twin.bf16 and sizes != APART[2]:
        pytest.skip("no other logic than fp16's")
    seqlen_q, seqlen_k, heads, kv_heads, rows_outside = sizes
    for causal in (True, False):  # the build of even items serves chunks over longer caches
        case = Case(seqlen_q, causal, seqlen_k, 2, heads, kv_heads, rows_outside, section=heads)
        error, lse_error = twin.errors(case)
        assert error < whole(twin), case
        assert lse_error < 2e-5, case


def test_fewer_keys_than_queries_on_the_twin(twin: Forward) -> None:
    for seqlen_q, seqlen_k in ((200, 1), (300, 129)):
        error, lse_error = twin.errors(Case(seqlen_q, causal=False, seqlen_k=seqlen_k, kv_heads=1))
        assert error < whole(twin), (seqlen_q, seqlen_k)
        assert lse_error < 2e-5, (seqlen_q, seqlen_k)


#: Queries and keys of sequences that share a row of tokens.
PACKED = [
    [(70, 70), (1, 1), (200, 200), (64, 64)],
    [(5, 30), (130, 140)],
    [(3, 3)] * 20,  # fewer rows than blocks' worth
]


@pytest.fixture(
    scope="module", params=[(*b, False) for b in BUILDS] + [(128, False, True)], ids=str
)
def packed_twin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Forward:
    """One build of the kernel for packed sequences, on a CPU."""
    if not have_compiler():
        pytest.skip("no g++ here")
    return Forward(tmp_path_factory.mktemp("twin"), *request.param, packed=True)


@pytest.mark.parametrize("sequences", PACKED, ids=["uneven", "longer_caches", "many"])
def test_packed_sequences_on_the_twin(
    packed_twin: Forward, sequences: list[tuple[int, int]]
) -> None:
    queries, keys = map(sum, zip(*sequences, strict=True))
    for causal in (True, False):
        case = Case(queries, causal, keys, heads=4, kv_heads=2, rows_outside=True, section=4)
        error, lse_error = packed_twin.errors(case, sequences)
        assert error < whole(packed_twin), causal
        assert lse_error < 2e-5, causal


def test_a_packed_sequence_done_again_on_the_twin(packed_twin: Forward) -> None:
    case = Case(270, causal=True, scale=2.0, q_times=12.0)
    error, lse_error = packed_twin.errors(case, PACKED[0][:1] + PACKED[0][2:3])
    assert error < whole(packed_twin)
    assert lse_error < 1e-3


def test_an_item_done_again_gives_its_lse_on_the_twin(twin: Forward) -> None:
    for causal in masks(twin):  # the logits overflow 2^x of a tile's reference: the safe mode
        error, lse_error = twin.errors(Case(200, causal, scale=2.0, q_times=12.0))
        assert error < whole(twin)
        assert lse_error < 1e-3  # of 200 and more


# ------------------------------------------------------------------------- with a GPU
def reference(q, k, v, causal: bool, scale: float):
    """float64 attention and log-sum-exp, one head at a time: [B, H, S, D], [B, H, S]."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    seqlen_q, seqlen_k, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    future = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=q.device)
    future = future.triu(1 + seqlen_k - seqlen_q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            logits = q[b, h].double() @ k[b, h // group].double().T * scale
            if causal:
                logits.masked_fill_(future, -math.inf)
            lse[b, h] = logits.logsumexp(-1)
            out[b, h] = logits.softmax(-1) @ v[b, h // group].double()
    return out, lse


def adversarial(kind: str, shape: tuple[int, int, int, int]):
    """q, k, v and the scale of one kind of input that a lazy softmax could trip over."""
    torch.manual_seed(7)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3))
    seqlen, headdim = shape[2:]
    at = torch.arange(seqlen, device="cuda")[None, None, :, None] / seqlen
    scale = headdim**-0.5
    if kind == "logits x8":
        q = q * 8
    elif kind == "logits x30":
        q = q * 30
    elif kind == "rising":  # every tile beats the one before
        q, k = torch.ones_like(q), (at * 220 * headdim**-0.5 + 0 * k).half()
    elif kind == "rising past fp32":  # 2^x of some later tile overflows: the item is done again
        q, k = torch.full_like(q, 4), (at * 400 * headdim**-0.5 + 0 * k).half()
    elif kind == "falling":
        q, k = torch.ones_like(q), ((1 - at) * 300 * headdim**-0.5 + 0 * k).half()
    elif kind == "one huge key":
        q = torch.full_like(q, 8)
        k[:, :, seqlen // 5] = 600
    elif kind == "all equal":
        k = torch.ones_like(k)
    elif kind == "needle":
        k[:, :, 7] = q[:, :, -1] * 4
    elif kind == "first half far below":
        q, k = q.abs(), torch.where(at < 0.5, -6 * k.abs(), 6 * k.abs()).half()
    elif kind == "first half far above":
        q, k = q.abs(), torch.where(at < 0.5, 6 * k.abs(), -6 * k.abs()).half()
    elif kind == "v with an offset":
        v = v + 10
    elif kind.startswith("scale "):
        scale = float(kind.split()[1])
    return q, k, v, scale


def check(
    submission: ModuleType, kind: str, shape: tuple[int, int, int, int], causal: bool, bf16=False
):
    q, k, v, scale = adversarial(kind, shape)
    if bf16:
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    got = submission.custom_attention_forward(q, k, v, causal, scale)
    close(got, reference(q, k, v, causal, scale)[0])


def close(got, want):
    limits = LIMITS[got.dtype == torch.bfloat16]
    assert torch.isfinite(got).all()
    error = got.double() - want
    rows = error.norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-6)
    assert error.norm() / want.norm() < limits[0]
    assert rows.max() < limits[1]


KINDS = [
    "logits x8", "logits x30", "rising", "rising past fp32", "falling", "one huge key", "all equal",
    "needle", "first half far below", "first half far above", "v with an offset",
    "scale 1e-4", "scale -0.3", "scale 0", "scale 0.777",
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_rows(
    submission: ModuleType, kind: str, headdim: int, causal: bool, bf16: bool
) -> None:
    check(submission, kind, (1, 3, 1500, headdim), causal, bf16)


LAYOUTS = {
    "dense": lambda t: t,
    "rows outside": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "packed": lambda t: torch.stack([t, t], 2).permute(0, 3, 2, 1, 4).contiguous()[:, :, 1].permute(0, 2, 1, 3),
    "misaligned rows": lambda t: torch.nn.functional.pad(t, (0, 4))[..., :-4],  # copied
}  # fmt: skip
WORKLOADS = [  # batch, heads, kv_heads, seqlen_q, seqlen_k
    (1, 8, 8, 700, 700), (2, 8, 2, 700, 700), (3, 6, 1, 333, 1500), (2, 32, 8, 1, 777),
    (1, 5, 5, 64, 65), (2, 10, 2, 193, 4097), (1, 64, 8, 1024, 2048), (2, 3, 3, 2000, 2500),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_heads_lengths_and_strides(
    submission: ModuleType, layout: str, headdim: int, causal: bool, bf16: bool
) -> None:
    torch.manual_seed(headdim)
    for batch, heads, kv_heads, seqlen_q, seqlen_k in WORKLOADS:
        shapes = (batch, heads, seqlen_q, headdim), (batch, kv_heads, seqlen_k, headdim)
        q, k, v = (torch.randn(shapes[i], device="cuda") for i in (0, 1, 1))
        q, k, v = (LAYOUTS[layout](t.bfloat16() if bf16 else t.half()) for t in (q, k, v))
        got, lse = submission.custom_attention_forward(q, k, v, causal, None, return_lse=True)
        want, want_lse = reference(q, k, v, causal, headdim**-0.5)
        close(got, want)
        assert (lse - want_lse).abs().max() < 1e-5 * want_lse.abs().max().clamp_min(1)
        assert got.shape == q.shape
        if layout == "rows outside":
            assert got.stride() == q.stride()


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_packed_sequences(submission: ModuleType, headdim: int, causal: bool, bf16: bool) -> None:
    torch.manual_seed(headdim)
    for lengths, more in (
        ([974, 753, 298, 1, 63, 64, 65, 500], 0), ([1], 0), ([130], 200), ([3] * 200, 0),
        ([700, 20, 128, 256, 192, 1000], 77),
    ):  # fmt: skip
        of_q, of_k = lengths, [length + more for length in lengths]
        begins = [torch.tensor([0, *of]).cumsum(0).int().cuda() for of in (of_q, of_k)]
        q, k, v = (
            torch.randn(1, heads, sum(of), headdim, device="cuda").to(
                torch.bfloat16 if bf16 else torch.float16
            )
            for heads, of in ((6, of_q), (2, of_k), (2, of_k))
        )
        got, lse = submission.custom_attention_forward(
            q, k, v, causal, return_lse=True, **packing(*begins, longest=max(of_q))
        )
        row = key = 0
        for rows, keys in zip(of_q, of_k, strict=True):
            at, of = slice(row, row + rows), slice(key, key + keys)
            one = q[:, :, at], k[:, :, of], v[:, :, of]
            want, want_lse = reference(*one, causal, headdim**-0.5)
            close(got[:, :, at], want)
            assert (lse[:, :, at] - want_lse).abs().max() < 1e-4
            row, key = row + rows, key + keys


@pytest.mark.gpu
def test_packed_sequences_of_other_lengths_at_the_same_address(submission: ModuleType) -> None:
    """The lengths are read anew in each call, also of a captured one."""
    q = torch.randn(1, 4, 900, 128, device="cuda").half()
    begins = torch.tensor([0, 300, 900], dtype=torch.int32, device="cuda")
    sequences = packing(begins, begins, longest=900)
    submission.custom_attention_forward(q, q, q, **sequences)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = submission.custom_attention_forward(q, q, q, **sequences)
    for second in (1, 450, 899):
        begins[1] = second
        graph.replay()
        eager = submission.custom_attention_forward(q, q, q, **sequences)
        for at in (slice(0, second), slice(second, 900)):
            one = q[:, :, at]
            want = reference(one, one, one, True, 128**-0.5)[0]
            close(eager[:, :, at], want)
            close(replayed[:, :, at], want)


@pytest.mark.gpu
def test_fewer_keys_than_queries(submission: ModuleType) -> None:
    for headdim in HEADDIMS:
        q, k = (torch.randn(2, 3, n, headdim, device="cuda").half() for n in (900, 77))
        got = submission.custom_attention_forward(q, k, k, causal=False)
        close(got, reference(q, k, k, False, headdim**-0.5)[0])
        with pytest.raises(ValueError, match="900 queries over 77 keys, causal"):
            submission.custom_attention_forward(q, k, k, causal=True)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("seqlen", [1, 17, 64, 65, 127, 129, 193, 257, 1000])
def test_lengths_off_the_tile(
    submission: ModuleType, seqlen: int, headdim: int, causal: bool
) -> None:
    check(submission, "normal", (1, 5, seqlen, headdim), causal)


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_the_work_counter_survives_many_launches(submission: ModuleType, headdim: int) -> None:
    q, k, v, scale = adversarial("rising past fp32", (2, 40, 640, headdim))
    first = submission.custom_attention_forward(q, k, v, True, scale)
    for _ in range(50):
        again = submission.custom_attention_forward(q, k, v, True, scale)
    assert torch.equal(first, again)


@pytest.mark.gpu
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_one_graph_on_another_stream_beside_eager_launches(
    submission: ModuleType, headdim: int
) -> None:
    q, k, v, scale = adversarial("normal", (2, 40, 640, headdim))
    attend = submission.custom_attention_forward
    want = attend(q, k, v, True, scale).clone()
    capturing, replaying = torch.cuda.Stream(), torch.cuda.Stream()
    capturing.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capturing):
        replayed = [attend(q, k, v, True, scale) for _ in range(8)]
    torch.cuda.synchronize()
    for _ in range(25):
        for out in replayed:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(replaying):
            graph.replay()
        with torch.cuda.stream(capturing):
            eager = [attend(q, k, v, True, scale) for _ in range(8)]
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out in (*replayed, *eager))


@pytest.mark.gpu
def test_two_graphs_at_once(submission: ModuleType) -> None:
    q, k, v, scale = adversarial("normal", (2, 40, 640, 64))
    attend = submission.custom_attention_forward
    want = attend(q, k, v, True, scale).clone()
    torch.cuda.synchronize()
    graphs, outputs, capturing = [torch.cuda.CUDAGraph() for _ in range(2)], [], torch.cuda.Stream()
    for graph in graphs:
        with torch.cuda.graph(graph, stream=capturing):
            outputs += [attend(q, k, v, True, scale) for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(25):
        for out in outputs:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, want) for out in outputs)


@pytest.mark.gpu
def test_a_shorter_k_at_the_same_address_is_refused(submission: ModuleType) -> None:
    q, k, v = (torch.randn(1, 1, 256, 64, device="cuda").half() for _ in range(3))
    submission.custom_attention_forward(q, k, v)
    with pytest.raises(ValueError, match=r"v is \(1, 1, 256, 64\)"):
        submission.custom_attention_forward(q, k[:, :, :128], v)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
def test_lse_is_the_natural_logarithm_of_each_row_s_sum(
    submission: ModuleType, headdim: int, causal: bool
) -> None:
    for kind in ("normal", "logits x8", "rising past fp32", "scale -0.3", "scale 0"):
        q, k, v, scale = adversarial(kind, (2, 3, 700, headdim))
        o, lse = submission.custom_attention_forward(q, k, v, causal, scale, return_lse=True)
        want = reference(q, k, v, causal, scale)[1]
        assert ((lse - want).abs() / want.abs().clamp_min(1)).max() < 1e-5, kind
        assert torch.equal(o, submission.custom_attention_forward(q, k, v, causal, scale)), kind


@pytest.mark.gpu
def test_an_output_that_is_given_has_the_result(submission: ModuleType) -> None:
    attend = submission.custom_attention_forward
    for shape in ((2, 3, 300, 64), (2, 300, 3, 64)):
        q, k, v, scale = adversarial("normal", shape)
        if shape[1] == 300:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        want = attend(q, k, v, True, scale)
        for again in range(2):  # the first makes a plan, the second finds it
            for out in (torch.empty_like(q), torch.empty(q.shape, dtype=q.dtype, device=q.device)):
                out.fill_(math.nan)
                assert attend(q, k, v, True, scale, out=out) is out
                assert torch.equal(out, want), (shape, again, out.stride())
        o, lse = attend(q, k, v, True, scale, return_lse=True, out=out)
        assert o is out
        assert lse.shape == q.shape[:3]


@pytest.mark.gpu
def test_a_first_call_while_a_graph_is_captured(submission: ModuleType) -> None:
    q, k, v, scale = adversarial("normal", (1, 2, 300, 64))
    submission._load.cache_clear()
    submission._plans.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = submission.custom_attention_forward(q, k, v, True, scale)
    graph.replay()
    assert torch.equal(out, submission.custom_attention_forward(q, k, v, True, scale))
