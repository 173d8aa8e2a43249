"""The command line: `run` is the default command; every other command is a file."""

import argparse
import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import PROTOCOL, __version__
from harness.cli.arguments import SUSTAINED_S, Parser, gpu_count, positive, stretch_s, whole
from harness.cli.output import keep_places, unbreakable
from harness.errors import Exit, HarnessError, SubmissionError, UsageError, did_you_mean, typed
from harness.measure.stats import MOST_BLOCKS
from harness.measure.stopping import TIME_LIMIT_S
from harness.process.project import base, chosen, find, results
from harness.process.text import plain_text, run_document, shown

#: Command → what `--help` says of it: those about records, files of harness/cli/results/,
ON_RECORDS = {
    "compare": "how much faster A is than B, with its interval",
    "explain": "compare, and say what likely limits each",
    "history": "every run of one entry, and where its speed-up made a step",
    "papercheck": "published figures beside what is measured here on the same shapes",
    "rank": "rebuild leaderboard.md and .html from results/",
    "replay": "ask again what an entry answered wrongly",
    "show": "everything the newest records say of one entry",
    "verify": "audit an old record and measure it again",
}
#: and those about submissions and the machine, of harness/cli/commands/.
OTHERS = {
    "baselines": "which rivals can run here, and what to install for the others",
    "build": "compile CUDA submissions: registers, shared memory, spills, occupancy",
    "completion": "print a completion script for your shell",
    "doctor": "what works here, what is missing, what to type",
    "export": "a judged kernel as a Python package for your model",
    "import": "a suite from a definition and workloads of FlashInfer-Bench",
    "init": "start a submission from a template; where there is no project, start one",
    "list": "submissions, their rungs, baselines and suites, and where each stands",
    "profile": "ncu counters, roofline, likely limiter",
    "selftest": "run the cheaters and the honest controls against this harness",
}
COMMANDS = dict(sorted((ON_RECORDS | OTHERS).items()))
FILES = {"export": "export.command", "import": "import_", "list": "list_"}  # called otherwise
EPILOG = """\
examples:
  python run.py --submission triton_template            one submission on the official suite
  python run.py mine.py --suite quick                   a bare file, seconds
  python run.py mine --check -x                         is it right? stop at the first failure
  python run.py mine --suite quick --watch              again after every edit, no import of torch
  python run.py --submission all --baselines sdpa_cudnn,flash_attn_3
  python run.py --submission all --gpus all --resume    GPUs of this host, what is not recorded
  python run.py rank                                    rebuild leaderboard.md from results/
--root DIR, or ATTNBOARD_ROOT: whose submissions/, configs/ and results/ are meant (default: the
            nearest folder upwards with a file .attnboard, those in a submission last)
exit codes: 0 done · 1 a submission failed, or cannot be read · 2 usage or harness error
            3 something is missing, or none passed (UNSUPPORTED, UNAVAILABLE, UNSTABLE, CONTENDED)
            4 GPU unhealthy · 5 results could not be stored · 130 interrupted
            (UNSUPPORTED: outside the claims of its manifest, or it raises NotImplementedError)
            141 nobody reads the output any more (a run goes on to its end and is recorded)
"""
#: Any of these flags makes a campaign of a run.
MANY = ("engine", "gpus", "per_unit", "resume")
ALONE = ("-h", "--help", "-V", "--version")
ASKED: dict[str, Any] = {}  # what the parser found


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse; without a command the words are those of `run`."""
    words = chosen(sys.argv[1:] if argv is None else argv)
    commands = ("run", *COMMANDS)
    for word in words:  # a shell finds a stranger's in FOLDER/*: he would write lines of ours
        if len(f"{word}.".splitlines()) > 1:
            said = f"{shown(word)}: a word of several lines"
            raise UsageError(said, "rename it, or leave it out")
    if not words:
        hint = "python run.py --submission triton_template, or python run.py --help"
        raise UsageError("no submission named", hint)
    if words[0].startswith("-") and words[0] not in ALONE:
        words.insert(0, "run")
    if words[0] not in (*commands, *ALONE):
        _require_submission(words[0], commands)
        words.insert(0, "run")
    if words[0] == "run":
        # `mine.py other --suite quick` → `--submission mine.py --submission other --suite quick`
        count = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
        named = [part for word in words[1:count] for part in ("--submission", word)]
        words = ["run", *named, *words[count:]]
    if "--watch" in words and words[0] in commands and words[0] != "run":
        said = f"--watch repeats a run, and '{words[0]}' is none"
        raise UsageError(said, "python run.py --submission NAME --watch")
    parser = Parser(prog=typed("run.py"), epilog=typed(EPILOG))
    parser.add_argument(
        "--version", "-V", action="version", version=f"attnboard {__version__}, protocol {PROTOCOL}"
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    add_run(subparsers)
    for name in COMMANDS:
        add_command(subparsers, name, whole=words[0] == name)
    args = parser.parse_args(words)
    ASKED.update(vars(args))
    if args.command == "run" and not args.submission:
        hint = "python run.py triton_template, or run.py run --help"
        raise UsageError("no submission named", hint)
    return args


def _require_submission(word: str, commands: Sequence[str]) -> None:
    """Raise UsageError unless `word`, which is no command, names somebody."""
    mine = base() / "submissions"
    if os.path.exists(word) or os.path.exists(mine / word):
        return  # the rest of the catalog is loaded while judge and fork server start
    from harness.catalog.entrants import known_names, places

    if not places([word], mine):
        near = did_you_mean(word, [*commands, *known_names(mine)])
        hint = f"{near + ' Or' if near else ''} python run.py list · python run.py --help".lstrip()
        raise UsageError(f"no command, submission or file '{shown(word)}'", hint)


def is_campaign(args: argparse.Namespace) -> bool:
    """Whether any flag speaks of more than one run."""
    return any(getattr(args, name, None) for name in MANY)


def add_run(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Declare the default command."""
    parser = subparsers.add_parser(
        "run", help="judge, time and rank (the default)", epilog=typed(EPILOG)
    )
    add = parser.add_argument
    what = "folder of submissions/, path to a folder, to a folder of folders, to a .py or to a "
    what += "described .cu, comma list, all; names may stand alone in front: run.py mine.py"
    add("--submission", "-s", action="append", metavar="NAME", help=what)
    add("--suite", metavar="NAME", help="in configs/ (default: fa3[_bwd], no GPU: smoke[_bwd])")
    add("--baselines", metavar="LIST", help="comma list, all or none (default: the suite's)")
    add("--against", metavar="NAME", help="headline of the speed-up (default: the suite's)")
    what = "timed blocks per case (default: the suite's)"
    add("--blocks", type=whole(1, MOST_BLOCKS), metavar="N", help=what)
    what = "go on with the neighbours that are not told apart, or equal within PCT, e.g. 0.3%%"
    add("--until", metavar="PCT", help=what)
    what = "drop who is clearly slower than K others after a few blocks (default K: 3)"
    add("--race", type=int, nargs="?", const=3, metavar="K", help=what)
    what = "of the timed part, for --until; the suite's own blocks are not cut (default: "
    add("--time-limit", type=float, metavar="SECONDS", help=f"{what}{TIME_LIMIT_S:g})")
    what = "these cases of the suite, e.g. 'hdim64_*,*_full'; same board"
    add("--only", metavar="LIST", help=what)
    what = "what lasts: so many seconds of each alone, with clock, power and energy; 0: not even "
    what += f"where the suite asks (default: the suite's; without a number {SUSTAINED_S:g})"
    add("--sustained", type=stretch_s, nargs="?", const=SUSTAINED_S, metavar="SECONDS", help=what)
    add("--headdim", "--hdim", metavar="LIST", help="64,128,256: own shapes instead of the suite's")
    add("--seqlen", metavar="LIST", help="512,4k,16k")
    add("--causal", metavar="WHICH", help="true, false or both")
    add("--dtype", metavar="LIST", help="fp16, bf16")
    add("--batch", "--batch-size", metavar="N", help="default: 16384 / seqlen")
    add("--heads", "--nheads", metavar="N", help="default: 2048 / headdim")
    add("--check", action="store_true", help="is it right? nobody is timed, nothing is recorded")
    add("--fail-fast", "-x", action="store_true", help="end at the first failure of a submission")
    what = (
        "of an import, a first call, a burst (default: the suite's limits); a second hang gets 5 s"
    )
    add("--timeout", type=positive, metavar="SECONDS", help=what)
    add("--gpu", type=whole(0), metavar="INDEX", help="which GPU, by NVML (default: first visible)")
    what = "0 none, 1 Landlock and seccomp, 2 namespaces too, 3 container (default: 2, 1 or 0)"
    add("--sandbox", type=int, choices=(0, 1, 2, 3), metavar="LEVEL", help=what)
    add("--watch", action="store_true", help="run again after every edit of the submissions")
    add("--quiet", "-q", action="store_true", help="verdicts and the board only")
    add("--json", action="store_true", help="print one JSON document on stdout, all else on stderr")
    add_many(parser.add_argument_group("many GPUs, many submissions (docs/many-gpus.md)"))
    add("--results", type=results, default="", metavar="DIR")
    what = "everything into this file (default: leaderboard.md, a CPU's in results/cpu/; beside "
    what += "records that lie elsewhere)"
    add("--leaderboard", "--board", type=Path, metavar="FILE", help=what)


