"""import: a definition and workloads of FlashInfer-Bench become a suite that loads and runs here."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.catalog.suites import load_suite
from harness.cli import main
from harness.cli.commands import import_
from harness.errors import Exit, UnavailableError, UsageError
from harness.process.project import MARK
from harness.schema import Case

NAME = "gqa_ragged_prefill_causal_h4_kv2_d64"
DEFINITION: dict[str, Any] = {
    "name": NAME,
    "op_type": "gqa_ragged",
    "axes": {
        "num_qo_heads": {"type": "const", "value": 4},
        "num_kv_heads": {"type": "const", "value": 2},
        "head_dim": {"type": "const", "value": 64},
        "total_q": {"type": "var"},
        "total_kv": {"type": "var"},
        "len_indptr": {"type": "var"},
    },
    "inputs": {"q": {"shape": ["total_q", "num_qo_heads", "head_dim"], "dtype": "bfloat16"}},
    "reference": "def run(): ...",
}


def safetensors(tensors: dict[str, Sequence[int]], kind: str = "I32") -> bytes:
    """A file as the format is described: 8 bytes of length, a JSON head, the tensors."""
    head: dict[str, Any] = {"__metadata__": {"by": "a test"}}
    body = b""
    for key, values in tensors.items():
        data = struct.pack(f"<{len(values)}{'i' if kind == 'I32' else 'q'}", *values)
        offsets = [len(body), len(body) + len(data)]
        head[key] = {"dtype": kind, "shape": [len(values)], "data_offsets": offsets}
        body += data
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


class TraceSet:
    """A folder with one definition, workloads and the files of their indptr."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "trace"
        self.workloads: list[dict[str, Any]] = []
        (self.folder / "workloads").mkdir(parents=True)

    def add(self, queries: Sequence[int], keys: Sequence[int], **changes: Any) -> None:
        """One call of sequences of so many queries and keys."""
        number = len(self.workloads)
        ends = {
            name: [sum(each[:n]) for n in range(len(each) + 1)]
            for name, each in (("qo_indptr", queries), ("kv_indptr", keys))
        }
        file = self.folder / f"blob{number}.safetensors"
        file.write_bytes(safetensors(ends, "I64" if number % 2 else "I32"))
        source = {"type": "safetensors", "path": f"./{file.name}"}
        axes = {"total_q": sum(queries), "total_kv": sum(keys), "len_indptr": len(queries) + 1}
        inputs = {name: source | {"tensor_key": name} for name in ends}
        told = {"uuid": f"{number:08x}-aaaa", "axes": axes, "inputs": inputs, **changes}
        self.workloads.append({"definition": NAME, "workload": told, "solution": None})

    def call(self, *words: str, **definition: Any) -> int:
        """`import` of what is there."""
        told, lines = self.folder / "d.json", self.folder / "workloads" / "w.jsonl"
        told.write_text(json.dumps(DEFINITION | definition))
        lines.write_text("\n\n".join(map(json.dumps, self.workloads)))
        return import_.run(main.parse_args(["import", str(told), str(lines), *words]))


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TraceSet:
    (tmp_path / MARK).touch()
    monkeypatch.chdir(tmp_path)
    return TraceSet(tmp_path)


def cases_of(traced: TraceSet, name: str = NAME) -> list[Case]:
    return list(load_suite(name, traced.folder.parent / "configs").cases)


def test_each_kind_of_call_becomes_a_case(
    traced: TraceSet, capsys: pytest.CaptureFixture[str]
) -> None:
    traced.add([512], [512])
    traced.add([256], [4096])
    traced.add([100, 0, 60, 40], [100, 0, 60, 40])
    traced.add([128, 128], [128, 128])
    traced.add([512], [512])  # the shape of the first
    traced.add([10, 20], [10, 30])  # no case can say that
    traced.workloads.append({"definition": "another", "workload": None})
    assert traced.call() == 0
    out = capsys.readouterr().out
    assert "4 of 4 shapes from 6 workloads; left out 1:" in out
    assert f"--suite {NAME}" in out
    found = {case.name: case for case in cases_of(traced)}
    assert {name: (*c.shape, c.kv_shape[2], c.seqlens) for name, c in found.items()} == {
        "w00000004_9": (1, 4, 512, 64, 512, ()),
        "w00000001_3": (1, 4, 256, 64, 4096, ()),
        "w00000002_5": (1, 4, 200, 64, 200, (100, 60, 40)),
        "w00000003_7": (2, 4, 128, 64, 128, ()),
    }
    assert {(c.kv_heads, c.dtype.value, c.causal) for c in found.values()} == {(2, "bf16", True)}
    assert all(2 <= case.burst <= 24 for case in found.values())


