"""From a request to a running Run: folders, lock, judge, builders, workers; and all of it ended."""

import contextlib
import os
import subprocess
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

from harness import __version__
from harness.catalog.request import Request
from harness.engine.assign_roles import ENTRANTS, Crew, gpu_env, remove_aside
from harness.engine.correctness import ask_ahead
from harness.engine.events import Observer
from harness.engine.guards.quiet import Quiet
from harness.engine.guards.resource_watch import ResourceWatch
from harness.engine.processes.judge_client import JudgeClient
from harness.engine.processes.worker_process import WorkerProcess
from harness.engine.run import BrokenRun, Run
from harness.errors import HarnessError, UnavailableError
from harness.measure import stats
from harness.measure.audit import named_now
from harness.measure.machine import minor_of, missing, too_old, without_gpu
from harness.measure.telemetry import Monitor
from harness.measure.verdict import RunFacts, asked_facts
from harness.problems import get_problem
from harness.process import prestart, process_tree, project
from harness.process.process_tree import sweep
from harness.process.project import HOME
from harness.process.sandbox import enter, readable
from harness.process.scratch import gpu_lock, scratch_folder
from harness.process.text import shown
from harness.schema import Case, Kind, Machine, Result, Status

PLACES_LATER = 8  # of a baseline: about a second, see OPENING_S of harness/worker/__main__.py
BUILDERS_AT_ONCE = 2  # of plain .cu files, each with a process for every kernel


def execute(request: Request, save: Callable[[Result], None], observer: Observer) -> None:
    """Carry out `request`; every (entrant, case) reaches `save` exactly once.

    In whose turn the judge fails leaves, and the others begin their open cases again without him.
    """
    facts = facts_of(request)  # it stays one run
    while request.entrants:
        try:
            with opened(request, save, observer, facts) as run:
                run.execute()
                return
        except BrokenRun as broken:  # noqa: PERF203 - once for each who breaks it
            if not broken.open_cases:  # of the suite's own
                observer.note(broken.message)
                return
            observer.note(f"{broken.message}; the others begin again without it")
            request = request.without(broken.entrant, broken.open_cases)


@contextlib.contextmanager
def opened(
    request: Request, save: Callable[[Result], None], observer: Observer, facts: RunFacts
) -> Iterator[Run]:
    """A Run with its judge ready, its builds done, its workers started; all end on the way out."""
    enter.require(request.sandbox)
    try:
        request.cache.mkdir(parents=True, exist_ok=True)
    except OSError as cause:  # of a user without a home: no entry's fault
        hint = "HOME=DIR, a folder that you can write"
        raise UnavailableError(f"no folder for caches: {cause}", hint) from None
    note_walls(request, observer.note)
    before = frozenset(process_tree.children(os.getpid()))
    with contextlib.ExitStack() as stack:
        stack.callback(remove_aside, request.cache / ENTRANTS)
        stack.enter_context(tidy())
        device, nodes = "cpu", list[Path]()
        if request.machine.has_gpu:
            minor = minor_of(request.machine)
            node = Path("/dev", "nvidiactl" if minor is None else f"nvidia{minor}")
            stack.enter_context(gpu_lock(node, observer.note))
            if request.suite.device == "gpu":
                device, nodes = "cuda", readable.gpu_nodes(minor)
        trusted = stack.enter_context(prestart.taken())
        monitor = Monitor(request.machine)
        stack.callback(monitor.close)
        judge = JudgeClient(trusted.judge, facts.problem.name, device, gpu_env(request.machine))
        crew = Crew(request, facts.problem, device, trusted.scratch, trusted.forkserver, nodes)
        roles, workers = crew.assign_roles(), crew.workers
        stack.callback(WorkerProcess.end_all, workers.values())
        run = Run(
            suite=request.asked,
            problem=facts.problem,
            workers=workers,
            roles=roles,
            judge=judge,
            facts=facts,
            monitor=monitor,
            save=save,
            observer=observer,
            hidden=crew.hidden,
            rule=request.rule,
            fail_fast=request.fail_fast,
            only_check=request.only_check,
            quiet=Quiet(monitor if device == "cuda" else None, observer.note),
        )
        watch = ResourceWatch(list(workers.values()), request.suite.limits, monitor)
        stack.callback(watch.stopping.set)
        watch.start()
        with run.nothing_lost():
            prepare(run, request)
        run.clean_up = lambda: sweep(before | {trusted.forkserver.process.pid} | run.pids())
        yield run