def add_many(group: argparse._ArgumentGroup) -> None:
    """Flags of a campaign: any of the first four makes one of a run."""
    add = group.add_argument
    add("--engine", choices=("local", "ray", "slurm"), help="who places the units (default: local)")
    add("--gpus", type=gpu_count, metavar="N", help="how many GPUs at once, or all")
    add("--per-unit", type=whole(1), metavar="N", help="entrants that share a run (default: 1)")
    add("--resume", action="store_true", help="skip what is recorded: source, suite, protocol, GPU")
    some = min(8, (os.cpu_count() or 1) // 4)  # the runs' own processes need the others
    add("--builders", type=whole(0), default=some, metavar="N", help="compile ahead on CPUs")
    add("--sku", metavar="NAME", help="only such GPUs: a folder of results/, e.g. nvidia-h200")
    add("--gpu-memory", type=positive, metavar="GIB", help="only GPUs with at least this")
    add("--address", metavar="HOST:PORT", help="Ray cluster (default: RAY_ADDRESS)")
    add("--slurm", action="append", metavar="KEY=VALUE", help="sbatch option, e.g. partition=gpu")
    what, found = "shared with the nodes: units, events, logs", find()
    folder = found / ".slurm" if found else None
    add("--slurm-folder", type=Path, default=folder, metavar="DIR", help=what)


def command_module(command: str) -> ModuleType:
    """The file of a command, loaded when it is asked for: a query starts in a third of a second."""
    folder = "results" if command in ON_RECORDS else "commands"
    return importlib.import_module(f"harness.cli.{folder}.{FILES.get(command, command)}")


def add_command(subparsers: "argparse._SubParsersAction[Any]", name: str, whole: bool) -> None:
    """Declare any command but `run`; its flags, which its file knows, only if `whole`."""
    parser = subparsers.add_parser(name, help=COMMANDS[name])
    if whole:
        command_module(name).add_flags(parser)


class Stop:
    """What a signal does: the first ends the command, the second waits, the third does not."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, number: int, frame: object) -> None:
        """Raise KeyboardInterrupt, once."""
        self.asked += 1
        if self.asked == 1:
            raise KeyboardInterrupt
        if self.asked > 2:
            os._exit(Exit.INTERRUPTED)


def exit_code_of(main: Callable[[], int]) -> int:
    """Run `main`; our own errors become two lines and an exit code, Ctrl-C becomes 130.

    What it writes cannot end it. What nobody foresaw keeps its traceback and is a harness error:
    1 would blame the submission.
    """
    keep_places()
    stop = Stop()
    for polite in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A Ctrl-C: children are ended and records kept either way. `nohup` asks to be left alone.
        if signal.getsignal(polite) is not signal.SIG_IGN:
            signal.signal(polite, stop)
    with unbreakable() as out:
        code = _code_of(main)
        if out.fault and not out.reader_left:
            print(f"stdout: {out.fault}; what else was to be said is lost", file=sys.stderr)
        return out.code_beside(code)


def _code_of(main: Callable[[], int]) -> int:
    """The exit code of `main`; what ended it stands on stderr."""
    try:
        return main()
    except SystemExit as end:  # --help and --version, whose words may be lost as well
        return end.code if isinstance(end.code, int) else Exit.OK
    except HarnessError as error:
        refused = [error, *error.others] if isinstance(error, SubmissionError) else []
        for other in refused[1:]:
            print(plain_text(f"left out: {other}"), file=sys.stderr)
        if refused and ASKED.get("json"):  # before anything ran
            kinds = {"build": "builds", "run": "checks" if ASKED.get("check") else "results"}
            if kind := kinds.get(ASKED["command"]):
                print(run_document(kind, [], map(str, refused)), flush=True)
        print(plain_text(f"error: {error}"), file=sys.stderr)  # names may be a stranger's
        return error.exit_code
    except ModuleNotFoundError as missing:
        said = f"error: {missing.name} is not installed"
        return _ended(said, "pip install -e .", Exit.UNAVAILABLE)
    except Exception as cause:
        if isinstance(cause, OSError) and cause.errno == errno.ENAMETOOLONG:  # of any command
            said = f"error: longer than a path may be, or a link to one: {cause.filename}"
            return _ended(shown(said, 200), "name a shorter one", Exit.USAGE)
        if isinstance(cause, FileNotFoundError) and cause.filename is None:  # of os.getcwd
            return _ended("error: the current folder is gone", "cd to another", Exit.USAGE)
        if isinstance(cause, OSError) and ASKED.get("command") in ("export", "import", "init"):
            hint = "another place, or `ls -ld` there"
            return _ended(shown(f"error: {cause}", 400), hint, Exit.STORAGE)
        traceback.print_exc()
        said = "error: a fault of the harness; what was measured before it is recorded"
        hint = f"{typed('python run.py doctor')}, and report the lines above"
        return _ended(said, hint, Exit.USAGE)
    except KeyboardInterrupt:
        said = "interrupted: what was measured is recorded"
        return _ended(said, "the same command again", Exit.INTERRUPTED)


def _ended(said: str, hint: str, code: Exit) -> int:
    print(plain_text(f"{said}\n  next: {hint}"), file=sys.stderr)  # names may be a stranger's
    return code
