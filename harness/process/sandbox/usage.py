"""What an entrant's processes take: CPU time, memory of the host, open files. Cheap first."""

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.process.sandbox.folders import LISTED_S, LOOK_AGAIN_BYTES, UNCOUNTED

Clock = Callable[[], float]
RUNNING, ENDED = frozenset("RD"), frozenset("ZX")  # states of a thread: man 5 proc_pid_stat
WAITING = frozenset("d")  # D of a thread that is not ending: it stops when it leaves the kernel
ENDING = 0x4  # PF_EXITING, of a thread's flags
FIRST_TO_END = 1000  # oom_score_adj of who ends when memory runs out: man 5 proc_pid_oom_score_adj
DELETED = " (deleted)"  # how /proc names what has no name
SOCKET_BYTES = 2 * 212_992  # a buffer of the usual size, which no worker changes, and a write more
FAR_DOWN = Path()  # of a file without a name whose last path no path can name
ANONYMOUS = Path("/dev/zero")  # of a mapping that is shared and of no file
SHARED_AGAIN_S = 1.0  # without growth: a file that shrinks hides what grows beside it
UNNAMED_BYTES = 4 << 30  # of a GPU, that need no explanation: the driver's own are less than one
#: Of one entrant: each is a KiB of the kernel's and takes a look its time, in which other looks and
#: locks wait for the interpreter. 60 processes with torch have room for 16,000.
DESCRIPTORS = 32_768
LINKS = 200_000  # of what it has open or mapped; 60 processes with torch have 40,000
#: Files that others may make ready, also of who is stopped (by an interrupt, of a GPU too, a new
#: host name, their end): each watch of one, of which there is no end, is told in 0.15 us, 660 more
#: by epolls of epolls. All of a user share fs.epoll.max_user_watches.
ALARMS, OF_A_GPU = ("/proc/sys/", "anon_inode:", "pidfd:"), "/dev/nvidia"
EPOLL, COUNTER = "anon_inode:[eventpoll]", "anon_inode:[eventfd]"  # its own: no alarms
ALARM_WATCHES, THROUGH_EPOLLS, MOST_WATCHES = 3, 660, 16_384  # the last: 2.5 ms, of one entrant
#: What the kernel keeps behind a file of /proc that is open: all of it at once, where it is told of
#: all processors (stat), of each watch or lock, which have no end, in a folder of this name, and of
#: what is mapped, in files that end so, the longest path, where a line feed takes four letters: a
#: tmpfs has 200,000 folders.
PROC_BYTES, LISTING, LISTING_BYTES = 64 << 10, "/fdinfo/", 1 << 30
MAPPINGS, MAPPINGS_BYTES = "maps", 256 << 20
MOST_MAPPINGS_BYTES = 16 << 20  # that are read of one entrant; of a process with torch 50 KiB
WALKED_BYTES = 256 << 20  # of page tables: to walk more takes seconds in which nobody is watched
MOST_TABLES_BYTES = 512 << 20  # of an entrant: 60 forks of who holds 4 GiB have as much


def cpu_ns(pids: Iterable[int]) -> dict[int, int]:
    """Pid → CPU time of all its threads so far, ended ones too; who is gone is left out."""
    found = {}
    for pid in pids:
        clock = (~pid << 3) | 2  # CPUCLOCK_SCHED of a process: man 3 clock_getcpuclockid
        with contextlib.suppress(OSError):
            found[pid] = time.clock_gettime_ns(clock)
    return found


#: Of the time to build or to load; another who does so meanwhile may burn all cores.
STARVED_SHARE = 0.25


def starved_s(pids: Iterable[int]) -> float:
    """How long a thread of theirs was ready and had no core, the longest; 0 where nobody counts."""
    longest = 0.0
    for place in (f"/proc/{pid}/task/{thread}" for pid in pids for thread in _threads_of(pid)):
        with contextlib.suppress(OSError):  # it has ended, or the kernel keeps no such file
            longest = max(longest, int(_read(f"{place}/schedstat").split()[1]) / 1e9)
    return longest


def states(pid: int) -> str:
    """A letter for each thread of it; none if it is gone. Asked behind each turn: a read a thread.

    A `d` is who waits in the kernel, for its vfork say; a `D` does so on its way out.
    """
    found = ""
    for thread in _threads_of(pid):
        with contextlib.suppress(OSError):  # it has just ended
            stat = _read(f"/proc/{pid}/task/{thread}/stat")
            # state, five numbers, flags: behind a name that may hold anything
            fields = stat[stat.rindex(b")") + 2 :].split(maxsplit=7)
            letter, flags = fields[0].decode(), int(fields[6])
            found += "d" if letter == "D" and not flags & ENDING else letter
    return found


