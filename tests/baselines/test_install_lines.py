"""One line installs a rival: the manifest, the adapter's error and docs/baselines.md give the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RIVALS = sorted(
    path.parent.name
    for path in ROOT.glob("baselines/*/submission.py")
    if "\nINSTALL = " in path.read_text(encoding="utf-8")
)


def line_of(name: str) -> str:
    text = (ROOT / "baselines" / name / "manifest.yaml").read_text(encoding="utf-8")
    return str(yaml.safe_load(text)["install"])


@pytest.mark.parametrize("name", RIVALS)
def test_the_adapter_and_the_document_say_what_the_manifest_says(name: str) -> None:
    adapter = (ROOT / "baselines" / name / "submission.py").read_text(encoding="utf-8")
    assert f'"{line_of(name)}"' in adapter
    assert f"`{line_of(name)}`" in (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")


def test_of_pre_releases_the_line_names_the_release() -> None:
    """pip finds nothing under the bare name of a package that has pre-releases only."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (pinned,) = re.findall(r'"(flash-attn-4==[\d.]+b\d+)"', project)
    for name in ("flash_attn_4", "flash_attn_4_backward"):
        assert line_of(name) == f"pip install {pinned}"
