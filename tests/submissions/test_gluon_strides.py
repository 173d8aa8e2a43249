"""What a Gluon submission hands to its kernel when a view is not contiguous; no GPU."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SUBMISSIONS = Path(__file__).resolve().parents[2] / "submissions"


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
    shape = (2, 70, 3, 64)  # (batch, seqlen, nheads, headdim) in memory
    views = [torch.randn(shape).half().transpose(1, 2) for _ in range(3)]
    out = submission.custom_attention_forward(*views)
    bases = [descriptor.base for descriptor in submission.attention_kernel.arguments[:3]]
    for base, view in zip(bases, views, strict=True):
        assert base.is_contiguous()
        assert torch.equal(base, view)
    assert out.is_contiguous()
