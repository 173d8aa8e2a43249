"""What a hostile process or folder may hold: frames, manifests, sources, kernels, whole folders."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from hypothesis import strategies as st

#: Texts that have broken a parser of somebody.
ODD = [
    "\x00",
    "\x1b[31m",
    "::error::x",
    "\ud800",
    "\udfff",
    "😀",
    "\u202e",
    "\u2028",
    "\r\n",
    "\\",
    '"',
    "{D}",
    "²",
    "…",
]
texts = st.one_of(
    st.text(st.characters() | st.characters(categories=["Cs"]), max_size=30),
    st.lists(st.sampled_from(ODD), max_size=6).map("".join),
    st.builds(
        lambda piece, times: piece * times,
        st.sampled_from([*ODD, "x", "name "]),
        st.integers(0, 9000),
    ),
)
numbers = st.one_of(
    st.integers(-2, 70),
    st.floats(),
    st.sampled_from([10**399, -(10**399), 2**63, 1e308, -0.0, float("nan"), float("inf"), True]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts.map(str), inner, max_size=4),
    max_leaves=8,
)
deep = st.builds(
    lambda left, right, depth: left * depth + right * depth,
    st.sampled_from(["[", '{"a":', "(", "-", "&a [", "- ", "{{", "not "]),
    st.sampled_from(["]", "}", ")", "", "1"]),
    st.integers(1, 9000),
)


finite = st.floats(0, 1e5, allow_nan=False)
plain = st.text("abc xyz<>,_0189", max_size=20)
names = plain | st.sampled_from(["torch", "cuda.bindings", "no-such"])


def message(
    must: dict[str, st.SearchStrategy[Any]] | None = None, /, **may: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """An object with all of `must` and some of `may`, half of the time with something wrong."""
    good = st.fixed_dictionaries(must or {}, optional=may)
    keys = st.sampled_from([*(must or {}), *may]) | texts
    wrong = st.one_of(
        st.just([]), st.lists(st.tuples(keys, st.just(GONE) | values), min_size=1, max_size=2)
    )
    return st.builds(_with, good, wrong)


GONE = object()


def _with(told: dict[str, Any], changes: list[tuple[str, Any]]) -> dict[str, Any]:
    changed = told | dict(changes)
    return {key: value for key, value in changed.items() if value is not GONE}


def frames(messages: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    """Bytes on a line: a message, two of them, or one that is broken in some way."""
    told = messages.map(lambda each: json.dumps(each).encode())
    bodies = st.one_of(
        told,
        told,
        values.map(lambda each: json.dumps(each).encode()),
        deep.map(str.encode),
        st.binary(max_size=200),
        st.builds(_spoilt, told, st.binary(max_size=9), st.floats(0, 1)),
    )
    lengths = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 2**32 - 1))
    one = st.builds(_framed, bodies, lengths)
    cut = st.builds(lambda frame, share: frame[: int(share * len(frame))], one, st.floats(0, 1))
    return st.one_of(one, one, one, cut, st.lists(one, max_size=4).map(b"".join))


def _framed(body: bytes, length: int | None) -> bytes:
    return struct.pack("<I", len(body) if length is None else length) + body


def _spoilt(body: bytes, wedge: bytes, share: float) -> bytes:
    at = int(share * len(body))
    return body[:at] + wedge + body[at + len(wedge) :]


statuses = st.sampled_from(["CRASHED", "UNSUPPORTED", "PASSED", "HARNESS_ERROR", "COMPILE_ERROR"])
worker_messages = message(
    {
        "op": st.just("done"),
        "calls_ms": st.lists(finite, min_size=2, max_size=2),
        "strides": st.just([[[32, 32, 8, 1]], [[32, 32, 8, 1]]])
        | st.lists(st.lists(st.lists(numbers, max_size=5), max_size=3), max_size=4),
    },
    kernels=st.lists(texts, max_size=64),
    configs=st.lists(texts, max_size=64),
    message=texts,
) | message({"op": st.just("failed"), "status": statuses, "message": texts})
builder_messages = message(
    {"op": st.sampled_from(["called", "ran", "built"])},
    steps=st.dictionaries(texts, finite, max_size=60),
) | message({"op": st.just("failed"), "status": statuses, "message": texts})
judge_messages = message(
    {"status": statuses},
    message=texts,
    calls_ms=st.lists(finite, max_size=64),
    t2_ms=finite,
    error=message(
        {"max_diff": numbers, "rel_l2": finite, "worst_row": finite, "finite": st.booleans()}
    ),
    kernels=st.lists(texts, max_size=3),
    configs=st.lists(texts, max_size=3),
    deterministic=st.booleans(),
) | message({"failed": texts, "lacks": st.booleans()})


def line_of(fields: dict[str, Any], changes: list[tuple[str, Any]]) -> bytes:
    """A record with some fields changed, and a checksum that is right again."""
    changed = _with(fields, changes)
    changed.pop("crc32", None)
    body = json.dumps(changed, separators=(",", ":"))[:-1].encode()
    return body + b',"crc32":"%08x"}' % zlib.crc32(body)


def lines(fields: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Lines of an artifact: `fields` with something wrong."""
    return st.builds(
        line_of,
        st.just(fields),
        st.lists(
            st.tuples(st.sampled_from(list(fields)) | texts, st.just(GONE) | values), max_size=3
        ),
    )


