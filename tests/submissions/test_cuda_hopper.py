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
from hopper_on_cpu import Forward, have_compiler

from harness.worker.cuda.promises import builds_of

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "submissions" / "cuda_hopper"
SMEM_LIMIT_BYTES = 227 << 10
FP16_WHOLE, FP16_WORST_ROW = 1e-3, 2e-3  # the gate's relative L2 limits
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
            assert submission._build(headdim, causal) in submission.SHAPES


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
    assert len(builds) == len(submission.SHAPES)
    for (headdim, full_only), shape in submission.SHAPES.items():
        flags = (f"-DHEADDIM={headdim}", *(["-DFULL_ONLY=1"] if full_only else []))
        assert builds[flags].promises["smem_bytes"] == shape.smem_bytes(headdim)


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


def test_params_match_the_kernel_s(submission: ModuleType) -> None:
    source = (FOLDER / "kernels" / "attention.cu").read_text()
    arguments = re.search(r"attention_forward\((.*?)\) \{", source, re.S).group(1).split(",")
    c_types = {"int": ctypes.c_int, "float": ctypes.c_float}
    in_kernel = [argument.split() for argument in arguments if "TensorMap" not in argument]
    wanted = [(name, c_types.get(c_type, ctypes.c_void_p)) for c_type, name in in_kernel]
    assert submission.Params._fields_ == wanted


def test_the_kernel_is_the_last_rung_line_by_line() -> None:
    def shared(path: Path) -> str:
        return re.search(r'#include "sm90.cuh".*?\n\}\n(?=\n(?:#ifndef FULL_ONLY|__device__ int))', path.read_text(), re.S).group()  # fmt: skip

    rung = FOLDER / "steps" / "12_every_length.cu"
    kernel = FOLDER / "kernels" / "attention.cu"
    assert "attend(const TensorMap& q_map" in shared(kernel)
    assert shared(kernel) == shared(rung)
    assert (kernel.parent / "sm90.cuh").read_text() == (rung.parent / "sm90.cuh").read_text()


