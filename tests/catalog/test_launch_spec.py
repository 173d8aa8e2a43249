"""The `launch:` section: what is accepted, and what a mistake is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.catalog.launch_spec import check_expression, parse_launch
from harness.worker.cuda.expression import evaluate

SIZES = {"B": 2, "H": 3, "S": 100, "D": 64, "SM": 132}
KERNEL = {
    "name": "f<{D}>",
    "headdims": [64],
    "grid": ["cdiv(S, 64)"],
    "block": [128],
    "args": ["q"],
}
REPOSITORY = Path(__file__).resolve().parents[2]


def spec(**changes):
    return {"kernels": [{**KERNEL, **changes}]}


def test_defaults_are_filled_in():
    kernel = parse_launch(spec(), "manifest.yaml").kernels[0]
    assert (kernel.causal, kernel.dtypes, kernel.smem_bytes) == ("both", ["fp16"], 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("cdiv(S, 64) * B * H", 12),
        ("(64 + 4 * 32) * D * 2", 24576),
        ("min(SM, B * H)", 6),
        ("max(S % 64, -1) // 5", 7),
        (128, 128),
    ],
)
def test_checked_expressions_evaluate(text, value):
    assert evaluate(check_expression(text), SIZES) == value


@pytest.mark.parametrize(
    "text",
    ["S / 2", "__import__('os')", "S ** 2", "N", "S.bit_length()", "min(S, key=1)", "1.5", "[S]",
     "cdiv", "S(1)", "", "S if D else B", True, "'a' * 3", "S << 40"],
)  # fmt: skip
def test_anything_else_is_refused_by_both_sides(text):
    with pytest.raises(ValueError, match=r"."):
        check_expression(text)
    if isinstance(text, str):
        with pytest.raises(ValueError, match=r"."):
            evaluate(text, SIZES)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kernels": [{**KERNEL, "smem": 1}]}, "Did you mean 'smem_bytes'"),
        (spec(args=["q", "k.strides", "scale_log"]), "did you mean 'scale_log2'"),
        (spec(args=["v_map"]), "unknown argument 'v_map'"),
        (spec(name="f<{Dim}>"), "unknown placeholder {Dim}; use {D}, {causal}, {dtype}"),
        (spec(grid=["S / 64"]), "launch.kernels.0.grid.0: 'S / 64': Div is not allowed"),
        (spec(causal=True), "launch.kernels.0.causal"),
        ({"kernels": []}, "launch.kernels"),
    ],
)
def test_mistakes_name_file_place_and_remedy(section, said):
    with pytest.raises(ValueError, match=r"docs/write-a-cuda-kernel\.md") as caught:
        parse_launch(section, "submissions/x/manifest.yaml")
    text = str(caught.value)
    assert said in text
    assert text.startswith("submissions/x/manifest.yaml: launch")


def test_a_tensor_map_is_an_argument():
    section = spec(args=["v_map"]) | {"tensor_maps": {"v_map": {"tensor": "v", "box": [64, "D"]}}}
    assert parse_launch(section, "m").tensor_maps["v_map"].swizzle == "none"


def every_launch_section():
    for path in sorted(REPOSITORY.glob("submissions/cuda_*/manifest.yaml")):
        launch = yaml.safe_load(path.read_text()).get("launch")
        if launch is not None:
            yield pytest.param(launch, id=path.parent.name)
    for path in sorted(REPOSITORY.glob("submissions/cuda_*/steps/launch.yaml")):
        for name, launch in yaml.safe_load(path.read_text()).items():
            yield pytest.param(launch, id=f"{path.parts[-3]}/{name}")


@pytest.mark.parametrize("launch", list(every_launch_section()))
def test_every_section_in_the_house_is_valid(launch):
    assert parse_launch(launch, "here").kernels


def test_every_key_is_in_the_page():
    from harness.catalog.launch_spec import SCALARS, Kernel, LaunchSpec, TensorMap

    page = (REPOSITORY / "docs" / "write-a-cuda-kernel.md").read_text()
    for model in (LaunchSpec, Kernel, TensorMap):
        for key in model.model_fields:
            assert f"`{key}`" in page, key
    for name in SCALARS:
        assert f"`{name}`" in page, name
