"""`// build:` and `// promise:` lines: who they belong to, and what breaks them."""

from __future__ import annotations

import pytest

from harness.worker.cuda.nvrtc import CudaSourceError
from harness.worker.cuda.promises import Build, broken, builds_of

FOUND = {"registers": 168, "spills": 0, "warnings": 0}


def test_build_lines_give_one_build_each():
    text = "// build: -DHEADDIM=64 -DX='a b'\n// build: -DHEADDIM=128\nint x;  // build: no\n"
    assert builds_of(text) == [Build(("-DHEADDIM=64", "-DX=a b")), Build(("-DHEADDIM=128",))]
    assert builds_of("int x;") == [Build()]


def test_a_promise_belongs_to_the_build_above_it_or_to_all():
    text = "// promise: spills=0\n// build: -DA\n// promise: registers=96 spills=8\n// build: -DB\n"
    first, second = builds_of(text)
    assert first.promises == {"spills": 8, "registers": 96}
    assert second.promises == {"spills": 0}
    assert builds_of("// promise: blocks=2\n")[0].promises == {"blocks": 2}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("spils=0", "'spils=0' is no promise; Did you mean 'spills'?"),
        ("registers=many", "'registers=many' is no promise; write smem_bytes=N"),
        ("spills", "'spills' is no promise"),
    ],
)
def test_a_promise_that_is_none_names_its_line(line: str, said: str):
    with pytest.raises(CudaSourceError) as caught:
        builds_of(f"int x;\n// promise: {line}\n", "kernel.cu")
    assert caught.value.message.startswith(f"kernel.cu:2: {said}")
    assert (caught.value.file, caught.value.line) == ("kernel.cu", 2)


@pytest.mark.parametrize(
    ("promises", "blocks", "count"),
    [
        ({}, 1, 0),
        ({"registers": 168, "spills": 0, "warnings": 0, "blocks": 1, "smem_bytes": 9}, 1, 0),
        ({"registers": 167}, 1, 1),
        ({"blocks": 2}, 1, 1),
        ({"blocks": 2}, None, 0),
        ({"registers": 96, "blocks": 2}, 1, 2),
    ],
)
def test_what_breaks_a_promise(promises: dict[str, int], blocks: int | None, count: int):
    assert len(broken(promises, FOUND, blocks)) == count
