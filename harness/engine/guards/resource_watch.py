"""Ends a worker or a builder that takes more than it may; the others never notice.

    memory of the host, of its control group where it has one,
    else of its whole tree and of its tmpfs                   Limits.memory_gib
    memory of the GPU, of its whole tree; of a submission     Limits.gpu_memory_gib
    beside others no more than half of the card
    disk: its cache, which is kept, and its scratch folder    Limits.disk_gib, DISK_FILES
    what it prints                                            LOG_BYTES
    processes and threads                                     half of Jail.processes
    open files of them all                                    usage.DESCRIPTORS
    watches of epolls, and of timers and signals among them   usage.MOST_WATCHES

The kernel bounds those by user: that one entrant does not use up what others need, the watch sees
to.
"""

import contextlib
import itertools
import math
import os
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from harness.engine.processes.worker_process import WorkerProcess
from harness.measure.telemetry import Monitor
from harness.process.child import Child
from harness.process.sandbox import enter, usage
from harness.process.sandbox.folders import DISK_FILES, UNCOUNTED, Disk
from harness.schema import Kind, Limits, Status

PERIOD_S = 0.1
#: Times what a look at files took until the next: long ones hold up the engine's other threads.
REST = 4
LOOKS = 6  # of which all but the first are at who is stopped
IDLE_S = 5.0  # between two looks at who has not run: it has what others gave it at most
GIB = 2**30


