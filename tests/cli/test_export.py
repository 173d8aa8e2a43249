"""`export`: which bytes go into the package, what it says of them, and how it behaves."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.board import query, record
from harness.board.rank import leaderboard
from harness.catalog.entrants import find_entrants
from harness.cli import main
from harness.cli.commands.export import bundle, evidence
from harness.cli.commands.export import command as export
from harness.cli.commands.export.evidence import Part, lines_of
from harness.cli.results import verify
from harness.errors import Exit, UnavailableError, UsageError
from harness.process.project import HOME
from harness.schema import Entrant, Kind, Slack, Status
from tests.board.factory import forged, result, run_of

pytest.importorskip("torch")
pytest.importorskip("triton")

CHECKS = Path(__file__).with_name("exported_on_cpu.py")
PAIR = ("triton_champion", "triton_backward")
PACKAGE = "attnboard_triton_champion"


def entrant_of(name: str) -> Entrant:
    return find_entrants([name], HOME / "submissions", Kind.SUBMISSION, None)[0]


def judged(
    folder: Path, name: str = PAIR[0], source: str = "", lse: bool = False, **changes: str
) -> Path:
    """Records in `folder` that say that the files of `name` passed."""
    source = source or entrant_of(name).source_sha256
    for line in run_of({name: 0.9}, source_sha256=source, **changes):
        case = line.case  # one of an eighth of the headdim, with as many FLOPs
        if case.headdim == 256:
            case = case.model_copy(update={"headdim": 32, "heads": 8 * case.heads})
        record.append(folder, line.model_copy(update={"case": case, "lse": lse}))
    return folder


def call(folder: Path, *words: object) -> int:
    args = main.parse_args(["export", *map(str, words), "--to", str(folder)])
    code: int = export.run(args)
    return code


Python = Callable[..., subprocess.CompletedProcess[str]]


def environment_of(folder: Path, more: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def fresh_python(folder: Path, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
    """What an interpreter with these words does in `folder`, whose packages it finds."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment_of(folder, more),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