def test_bad_input_names_the_tensor(submission: ModuleType) -> None:
    q = torch.zeros(1, 1, 16, 64)
    with pytest.raises(ValueError, match=r"q is .*float32 on cpu; wanted three fp16 CUDA tensors"):
        submission.custom_attention_forward(q, q, q)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 1, 1 << 30, 64), f"seqlen {1 << 30}; it takes at most {(1 << 30) - 1}"),
        ((1 << 16, 1 << 15, 64, 128), "65536 x 32768 heads of 64 rows .*; split the batch in 3"),
        ((1, 1, 64, 96), "headdim 96; it is built for"),
    ],
)
def test_what_it_cannot_count_is_refused(submission: ModuleType, shape: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        submission._check_size(shape, causal=True)
    submission._check_size((1, 1, (1 << 30) - 1, 64), causal=True)


def test_other_chips_are_refused_by_name(
    submission: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA B200")
    with pytest.raises(NotImplementedError, match=r"NVIDIA B200 has 10\.0\. Run `triton_champion`"):
        submission._load(64, False, 0)


def test_a_plan_belongs_to_the_shapes_and_dtypes_of_all_three(submission: ModuleType) -> None:
    q, memory = torch.zeros(2, 3, 8, 64).half(), torch.zeros(2, 3, 8, 64).half()
    views = [memory, memory[:, :, :4], memory[:1], memory.bfloat16().view(torch.float16)]
    others = [memory.view(2, 3, 4, 128), memory.view(torch.bfloat16), *views]
    for at in (1, 2):
        keys = set()
        for other in others:
            qkv = [q, q, q]
            qkv[at] = other
            assert other.data_ptr() == memory.data_ptr() or other is views[3]
            keys.add(submission._key(*qkv, True, None))
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
        self.capture_modes: list[object] = ["global"]
        self.boxes: list[list[int]] = []

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

    def cuTensorMapEncodeTiled(self, *arguments) -> tuple:  # noqa: N802
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
                 "CUtensorMapL2promotion", "CUtensorMapFloatOOBfill", "CUfunction_attribute"):  # fmt: skip
        setattr(driver, name, getattr(submission.driver, name))
    chip = SimpleNamespace(multi_processor_count=132, L2_cache_size=60 << 20)
    monkeypatch.setattr(submission, "driver", driver)
    monkeypatch.setattr(submission, "compile_cubin", lambda *_build: b"")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: chip)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
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
    in_kernel = 1 << plan.params.section.bit_length() - 1  # it takes the power of two below
    assert in_kernel == min(section, heads)
    assert plan.grid == min(132, heads * -(-seqlen // block_rows))


def test_a_launch_has_its_own_output_and_counter(submission: ModuleType, fake: FakeDriver) -> None:
    q = torch.empty(1, 2, 300, 64, dtype=torch.float16)
    plan, seen = submission.Plan(q, q, q, True, 0.5), []
    for o, lse in ((4096, None), (8192, 12288)):
        plan.launch(o, lse, stream=7)
        _, *grid, _, _, _, _, _, stream, addresses, _ = fake.launches[-1]
        pointers = (ctypes.c_void_p * 11).from_address(addresses)
        assert (grid[0], stream) == (4, 7)
        assert ctypes.c_void_p.from_address(pointers[3]).value == o
        assert ctypes.c_void_p.from_address(pointers[4]).value == lse
        assert ctypes.c_int.from_address(pointers[5]).value == 300
        seen.append(ctypes.c_void_p.from_address(pointers[10]).value)
    assert seen == [1 << 20, (1 << 20) + 8]
    assert fake.capture_modes == ["global", "relaxed", "global"]


@pytest.mark.parametrize("build", BUILDS)
def test_it_compiles_without_a_gpu(submission: ModuleType, build: tuple[int, bool]) -> None:
    try:
        cubin = submission.compile_cubin(*build)
    except (RuntimeError, ImportError, AttributeError) as cause:
        if "libnvrtc" in str(cause):
            pytest.skip(f"no NVRTC library here: {cause}")
        raise
    assert cubin[:4] == b"\x7fELF"
    assert submission.compile_cubin(*build) == cubin  # from the cache


@pytest.fixture(scope="module", params=BUILDS, ids=str)
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Forward:
    """One build of the kernel, on a CPU."""
    if not have_compiler():
        pytest.skip("no g++ here")
    headdim, full_only = request.param
    return Forward(tmp_path_factory.mktemp("twin"), headdim, full_only)


def masks(twin: Forward) -> list[bool]:
    """The masks that a build serves."""
    return [False] if twin.kv_rows == 128 else [True, False]


def test_output_and_lse_on_the_twin(twin: Forward) -> None:
    for causal in masks(twin):
        for seqlen in (1, 65, 330):
            error, lse_error = twin.errors(seqlen, causal)
            assert error < 4e-4, (seqlen, causal)
            assert lse_error < 2e-5, (seqlen, causal)


def test_an_item_done_again_gives_its_lse_on_the_twin(twin: Forward) -> None:
    for causal in masks(twin):  # the logits overflow 2^x of a tile's reference: the safe mode
        error, lse_error = twin.errors(200, causal, scale=2.0, q_times=12.0)
        assert error < 4e-4
        assert lse_error < 1e-3  # of 200 and more


# ------------------------------------------------------------------------- with a GPU
def reference(q, k, v, causal: bool, scale: float):
    """float64 attention, one head at a time: [B, H, S, D]."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    seqlen = q.shape[2]
    future = torch.ones(seqlen, seqlen, dtype=torch.bool, device=q.device).triu(1)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            logits = q[b, h].double() @ k[b, h].double().T * scale
            if causal:
                logits.masked_fill_(future, -math.inf)
            out[b, h] = logits.softmax(-1) @ v[b, h].double()
    return out


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


def check(submission: ModuleType, kind: str, shape: tuple[int, int, int, int], causal: bool):
    q, k, v, scale = adversarial(kind, shape)
    got = submission.custom_attention_forward(q, k, v, causal, scale).double()
    want = reference(q, k, v, causal, scale)
    assert torch.isfinite(got).all()
    error = got - want
    rows = error.norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-6)
    assert error.norm() / want.norm() < FP16_WHOLE
    assert rows.max() < FP16_WORST_ROW


KINDS = [
    "logits x8", "logits x30", "rising", "rising past fp32", "falling", "one huge key", "all equal",
    "needle", "first half far below", "first half far above", "v with an offset",
    "scale 1e-4", "scale -0.3", "scale 0", "scale 0.777",
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("headdim", HEADDIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_rows(submission: ModuleType, kind: str, headdim: int, causal: bool) -> None:
    check(submission, kind, (1, 3, 1500, headdim), causal)


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
    with pytest.raises(ValueError, match=r"k is \(1, 1, 128, 64\)"):
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
        logits = q.double() @ k.double().transpose(-1, -2) * scale
        if causal:
            logits.masked_fill_(torch.ones(700, 700, device="cuda").triu(1).bool(), -math.inf)
        want = logits.logsumexp(-1)
        assert ((lse - want).abs() / want.abs().clamp_min(1)).max() < 1e-5, kind
        assert torch.equal(o, submission.custom_attention_forward(q, k, v, causal, scale)), kind


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
