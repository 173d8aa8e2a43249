"""The Triton and Gluon kernels on the CPU: numbers under the interpreter, what they need of a Hopper, and what Gluon's
do on the host: which program attends which q tile, and what a view becomes."""

import functools
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.submissions.test_cuda_ladders import hashed, spared

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
RUNNER = Path(__file__).with_name("run_interpreted.py")
KERNELS = [
    "submissions/triton_template",
    "submissions/triton_two_pass",
    "submissions/triton_champion",
    "baselines/triton_flash_v1",
    "baselines/triton_flash_v2",
    "baselines/triton_flash_v3",
]

# (batch, nheads, seqlen_k, headdim), causal, sm_scale, dtype, inputs; kv heads and seqlen_q, where apart
CASES = {
    "one tile": [(1, 1, 64, 64), True, None, "float16", "normal"],
    "two heads, not causal": [(1, 2, 128, 64), False, None, "float16", "normal"],
    "length off the tile": [(1, 1, 201, 64), True, None, "float16", "normal"],
    "length off the tile, not causal": [(2, 1, 77, 32), False, None, "float16", "normal"],
    "one token": [(1, 1, 1, 64), True, None, "float16", "normal"],
    "headdim 128, large logits": [(1, 1, 160, 128), True, None, "float16", "large"],
    "headdim 256": [(1, 1, 130, 256), True, None, "float16", "normal"],
    "headdim 16": [(1, 1, 70, 16), True, None, "float16", "normal"],
    "odd scale": [(1, 1, 150, 64), True, 0.3717, "float16", "normal"],
    "zero scale": [(1, 1, 50, 64), True, 0.0, "float16", "normal"],
    "negative scale": [(1, 1, 100, 64), True, -0.2, "float16", "normal"],
    "rising keys": [(1, 1, 300, 64), True, None, "float16", "rising"],
    "views that are not contiguous": [(2, 3, 70, 64), True, None, "float16", "strided"],
    "one needle": [(1, 1, 300, 64), False, None, "float16", "needle"],
    "two kv heads of four": [(1, 4, 100, 64), True, None, "float16", "normal", 2, 100],
    "more keys than queries": [(2, 2, 201, 64), True, None, "float16", "normal", 1, 77],
    "keys off the tile": [(1, 3, 130, 64), False, None, "float16", "normal", 1, 129],
    "one query of many keys": [(1, 2, 193, 128), True, None, "float16", "normal", 2, 1],
}  # no bfloat16: the interpreter's tl.dot multiplies its bit patterns as integers


#: A newcomer's first two; the others take half a minute of a core.
FIRST = KERNELS[:2]
GROUPS = [FIRST, KERNELS[2:]]


@functools.cache
def errors_of(group: int) -> dict[str, dict[str, dict[str, float]]]:
    """Kernel → case that it claims → errors; one child process for a group, which imports torch once."""
    asked = {}
    for kernel in GROUPS[group]:
        manifest = yaml.safe_load((ROOT / kernel / "manifest.yaml").read_text())
        known, apart = manifest["claims"]["headdims"], manifest["claims"].get("gqa", False)
        asked[kernel] = {
            name: case
            for name, case in CASES.items()
            if case[0][3] in known and (len(case) == 5 or apart)
        }
    child = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps({str(ROOT / k / "submission.py"): v for k, v in asked.items()}),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()[-len(asked) :]
    return dict(zip(asked, map(json.loads, lines), strict=True))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(k, marks=() if k in FIRST else pytest.mark.slow, id=k.split("/")[1])
        for k in KERNELS
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_matches_the_float64_reference(kernel: str, case: str) -> None:
    errors = errors_of(next(i for i, group in enumerate(GROUPS) if kernel in group))[kernel]
    if case not in errors:
        pytest.skip("not among what the manifest claims")
    error = errors[case]
    assert error["max_diff"] < 1e-2
    assert error["relative_l2"] < 1e-3
    assert error["worst_row"] < 2e-3
    if kernel == "submissions/triton_champion":
        assert error["lse"] < 1e-3


HERE = Path(__file__).resolve().parent
SHARED_BYTES_OF_A_PROGRAM = 227 * 1024  # sm_90