#: Has imported torch, which takes 2 s, and is for each line on its input what the interpreter would be.
SERVER = """
import json, os, runpy, signal, sys, torch, traceback
for line in sys.stdin:
    if not (pid := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(280)
how, folder, environment, *outputs = json.loads(line)
for fd, path in enumerate(outputs, 1):
    os.dup2(os.open(path, os.O_WRONLY), fd)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
sys.path[:1] = ["", *environment["PYTHONPATH"].split(os.pathsep)]
sys.argv, code = how, 1
try:
    if how[0] == "-m":
        del how[0]
        runpy.run_module(how[0], run_name="__main__", alter_sys=True)
    elif how[0] == "-c":
        exec(compile(how.pop(1), "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(how[0], run_name="__main__")
    code = 0
except SystemExit as ended:
    code = int(ended.code or 0)
except BaseException:
    traceback.print_exc()
sys.stdout.flush()
os._exit(code)  # to take all of torch down again takes 0.7 s
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Python]:
    """As `fresh_python`, in a fork of `SERVER`; of an interpreter's options it knows -c and -m."""
    home = tmp_path_factory.mktemp("python")
    command, pipe = [sys.executable, "-c", SERVER], subprocess.PIPE
    with subprocess.Popen(command, cwd=home, stdin=pipe, stdout=pipe, text=True) as server:

        def run(folder: Path, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
            outputs = [home / name for name in ("out", "err")]
            for path in outputs:
                path.write_text("")
            told = [*map(str, words)], str(folder), environment_of(folder, more), *map(str, outputs)
            print(json.dumps(told), file=server.stdin, flush=True)
            code = int(server.stdout.readline())
            return subprocess.CompletedProcess(told[0], code, *(p.read_text() for p in outputs))

        yield run


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A forward and a backward, judged by made-up records of their very bytes."""
    results = judged(tmp_path_factory.mktemp("results"), lse=True)
    folder = tmp_path_factory.mktemp("out") / "pair"
    words = (PAIR[0], "--backward", PAIR[1], "--unjudged", "--results", results)
    assert call(folder, *words) == 0
    return folder


# --------------------------------------------------------------------------- what is exported


def test_what_is_exported_is_what_was_judged(python: Python, pair: Path) -> None:
    told = json.loads((pair / PACKAGE / "evidence.json").read_text())
    for part, name in zip(("forward", "backward"), PAIR, strict=True):
        folder = pair / PACKAGE / part
        there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        assert there == set(told[part]["files"])
        assert all((folder / f).read_bytes() == body for f, body in entrant_of(name).files)
    script = f"from {PACKAGE}.judged import source_hash as s; print(s('forward'), s('backward'))"
    done = python(pair, "-c", script)
    lines = [
        record.parse(raw) for raw in (pair / PACKAGE / "forward.jsonl").read_bytes().splitlines()
    ]
    of_records = {line.source_sha256 for line in lines if line.entry == PAIR[0]}
    assert of_records == {told["forward"]["source_sha256"]}
    assert done.stdout.split() == [*of_records, entrant_of(PAIR[1]).source_sha256]


def test_a_packed_case_judges_no_call_of_a_package() -> None:
    """One of packed cases alone answered plain calls, and with zeros."""
    plain = result().case
    packed = plain.model_copy(update={"batch": 1, "seqlens": (50, 46)})
    kinds = evidence._kinds([result(case=plain), result(case=packed)])
    assert [headdim for headdim, *_ in kinds] == [0, plain.headdim]


@pytest.mark.parametrize(("keys", "more"), [(None, 0), (8192, 1), (77, -1)])
def test_more_keys_than_queries_judge_nothing_of_fewer(keys: int | None, more: int) -> None:
    """A kernel that was wrong on fewer was never asked, and a package computed them with it."""
    case = result().case.model_copy(update={"seqlen_k": keys, "causal": False})
    ((_, _, _, told, _),) = evidence._kinds([result(case=case)])
    assert told == more


def test_the_evidence_is_the_boards_row_and_its_records(pair: Path, tmp_path: Path) -> None:
    told = json.loads((pair / PACKAGE / "evidence.json").read_text())
    (board,) = told["forward"]["boards"]
    assert (board["gpu"], board["suite"], board["rank"]) == ("NVIDIA H200", "fa3", 1)
    configs = {"hdim64_seq4k", "hdim128_seq8k", "hdim256_seq16k"}
    assert {r["config"] for r in board["results"]} == configs
    assert all(r["tflops"] > 0 and r["harness_commit"] for r in board["results"])
    assert told["forward"]["capabilities"] == ["9.0"]
    claims = told["forward"]["claims"]
    assert (claims["headdims"], claims["dtypes"]) == ([32, 64, 128], ["fp16"]), "no case of others"
    assert (claims["gqa"], claims["seqlens"]) == (False, "equal"), "nor of what else it claims"
    fp16 = [[headdim, "fp16", False, False, "9.0"] for headdim in (32, 64, 128)]
    assert told["forward"]["together"] == fp16
    assert told["backward"]["boards"] == []
    (tmp_path / "evidence.jsonl").write_bytes((pair / PACKAGE / "forward.jsonl").read_bytes())
    words = ["verify", PAIR[0], "--results", str(tmp_path), "--audit-only"]
    args = main.parse_args(words)
    assert verify.run(args) == 0


def test_the_evidence_has_the_rank_of_the_board(tmp_path: Path) -> None:
    """Two who were never both in the newest run of one of them are told apart by an older one."""
    results, mine = tmp_path / "results", entrant_of(PAIR[0]).source_sha256
    runs = ({PAIR[0]: 0.9, "rival": 0.897}, {PAIR[0]: 0.9}, {"rival": 0.897})
    for number, factors in enumerate(runs):
        told = {"run": f"r{number}", "date": f"2026-11-2{number}", "seed": number}
        for line in run_of(factors, source_sha256=mine, **told):
            record.append(results, line)
    assert call(tmp_path / "out", PAIR[0], "--results", results) == 0
    evidence = json.loads((tmp_path / "out" / PACKAGE / "evidence.json").read_text())
    board, _ = query.boards_from(*record.heads(results))
    (row,) = (row for row in board.boards[0].rows if row.entry == PAIR[0])
    assert (row.rank, row.tie) == (2, False)
    assert evidence["forward"]["boards"][0]["rank"] == row.rank


def test_the_official_suite_comes_first(tmp_path: Path) -> None:
    results = judged(tmp_path / "results")
    for path in list(results.rglob("*.jsonl")):
        for line in map(record.parse, path.read_bytes().splitlines()):
            other = {"suite": "another", "suite_sha256": "6" * 64, "run": "r0"}
            record.append(results, line.model_copy(update=other))
    assert call(tmp_path / "out", PAIR[0], "--results", results) == 0
    told = json.loads((tmp_path / "out" / PACKAGE / "evidence.json").read_text())
    assert [board["suite"] for board in told["forward"]["boards"]] == ["fa3", "another"]


def test_parameters_of_the_judged_function_are_told(pair: Path, tmp_path: Path) -> None:
    results = judged(tmp_path / "results", "cuda_hopper")
    assert call(tmp_path / "out", "cuda_hopper", "--results", results) == 0
    hopper = json.loads((tmp_path / "out/attnboard_cuda_hopper/evidence.json").read_text())
    told = json.loads((pair / PACKAGE / "evidence.json").read_text())
    assert [each["forward"]["returns_lse"] for each in (told, hopper)] == [True, True]
    claimed = entrant_of("cuda_hopper").manifest.claims
    said = hopper["forward"]["claims"]
    assert (claimed.gqa, claimed.packed, said["gqa"], said["packed"]) == (True, True, False, False)


@pytest.mark.parametrize("lse", [False, True])
def test_whether_lse_was_judged_is_told(
    python: Python, lse: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = judged(tmp_path / "results", lse=lse)
    assert call(tmp_path / "out", PAIR[0], "--results", results) == 0
    assert ("nobody has judged the lse" in capsys.readouterr().out) is not lse
    home = tmp_path / "out"
    told = json.loads((home / PACKAGE / "evidence.json").read_text())["forward"]
    assert (told["returns_lse"], told["lse_judged"]) == (True, lse)
    assert ("asked for `lse` as well" in (home / "README.md").read_text()) is not lse
    script = f"from {PACKAGE} import ops; ops.say_lse_unjudged()"
    assert ("return_lse=True" in python(home, "-c", script).stderr) is not lse


def test_project_file_licence_and_readme(pair: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((pair / "pyproject.toml").read_text())["project"]
    assert project["name"] == "attnboard-triton-champion"
    assert project["license"] == {"text": "Apache-2.0"}  # as told: "MIT License" is no expression
    assert project["dependencies"] == ["torch>=2.11", "triton"]
    assert (pair / "LICENSE").read_bytes() == (HOME / "LICENSE").read_bytes()
    readme = (pair / "README.md").read_text()
    assert "| hdim64_seq4k |" in readme
    assert "`triton_backward` has no row on a board" in readme


def test_a_wheel_holds_all_of_it_whatever_a_repository_around_ignores(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    entry = late(tmp_path / "one", FORWARD, 1.0)
    (tmp_path / "results").mkdir()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("*.json\n*.jsonl\nlib/\nwinner/\n")
    words = (entry, "--unjudged", "--results", tmp_path / "results")
    assert call(tmp_path / "winner", *words) == 0
    done = fresh_python(
        tmp_path / "winner", "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "winner" / "attnboard_one"
    there = {f"attnboard_one/{p.relative_to(home)}" for p in home.rglob("*") if p.is_file()}
    assert there < set(zipfile.ZipFile(wheel).namelist())
    assert "attnboard_one/forward/lib/a.py" in there


BY_IMPORT = "find each other by `import`, not by"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("from importlib import import_module", f"{BY_IMPORT} import_module"),
        ("kept = sys.modules['helper']", f"{BY_IMPORT} sys.modules"),
        ("sys.path.insert(0, here)", f"{BY_IMPORT} sys.path"),
        ("importlib.resources.files('pk')", f"{BY_IMPORT} importlib.resources"),
        ("@torch.compile\ndef run(q):\n    import odd\n", "what torch.compile traces imports"),
        (
            "def f():\n\timport os, odd\nf = torch._dynamo.optimize()(f)",
            "what torch.compile traces",
        ),
        ("@torch.library.custom_op('mine::finish')", "names an operator of torch alike"),
        ("this = sys.modules[__name__]", None),
        ("def f():\n    import odd", None),
        ("import odd\nf = torch.compile(odd.f)\ndef g():\n    import math", None),
    ],
)
def test_what_does_not_go_in_a_package_as_in_a_worker_is_told(
    tmp_path: Path, text: str, note: str | None
) -> None:
    entrant = entrant_of("triton_template")
    odd = entrant.model_copy(update={"files": (*entrant.files, ("odd.py", text.encode()))})
    notes = [
        told
        for told in bundle.write(tmp_path / "out", "mine", Part(odd, (), ()), None)
        if told.startswith("triton_template: ")
    ]
    assert [note in told for told in notes] == [True] * bool(note), notes


def test_other_bytes_than_the_judged_are_seen(python: Python, pair: Path, tmp_path: Path) -> None:
    done = python(pair, "-m", PACKAGE, "verify", "--bytes-only")
    assert (done.returncode, done.stdout.count("the bytes of source")) == (0, 2), done.stderr
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", pair, copy], check=True)
    changed = copy / PACKAGE / "forward" / "submission.py"
    changed.write_bytes(changed.read_bytes() + b"\n")
    done = python(copy, "-m", PACKAGE, "verify")
    assert done.returncode == 1
    assert done.stdout.startswith("DIFFERENT: forward was triton_champion")
    changed.write_bytes(changed.read_bytes()[:-1])
    (copy / PACKAGE / "forward" / "more.py").touch()
    done = python(copy, "-m", PACKAGE, "verify")
    assert "not what was judged: forward/more.py" in done.stdout
    (copy / PACKAGE / "forward" / "more.py").unlink()
    (copy / PACKAGE / "forward" / "kernels").symlink_to(
        tmp_path
    )  # before kernels.py, if there is one
    done = python(copy, "-m", PACKAGE, "verify")
    assert "not what was judged: forward/kernels" in done.stdout
    (copy / PACKAGE / "forward" / "kernels").unlink()


def test_bytecode_beside_a_judged_file_is_not_run(
    python: Python, pair: Path, tmp_path: Path
) -> None:
    """Two codes that compare equal ran differently: Python specialises instructions in place."""
    copy, other = tmp_path / "copy", tmp_path / "other.py"
    subprocess.run(["cp", "-r", pair, copy], check=True)
    judged = copy / PACKAGE / "forward" / "submission.py"
    asked = f"from {PACKAGE}.judged import function; print(function('forward').__code__.co_names)"
    assert len(names := python(copy, "-c", asked).stdout) > len("()\n")
    other.write_text("def custom_attention_forward(q, k, v, causal=True, sm_scale=None): return q")
    place = importlib.util.cache_from_source(str(judged))
    believed = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(other), place, doraise=True, invalidation_mode=believed)
    assert python(copy, "-c", asked).stdout == names


WITHOUT_ATTNBOARD = f"""
import importlib.util, runpy, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "attnboard" else found(name, *more)
sys.argv = ["{PACKAGE}", "verify"]
runpy.run_module("{PACKAGE}", run_name="__main__")
"""


def test_verify_judges_the_evidence_with_a_checkout(python: Python, pair: Path) -> None:
    done = python(pair, "-c", WITHOUT_ATTNBOARD)
    assert done.returncode == 3
    assert "attnboard, which judges, is not installed" in done.stderr
    done = python(pair, "-m", PACKAGE, "verify", "--checkout", HOME)
    assert done.returncode == 3, done.stderr
    assert "audit: 3 records of triton_champion" in done.stdout
    assert "CANNOT: triton_backward was exported without a row" in done.stdout


def test_verify_judges_each_run_of_the_first_board(
    python: Python, pair: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(pair, tmp_path / "copy")
    lines = (copy / PACKAGE / "forward.jsonl").read_bytes()
    later = record.parse(lines.splitlines()[0]).model_copy(
        update={"run": "r9", "date": "2026-11-22", "suite": "another"}
    )
    path = record.append(tmp_path / "later", later)
    (copy / PACKAGE / "forward.jsonl").write_bytes(lines + path.read_bytes())
    done = python(copy, "-m", PACKAGE, "verify", "--checkout", HOME)
    assert "audit: 3 records of triton_champion" in done.stdout, done.stdout
    told = json.loads((copy / PACKAGE / "evidence.json").read_text())
    told["forward"]["boards"][0]["results"][0]["run"] = "r9"
    (copy / PACKAGE / "evidence.json").write_text(json.dumps(told))
    done = python(copy, "-m", PACKAGE, "verify", "--checkout", HOME)
    judged_again = [line for line in done.stdout.splitlines() if line.startswith("audit: ")]
    assert [line.split()[1] for line in judged_again] == ["1", "3"], done.stdout


# --------------------------------------------------------------------------- what is refused


def test_what_no_record_holds_is_not_exported(tmp_path: Path) -> None:
    out, none = tmp_path / "out", tmp_path / "none"
    none.mkdir()
    with pytest.raises(UnavailableError, match="no record of it passed"):
        call(out, "triton_champion", "--results", none)
    old = judged(tmp_path / "old", source="ab" * 32)
    with pytest.raises(UnavailableError, match="judged were abababababababab") as refused:
        call(out, "triton_champion", "--results", old)
    assert "python run.py --submission triton_champion" in refused.value.hint
    assert not out.exists()


def test_rows_of_a_cpu_tell_nothing_of_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in map(record.parse, _lines(judged(tmp_path / "gpu"))):
        told = {"gpu": "cpu", "machine": line.machine.without_gpu()}
        record.append(tmp_path / "cpu", line.model_copy(update=told))
    for words, capabilities in ([], ["0.0"]), (["--unjudged"], []):
        assert (
            call(tmp_path / f"out{len(words)}", PAIR[0], "--results", tmp_path / "cpu", *words) == 0
        )
        path = tmp_path / f"out{len(words)}" / PACKAGE / "evidence.json"
        told = json.loads(path.read_text())["forward"]
        assert (told["capabilities"], told["needs"]["compute_capability"]) == (capabilities, "9.0")
        readme = (tmp_path / f"out{len(words)}" / "README.md").read_text()
        assert (
            f"compute capability {capabilities[0] if capabilities else '9.0 or newer'};" in readme
        )
        assert len(told["boards"]) == len(told["together"]) // 3 == (not words)
        assert ("a CPU alone has judged it" in capsys.readouterr().out) is (not words)


def _lines(results: Path) -> list[bytes]:
    return [line for path in results.rglob("*.jsonl") for line in path.read_bytes().splitlines()]


def test_who_is_wrong_on_a_hidden_shape_is_not_exported(tmp_path: Path) -> None:
    results = judged(tmp_path / "results")
    (line,) = run_of(
        {PAIR[0]: 0.9}, configs=("hdim64_seq4k",), source_sha256=entrant_of(PAIR[0]).source_sha256
    )[1:]
    case = line.case.model_copy(update={"name": "hidden_hdim64", "seqlen": 4099})
    nothing = dict.fromkeys(("tflops", "latency_ms", "p10_ms", "p90_ms", "speedup"))
    wrong = {"status": Status.INCORRECT, "config": case.name, "case": case, "correct": 0}
    record.append(results, line.model_copy(update={**nothing, **wrong}))
    with pytest.raises(UnavailableError, match="no record of it passed"):
        call(tmp_path / "out", PAIR[0], "--results", results)
    results, case = judged(tmp_path / "others"), line.case.model_copy(update={"seqlen": 512})
    elsewhere = {"suite": "another", "suite_sha256": "b" * 64, "config": case.name, "case": case}
    record.append(results, line.model_copy(update={**nothing, **wrong, **elsewhere}))
    with pytest.raises(UnavailableError, match="no record of it passed"):
        call(tmp_path / "out", PAIR[0], "--results", results)


def test_what_nobody_held_is_exported_with_its_mark(tmp_path: Path) -> None:
    results = judged(tmp_path / "results", integrity="cooperative/0")
    assert call(tmp_path / "out", PAIR[0], "--results", results) == 0
    told = (tmp_path / "out" / "README.md").read_text()
    assert re.search(r"\| hdim64_seq4k \| [\d.]+\? \| [\d.]+\? \| [\d.]+\? \|", told)
    assert "? cooperative: inputs, clock and verdict were its own process's" in told
    assert "measured without a sandbox" in told


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["cuda_cuflash"], "a plain .cu is launched by attnboard"),
        (["triton_template", "--backward", "triton_backward"], "has no parameter return_lse"),
        (["triton_backward"], "computes attention_backward"),
        (["triton_template", "--package", "a-b"], "no name that Python imports"),
        (["triton_template", "--package", "class"], "no name that Python imports"),
    ],
)
def test_what_cannot_be_exported_says_what_to_do(
    tmp_path: Path, words: list[str], fault: str
) -> None:
    (tmp_path / "results").mkdir()
    with pytest.raises(UsageError, match=fault) as refused:
        call(tmp_path / "out", *words, "--unjudged", "--results", tmp_path / "results")
    assert refused.value.hint


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="is there already"):
        call(tmp_path, "triton_template", "--unjudged", "--results", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("place", ["/proc/foo", "/dev/null/x", "/sys/x"])
def test_a_folder_that_cannot_be_made_is_told(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("triton_template", "--unjudged", "--results", tmp_path)
    assert main.exit_code_of(lambda: call(Path(place), *words)) == Exit.STORAGE
    assert re.search(rf"^error: .*: '{place}.*'\n  next: ", capsys.readouterr().err)


def test_a_licence_without_its_text_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(bundle, "APACHE", "another")
    call(tmp_path / "out", "triton_template", "--unjudged", "--results", tmp_path / "results")
    assert "brings no text of its licence" in capsys.readouterr().out
    assert not (tmp_path / "out" / "LICENSE").exists()


def test_words_of_a_manifest_forge_no_table_and_break_no_file(tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    entrant = entrant_of("triton_template")
    lines = "fast\n\n| shape | ms |\n|---|---|\n| a | 1 |\x7f"
    told = {"description": lines, "author": "me\n# Judged", "license": "\U0001f600\x7f"}
    forged = entrant.model_copy(update={"manifest": entrant.manifest.model_copy(update=told)})
    bundle.write(tmp_path / "out", "mine", Part(forged, (), ()), None)
    readme = (tmp_path / "out" / "README.md").read_text()
    assert not [line for line in readme.splitlines() if line.startswith(("|", "# Judged"))]
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())["project"]
    assert "\n" not in project["description"]


def test_pip_fetches_nothing_that_its_author_alone_has_chosen(tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    entrant = entrant_of("triton_template")
    needs = entrant.manifest.needs.model_copy(update={"packages": ("Flash_Attn", "my-loader")})
    manifest = entrant.manifest.model_copy(update={"needs": needs})
    part = Part(entrant.model_copy(update={"manifest": manifest}), (), ())
    notes = bundle.write(tmp_path / "out", "mine", part, None)
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["torch>=2.11", "flash-attn"]
    assert any("no my-loader with it" in note for note in notes)


# --------------------------------------------------------------------------- how it behaves


NAMES = [
    *("opchecks", "gradients", "compiled", "compiled_without_the_dispatcher"),
    *("checkpointed", "autocast", "own_cache", "scale_and_mask", "misaligned"),
    *("second_derivative", "strided", "fallback"),
    *("what_no_case_had_together", "what_another_gpu_was_judged_for"),
    *("grouped_heads_and_longer_keys", "causal_ends_with_the_last_key", "sdpa_slot"),
]


@functools.cache
def outcomes(python: Python, folder: Path, *names: str) -> dict[str, str]:
    """Check → what went wrong; one child process."""
    done = python(folder, CHECKS, PACKAGE, *names, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", NAMES)
def test_the_pair_under_the_interpreter(python: Python, pair: Path, check: str) -> None:
    found = outcomes(python, pair, *NAMES)
    assert list(found) == NAMES
    assert not found[check], found[check]


OWN_ANSWER = """\
import torch

def custom_attention_forward(q, k, v, *, causal=True, sm_scale=None, out=None):
    if out is not None:  # no judge gives it
        return out.fill_(7.0)
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=causal, scale=sm_scale)
"""


def test_a_compiler_calls_the_forward_as_the_judge_does(python: Python, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "submission.py").write_text(OWN_ANSWER)
    (tmp_path / "own" / "manifest.yaml").write_text(
        "name: own\nauthor: a\ndescription: d\nlanguage: triton\nlicense: Apache-2.0\n"
        "claims: {headdims: [32]}\n"
    )
    results = judged(tmp_path / "results")
    words = (tmp_path / "own", "--unjudged", "--results", results)
    assert call(tmp_path / "out", *words) == 0
    check = ("attnboard_own", "compiled_without_the_dispatcher")
    done = python(tmp_path / "out", CHECKS, *check, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {check[1]: ""}


LATE = """\
import pickle
import types  # the standard library's, as where it was judged
import lib.a
from bare.b import B
from lib.a import SCALE

