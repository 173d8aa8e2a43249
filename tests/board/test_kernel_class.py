"""Kernel names → custom, library, mixed or unknown. The names were seen in profiles."""

from __future__ import annotations

import pytest

from harness.board.kernel_class import SAME_BITS, classify
from harness.board.rank import leaderboard
from harness.board.render import markdown
from harness.schema import Kind
from tests.board.factory import run_of

CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128"
FLASH2 = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>"
FLASH3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>"
EFFICIENT = "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)"
CUBLAS = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
COPY = "Memcpy DtoD (Device -> Device)"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>"


@pytest.mark.parametrize("name", [CUDNN, FLASH2, FLASH3, EFFICIENT, CUBLAS, SOFTMAX])
def test_a_library_alone(name: str) -> None:
    assert classify([name, COPY, FILL]) == "library"


@pytest.mark.parametrize("name", ["_attn_fwd", "attend", "champion_kernel", "attn_sm90_ws"])
def test_a_kernel_of_ones_own(name: str) -> None:
    assert classify([name, COPY, FILL]) == "custom"


def test_both_is_mixed() -> None:
    assert classify(["attend", CUBLAS]) == "mixed"


@pytest.mark.parametrize("names", [[], [COPY], [FILL, COPY]])
def test_nothing_but_housekeeping_is_unknown(names: list[str]) -> None:
    assert classify(names) == "unknown"


@pytest.mark.parametrize("names", [["attend"], ["attend", CUBLAS], [], [COPY]])
def test_bits_of_timed_results_outweigh_the_names(names: list[str]) -> None:
    alike = {"flash": 0.53, "cudnn": 0.99996}
    assert classify(names, alike) == "library"


@pytest.mark.parametrize("share", [0.0, 0.55, 0.975, 0.9972, SAME_BITS - 1e-6])
def test_kernels_of_one_algorithm_are_not_one_kernel(share: float) -> None:
    """0.975: an own kernel beside `efficient`; 0.9972: FlashAttention-4 beside FlashAttention-2 (one H200)."""
    assert classify(["attend"], {"flash": share}) == "custom"


def test_who_times_a_library_and_shows_an_own_kernel_is_ranked_with_libraries() -> None:
    results = [
        r.model_copy(
            update={
                "kernels": ("attend",),
                "likeness": {"cudnn": 1.0 if r.entry == "fake" else 0.54},
            }
            | ({"kind": Kind.SUBMISSION} if r.entry != "sdpa_cudnn" else {})
        )
        for r in run_of({"own": 0.9, "fake": 0.8})
    ]
    (board,) = leaderboard(results).boards
    assert [row.entry for row in board.library] == ["fake"]
    assert "own" in [row.entry for row in board.exact]
    assert "bit for bit" in markdown.render(leaderboard(results))


def test_a_submission_that_borrows_is_ranked_apart_and_a_baseline_is_not() -> None:
    results = run_of({"own": 0.9, "wrapper": 0.8})
    names = {"own": ("attend",), "wrapper": (CUDNN, COPY), "sdpa_cudnn": (CUDNN,)}
    results = [r.model_copy(update={"kernels": names[r.entry]}) for r in results]
    results = [
        r.model_copy(update={"kind": Kind.SUBMISSION}) if r.entry in ("own", "wrapper") else r
        for r in results
    ]
    (board,) = leaderboard(results).boards
    assert [row.entry for row in board.exact] == ["own", "sdpa_cudnn"]
    assert [row.entry for row in board.library] == ["wrapper"]
    assert board.library[0].rank == 1
    assert "### Library kernels" in markdown.render(leaderboard(results))