@pytest.mark.parametrize(
    "axes",
    [
        {"len_indptr": 2, "total_q": 100, "total_kv": 50},  # the first queries would see no key
        {"len_indptr": 2, "total_q": 100, "total_kv": 0},
        {"len_indptr": 4098, "total_q": 4097, "total_kv": 4097},
        {"len_indptr": 2, "total_q": 1 << 40, "total_kv": 1 << 40},
    ],
)
def test_a_call_that_no_case_can_say_is_left_out_and_counted(
    traced: TraceSet, axes: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    traced.add([64], [64])
    traced.add([64], [64], axes=axes)
    traced.add([32], [32], uuid="00000000-b")  # as the first in eight signs
    assert traced.call() == 0
    assert "2 of 2 shapes from 3 workloads; left out 1:" in capsys.readouterr().out
    assert {case.name: case.seqlen for case in cases_of(traced)} == {
        "w00000000_1": 64,
        "w00000000_5": 32,
    }


@pytest.mark.parametrize(
    ("name", "causal"),
    [
        ("gqa_ragged_prefill_causal_h32_kv8_d128", True),
        ("gqa_ragged_prefill_causal", True),
        ("gqa_ragged_prefill_h32", False),
        ("gqa_ragged_prefill_noncausal_h32", None),
        ("gqa_ragged_prefill_not_causal", None),
        ("gqa_ragged_prefill_causal_false", None),
        ("gqa_ragged_prefill_causal_h32_noncausal", None),
        ("GQA_CAUSAL", None),
    ],
)
def test_a_name_says_causal_as_flashinfer_does_or_is_refused(
    traced: TraceSet, name: str, causal: bool | None
) -> None:
    traced.add([64], [64])
    traced.workloads[0]["definition"] = name
    if causal is None:
        with pytest.raises(UsageError, match="causal or not"):
            traced.call("--name", "s", name=name)
        return
    traced.call("--name", "s", name=name)
    assert [case.causal for case in cases_of(traced, "s")] == [causal]


def test_of_many_the_least_and_the_most_work_are_among_the_few(traced: TraceSet) -> None:
    for tokens in range(100, 2000, 100):
        traced.add([tokens], [tokens])
    traced.call("--most", "3", "--name", "few")
    assert [case.seqlen for case in cases_of(traced, "few")] == [100, 1000, 1900]
    traced.call("--most", "1", "--name", "one")
    assert [case.seqlen for case in cases_of(traced, "one")] == [1900]


@pytest.mark.parametrize(
    "name", ["x/../../up", "x/../.github/workflows/x", "published/x", "/x", "fa3"]
)
def test_no_name_of_a_stranger_leads_out_of_configs(traced: TraceSet, name: str) -> None:
    traced.add([64], [64])
    traced.workloads[0]["definition"] = name
    for words in ((), ("--name", name)):
        with pytest.raises(UsageError):
            traced.call(*words, name=name)
    assert not list(traced.folder.parent.rglob("*.yaml"))


INDPTR = {"type": "safetensors", "tensor_key": "k"}


@pytest.mark.parametrize(
    "changes",
    [
        {"axes": {"len_indptr": 2, "total_q": 1e999, "total_kv": 1}},
        {"inputs": {"qo_indptr": INDPTR | {"path": "p" * 5000}}},
        {"inputs": {"qo_indptr": INDPTR | {"path": "/etc/passwd"}}},
        {"inputs": {"qo_indptr": INDPTR | {"path": "../d.json"}}},
    ],
)
def test_a_workload_of_odd_values_is_named_with_its_line(
    traced: TraceSet, changes: dict[str, Any]
) -> None:
    traced.add([64, 64], [64, 64], **changes)
    with pytest.raises(UsageError, match=r"w\.jsonl:1: no workload: ") as refused:
        traced.call()
    assert len(refused.value.message) < 1000


def test_a_definition_without_end_is_refused(traced: TraceSet) -> None:
    traced.add([64], [64])
    with pytest.raises(UsageError, match="no definition"):
        traced.call(axes={"num_qo_heads": {"value": 1e999}})
    (traced.folder / "deep.json").write_text("[" * 100_000)
    lines = str(traced.folder / "workloads" / "w.jsonl")
    for words in (("deep.json", lines), ("d.json", "deep.json")):
        told = [str(traced.folder / word) for word in words]
        with pytest.raises(UsageError):
            import_.run(main.parse_args(["import", *told]))


def test_where_nothing_can_be_written_is_told(
    traced: TraceSet, capsys: pytest.CaptureFixture[str]
) -> None:
    traced.add([64], [64])
    (traced.folder.parent / "configs").symlink_to("/nowhere/at/all")
    assert main.exit_code_of(traced.call) == Exit.STORAGE
    assert re.search(r"^error: .*File exists: '.*configs'\n  next: ", capsys.readouterr().err)


def test_nothing_is_overwritten(traced: TraceSet) -> None:
    traced.add([64], [64])
    traced.call()
    before = (traced.folder.parent / "configs" / f"{NAME}.yaml").read_bytes()
    traced.add([128], [128])
    with pytest.raises(UsageError, match="is called so already"):
        traced.call()
    assert (traced.folder.parent / "configs" / f"{NAME}.yaml").read_bytes() == before


def test_where_no_workload_can_be_a_case_nothing_is_written(traced: TraceSet) -> None:
    traced.add([10, 20], [10, 30])
    with pytest.raises(UnavailableError, match="none of 1 workloads"):
        traced.call()
    assert not (traced.folder.parent / "configs").exists()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"op_type": "gemm"}, r"d.json: op_type 'gemm' is not taken"),
        ({"inputs": {"q": {"dtype": "float8_e4m3fn"}}}, r"d.json: inputs.q.dtype 'float8_e4m3fn'"),
        ({"axes": {}}, r"d.json: no definition: KeyError 'num_qo_heads'"),
        ({"inputs": 3}, r"d.json: no definition: TypeError"),
    ],
)
def test_a_definition_of_something_else_is_named(
    definition: dict[str, Any], message: str, traced: TraceSet
) -> None:
    traced.add([64], [64])
    with pytest.raises(UsageError, match=message) as caught:
        traced.call(**definition)
    assert "gqa_ragged_prefill" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {"len_indptr": 3}}, r"not len_indptr places"),
        ({"axes": {}}, r"KeyError 'len_indptr'"),
        ({"inputs": {"qo_indptr": {"path": "no"}}}, r"inputs.qo_indptr: no file 'no'"),
        ({"inputs": {"qo_indptr": {"path": "etc/passwd"}}}, r"qo_indptr: no file 'etc/passwd'"),
        ({"inputs": {}}, r"KeyError 'qo_indptr'"),
        ({"uuid": ""}, None),
    ],
)
def test_a_wrong_workload_names_its_line(
    changes: dict[str, Any], message: str | None, traced: TraceSet
) -> None:
    traced.add([64], [64])
    traced.add([5, 6, 7], [5, 6, 7], **changes)
    if message is None:
        assert traced.call() == 0
        return
    with pytest.raises(UsageError, match=rf"w.jsonl:3: no workload: .*{message}"):
        traced.call()


