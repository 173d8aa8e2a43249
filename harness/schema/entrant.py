"""Who is measured: a manifest and its files."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from harness.schema.common import Dtype, Frozen, Kind, Login, Name, Package, Sums, Tool
from harness.schema.suite import MOST_SEQLEN, Case

#: What YAML reads as a number or as yes and no.
AsText = BeforeValidator(lambda told: str(told).lower() if isinstance(told, (int, float)) else told)
Capability = Annotated[str, AsText, Field(pattern=r"^[0-9]{1,3}\.[0-9]$")]


class Needs(Frozen):
    """What must be there before an entrant can run."""

    compute_capability: Capability = "0.0"
    packages: tuple[Package, ...] = Field(default=(), max_length=50)
    tools: tuple[Tool, ...] = Field(default=(), max_length=50)


class Claims(Frozen):
    """What an entrant says it can do; who claims an axis is tested on cases that have it."""

    headdims: tuple[Annotated[int, Field(ge=1, le=1024, strict=True)], ...] = Field(
        default=(64, 128, 256), min_length=1, max_length=1024
    )
    causal: Annotated[Literal["both", "true", "false"], AsText] = "both"
    seqlen_multiple: int = Field(default=1, ge=1, le=MOST_SEQLEN)
    seqlen_min: int = Field(default=1, ge=1, le=MOST_SEQLEN)
    dtypes: tuple[Dtype, ...] = Field(default=(Dtype.FP16,), min_length=1, max_length=8)
    gqa: bool = False  # takes k and v of fewer heads than q
    seqlens: Literal["equal", "any"] = "equal"  # any: takes more or fewer keys than queries
    packed: bool = False  # takes cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    lse: bool = False  # takes return_lse: claimed by the function's signature, in every manifest

    def refusal(self, case: Case) -> str:
        """Why `case` is outside these claims, or an empty string."""
        if case.headdim not in self.headdims:
            return f"claims headdim {', '.join(map(str, self.headdims))}, not {case.headdim}"
        if self.causal != "both" and self.causal != str(case.causal).lower():
            return f"claims causal={self.causal} only"
        for seqlen in (length for pair in case.lengths for length in pair):
            if seqlen % self.seqlen_multiple:
                return f"claims seqlen divisible by {self.seqlen_multiple}, not {seqlen}"
            if seqlen < self.seqlen_min:
                return f"claims seqlen from {self.seqlen_min}, not {seqlen}"
        if case.dtype not in self.dtypes:
            return f"claims {', '.join(d.value for d in self.dtypes)}, not {case.dtype.value}"
        if case.kv_heads and not self.gqa:
            return f"claims no gqa; k has {case.kv_heads} heads for {case.heads} of q"
        if case.seqlen_k and self.seqlens == "equal":
            return f"claims seqlens: equal, not {case.seqlen_k} keys for {case.seqlen} queries"
        if case.seqlens and not self.packed:
            return f"claims no packed; {len(case.seqlens)} sequences lie in one row"
        return ""


class Manifest(Frozen):
    """manifest.yaml of a submission or baseline."""

    name: Name
    author: str = "unknown"
    owners: tuple[Login, ...] = Field(default=(), max_length=20)  # may change it by pull request
    description: str = ""
    language: Literal["triton", "cuda", "pytorch"] = "pytorch"
    license: str = ""
    entry: str = "submission.py"
    needs: Needs = Needs()
    claims: Claims = Claims()
    problem: str = "attention_forward"  # what it computes: a name of harness/problems/
    #: The line that installs what is missing; somebody will type it: no sign of a shell is in it.
    install: str = Field(default="", pattern=r"^[A-Za-z0-9 _.+:/=@,\[\]-]{0,300}$")
    version_of: Package | Literal[""] = ""  # package whose version goes into the record
    accumulates: Sums = Field(default={}, max_length=4)  # as far as it is known
    launch: dict[str, Any] | None = None  # how to launch the kernels of a plain .cu entry

    @field_validator("entry")
    @classmethod
    def _inside(cls, entry: str) -> str:
        path = Path(entry)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{entry}' leaves the folder; name a file inside it")
        if path.suffix not in {".py", ".cu"}:
            raise ValueError(f"'{entry}' is neither .py nor .cu")
        return path.as_posix()  # as it is listed: no ./ before, no / behind


class Entrant(Frozen):
    """One kernel of a run: its files, read and hashed before anything of it is executed."""

    name: Name
    kind: Kind
    folder: Path
    manifest: Manifest
    source_sha256: str
    #: What the hash covers: (path in the folder, content). It stays in the process that read it.
    files: tuple[tuple[str, bytes], ...] = Field(default=(), exclude=True, repr=False)

    @property
    def place(self) -> Path:
        """What was handed in: its folder, or the one file."""
        whole = {"manifest.yaml", "submission.py"}.intersection(name for name, _ in self.files)
        return self.folder if whole else self.entry_path

    @property
    def entry_path(self) -> Path:
        """The file whose function is called, or whose kernels are launched."""
        return self.folder / self.manifest.entry