def warm_up(request: Request, observer: Observer) -> None:
    """Compile for `request` on the CPU while its GPU is another run's; only caches stay.

    No verdict comes of it: the run itself builds again, and finds the compiler's work done.
    """
    problem = get_problem(request.suite.problem)
    enter.require(request.sandbox)
    with tidy(), scratch_folder() as scratch, contextlib.ExitStack() as stack:
        # no node of the GPU, on which another run times
        workers = Crew(request, problem, "cuda", scratch).workers
        watch = ResourceWatch(list(workers.values()), request.suite.limits, Monitor(Machine()))
        stack.callback(watch.stopping.set)
        watch.start()
        for name, worker in workers.items():
            manifest = worker.entrant.manifest
            cases = _claimed(worker, request.asked.cases)
            lacks = missing(manifest.needs) or too_old(manifest.needs, request.machine)
            if worker.has_builder and cases and not (lacks or worker.unmade):
                observer.stage(name, "build ahead")
                worker.build_ahead(cases, request.suite.limits, request.machine)


def prepare(run: Run, request: Request) -> None:
    """Start the workers that need no build, build the others meanwhile, then wait for the judge.

    A plain .cu is compiled first, while the fork server and the judge still import torch. Its
    worker starts beside its builder, opens its context, and reads the submission when the judge
    first speaks to it. Other builders may search on the GPU: one by one, and no stranger's code
    loads meanwhile, or it could choose for them.
    """
    preflight(run, request)
    to_build = [worker for worker in run.workers.values() if needs_build(worker, run)]
    search = [worker for worker in to_build if not worker.compiles_alone]
    wait = [w for w in run.workers.values() if search and w.entrant.kind is Kind.SUBMISSION]
    beside = [w for w in run.workers.values() if w.compiles_alone or w not in (*search, *wait)]
    with ThreadPoolExecutor(BUILDERS_AT_ONCE) as pool:
        builds = [pool.submit(build_one, run, each) for each in to_build if each not in search]
        if not run.only_check:
            stats.get_ready()  # the fork server imports torch meanwhile
        start_all(run, beside)
        for worker in search:
            build_one(run, worker)
        if not search:
            run.judge.wait_ready()
            ask_ahead(run)
        for build in builds:
            build.result()
        for worker in to_build:
            if worker.build_starved:  # by another builder: once more, with nobody beside it
                with WorkerProcess.none_loads(beside, contextlib.nullcontext):
                    build_one(run, worker, alone=True)
    start_all(run, [worker for worker in run.workers.values() if worker not in beside])
    for worker in beside:
        if not may_start(run, worker):
            worker.end()
    run.judge.wait_ready()
    run.quiet.ready(run.judge.child.pid)
    if run.facts.machine.has_gpu and run.suite.device == "gpu" and not run.judge.shares_memory:
        run.facts = replace(run.facts, integrity=f"cooperative/{request.sandbox}")
        said = "rows will say 'cooperative', not 'judged'"
        run.observer.note(f"device memory cannot be shared here: {said}")


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """Become private and the parent of all that a run starts; leave nothing of it behind."""
    before = process_tree.children(os.getpid())
    process_tree.set_undumpable()
    process_tree.adopt_orphans()
    try:
        yield
    finally:
        sweep(before)


def preflight(run: Run, request: Request) -> None:
    """What this machine lacks is said before anything starts."""
    for name, worker in run.workers.items():
        manifest = worker.entrant.manifest
        lack, old = missing(manifest.needs), too_old(manifest.needs, request.machine)
        why = without_gpu(manifest, request.machine) if manifest.language == "cuda" else ""
        how = manifest.install or "see docs/baselines.md"
        faults = (
            (Status.HARNESS_ERROR, worker.unmade),
            (Status.UNAVAILABLE, "" if lack and manifest.install else why),
            (Status.UNAVAILABLE, lack and f"{lack}; install: {how}"),
            (Status.UNSUPPORTED, old),
        )
        for case, (status, fault) in product(run.suite.cases, faults):
            if fault:  # of each case the first counts
                run.record(name, case).fail(status, fault)