assert types.ModuleType and B == 1.0

def custom_attention_{way}:
    import lib.a as again
    import submission
    from lib import late
    imported = __import__("lib.a", fromlist=["SCALE"])
    assert submission.SCALE == again.SCALE == imported.SCALE == late.SCALE
    assert isinstance(pickle.loads(pickle.dumps(late.Kept())), late.Kept)
    assert lib.get() is late
    return {result}
"""
FORWARD = ("forward(q, k, v, causal=True, sm_scale=None, return_lse=False)",
           "(v * SCALE, q[..., 0].float()) if return_lse else v * SCALE")  # fmt: skip
BACKWARD = ("backward(q, k, v, o, lse, do, causal=True, sm_scale=None)",
            "(do * SCALE,) * 3")  # fmt: skip
MIXED = """\
from concurrent.futures import ThreadPoolExecutor
import sys, torch, lib.a
import attnboard_one as one, attnboard_two as two

v = torch.ones(1, 1, 8, 32, dtype=torch.float16)
with ThreadPoolExecutor(8) as pool:  # the first calls of all
    assert set(pool.map(lambda _: one.attention(v, v, v).unique().item(), range(8))) == {1}
for package, scale in (one, 1), (two, 2), (one, 1):
    assert package.attention(v, v, v).unique().item() == scale