def _read(path: str) -> bytes:
    """A file of /proc: thousands are read each minute, and a Path takes as long again."""
    with open(path, "rb", 0) as told:
        return told.read()


def _numbers(file: str) -> dict[str, int]:
    """Of lines like `VmRSS:  12 kB` of a /proc file, those asked for: word → number; or empty.

    A carriage return ends no line: a process may have one in its name.
    """
    try:  # all sixty would take five times as long, hundreds of times a second
        told = re.findall(rb"\n((?:Vm|Th|FD|Hu|S[hw]|P[rs])\w+):\s+(\d+)", _read(f"/proc/{file}"))
    except OSError:
        return {}
    return {word.decode(): int(number) for word, number in told}


def _memory(pid: int, file: str, word: str) -> dict[str, int]:
    """`_numbers` of one process that has memory; its own pid's are none once thread one ended."""
    told = _numbers(f"{pid}/{file}")
    if word in told:
        return told
    others = (_numbers(f"{pid}/task/{thread}/{file}") for thread in _threads_of(pid))
    return next((each for each in others if word in each), {})


def _threads_of(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names are all we want
    except OSError:
        return []


def resident_bytes(pid: int) -> int:
    """Host memory of one process, what it shares with others included; 0 if it is gone.

    With what of it lies in huge pages and in swap, neither of which is resident to the kernel.
    """
    told = _memory(pid, "status", "VmRSS")
    return sum(told.get(word, 0) for word in ("VmRSS", "HugetlbPages", "VmSwap")) << 10


def outlives_us(pid: int) -> bool:
    """Whether it has undone that the kernel ends it before others when memory runs out."""
    with contextlib.suppress(OSError):  # it is gone
        return int(_read(f"/proc/{pid}/oom_score_adj")) < FIRST_TO_END
    return False


def threads(pid: int) -> int:
    """Threads of one process, each of which the kernel counts as a process of its user."""
    return _numbers(f"{pid}/status").get("Threads", 0)


def descriptors(pid: int) -> int:
    """How many files it may have open before the kernel makes more room; all threads share it."""
    told = (_numbers(f"{pid}/task/{t}/status") for t in _threads_of(pid))
    return max((each.get("FDSize", 0) for each in told), default=0)


def managed_bytes(pids: Iterable[int]) -> int:
    """What they have mapped of the driver's managed memory, which NVML names no process for.

    UNCOUNTED if they have more to tell than is read: the path of one mapping may be 1 MB.
    """
    found, left = 0, MOST_MAPPINGS_BYTES
    for pid in pids:
        maps = b""
        for thread in _threads_of(pid):  # one that has ended tells nothing
            with contextlib.suppress(OSError):
                maps = maps or _mappings(f"/proc/{thread}/maps", left)
        if (left := left - len(maps)) == 0:
            return UNCOUNTED
        mine = (line for line in maps.split(b"\n") if line.endswith(b" /dev/nvidia-uvm"))
        ends = (line.partition(b" ")[0].split(b"-") for line in mine)
        found += sum(int(last, 16) - int(first, 16) for first, last in ends)
    return found


def _mappings(path: str, most: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(most)


def page_table_bytes(pid: int) -> int:
    """What the kernel keeps to find the memory of one process, however little of it there is."""
    return _memory(pid, "status", "VmPTE").get("VmPTE", 0) << 10


def fair_bytes(pid: int, shared: bool = True) -> int:
    """Its memory with its part of what it shares (PSS), in some milliseconds; 0 if it is gone.

    shared: with files in memory and shared mappings.
    """
    told = _memory(pid, "smaps_rollup", "Pss")
    beside = ("SwapPss", "Shared_Hugetlb", "Private_Hugetlb")
    whole = told.get("Pss", 0) + sum(told.get(word, 0) for word in beside)
    return whole - (0 if shared else told.get("Pss_Shmem", 0)) << 10


def host_bytes(pids: Iterable[int], limit: int, beside: "Nameless | None" = None) -> int:
    """Memory of `pids` and of the files in their tmpfs; exact only if it may be above `limit`.

    A fork shares its parent's pages, so the plain sum is a bound and the fair one the truth, of
    which no more is asked than it takes to be above `limit`, and nothing where it would take long.
    beside: what else they hold, of shared mappings too, whether its pages are mapped or not.
    """
    resident = {pid: resident_bytes(pid) for pid in pids}
    tables = sum(map(page_table_bytes, resident))
    shared = beside.shared_bytes if beside else 0
    more = room_bytes(resident) + tables + shared + (beside.kept_bytes if beside else 0)
    bound = sum(resident.values()) + more
    if bound <= limit or tables > WALKED_BYTES:
        return bound
    fair = more
    for pid in sorted(resident, key=lambda pid: -resident[pid]):
        if max(fair, resident[pid] + more) > limit:  # what one has mapped is there, shared or not
            return max(fair, resident[pid] + more)
        fair += fair_bytes(pid, not shared) or resident_bytes(pid)
    return fair


def room_bytes(pids: Iterable[int]) -> int:
    """What lies in the tmpfs of a private root; 0 where the processes see the machine's own.

    One that is just making its root has a namespace of its own and still the machine's /tmp.
    """
    ours, machines = _namespace("self", "mnt"), Path("/tmp").stat().st_dev
    for pid in pids:
        theirs = _namespace(str(pid), "mnt")
        if not theirs or theirs == ours:
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            # By a descriptor: it is asked of one folder, whatever is mounted meanwhile.
            flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
            held.callback(os.close, fd := os.open(f"/proc/{pid}/root/tmp", flags))
            if os.fstat(fd).st_dev != machines:
                return _used_bytes(fd)
    return 0


def kept(pids: Collection[int], clock: Clock = time.monotonic) -> tuple[int, int]:
    """(bytes, watches): at most what the kernel keeps behind their sockets and files of /proc.

    It is nobody's resident memory. Watches: with what an interrupt may tell. Raises Uncounted.
    """
    kinds, links = ("socket:", "/proc/", OF_A_GPU, *ALARMS), _followed(pids, clock, ("fd",))
    found = [(link, name) for link, name in links if name.startswith(kinds)]
    names = [name.removesuffix(DELETED) for _, name in found]  # of a thread that has ended
    mappings = sum(name[0] == "/" and name.endswith(MAPPINGS) for name in names)
    listings = sum(LISTING in name for name in names)
    rest = sum(name.startswith("/proc/") for name in names) - mappings - listings
    sockets = _all_sockets(pids, len({name for name in names if name[0] == "s"}))
    gpu = set(_numbers_of({n: link for link, n in found if n.startswith(OF_A_GPU)}.values()))
    watches, alarms = _watches([link for link, name in found if name == EPOLL], gpu)
    alarms += sum(name.startswith(ALARMS) and name not in (EPOLL, COUNTER) for name in names)
    watches += alarms * (ALARM_WATCHES + min(watches, THROUGH_EPOLLS))
    told = listings * LISTING_BYTES + mappings * MAPPINGS_BYTES + rest * PROC_BYTES
    return told + sockets * SOCKET_BYTES, watches


def _watches(epolls: Iterable[str], gpu: Container[int]) -> tuple[int, int]:
    """How many these have, and they are; how many are at files of `gpu`, by number.

    No more are counted than it takes to be too many. A process has dozens of a GPU's files, which
    its forks inherit and nobody watches.
    """
    total = at_gpu = 0
    for link in epolls:
        try:
            told = Path(link.replace("/fd/", "/fdinfo/")).read_bytes()
        except OSError as cause:
            if cause.errno == errno.ENOMEM:  # it tells all or nothing
                raise Uncounted from cause
            continue
        if (total := total + 1 + told.count(b"\ntfd:")) > MOST_WATCHES:
            break
        at_gpu += sum(int(number, 16) in gpu for number in re.findall(rb" ino:(\w+)", told))
    return total, at_gpu


def _numbers_of(links: Iterable[str]) -> Iterator[int]:
    for link in links:
        with contextlib.suppress(OSError):  # closed meanwhile
            yield Path(link).stat().st_ino


def _all_sockets(pids: Iterable[int], known: int) -> int:
    """How many they have: `known`, or in a network of their own all, also those nobody accepted."""
    for place in (f"{pid}/task/{thread}" for pid in pids for thread in _threads_of(pid)):
        if theirs := _namespace(place, "net"):
            if theirs == _namespace("self", "net"):
                break
            with contextlib.suppress(OSError):
                return max(0, Path(f"/proc/{place}/net/unix").read_bytes().count(b"\n") - 1)
    return known


def _namespace(place: str, kind: str) -> str:
    """Of a process or thread below /proc; an empty string where nobody may tell."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{place}/ns/{kind}").readlink())
    return ""


class Uncounted(Exception):
    """Some processes hide what they have open or mapped, or it takes too long to list."""


@dataclass
class Nameless:
    """What some processes hold that is in no folder and in no process's memory.

    Files without a name, below `folders` and in shared memory, are counted again when the memory of
    the machine or a folder's disk has filled up, or later; the rest at each look.
    """

    folders: tuple[Path, ...]
    bytes: dict[Path, int] = field(default_factory=dict)  # folder → what lies on its disk
    shared_bytes: int = 0  # anonymous memory that can be shared, also where no page is mapped
    kept_bytes: int = 0  # memory of the kernel
    watches: int = 0  # of epolls, and by timers and signals that are files
    clock: Clock = time.monotonic  # thread_time where all are stopped: who waits, waits for us
    _least: tuple[int, ...] = ()
    _counted_s: float = field(default_factory=time.monotonic)  # when that was

    def look(self, pids: Collection[int], anew: bool = False) -> bool:
        """Bring all up to date, files if they may have grown, or `anew`: whether; or Uncounted."""
        self.kept_bytes, self.watches = kept(pids, self.clock)
        used = (_numbers("meminfo").get("Shmem", 0) << 10, *map(_used_bytes, self.folders))
        least = self._least or used
        grown = any(now - then >= LOOK_AGAIN_BYTES for now, then in zip(used, least, strict=True))
        now_s = time.monotonic()
        if due := anew or grown or now_s - self._counted_s > SHARED_AGAIN_S:
            self.count(pids)
            self._least, self._counted_s = used, now_s
        else:
            self._least = tuple(map(min, used, least))
        return due

    def count(self, pids: Collection[int]) -> None:
        """Bring the files up to date; raises Uncounted."""
        if any(map(hides_its_files, pids)):
            raise Uncounted
        links = _followed(pids, self.clock)
        found = {
            (seen.st_dev, seen.st_ino): (path, seen.st_blocks * 512)
            for path, seen in filter(None, itertools.starmap(_nameless, links))
        }
        self.shared_bytes = sum(size for path, size in found.values() if path == ANONYMOUS)
        for folder in self.folders:
            # As /proc tells them, without links on the way.
            top, here = Path(os.path.realpath(folder)), folder.stat().st_dev
            self.bytes[folder] = sum(
                size
                for (device, _), (path, size) in found.items()
                if device == here and (str(path).startswith(f"{top}/") or path == FAR_DOWN)
            )


def hides_its_files(pid: int) -> bool:
    """Whether we may not ask what it holds open: it runs a program that it may not read."""
    for thread in _threads_of(pid):
        try:
            os.scandir(f"/proc/{pid}/task/{thread}/fd").close()
            os.readlink(f"/proc/{pid}/task/{thread}/exe")  # noqa: PTH115 - root may list the others
        except PermissionError:  # noqa: PERF203
            if "VmRSS" in _numbers(f"{pid}/task/{thread}/status"):  # else it is on its way out
                return True
        except OSError:  # it is gone
            continue
    return False


def _followed(
    pids: Iterable[int], clock: Clock, kinds: Sequence[str] = ("exe", "cwd", "map_files", "fd")
) -> Iterator[tuple[str, str]]:
    """(link, where it leads) of what they have open, and mapped, which only root may ask, and run.

    Of a path that is longer than any can be nothing, of one that has gone the link. Raises
    Uncounted where there are too many, or to follow them takes too much of our time.
    """
    links = (link for pid in pids for kind in kinds for link in _links_of(pid, kind))
    begun_s = clock()
    for number, link in enumerate(links):
        if number >= LINKS or (number % 256 == 0 and clock() - begun_s > LISTED_S):
            raise Uncounted
        try:
            yield link, os.readlink(link)  # noqa: PTH115 - there may be 200,000
        except OSError as cause:
            yield link, "" if cause.errno == errno.ENAMETOOLONG else link


def _links_of(pid: int, kind: str) -> Iterator[str]:
    """Links of /proc to what a process has open or mapped, or runs, which may be mapped no more.

    All of its threads share these, of which one that has ended tells nothing; each has a current
    folder, whose blocks stay when it has no name.
    """
    for thread in _threads_of(pid):
        place = f"/proc/{thread}/{kind}"
        with contextlib.suppress(OSError):
            if kind in {"exe", "cwd"}:
                os.stat(place)  # noqa: PTH116 - its path may be longer than any can be read
                links = [place]
            else:
                links = [f"{place}/{name}" for name in os.listdir(place)]  # noqa: PTH208
            yield from links
            if links and kind != "cwd":
                break


def _nameless(link: str, path: str) -> tuple[Path, os.stat_result] | None:
    """(path that was, what it is) of a file without a name; None where it has one or has gone."""
    with contextlib.suppress(OSError):  # the process has just ended, or nobody may look
        if path.endswith(DELETED):
            return Path(path.removesuffix(DELETED)), os.stat(link)  # noqa: PTH116
        if not path and not (seen := os.stat(link)).st_nlink:  # noqa: PTH116
            return FAR_DOWN, seen
    return None


def _used_bytes(folder: Path | int) -> int:
    with contextlib.suppress(OSError):
        found = os.statvfs(folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize
    return 0