def note_walls(request: Request, note: Callable[[str], None]) -> None:
    """Say what keeps the walls low, and which folders of the user's import path they shut."""
    if request.sandbox < 2 and (why := enter.lacking(2)):
        kind = enter.LEVELS[request.sandbox]
        note(f"workers run at sandbox level {request.sandbox} ({kind}), not 2: {why}")
    if request.sandbox:
        for entry, why in readable.refused(request.shut).items():
            note(f"workers cannot read {shown(entry)} of your import path: {shown(why)}")


def needs_build(worker: WorkerProcess, run: Run) -> bool:
    """Whether a builder has work: a compiled language, a case it claims, and no finished build."""
    builder = worker.has_builder and worker.device != "cpu"
    return builder and may_start(run, worker) and not worker.has_build(_made_for(run))


def build_one(run: Run, worker: WorkerProcess, alone: bool = False) -> None:
    """One builder to its end; a failure there is the verdict of every case.

    Unless it is one of a builder that was starved beside another one, and not yet tried `alone`.
    """
    name = worker.entrant.name
    run.observer.stage(name, "build")
    cases = _claimed(worker, run.suite.cases)
    try:
        status, reason, seconds = worker.build(cases, run.limits, run.facts.machine)
    except Exception as cause:  # whatever a builder says or does ends its own entry
        traceback.print_exc()
        ours = isinstance(cause, HarnessError)  # a process could not be had, or the like
        status = Status.HARNESS_ERROR if ours else Status.BROKE_THE_RUN
        reason, seconds = f"while it was built: {cause!r}"[:500], 0.0
    if worker.build_starved and not alone:
        return
    for case in cases:
        known = run.record(name, case)
        known.build_s = seconds
        if status is not None:
            known.fail(status, reason)
            known.log_tail = known.log_tail or worker.build_log
    if status is None:
        worker.keep_build(_made_for(run))


def _claimed(worker: WorkerProcess, cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if not worker.entrant.manifest.claims.refusal(case)]


def _made_for(run: Run) -> str:
    """Another suite, compiler or GPU builds again."""
    here = run.facts.machine
    return " ".join((run.suite.sha256, here.gpu, here.cuda, here.torch, here.triton))


def start_all(run: Run, workers: Sequence[WorkerProcess]) -> None:
    """Launch every one of `workers` that may run, all at once; they load while the judge starts.

    The house's own open their contexts later: a first verdict waits for each that is being opened.
    Where nobody is timed nobody asks them: what they import would only take the verdict's cores.
    """
    theirs = {Kind.SUBMISSION} if run.only_check else set(Kind)
    asked = (w for w in workers if w.entrant.kind in theirs and may_start(run, w))
    for place, worker in enumerate(asked):
        run.observer.stage(name := worker.entrant.name, "load")
        ours = worker.entrant.kind is Kind.BASELINE
        # a library compiles at its first call; who has a builder has done so
        rehearses = ours and worker.device == "cuda" and not worker.has_builder
        cases = _claimed(worker, run.suite.cases) if rehearses and name != run.roles.null else ()
        worker.start(place + PLACES_LATER * ours, cases)


def may_start(run: Run, worker: WorkerProcess) -> bool:
    """Whether some case of it has not failed yet."""
    return any(run.record(worker.entrant.name, case).status is None for case in run.suite.cases)


def facts_of(request: Request) -> RunFacts:
    """Everything that all records of the run share."""
    told = (request.suite, request.machine, f"judged/{request.sandbox}")
    run, date = named_now()
    return replace(asked_facts(*told, harness_commit()), run=run, date=date)


def harness_commit() -> str:
    """Commit of the checkout, '+' if files differ from it; an installation's version, 'v0.1.0'."""
    if not project.is_project(HOME):  # a git that is around an installation is somebody else's
        return os.environ.get("ATTNBOARD_COMMIT", "") or f"v{__version__}"
    try:
        lines = subprocess.run(
            ["git", "status", "--porcelain=v2", "--branch", "harness", "run.py"],
            cwd=HOME,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("ATTNBOARD_COMMIT", "")
    head = next(line.split()[2] for line in lines if line.startswith("# branch.oid "))
    return head[:12] + ("" if all(line.startswith("# ") for line in lines) else "+")