q = v.clone().requires_grad_()
one.attention(q, v, v).sum().backward()
assert q.grad.unique().item() == 3, q.grad
import lib.a as again
assert (again.SCALE, again) == (7.0, sys.modules["lib.a"])
assert "lib.late" not in sys.modules and "submission" not in sys.modules
"""


def late(folder: Path, way: tuple[str, str], scale: float) -> Path:
    """An entry whose modules bear others' names, and which imports them again in its call."""
    files = {
        "submission.py": LATE.format(way=way[0], result=way[1]),
        "manifest.yaml": f"name: {folder.name}\nauthor: a\ndescription: d\nlanguage: triton\n"
        f"problem: attention_{way[0].partition('(')[0]}\nclaims: {{headdims: [32]}}\n",
        "lib/__init__.py": "def get():\n    from . import late\n    return late\n",
        "lib/a.py": f"SCALE = {scale}\n",
        "lib/late.py": "from lib.a import SCALE\nclass Kept: pass\n",
        "bare/b.py": "B = 1.0\n",  # a folder without __init__.py
    }
    if folder.name == "one":  # to learn whose such a name is, `export` starts what a worker is
        files["types.py"] = "raise RuntimeError"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_what_a_judged_file_imports_is_of_its_folder_then_and_later(
    python: Python, tmp_path: Path
) -> None:
    """Beside another package, the other of the pair, and a user's own module of the same name."""
    results = judged(tmp_path / "results")
    one, two = (late(tmp_path / n, FORWARD, s) for n, s in (("one", 1.0), ("two", 2.0)))
    back = late(tmp_path / "back", BACKWARD, 3.0)
    more = ("--unjudged", "--results", results)
    assert call(tmp_path / "out", one, "--backward", back, *more) == 0
    assert call(tmp_path / "out2", two, *more) == 0
    shutil.move(tmp_path / "out2" / "attnboard_two", tmp_path / "out")
    (tmp_path / "out" / "lib").mkdir()
    (tmp_path / "out" / "lib" / "a.py").write_text("SCALE = 7.0\n")
    done = python(tmp_path / "out", "-c", MIXED, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr


SHARED = """\
import numpy, profile, spread.far.deep as deep, whole
from spread import far, near

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    import sched, spread.near
    from spread.far import deep as again
    assert again is deep and spread.far is far and far.same() and spread.near.far is far
    assert "spread.far" in __import__("sys").modules and numpy.ones(1) == whole.S == far.S
    return v * profile.S * sched.S * near.S
"""


def test_whose_module_a_name_is_does_not_hang_on_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without __init__.py is one of many; a worker has not loaded all that a user has."""
    for name, text in {
        "site/spread/far/__init__.py": "import sys\nS = 1\ndef same(): return sys.modules[__name__]",
        "site/spread/far/deep.py": "",
        "site/whole/__init__.py": "S = 1",
        "one/submission.py": SHARED,
        "one/manifest.yaml": "name: one\nlanguage: triton\nclaims: {headdims: [32]}\n",
        "one/spread/near.py": "from . import far\nS = 1",
        "one/spread/attn.cuh": "",
        "one/whole/table.txt": "",
        "one/numpy.py": "raise RuntimeError",
        "one/profile.py": "S = 1",
        "one/sched.py": "S = 1",
        "one/__main__.py": "raise RuntimeError",
        "one/LICENSE": "",
        "torch.py": "raise RuntimeError('of the current folder')",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    words = (tmp_path / "one", "--unjudged", "--results", tmp_path / "none")
    assert call(tmp_path / "out", *words) == 0
    script = (
        "import cProfile, sched, torch, attnboard_one as one\n"
        "v = torch.ones(1, 1, 8, 32, dtype=torch.float16)\n"
        "assert one.attention(v, v, v).unique().item() == 1"
    )
    done = fresh_python(tmp_path / "out", "-W", "error", "-c", script, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "out" / "attnboard_one" / "evidence.json").read_text())
    assert told["forward"]["modules"] == ["profile", "sched", "spread", "submission"]


def test_what_cannot_be_imported_here_leaves_the_call_to_pytorch(
    python: Python, tmp_path: Path
) -> None:
    """Where it was judged, its module's name had no dot."""
    entry, none = tmp_path / "own", tmp_path / "none"
    entry.mkdir()
    none.mkdir()
    (entry / "manifest.yaml").write_text("name: own\nlanguage: triton\nclaims: {headdims: [32]}\n")
    (entry / "submission.py").write_text("import ops\n" + OWN_ANSWER)
    (entry / "ops.py").write_text("assert __name__ == 'ops', 'a dot'")
    assert call(tmp_path / "out", entry, "--unjudged", "--results", none) == 0
    script = (
        "import torch, attnboard_own\nv = torch.ones(1, 1, 8, 32, dtype=torch.float16)\n"
        "assert attnboard_own.attention(v, v, v).unique().item() == 1"
    )
    done = python(tmp_path / "out", "-c", script, TRITON_INTERPRET="1")
    assert "forward cannot be imported (AssertionError: a dot)" in done.stderr
    assert done.returncode == 0, done.stderr


def test_in_transformers(python: Python, pair: Path) -> None:
    pytest.importorskip("transformers")
    (told,) = outcomes(python, pair, "in_transformers").values()
    assert not told, told


def test_the_example_trains_with_the_pair(pair: Path) -> None:
    words = (HOME / "examples" / "train_tiny_transformer.py", "--quick", "--package", PACKAGE)
    done = fresh_python(pair, "-W", "error::UserWarning", *words, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    cells = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if "|" in line]
    rows = {row[0]: row[1:] for row in cells}
    assert list(rows)[2:] == [
        *("float32 attention", "sdpa", *(f"sdpa, nudged {seed}" for seed in (1, 2, 3))),
        PACKAGE,
    ]
    losses = {name: (float(row[-2]), float(row[-1])) for name, row in list(rows.items())[2:]}
    assert losses["float32 attention"][1] == 0 < losses[PACKAGE][1] < 1e-3, "rounding, no more"
    (told,) = (line for line in done.stdout.splitlines() if line.startswith(f"{PACKAGE}: "))
    (of,) = (line for line in done.stdout.splitlines() if line.startswith("spread of PyTorch"))
    spread, own = ([float(x) for x in re.findall(r"\d\.\de[+-]\d+", line)] for line in (of, told))
    assert told.endswith((": within", ": beyond"))
    assert told.endswith("beyond") or all(a <= b for a, b in zip(own, spread, strict=True))
    first = float(done.stdout.split("first loss ")[1].split(";")[0])
    assert losses[PACKAGE][0] < first


def test_its_records_are_those_of_the_rows_shown(tmp_path: Path) -> None:
    """Another GPU's, and another suite's, may bear the same run's name."""
    rows = [line for line in run_of({"a": 0.9}) if line.entry == "a"]
    for line in rows:
        record.append(tmp_path, line)
        for change in ({"gpu": "Zfast"}, {"suite_sha256": "e" * 64}, {"protocol": 2}):
            machine = line.machine.model_copy(update={"gpu": change.get("gpu", line.gpu)})
            other = line.model_copy(update={**change, "machine": machine, "speedup": None})
            record.append(tmp_path, other)
    heads, _ = record.heads(tmp_path)
    read = [row for row in record.read(heads)[0] if row in rows]
    with read[0].path.open("a") as file:
        file.writelines(forged(line, samples="none") for line in rows)
    heads, _ = record.heads(tmp_path)
    shown = [line.model_copy(update={"speedup": None}) for line in read]
    found = leaderboard(shown).boards[0]
    lines = lines_of([(found, found.rows[0])], heads)
    assert [record.parse(line) for line in lines] == rows


def test_the_row_that_its_clock_was_held_against_comes_along(tmp_path: Path) -> None:
    """Without the pace's row `verify` finds another pace, and distrusts an honest package."""
    told = Slack(burst_pct=1.0, mean_pct=0.3, pace="sdpa_flash")
    rows = [
        line.model_copy(update={"slack": told}) for line in run_of({"a": 0.9, "sdpa_flash": 2.0})
    ]
    for line in rows:
        record.append(tmp_path, line)
    heads, _ = record.heads(tmp_path)
    found = leaderboard(record.read(heads)[0]).boards[0]
    lines = lines_of([(found, next(row for row in found.rows if row.entry == "a"))], heads)
    assert {record.parse(line).entry for line in lines} == {"a", "sdpa_flash", "sdpa_cudnn"}


def test_no_name_of_a_strangers_file_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`find_spec` raises of what has no spec, and an argument has no more than 128 KiB."""
    (found,) = find_entrants([PAIR[0]], HOME / "submissions", Kind.SUBMISSION, None)
    monkeypatch.setitem(sys.modules, "cython_runtime", type(sys)("cython_runtime"))  # as of PyYAML
    long = [f"m{i:03}{'x' * 230}" for i in range(600)]
    names = ["json.py", "cython_runtime.py", "fast.abi3.so", *(f"{name}.py" for name in long)]
    own = found.model_copy(update={"files": tuple((name, b"") for name in names)})

    def run(words: tuple[str, ...], **told: str) -> object:
        assert max(map(len, words)) < 1 << 16
        return subprocess.CompletedProcess(words, 0, "json" * ("json" in told["input"].split()), "")

    monkeypatch.setattr(subprocess, "run", run)
    assert bundle.own_modules(Part(own, (), ())) == ["cython_runtime", "fast", *long]