# --------------------------------------------------------------------------- a folder's files


def yaml_of(told: object) -> bytes:
    """JSON is YAML, nearly."""
    return json.dumps(told).encode()


manifests = message(
    {"name": st.just("mine")},
    author=plain | texts,
    owners=st.lists(st.sampled_from(["octo-cat", "a"]) | plain, max_size=3),
    description=plain | texts,
    language=st.sampled_from(["triton", "cuda", "pytorch"]),
    entry=st.sampled_from(
        ["submission.py"] * 5 + ["k.cu", "./submission.py", "build/x.py", "../x.py"]
    ),
    needs=message(
        compute_capability=st.sampled_from(["9.0", 8.0]), packages=st.lists(names, max_size=3)
    ),
    claims=message(
        headdims=st.lists(st.integers(1, 512), min_size=1, max_size=3),
        causal=st.sampled_from(["both", "true", True]),
        seqlen_multiple=st.integers(1, 64),
    ),
    problem=st.just("attention_forward"),
    version_of=names,
)
yaml_pieces = st.sampled_from(
    [
        "a: ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "!!binary ",
        "!!python/object:os.system ",
        "|\n",
        ">\n",
        "? ",
        ": ",
        "\n",
        "  ",
        "\t",
        '"',
        "'",
        '"\\uD800"',
        "#",
        "---\n",
        "...\n",
        "%YAML 1.1\n",
        "<<: ",
        "0x",
        "1:1:1",
        "1e999",
        "2024-13-45",
        ".nan",
        "~",
        "name: mine\n",
        "\ufeff",
        "\x85",
        "9" * 70,
        "k: &b [*a, *a]\n",
    ]
)
yaml_files = st.one_of(
    manifests.map(yaml_of),
    manifests.map(yaml_of),
    st.lists(yaml_pieces | texts, max_size=40).map(
        lambda parts: "".join(parts).encode(errors="surrogatepass")
    ),
    st.builds(_spoilt, manifests.map(yaml_of), st.binary(max_size=9), st.floats(0, 1)),
    st.builds(lambda piece, times: (piece * times).encode(), yaml_pieces, st.integers(1, 30_000)),
    deep.map(lambda text: f"name: mine\nlaunch: {text}".encode()),
    st.binary(max_size=300),
)

FUNCTION = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"
python_pieces = st.sampled_from(
    [
        "def custom_attention_forward(",
        "q, k, v, causal=True, sm_scale=None",
        "):\n",
        "    return q\n",
        "(",
        ")",
        "[",
        "]",
        "-",
        "not ",
        "lambda: ",
        "x = ",
        "1",
        ",",
        "\n",
        "    ",
        "\t",
        "if x:\n",
        "'",
        '"""',
        "f'{",
        "}'",
        "\\",
        "\x00",
        "# coding: latin-1\n",
        "# coding: wrong\n",
        "# coding: idna\n",
        "# coding: utf-16\n",
        "\ufeff",
        "import os\n",
        "async ",
        "await ",
        "yield ",
        "@",
        "*",
        "**",
        ":=",
        "9" * 5000,
        "1e999",
        "'\\N{",
        "'\\ud800'",
        "b'",
        "match x:\n",
        "class custom_attention_forward: pass\n",
        "from k import custom_attention_forward\n",
        "é",
        "𝔸",
        "\x0c",
        "\x1a",
    ]
)
python_files = st.one_of(
    st.lists(python_pieces, max_size=60).map(lambda parts: "".join(parts).encode()),
    st.builds(
        lambda head, piece, times, tail: (head + piece * times + tail).encode(),
        st.sampled_from(["", FUNCTION, "x = "]),
        python_pieces,
        st.integers(1, 60_000),
        st.sampled_from(["", "\n", "1\n", FUNCTION]),
    ),
    st.builds(_spoilt, st.just(FUNCTION.encode()), st.binary(max_size=9), st.floats(0, 1)),
    st.binary(max_size=300),
)