# (batch, heads, seqlen, headdim), causal, sm_scale, inputs
INTERPRET = """
import importlib.util, json, sys
import torch
from harness.problems import attention_backward_tensors as tensors  # noqa: E402
from harness.schema import Case  # noqa: E402
spec = importlib.util.spec_from_file_location("submission", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["submission"] = module
spec.loader.exec_module(module)
for shape, causal, scale, kind in json.load(sys.stdin):
    case = dict(zip(("batch", "heads", "seqlen", "headdim"), shape), causal=causal, name="x")
    kwargs = {"causal": causal, "sm_scale": scale}
    generator, device = torch.Generator().manual_seed(0), torch.device("cpu")
    inputs = tensors.make_inputs(Case(**case), kind, generator, device, kwargs)
    found = module.custom_attention_backward(*inputs, **kwargs)
    pairs = zip(found, tensors.exact(inputs, kwargs))
    print(json.dumps([((a.double() - b).norm() / b.norm()).item() for a, b in pairs]))
"""
GRADIENTS = [
    [(1, 2, 200, 64), True, 0.1, "large_logits"],
    [(2, 1, 77, 32), False, None, "normal"],
    [(1, 1, 160, 128), True, None, "offset_v"],
    [(1, 1, 130, 256), True, 0.05, "spiky_do"],  # split
]


def child(command: list[str], **options: object) -> list[object]:
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_gradients_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    entry = ROOT / "submissions" / "triton_backward" / "submission.py"
    errors = child(["-c", INTERPRET, str(entry)], input=json.dumps(GRADIENTS), env=environment)
    assert len(errors) == len(GRADIENTS)
    for case, mine in zip(GRADIENTS, errors, strict=True):
        assert max(mine) < 1.2e-3, (case, mine)


def test_what_is_frozen_was_a_candidate() -> None:
    entry = ROOT / "submissions" / "triton_backward" / "submission.py"
    spec = importlib.util.spec_from_file_location("triton_backward", entry)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {headdim for _, headdim in module.FROZEN} == {64, 128, 256}
    for (_, headdim), (keys, queries) in module.FROZEN.items():
        assert keys in module.KEYS_TILES[headdim]
        assert queries in module.QUERIES_TILES[headdim]


def test_the_tightest_tiles_do_not_spill(tmp_path: Path) -> None:
    if compiled_before("submissions/triton_backward", test_the_tightest_tiles_do_not_spill):
        return
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    rows = child(
        [str(HERE / "compile_for_hopper.py"), "--tiles", "--first", "256"], env=environment
    )
    assert [row["kernel"] for row in rows] == ["keys", "keys", "queries"]  # dv and dk apart
    for row in rows:
        assert row["stack"] == 0, row
        assert row["shared"] <= SHARED_BYTES_OF_A_PROGRAM, row


COMPILER = Path(__file__).with_name("compile_for_hopper.py")
COMPILED = [
    "submissions/triton_champion",
    "submissions/gluon_champion",
    "submissions/gluon_template",
    "baselines/triton_flash_v3",
]


def compiled_before(name: str, *tests: Callable[..., None]) -> bool:
    """Whether Triton made of these very files what `tests` want."""
    files = [COMPILER, *sorted((ROOT / name).glob("*.py"))]
    read = [(path.name, path.read_bytes()) for path in files]
    return spared(hashed(name, read, *map(inspect.getsource, tests)), version("triton"))


