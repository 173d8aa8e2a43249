"""Where it is measured."""

from __future__ import annotations

import re

from pydantic import Field

from harness.schema.common import Count, Finite, Frozen


class Machine(Frozen):
    """What this machine is; part of every record."""

    gpu: str = Field(default="cpu", max_length=100)
    uuid: str = ""
    sms: Count = 0
    capability: str = Field(default="0.0", pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")
    memory_gib: Finite = 0.0
    power_limit_w: Finite = 0.0
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    triton: str = ""
    python: str = ""
    cpu: str = ""
    platform: str = ""

    @property
    def has_gpu(self) -> bool:
        """Whether kernels can run on a GPU here."""
        return self.sms > 0

    @property
    def slug(self) -> str:
        """Folder name under results/."""
        return re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-") or "cpu"
