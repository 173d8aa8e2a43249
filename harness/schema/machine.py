"""Where it is measured."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from harness.schema.common import Count, Finite, Frozen

Fact = Annotated[str, Field(max_length=500)]


class Machine(Frozen):
    """What this machine is; part of every record."""

    gpu: str = Field(default="cpu", max_length=100)
    uuid: Fact = ""
    sms: Count = 0
    capability: str = Field(default="0.0", pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")
    memory_gib: Finite = 0.0
    power_limit_w: Finite = 0.0
    driver: Fact = ""
    cuda: Fact = ""
    torch: Fact = ""
    triton: Fact = ""
    python: Fact = ""
    cpu: Fact = ""
    platform: Fact = ""

    @property
    def has_gpu(self) -> bool:
        """Whether kernels can run on a GPU here."""
        return self.sms > 0

    def without_gpu(self) -> Machine:
        """The same machine, whose GPU nobody uses."""
        return self.model_copy(update={"sms": 0, "gpu": "cpu", "uuid": ""})

    @property
    def slug(self) -> str:
        """Folder name under results/."""
        return re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-") or "cpu"
