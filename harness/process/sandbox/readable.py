"""What an untrusted process may read of the machine and of the user's own import path.

Of the machine: programs and libraries, by allow-list.

    /usr /lib /bin …           the distribution's, and this Python's own folders
    compilers and CUDA         as below; below a home, their own folders alone
    the linker's folders       what /etc/ld.so.conf names
    /etc                       a few files that say nothing about this machine's users or services
    /sys                       the hardware

Nothing else of /etc, /opt, /run, /sys or /var, and no home.

Of the import and library paths: packages may live anywhere, in ~/.local, in a folder on PYTHONPATH,
where an editable installation points. Each such folder is opened for reading, unless that would
open more than packages:

    it is, or holds, a home, a project or checkout, the harness's cache, the temporary folder or a
        submission (one that nobody entered: one level deep, and of no site-packages)
    it is a top folder of the system, or the current folder where no entry has its whole path
    it lies in the checkout, in the cache, in a submission, or in /etc, /proc, /dev, /run or /sys
    it lies in another project or right below a home behind a dot (~/.ssh), and is no site-packages

Whose user nobody lists, as with LDAP, has a home where it lies beside another one.

Landlock opens a whole hierarchy or nothing of it, so a folder that holds both packages and a home
stays shut.
"""

import contextlib
import functools
import os
import pwd
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

FOLDERS = "/usr /lib /lib64 /lib32 /libx32 /bin /sbin /nix/store /gnu/store /run/opengl-driver"
ETC = (
    "ld.so.cache ld.so.conf ld.so.conf.d alternatives localtime timezone os-release lsb-release "
    "debian_version redhat-release nsswitch.conf host.conf protocols services mime.types "
    "locale.alias locale.conf ssl/openssl.cnf"
)
SYS = "/sys/devices /sys/bus /sys/class /sys/dev /sys/module /sys/kernel/mm"
#: Not /proc itself: its other entries hold every process's environment and command line; nor
#: /proc/sys/net, which holds keys.
PROC_FACTS = "cpuinfo meminfo stat version devices modules filesystems loadavg uptime driver "
PROC_FACTS += "sys/abi sys/crypto sys/fs sys/kernel sys/vm"
ENVIRONMENT = ("bin", "lib", "lib64", "pyvenv.cfg")  # of a venv
TOOLCHAIN = "bin include lib lib32 lib64 libexec nvvm targets *-linux-gnu"  # of a compiler's prefix
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: NVIDIA's, beside each GPU's own. Not NVSwitch's, GPUDirect Storage's or the channels of IMEX, by
#: which memory crosses to other machines.
GPU_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
#: Of nvidia-caps the numbers of a GPU's MIG instances (nv-caps.c of the driver): those before set
#: and watch MIG, those behind profile and trace what others compute.
FIRST_CAP, CAPS_A_GPU, MOST_GPUS = 3, 135, 32


@functools.cache
def readable_paths() -> tuple[Path, ...]:
    """All that is there of the list above, no path twice; looked up once."""
    names = [*FOLDERS.split(), *SYS.split(), *(f"/etc/{name}" for name in ETC.split())]
    paths = [Path(name) for name in (*names, *_pythons())]
    paths += [*Path("/etc").glob("python3*"), *_linked_folders()]
    return tuple(path for path in dict.fromkeys(paths) if path.exists())


def _pythons() -> Iterator[str]:
    """This Python's own folders; of an environment's not the root: a checkout may be there too."""
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]
    for prefix in (each for each in prefixes if real(each) != Path("/")):  # of a /bin/python3
        whole = not Path(prefix, "pyvenv.cfg").is_file()
        yield from [prefix] if whole else (f"{prefix}/{name}" for name in ENVIRONMENT)


def _linked_folders() -> Iterator[Path]:
    """Folders in which the machine's own configuration has the linker look."""
    for file in (Path("/etc/ld.so.conf"), *sorted(Path("/etc/ld.so.conf.d").glob("*.conf"))):
        with contextlib.suppress(OSError):
            lines = map(str.strip, file.read_text(encoding="utf-8", errors="replace").splitlines())
            yield from (Path(line) for line in lines if line.startswith("/"))


def devices(named: tuple[Path, ...] | None = None) -> list[Path]:
    """Harmless device nodes, and the GPU's: `named`, or all there are."""
    usual = [Path("/dev", name) for name in DEVICES]
    gpus = sorted(gpu_nodes()) if named is None else list(named)
    return [path for path in (*usual, *gpus) if path.exists()]