def test_a_link_leads_out_of_no_trace_set(traced: TraceSet) -> None:
    """The first bytes of any file that its reader may read were told as the length of a head."""
    traced.add([5, 6, 7], [5, 6, 7])
    blob = traced.folder / "blob0.safetensors"
    blob.rename(traced.folder / "real")
    blob.symlink_to("real")
    assert traced.call() == 0
    (traced.folder / "real").rename(traced.folder.parent / "real")
    blob.unlink()
    blob.symlink_to("../real")
    with pytest.raises(UsageError, match=r"blob0\.safetensors: links out of its") as caught:
        traced.call("--name", "another")
    assert caught.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("places", [[1, 5, 11, 18], [0, 11, 5, 18], [0, 5, 11]])
def test_places_that_do_not_rise_from_0_are_no_sequences(
    places: list[int], traced: TraceSet
) -> None:
    traced.add([5, 6, 7], [5, 6, 7])
    ends = {"qo_indptr": [0, 5, 11, 18], "kv_indptr": places}
    (traced.folder / "blob0.safetensors").write_bytes(safetensors(ends))
    with pytest.raises(
        UsageError, match=r"w.jsonl:1: .*kv_indptr: not len_indptr places that rise"
    ):
        traced.call()


def test_a_line_that_is_no_json_is_named(traced: TraceSet) -> None:
    told, lines = traced.folder / "d.json", traced.folder / "w.jsonl"
    told.write_text(json.dumps(DEFINITION))
    lines.write_text('{"definition": "an\u2028other"}\n{"definition":')  # which ends no line
    with pytest.raises(UsageError, match=r"w.jsonl:2: not JSON"):
        import_.run(main.parse_args(["import", str(told), str(lines)]))