expressions = st.one_of(
    st.integers(-(2**40), 2**40),
    st.lists(
        st.sampled_from(
            [
                "B",
                "H",
                "S",
                "D",
                "SM",
                "cdiv(",
                "min(",
                "max(",
                ")",
                "(",
                ",",
                "+",
                "-",
                "*",
                "//",
                "%",
                "**",
                "0",
                "1",
                "64",
                "x",
                ".",
                "[",
                "\x00",
            ]
        ),
        max_size=12,
    ).map("".join),
    deep,
    texts,
)
good_expressions = st.sampled_from(
    [1, 128, "B * H", "cdiv(S, 128)", "S // 0", "max(D, 64) * 2", "-SM"]
)
kernels = message(
    {
        "name": st.sampled_from(["f", "f<{D}, {causal}>", "f<{dtype}>"]),
        "headdims": st.lists(st.integers(1, 256), min_size=1, max_size=32),
        "grid": st.lists(good_expressions, min_size=1, max_size=3),
        "block": st.lists(good_expressions | expressions, min_size=1, max_size=3),
        "args": st.lists(
            st.sampled_from(["q", "k", "v", "o", "S", "q.strides"])
            | st.dictionaries(
                st.sampled_from(["i32", "i64"]), good_expressions, min_size=1, max_size=1
            ),
            min_size=1,
            max_size=64,
        ),
    },
    causal=st.sampled_from(["both", "true", "false"]),
    dtypes=st.lists(st.sampled_from(["fp16", "bf16", "fp32"]), min_size=1, max_size=3),
    smem_bytes=good_expressions | expressions,
)
sections = message(
    {"kernels": st.lists(kernels, min_size=1, max_size=3)},
    flags=st.lists(plain.filter(bool), max_size=3),
    tensor_maps=st.dictionaries(
        st.sampled_from(["m", "n"]),
        message(
            {
                "tensor": st.sampled_from(["q", "k"]),
                "box": st.lists(good_expressions, min_size=2, max_size=2),
            },
            swizzle=st.sampled_from(["none", "128B"]),
        ),
        max_size=2,
    ),
)
cu_lines = st.one_of(
    st.builds(
        lambda kind, text: f"// {kind}: {text}", st.sampled_from(["build", "promise"]), texts
    ),
    st.sampled_from(
        [
            "// build: -DX=1 '",
            "// build: -ccbin ./cc",
            "// promise: registers=²",
            "// promise: spills=",
            "// promise: x=1",
            "// promise: smem_bytes=" + "9" * 5000,
            '#include "x.cuh"',
            "// The head.",
            "/* a",
        ]
    ),
)
cu_files = st.lists(cu_lines, max_size=12).map("\n".join)

#: (path, what lies there: bytes, a link's target, or None for a FIFO)
names = st.sampled_from(
    [
        "NOTES.md",
        "build/x.py",
        "k.cuh",
        "a/b/c/d.py",
        "__pycache__/submission.cpython-311.pyc",
        "steps/launch.yaml",
        "steps/01.cu",
        "launch.yaml",
        "manifest.yaml",
        "submission.py",
        "a\nb.py",
        "\udcff.py",
        "é.py",
        ".git/config",
        "/".join("abcdefghijklmno"),
        "x" * 200,
    ]
)
folders = st.dictionaries(
    names,
    st.one_of(
        st.binary(max_size=50),
        st.none(),
        st.sampled_from(
            [
                "/etc/hostname",
                "/dev/zero",
                "..",
                ".",
                "submission.py",
                "k.cuh",
                "nowhere",
                "NOTES.md",
            ]
        ),
    ),
    max_size=6,
)