def gpu_nodes(minor: int | None = None) -> list[Path]:
    """NVIDIA's nodes: for control, of the GPU `minor` (None: of all), and of its MIG instances."""
    gpus = range(MOST_GPUS) if minor is None else [minor]
    caps = range(FIRST_CAP + CAPS_A_GPU * gpus[0], FIRST_CAP + CAPS_A_GPU * (gpus[-1] + 1))
    names = {*GPU_CONTROL, *(f"nvidia{gpu}" for gpu in gpus), *(f"nvidia-cap{n}" for n in caps)}
    places = (*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*"))
    return [path for path in places if path.name in names]


NEVER_INSIDE = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys")
PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")
HERE = {"", ".", "./"}  # what attnboard/__init__.py leaves
PACKAGES = {"site-packages", "dist-packages"}
PROJECT = ".attnboard"  # marks somebody's root, see harness/process/project.py
SUBMISSION = ("manifest.yaml", "submission.py")  # either marks a submission's folder, see there
ARCHIVES = {".zip", ".egg", ".whl"}
FIRST_PERSON = 1000  # user ids below belong to the system; their homes are folders like /usr/sbin


@dataclass(frozen=True)
class DenyList:
    """What must stay shut, all paths resolved."""

    homes: tuple[Path, ...]
    own: tuple[Path, ...]  # of the harness: nothing in there is a user's package
    entered: tuple[Path, ...] = ()  # submissions of this run: folders, or files by themselves
    here: Path | None = None  # the current folder, unless an import path has it as a whole
    others: bool = True  # submissions that nobody entered stay shut, too

    def refusal(self, path: Path) -> str:
        """Why `path`, resolved, is not opened, or an empty string."""
        if not os.path.isdir(path) and not (os.path.isfile(path) and path.suffix in ARCHIVES):
            return "it is neither a folder nor an archive of packages"
        if any("\ud800" <= sign <= "\udfff" for sign in str(path)):  # no unit is told of it
            return "it is not UTF-8"
        if why := self.holds(path):
            return why
        if path == self.here:
            return "it is the current folder; write its whole path if you mean it"
        above = (path, *path.parents) if not PACKAGES.intersection(path.parts) else ()
        projects = [p for p in above if os.path.isfile(p / PROJECT) or self._is_other(p)]
        hidden = (p for p in above if p.name.startswith(".") and self._is_home(p.parent))
        for place in (*self.own, *map(Path, NEVER_INSIDE), *projects, *hidden):
            if path.is_relative_to(place):
                return f"it lies in {place}"
        return ""

    def holds(self, path: Path) -> str:
        """Why not even a compiler's folder is opened: what it is or holds, or whose it is."""
        try:
            around = (os.fspath(path), *_within(path))  # hundreds: no Path of each
        except OSError:
            return "it cannot be listed, and may hold anything"
        projects = [Path(p) for p in around if os.path.isfile(f"{p}/{PROJECT}")]
        if not PACKAGES.intersection(path.parts):
            projects += (Path(p) for p in around if self._is_other(p))
        if self._is_home(path):
            return f"it is {path}"
        for place in (*self.homes, *self.own, *self.entered, *projects):
            if place == path or path in place.parents:
                return f"it {'is' if place == path else 'holds'} {place}"
        if within := next((place for place in self.entered if place in path.parents), None):
            return f"it lies in {within}"
        top = len(path.parts) < 3 or path.parent == Path("/var")
        return "it is a top folder of the system" if top else ""

    def _is_other(self, place: str | Path) -> bool:
        """Whether it is a submission's folder; a home or the root is none, whatever lies there."""
        found = self.others and any(os.path.exists(f"{place}/{file}") for file in SUBMISSION)
        return found and (path := Path(place)) != Path("/") and not self._is_home(path)

    def _is_home(self, path: Path) -> bool:
        """Whether `path` is one, or what somebody else has beside one: LDAP lists nobody."""
        beside = {home.parent for home in self.homes}.difference(self.homes, [Path("/")])
        with contextlib.suppress(OSError):
            if path.parent in beside and FIRST_PERSON <= path.stat().st_uid != os.getuid():
                return True
        return path in self.homes


def real(path: str | Path) -> Path:
    """`path` without links; Path.resolve raises where one leads to itself."""
    with contextlib.suppress(OSError):  # what was a link is none when it is read
        return Path(os.path.realpath(path))
    return Path.cwd() / path


def _within(folder: Path) -> list[str]:
    with contextlib.suppress(NotADirectoryError), os.scandir(folder) as entries:
        return [entry.path for entry in entries if not entry.is_file(follow_symlinks=False)]
    return []


def shut(*own: Path, entered: Iterable[Path] = ()) -> DenyList:
    """The homes of this machine (and the temporary folder), the folders `own` of ours, and more.

    entered: as they lay when they were read; a link may have taken their place since.
    """
    homes = {Path.home(), Path(tempfile.gettempdir())}
    homes |= {Path(e.pw_dir) for e in pwd.getpwall() if e.pw_uid == 0 or e.pw_uid >= FIRST_PERSON}
    with contextlib.suppress(KeyError):  # a container's user has no entry
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    entries = (entry for key in PATHS for entry in os.environ.get(key, "").split(os.pathsep))
    whole = {real(entry) for entry in entries if entry.startswith("/")}
    sets = {real(path) for path in homes}, {real(path) for path in own}, set(entered)
    people, ours, theirs = (tuple(sorted(paths - {Path("/")})) for paths in sets)
    return DenyList(people, ours, theirs, None if Path.cwd() in whole else Path.cwd())


def asked_for(*keys: str) -> list[str]:
    """What is on the user's search paths `keys`, absolute, each once."""
    entries = os.pathsep.join(os.environ.get(key, "") for key in keys).split(os.pathsep)
    return list(dict.fromkeys(str(Path(e).absolute()) for e in entries if e not in HERE))


def make_absolute() -> None:
    """Make the user's search paths absolute: children that are started elsewhere find the same."""
    for key in {"PATH", *PATHS, "CUDA_HOME", "CUDA_PATH"}.intersection(os.environ):
        os.environ[key] = os.pathsep.join(asked_for(key))


def import_path() -> list[str]:
    """What a worker's PYTHONPATH needs to import as the user can: theirs, then the user's site."""
    own, user = asked_for("PYTHONPATH"), site.getusersitepackages()
    return [*own, user] if user in sys.path and user not in own else own


def _import_paths() -> Iterator[Path]:
    return map(Path, filter(None, (*sys.path, *asked_for(*PATHS))))


def opened(shut_in: DenyList, entries: Iterable[str] | None = None) -> list[Path]:
    """Those of sys.path and the library path (or of `entries`) that may be read: links as such."""
    wanted = _import_paths() if entries is None else map(Path, filter(None, entries))
    paths = dict.fromkeys(path.absolute() for path in wanted)
    return [path for path in paths if not shut_in.refusal(real(path))]


def compilers(shut_in: DenyList) -> Iterator[Path]:
    """CUDA, and where compilers on the PATH are installed; of what stays shut what they need."""
    prefixes = [Path(entry) for entry in asked_for("CUDA_HOME", "CUDA_PATH")]
    for tool, proof in (("gcc", "lib*/gcc"), ("g++", "lib*/gcc"), ("nvcc", "nvvm")):
        if found := shutil.which(tool):
            places = (Path(found).absolute().parent.parent, real(found).parent.parent)
            prefixes += [prefix for prefix in places if next(prefix.glob(proof), None)]
    for prefix in dict.fromkeys(prefixes):
        if not shut_in.refusal(real(prefix)):
            yield prefix
            continue
        where = {part: real(part) for at in TOOLCHAIN.split() for part in prefix.glob(at)}
        parts = {part: at for part, at in where.items() if not shut_in.holds(at)}
        own = {at for part, at in parts.items() if not part.is_symlink()}  # links lead there alone
        yield from (part for part, at in parts.items() if not own.isdisjoint((at, *at.parents)))


def reached(shut_in: DenyList, places: Iterable[Path]) -> tuple[Path, ...]:
    """Those of `places`, resolved, that are, hold or lie in an import path or a compiler's folder.

    Also in an import path that is refused: what shuts it may have gone when a unit starts.
    """
    paths = {real(path) for path in (*_import_paths(), *compilers(shut_in))}
    above = paths.union(*(path.parents for path in paths))
    return tuple(p for p in places if p in above or not paths.isdisjoint(p.parents))


def refused(shut_in: DenyList) -> dict[str, str]:
    """Entries of PATHS that are there and stay shut, those of sys.path that submissions shut."""
    asked, usual = asked_for(*PATHS), replace(shut_in, entered=(), here=None, others=False)
    entries = (entry for entry in (*asked, *filter(None, sys.path)) if os.path.exists(entry))
    paths = {entry: real(entry) for entry in entries}
    told = {e: p for e, p in paths.items() if e in asked or not usual.refusal(p)}
    return {entry: why for entry, path in told.items() if (why := shut_in.refusal(path))}