class ResourceWatch(threading.Thread):
    """Looks at every worker that runs ten times a second."""

    def __init__(self, workers: Sequence[WorkerProcess], limits: Limits, monitor: Monitor) -> None:
        super().__init__(daemon=True)
        self.workers, self.limits, self.monitor = workers, limits, monitor
        strangers = sum(worker.entrant.kind is Kind.SUBMISSION for worker in workers)
        half_gib = monitor.card_gib / 2 if strangers > 1 else math.inf
        self.share_gib = min(limits.gpu_memory_gib, half_gib)
        folders = {each.entrant.name: (each.jail.cache, each.jail.scratch) for each in workers}
        self.disks = {name: tuple(map(Disk, both)) for name, both in folders.items()}
        self.nameless = {name: usage.Nameless(both) for name, both in folders.items()}
        self.seen = dict[tuple[int, bool], tuple[float, dict[int, int]]]()  # when, and run by then
        #: Whether an order in which processes end for want of memory could be set.
        self.order_is_kept = not os.statvfs("/proc").f_flag & os.ST_RDONLY
        self.stopping = threading.Event()
        threads, begun = 1 + 2 * len(workers), threading.Event()
        self.pool = ThreadPoolExecutor(threads)
        try:
            for _ in range(threads):  # all of them at once: an entrant could leave none for later
                self.pool.submit(begun.wait)
        finally:
            begun.set()

    def run(self) -> None:
        """Look until told to stop; one who takes a look its time holds up nobody else's."""
        looks = dict[tuple[int, bool], Future[None]]()  # (number of a worker, at its files)
        on_device = self.pool.submit(self.monitor.memory_by_pid)
        while not self.stopping.wait(PERIOD_S):
            if on_device.done():  # asked once a round, however many wait for the answer
                on_device = self.pool.submit(self.monitor.memory_by_pid)
            for place in itertools.product(range(len(self.workers)), (False, True)):
                if place not in looks or looks[place].done():
                    number, files = place
                    asked = None if files else on_device
                    looks[place] = self.pool.submit(self._look, self.workers[number], asked)
        self.pool.shutdown(wait=False)

    def _look(self, worker: WorkerProcess, on_device: Future[dict[int, int]] | None) -> None:
        """At all of one, or at its files alone, which may be many: memory does not wait for them.

        Who cannot be looked at is ended, and what is left of who has ended: nobody runs unwatched.
        """
        begun_s = time.thread_time()
        for child in worker.children():
            if not child.alive:
                child.hang_up()
                continue
            try:
                on_gpu = on_device.result() if on_device else {}
                place, pids = (id(child), not on_device), {*child.pids()}
                now = time.monotonic(), usage.cpu_ns(pids)  # before: what runs now is seen next
                then_s, ran = self.seen.get(place, (0.0, {}))
                if ran and ran == now[1] and now[0] - then_s < IDLE_S and not on_gpu.keys() & pids:
                    continue
                if on_device:
                    excess = self.excess(worker, child, on_gpu)
                else:
                    excess = self.hoard(worker, child)
                self.seen[place] = (0.0, {}) if excess else now
            except Exception as cause:
                excess = self._unseen(cause)
            if excess:
                with contextlib.suppress(Exception):  # the next look tries again
                    worker.end_for(*excess, child)
        if not on_device:
            self.stopping.wait(REST * (time.thread_time() - begun_s))

    def _unseen(self, cause: Exception) -> tuple[Status, str] | None:
        """What becomes of a process that could not be looked at; None where its run is over."""
        if self.stopping.is_set():  # its folders are being removed
            return None
        traceback.print_exception(cause)
        # A file that cannot be opened is the machine's fault; all else came of what was looked at.
        status = Status.HARNESS_ERROR if isinstance(cause, OSError) else Status.BROKE_THE_RUN
        return status, f"what it takes could not be watched: {cause!r}"[:500]

    def excess(
        self, worker: WorkerProcess, child: Child, on_device: Mapping[int, int]
    ) -> tuple[Status, str] | None:
        """What of its limits it has passed, in words."""
        pids = child.pids()
        # First: all that follows takes its time for each of them.
        most = enter.most_processes(worker.jail.processes) // 2
        if (running := sum(map(usage.threads, pids))) > most:
            return Status.OVER_QUOTA, f"{running} processes and threads, allowed {most}"
        many = len(pids) * enter.Rules().open_files > usage.DESCRIPTORS
        if many and sum(map(usage.descriptors, pids)) > usage.DESCRIPTORS:
            return Status.OVER_QUOTA, f"room for more than {usage.DESCRIPTORS} open files"
        most = int(self.limits.memory_gib * GIB)
        counted = child.group.bytes() if child.group else 0  # what nobody maps is in it too
        if (host := max(usage.host_bytes(pids, most), counted)) > most:
            return Status.OUT_OF_MEMORY, f"host memory {host / GIB:.1f} GiB, allowed {most / GIB:g}"
        tables = [*map(usage.page_table_bytes, pids), 0]
        if max(tables) > usage.WALKED_BYTES or sum(tables) > usage.MOST_TABLES_BYTES:
            why = "of the kernel's tables of its memory: what walks them cannot be stopped"
            return Status.OVER_QUOTA, f"{sum(tables) >> 20} MiB {why}"
        stranger = worker.entrant.kind is Kind.SUBMISSION
        most = int((self.share_gib if stranger else self.limits.gpu_memory_gib) * GIB)
        device = sum(on_device.get(pid, 0) for pid in pids)
        # and managed memory, which NVML names no process for, where the GPU has much of it
        if device and self.monitor.unnamed_bytes() > usage.UNNAMED_BYTES:
            device += usage.managed_bytes(pids)
        if device >= UNCOUNTED:
            return Status.OVER_QUOTA, "its mappings could not be read whole"
        if device > most:
            why = f"GPU memory {device / GIB:.1f} GiB, allowed {most / GIB:g}"
            return Status.OUT_OF_MEMORY, why
        if self.order_is_kept and worker.jail.level and any(map(usage.outlives_us, pids)):
            return Status.OVER_QUOTA, "it undid that the kernel ends it first when memory runs out"
        return (Status.OVER_QUOTA, child.log.full) if child.log.full else None

    def hoard(self, worker: WorkerProcess, child: Child) -> tuple[Status, str] | None:
        """The same of what takes its time to list: files, and memory that no process has mapped."""
        nameless = self.nameless[worker.entrant.name]
        most, ram = int(self.limits.disk_gib * GIB), int(self.limits.memory_gib * GIB)
        for disk in self.disks[worker.entrant.name]:
            disk.look(most, DISK_FILES, child.still)
            if disk.bytes == UNCOUNTED:
                why = "one of its folders cannot be listed, or is deeper than a path can name"
                return Status.OVER_QUOTA, why
            if disk.bytes > most or disk.files > DISK_FILES:
                return Status.OVER_QUOTA, (
                    f"{disk.bytes / GIB:.1f} GiB in {disk.files} files of its cache or scratch, "
                    f"allowed {most / GIB:g} GiB in {DISK_FILES}"
                )
        try:
            host = self._host_bytes(child, nameless, ram)
        except usage.Uncounted:
            return Status.OVER_QUOTA, (
                "a process of it hides which files it holds open: it runs a program that may not "
                f"be read, has {usage.LINKS} files open or mapped, they take long to list, or "
                "processes begin although all are stopped"
            )
        if nameless.watches > usage.MOST_WATCHES:
            return Status.OVER_QUOTA, (
                f"its epolls, timers and signals have too many watches, allowed "
                f"{usage.MOST_WATCHES}: a rival may find none left, or be interrupted"
            )
        if host > ram:
            return Status.OUT_OF_MEMORY, f"host memory {host / GIB:.1f} GiB, allowed {ram / GIB:g}"
        if (held := max(nameless.bytes.values(), default=0)) > most:
            why = f"{held / GIB:.1f} GiB of nameless files it holds open, allowed {most / GIB:g}"
            return Status.OVER_QUOTA, why
        return None

    @staticmethod
    def _host_bytes(child: Child, nameless: usage.Nameless, most: int) -> int:
        """Memory of the host, as far as it may be above `most`; with `nameless` brought up to date.

        Who begins meanwhile may have what one held that has ended: then all are stopped, and looked
        at again; so is who is looked at for long: it can be our own threads that make us wait.
        Raises Uncounted.
        """
        stopped = True
        with contextlib.ExitStack() as stack:
            for again in range(LOOKS):
                nameless.clock = time.thread_time if again else time.monotonic
                if again == 1:
                    stopped = stack.enter_context(child.still())
                pids = child.pids()
                theirs = pids[child.ours :]
                try:
                    due = nameless.look(theirs, again > 0)
                    if (host := usage.host_bytes(pids, most, nameless)) > most:
                        nameless.count(theirs)  # shared, it may be less by now
                        host = usage.host_bytes(pids, most, nameless)
                except usage.Uncounted:
                    if again:
                        raise
                    continue
                alone = len(theirs) < 2 or not child.walled  # nobody else stops all at once
                known = host > most or not due or alone or set(child.pids()) <= set(pids)
                if known or not stopped:
                    return host
        raise usage.Uncounted
