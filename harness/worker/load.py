"""A submission's file → its function; an exception of its → one status and one readable reason."""

import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.schema import Manifest, Status

COMPILER_WORDS: tuple[str, ...] = ("compilationerror", "compileerror", "nvrtc", "ptxas", "ninja")
COMPILER_WORDS += ("error building extension",)
MEMORY_WORDS = ("outofmemory", "out of memory", "memoryerror")
#: Of a launch behind an allocation for which a full GPU made torch free its own first (2.11).
ODD_WORDS, FULL = "cuda error: invalid argument", 0.05


class LoadError(Exception):
    """The submission could not be made callable."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def load_function(folder: Path, manifest: Manifest, function: str) -> Callable[..., Any]:
    """Import `folder`/`entry` and return its `function`; raise LoadError."""
    path = folder / manifest.entry
    if path.suffix == ".cu":
        return _load_cuda_source(folder, manifest)
    if os.environ.get("TRITON_INTERPRET") == "1":
        skip_the_search()
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("submission", path)
    if spec is None or spec.loader is None:
        raise LoadError(Status.INVALID_SUBMISSION, f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as cause:
        raise LoadError(classify(cause, importing=True), describe(cause, folder)) from None
    found = getattr(module, function, None)
    if not callable(found):
        raise LoadError(Status.INVALID_SUBMISSION, f"{path.name} defines no function {function}")
    return found  # type: ignore[no-any-return]


def _load_cuda_source(folder: Path, manifest: Manifest) -> Callable[..., Any]:
    from harness.worker.cuda import launch

    cache = Path(os.environ["ATTNBOARD_CACHE"])
    try:
        return launch.load(folder, manifest.entry, manifest.launch or {}, cache)
    except Exception as cause:
        raise LoadError(classify(cause, importing=True), describe(cause, folder)) from None


def classify(cause: BaseException, importing: bool) -> Status:
    """Which status an exception of the submission means.

    UNSUPPORTED is who says so on purpose, by NotImplementedError; words about it in another error
    are a crash: "CUDA error: operation not supported" is no claim.
    """
    named = getattr(cause, "status", None)
    if isinstance(named, str) and named in Status.__members__:
        return Status(named)
    text = f"{type(cause).__name__} {cause}".lower()
    if any(word in text for word in MEMORY_WORDS) or (ODD_WORDS in text and _gpu_is_full()):
        return Status.OUT_OF_MEMORY
    if any(word in text for word in COMPILER_WORDS):
        return Status.COMPILE_ERROR
    if isinstance(cause, ImportError):
        return Status.IMPORT_ERROR
    if isinstance(cause, NotImplementedError):
        return Status.UNSUPPORTED
    return Status.IMPORT_ERROR if importing else Status.CRASHED


def _gpu_is_full() -> bool:
    with contextlib.suppress(Exception):  # no torch, no GPU, or none for who builds ahead
        free, whole = sys.modules["torch"].cuda.mem_get_info()
        return bool(free < FULL * whole)
    return False


def describe(cause: BaseException, folder: Path) -> str:
    """Exception, with file and line of the last place that lies in the submission.

    Triton raises errors of its own from those inside a kernel: the innermost that has a place
    is told.
    """
    chain = [cause]
    while chain[-1].__cause__ and type(chain[-1]).__module__.startswith("triton."):
        chain.append(chain[-1].__cause__)
    places = ((error, _place(error, folder)) for error in reversed(chain))
    cause, where = next((pair for pair in places if pair[1]), (cause, ""))
    text, told = str(cause).strip(), getattr(cause, "error_message", None)
    if isinstance(told, str) and told and text.endswith(told):  # of Triton: behind a dozen lines
        text = f"{told}\n{text.removesuffix(told)}".strip()
    if len(text) > 3000:
        text = f"{text[:1500]}\n…\n{text[-1500:]}"
    return f"{where}{type(cause).__name__}: {text}"


def _place(cause: BaseException, folder: Path) -> str:
    """`submission.py:73: `, or nothing where `cause` has no place in `folder`."""
    where = _place_of_kernel(cause, folder)
    for frame in traceback.extract_tb(cause.__traceback__) if not where else ():
        if Path(frame.filename).is_relative_to(folder):
            where = f"{Path(frame.filename).relative_to(folder)}:{frame.lineno}: "
    return where


def _place_of_kernel(cause: BaseException, folder: Path) -> str:
    """The place of an error of Triton's compiler, which counts lines from the kernel's start."""
    source, node = getattr(cause, "src", None), getattr(cause, "node", None)
    line = getattr(node, "lineno", None)
    if not isinstance(source, str) or not source.strip() or not isinstance(line, int):
        return ""
    for path in sorted(filter(Path.is_file, folder.rglob("*.py"))):
        before, kernel, _ = path.read_text("utf-8", errors="replace").partition(source.strip())
        if kernel:
            return f"{path.relative_to(folder)}:{before.count(chr(10)) + line}: "
    return ""


def skip_the_search() -> None:
    """Have `triton.autotune` in this process take the first configuration, whoever asks.

    Triton's interpreter runs kernels on a CPU, but its autotuner, where it has a choice, asks for a
    driver and fails. Without a GPU there is nothing to search for.
    """
    try:
        import triton
    except ImportError:
        return
    search = triton.autotune

    def first_only(configs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        return search(configs[:1], *args, **kwargs)

    triton.autotune = first_only