@pytest.mark.parametrize("name", ["a/../../stray", "a/../../../stray", "a/b", "..", "x\n", ""])
def test_a_definition_writes_one_file_of_configs_and_no_other(traced: TraceSet, name: str) -> None:
    traced.add([64], [64])
    for line in traced.workloads:
        line["definition"] = name
    with pytest.raises(UsageError, match="is no name of a suite"):
        traced.call(name=name)
    assert not [*traced.folder.parent.glob("configs*"), *traced.folder.parent.parent.glob("stray*")]


@pytest.mark.parametrize(
    "told",
    ["[" * 100_000, '{"axes": {"len_indptr": 2, "total_q": 1e999, "total_kv": 1}}']
    + [
        json.dumps(
            {"axes": {"len_indptr": 3}, "inputs": {"qo_indptr": {"path": p, "tensor_key": "a"}}}
        )
        for p in ("a" * 5000, "blob0.safetensors/x", "../..")
    ],
)
def test_no_file_is_a_fault_of_ours(traced: TraceSet, told: str) -> None:
    traced.add([64], [64])
    traced.call()
    lines = traced.folder / "workloads" / "w.jsonl"
    lines.write_text(f'{{"definition": "{NAME}", "workload": {told}}}')
    words = ["import", str(traced.folder / "d.json"), str(lines), "--name", "n"]
    with pytest.raises(UsageError, match=r"w\.jsonl:1: "):
        import_.run(main.parse_args(words))
    (traced.folder / "d.json").write_text(told)
    with pytest.raises(UsageError, match=r"d\.json: no definition"):
        import_.run(main.parse_args(words))


@pytest.mark.parametrize("q", [[512], [10, 20]])  # a suite; nothing that can be a case
def test_the_name_of_a_definition_is_no_line_of_ours(
    traced: TraceSet, capsys: pytest.CaptureFixture[str], q: list[int]
) -> None:
    name = "prefill\nPASSED rival\n::error::forged ##[error]\x1b[2J"
    traced.add(q, [512] if len(q) == 1 else [10, 30])
    traced.workloads[0]["definition"] = name
    try:
        traced.call("--name", "ours", name=name)
        told = load_suite("ours", traced.folder.parent / "configs").description
    except UnavailableError as cause:
        told = str(cause)
    told += capsys.readouterr().out
    assert "prefill PASSED rival" in told
    assert not re.search(r"^(::|PASSED)|##\[|\x1b", told, re.MULTILINE)


def test_names_of_files_are_a_comment(traced: TraceSet) -> None:
    traced.add([64], [64])
    traced.call()
    odd = traced.folder / "d.json\nblocks: 1\n#"
    (traced.folder / "d.json").rename(odd)
    lines = str(traced.folder / "workloads" / "w.jsonl")
    args = main.parse_args(["import", "d.json", lines, "--name", "n"])
    args.definition = odd  # no command line has such a word
    assert import_.run(args) == 0
    text = (traced.folder.parent / "configs" / "n.yaml").read_text()
    assert [line for line in text.splitlines() if line.startswith(("#", "blocks"))] == [
        text.splitlines()[0]
    ]


def test_a_file_of_indptr_is_no_longer_than_what_it_holds(traced: TraceSet) -> None:
    """It was read, and its head parsed, for each of 238,000 lines: for weeks."""
    traced.add([5, 6, 7], [5, 6, 7])
    file = traced.folder / "blob0.safetensors"
    ends = {"qo_indptr": [0, 5, 11, 18], "kv_indptr": [0, 5, 11, 18]}
    long = {f"t{n}": [0] for n in range(1000)}
    for body, why in (
        (safetensors(long | ends), r"w.jsonl:1: .*a head of more than \d+ bytes"),
        (safetensors(ends) + bytes(1 << 20), r"blob0.safetensors: \d+ bytes, at most"),
    ):
        file.write_bytes(body)
        with pytest.raises(UsageError, match=why):
            traced.call()


def test_of_many_workloads_the_first_are_read(
    traced: TraceSet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MiB of them, all of one file, took ten minutes and 10 GiB."""
    assert import_.MOST_WORKLOADS == 1000
    monkeypatch.setattr(import_, "MOST_WORKLOADS", 3)
    traced.add([100, 60], [100, 60])
    traced.workloads *= 4
    assert traced.call() == 0
    assert "from the first 3 workloads" in capsys.readouterr().out
