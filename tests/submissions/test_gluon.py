"""What the Gluon submissions do on the host: which program attends which q tile, and what a view becomes; no GPU."""

import importlib.util
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

SUBMISSIONS = Path(__file__).resolve().parents[2] / "submissions"
sys.path.insert(0, str(SUBMISSIONS / "gluon_champion"))
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
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    folder = SUBMISSIONS / request.param
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