@pytest.fixture(scope="module")
def needs_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, int]]]:
    """Name of a kernel → what it needs at each headdim; one child, which imports torch once."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    tests = (test_fits_the_shared_memory_of_hopper, test_scores_run_ahead_where_the_champion_says_so,
             test_lse_costs_nothing_where_nobody_asks_for_it)  # fmt: skip
    asked = [name for name in COMPILED if not compiled_before(name, *tests)]
    entries = [str(ROOT / name / "submission.py") for name in asked]
    rows = child([str(COMPILER), *entries, "64", "128", "256"], env=environment) if asked else []
    return {Path(name).name: row for name, row in zip(asked, rows, strict=True)}


@pytest.fixture(params=COMPILED, ids=lambda path: path.split("/")[1])
def needs(
    request: pytest.FixtureRequest, needs_of: dict[str, dict[str, dict[str, int]]]
) -> tuple[str, dict[str, dict[str, int]]]:
    """Name of a kernel and what it needs at headdim 64, 128 and 256."""
    name = Path(request.param).name
    if name not in needs_of:
        pytest.skip("these very bytes were compiled before")
    return name, needs_of[name]


def test_fits_the_shared_memory_of_hopper(needs: tuple[str, dict[str, dict[str, int]]]) -> None:
    for headdim, need in needs[1].items():
        assert need["cubin_bytes"] > 0, headdim
        assert need["shared_bytes"] <= SHARED_BYTES_OF_A_PROGRAM, headdim


def test_scores_run_ahead_where_the_champion_says_so(
    needs: tuple[str, dict[str, dict[str, int]]],
) -> None:
    name, by_headdim = needs
    if name != "triton_champion":
        pytest.skip("only triton_champion uses the trick")
    assert [by_headdim[h]["waits_under_if"] for h in ("64", "128", "256")] == [0, 1, 1]


def test_lse_costs_nothing_where_nobody_asks_for_it(
    needs: tuple[str, dict[str, dict[str, int]]],
) -> None:
    name, by_headdim = needs
    if name != "triton_champion":
        pytest.skip("only triton_champion gives it")
    assert [by_headdim[h]["logarithms"] for h in ("64", "128", "256")] == [0, 0, 0]


# ---------------------------------------------------------------------- Gluon's host: the dealing of tiles, views

sys.path.insert(0, str(ROOT / "submissions" / "gluon_champion"))
schedule = pytest.importorskip("schedule")
sys.path.pop(0)

SHAPES = {  # heads, seqlen, block_m, block_n, causal, section, programs
    "hdim64_seq4k": (128, 4096, 256, 64, True, 32, 132),
    "hdim128_seq8k": (32, 8192, 192, 64, True, 8, 132),
    "hdim256_seq16k": (8, 16384, 128, 64, True, 2, 132),
    "one token": (1, 1, 256, 64, True, 1, 1),
    "off the tile, not causal": (3, 333, 192, 64, False, 2, 6),
    "section larger than the heads": (5, 700, 128, 64, True, 64, 30),
}


def keys_seen(item, seqlen, block_m, q_tiles, causal):
    return min((item % q_tiles + 1) * block_m, seqlen) if causal else seqlen


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_tile_once(shape):
    heads, seqlen, block_m, _block_n, _causal, _section, programs = shape
    table = schedule.deal(*shape)
    items = list(chain.from_iterable(row[1 : 1 + row[0]] for row in table))
    assert len(table) == programs
    assert sorted(items) == list(range(heads * -(-seqlen // block_m)))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_have_one_width_and_an_item_to_spare(shape):
    table = schedule.deal(*shape)
    assert len({len(row) for row in table}) == 1
    assert all(row[0] + 2 <= len(row) for row in table)


@pytest.mark.parametrize("name", ["hdim64_seq4k", "hdim128_seq8k", "hdim256_seq16k"])
def test_official_shapes_are_balanced_within_two_percent(name):
    _heads, seqlen, block_m, _block_n, causal, _section, _programs = SHAPES[name]
    q_tiles = -(-seqlen // block_m)
    loads = [
        sum(
            keys_seen(item, seqlen, block_m, q_tiles, causal) + schedule.FIXED_COST_KEYS
            for item in row[1 : 1 + row[0]]
        )
        for row in schedule.deal(*SHAPES[name])
    ]
    assert max(loads) < 1.02 * sum(loads) / len(loads)


def test_longest_tiles_of_a_section_start_first():
    order = list(schedule.work_items(heads=4, q_tiles=3, section=2))
    assert order == [2, 5, 1, 4, 0, 3, 8, 11, 7, 10, 6, 9]


class Recorder:
    """Stands in for a kernel: keeps the arguments of its launch."""

    def __init__(self) -> None:
        self.arguments: tuple = ()

    def __getitem__(self, _grid: object):
        def launch(*arguments: object, **_options: object) -> None:
            self.arguments = arguments

        return launch


@pytest.fixture(params=["gluon_champion", "gluon_template"])
def submission(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import torch

    folder = ROOT / "submissions" / request.param
    monkeypatch.syspath_prepend(str(folder))
    for name in ("attention_kernel", "schedule", "submission"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("submission", folder / "submission.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "submission", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "attention_kernel", Recorder())
    if hasattr(module, "schedule"):
        table = torch.zeros(1, 3, dtype=torch.int32)
        monkeypatch.setattr(module, "schedule", lambda *_: (table, 1))
    return module


def test_a_strided_view_reaches_the_kernel_in_one_piece(submission: ModuleType) -> None:
    import torch

    shape = (2, 70, 3, 64)  # (batch, seqlen, nheads, headdim) in memory
    views = [torch.randn(shape).half().transpose(1, 2) for _ in range(3)]
    out = submission.custom_attention_forward(*views)
    bases = [descriptor.base for descriptor in submission.attention_kernel.arguments[:3]]
    for base, view in zip(bases, views, strict=True):
        assert base.is_contiguous()
        assert torch.equal(base, view)
    assert out.is_contiguous()
