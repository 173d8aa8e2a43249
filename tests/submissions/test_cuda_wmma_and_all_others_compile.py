"""nvcc compiles every CUDA submission for every architecture it claims, and none spills. No GPU."""

from __future__ import annotations

import pytest
import yaml
from cuda_ladder import SUBMISSIONS, needs_nvcc

from harness.worker.cuda import resources


def cuda_submissions():
    for path in sorted(SUBMISSIONS.glob("*/manifest.yaml")):
        manifest = yaml.safe_load(path.read_text())
        if manifest["language"] == "cuda":
            capability = str(manifest.get("needs", {}).get("compute_capability", "0.0"))
            for arch in resources.archs_for(capability):
                yield pytest.param(path.parent, manifest, arch, id=f"{path.parent.name}-{arch}")


@needs_nvcc
@pytest.mark.parametrize(("folder", "manifest", "arch"), list(cuda_submissions()))
def test_nvcc_compiles_every_cuda_submission(folder, manifest, arch, tmp_path):
    """Every .cu an entry runs, for every architecture it claims to run on; none spills."""
    launch = manifest.get("launch")
    if launch is None:
        reports = resources.build(folder, manifest["entry"], None, tmp_path, [arch])
    else:
        names = sorted({name for name, _, _ in resources.instances(launch)})
        text = resources.instantiating_source(folder / manifest["entry"], names)
        log, _, kernels = resources.nvcc(text, arch, folder, launch.get("flags", ()))
        reports = resources.parse_ptxas(log, kernels)
        assert len(reports) == len(names)
    assert reports, "no kernel was compiled"
    assert {r.name: r.warnings for r in reports if r.warnings} == {}
