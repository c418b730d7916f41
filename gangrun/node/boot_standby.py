"""A standby: an interpreter that has imported what its rank will import, and waits to become that rank.

``boot.py`` loads this file by path in two cases:
- in a rank whose agent keeps standbys: ``Learner`` writes down which installed modules the script imports;
- in a standby (``GANGRUN_STANDBY_FDS`` is set): ``wait`` imports those modules, tells the agent, and returns the rank's
  command line once the agent has sent it.

A rank must not be able to tell the difference. So a standby starts with the environment and the command line of the
rank that it may replace, and never runs the user's own code. It stops importing at the first module for which the
script had changed the environment, and it refuses modules that start threads or processes or open a GPU. If what an
import has read changed meanwhile (a variable, the installed packages), it becomes an ordinary rank by ``exec``: same
pid, nothing imported.
"""

# ruff: noqa: PLC0415
# (imports that a rank may never need come late: this runs before every script)

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

IMPORTS_FILE = "GANGRUN_IMPORTS_FILE"
FDS = "GANGRUN_STANDBY_FDS"  # socket to the agent, and a file with what to import: "3,4"
READY, REFUSED = b"ready", b"refused"  # REFUSED is followed by how many modules the next standby may import
MESSAGE_MAX_BYTES = 64
SORTING_OUT = ("tqdm.",)  # packages that go through all variables for those with their own name
GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
GPU_CONTROL = "/dev/nvidiactl"  # NVML opens it to count devices, and holds no memory there
COLLECT_NEVER = 2**31 - 1


# ---- in a rank: what it imports ------------------------------------------------------------------------------------


def site_directories() -> list[str]:
    """Where installed packages lie; the user's own code is elsewhere."""
    named = (path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
    return [os.path.realpath(path) for path in named]


def origin_of(name: str) -> str:
    """The file that ``import name`` would run, "" if it is not known. Imports nothing."""
    from importlib.machinery import PathFinder

    try:
        spec = PathFinder.find_spec(name)
    except Exception:  # noqa: BLE001 - of the user's path, which may hold anything
        return ""
    origin = spec.origin if spec is not None and spec.has_location else None
    return os.path.realpath(origin) if origin else ""


class Variables:
    """Which environment variables differ from those at the start; a digest stands for a value, which may be secret."""

    def __init__(self) -> None:
        self._before = self._seen = self._raw()
        self._found: dict[str, str] = {}

    @staticmethod
    def _raw() -> dict[bytes, bytes]:
        return dict(os.environ._data)  # type: ignore[attr-defined]  # noqa: SLF001 - 100 times quicker, for each import

    def changed(self) -> dict[str, str]:
        """Digests by name, "" for a variable that is gone."""
        import hashlib

        now = self._raw()
        if now != self._seen:
            self._seen = now
            names = [name for name in {*self._before, *now} if self._before.get(name) != now.get(name)]
            self._found = {
                os.fsdecode(name): hashlib.sha256(now[name]).hexdigest()[:16] if name in now else "" for name in names
            }
        return self._found


class Learner:
    """Sees each import and finds nothing itself. One line per installed module: name, file of its top-level package,
    and the variables that differed then from those at the start.

    Being asked for a module does not mean that it is imported: libraries ask whether others are installed. So a line is
    written at the next question, if the module is there by then.
    """

    def __init__(self, path: str) -> None:
        import json

        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._pid, self._dump = os.getpid(), json.dumps
        self._sites = tuple(site + os.sep for site in site_directories())
        self._variables = Variables()
        self._origins: dict[str, str] = {}
        self._pending: dict[str, str] = {}  # lines by name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """As the import system asks it."""
        del path, target
        if os.getpid() != self._pid:
            return
        for one in [one for one in list(self._pending) if one in sys.modules]:
            try:
                os.write(self._fd, self._pending.pop(one, "").encode())
            except OSError:
                pass  # the next attempt starts cold: nothing else depends on it
        top = name.partition(".")[0]
        if top not in self._origins:
            origin = origin_of(top)
            self._origins[top] = origin if origin.startswith(self._sites) else ""
        if self._origins[top]:
            self._pending[name] = self._dump([name, self._origins[top], self._variables.changed()]) + "\n"


def learn() -> None:
    """From now on, if the agent wants to know."""
    path = os.environ.pop(IMPORTS_FILE, "")
    if path:
        try:
            sys.meta_path.insert(0, Learner(path))
        except OSError:
            pass


# ---- in a standby --------------------------------------------------------------------------------------------------


class _Reads:
    """Which variables are read while ``os.environ`` is of this class."""

    names: set[str] = set()  # noqa: RUF012 - one table for all of a process

    @classmethod
    def watched(cls) -> type:
        """A class like that of ``os.environ``, which notes what is read."""
        names = cls.names

        class Watched(type(os.environ)):  # type: ignore[misc]
            def __getitem__(self, name: str) -> str:
                names.add(name)
                return super().__getitem__(name)  # type: ignore[no-any-return]

            def __contains__(self, name: object) -> bool:
                names.add(str(name))
                return bool(super().__contains__(name))

            def items(self) -> Any:
                asking = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001
                if not asking.startswith(SORTING_OUT):
                    return super().items()
                return {os.fsdecode(name): os.fsdecode(value) for name, value in self._data.items()}.items()

        return Watched


class UnfitModule(Exception):
    """A module that no standby may import."""


def wait() -> list[str]:
    """Import, wait, and return the rank's command line; from then on the environment is the rank's."""
    import json

    link, list_fd = (int(word) for word in os.environ.pop(FDS).split(","))
    os.set_inheritable(link, False)
    with os.fdopen(list_fd, "rb") as file:
        wanted = json.loads(file.read())
    started_with, here = dict(os.environ), Variables()
    sites = _site_times()
    plain = os.environ.__class__
    os.environ.__class__ = _Reads.watched()
    answer = READY
    for index, (name, origin, variables) in enumerate(wanted):
        try:
            _import(name, origin, variables, here)
        except UnfitModule:
            answer = b"%s %d" % (REFUSED, index)
            break
    os.environ.__class__ = plain
    _say(link, answer)
    wish = json.loads(_order(link))
    os.close(link)
    environment, now = wish["environment"], os.environ
    changing = {name for name in {*environment, *started_with} if environment.get(name) != started_with.get(name)}
    touched = _Reads.names | {name for name in changing if now.get(name) != started_with.get(name)}
    if answer != READY or changing & touched or _site_times() != sites:
        _become_cold(wish)
    for name in changing:
        if name in environment:
            now[name] = environment[name]
        else:
            now.pop(name, None)
    os.chdir(wish["directory"])
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[1:] = wish["argv"][1:]
    return wish["argv"][2:]  # type: ignore[no-any-return]


def _say(link: int, words: bytes) -> None:
    try:
        os.write(link, words)
    except OSError:
        os._exit(0)  # nobody waits for us any more


def _import(name: str, origin: str, variables: dict[str, str], here: Variables) -> None:
    """Import it as the script would; raises UnfitModule, and then this interpreter is of no use."""
    import gc
    import importlib

    if name in sys.modules:
        return
    top = name.partition(".")[0]
    if here.changed() != variables or (top not in sys.modules and origin_of(top) != origin):
        raise UnfitModule(name)
    before = set(sys.modules)
    thresholds = gc.get_threshold()
    gc.set_threshold(COLLECT_NEVER)  # what modules make stays: looking for garbage takes torch a quarter of its import
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass  # the script asked for it in vain, too
    except BaseException as error:  # whatever it is, the script must see it and not we
        raise UnfitModule(name) from error
    finally:
        if gc.get_threshold()[0] == COLLECT_NEVER:  # else the module has set its own
            gc.set_threshold(*thresholds)
    if _is_busy() or _has_own_code(set(sys.modules) - before):
        raise UnfitModule(name)


def _is_busy() -> bool:
    """Whether a module has started threads of Python or processes, or has opened a GPU."""
    if len(sys._current_frames()) > 1:  # noqa: SLF001
        return True
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                if file.read().strip():
                    return True
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue  # that of the listing itself
            if target.startswith(GPU_FILES) and target != GPU_CONTROL:
                return True
    except OSError:
        pass
    return False


def _has_own_code(names: set[str]) -> bool:
    """Whether an installed module has imported the user's own, by a name that lies in the script's directory."""
    allowed = (*(site + os.sep for site in site_directories()), os.path.dirname(os.path.realpath(os.__file__)) + os.sep)
    for name in names - {"__mp_main__"}:  # that is ``__main__`` again
        path = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(path, str) and os.path.isabs(path) and not os.path.realpath(path).startswith(allowed):
            return True  # a path that is not absolute is no file: torch.ops
    return False


def _site_times() -> list[tuple[str, int]]:
    """When packages were last installed or removed."""

    def times() -> Iterator[tuple[str, int]]:
        for site in site_directories():
            try:
                yield site, os.stat(site).st_mtime_ns
            except OSError:
                yield site, 0

    return list(times())


def _order(link: int) -> bytes:
    """The agent's word, in a file that it hands over; ends this process if the agent has no use for it."""
    import array
    import socket

    with socket.socket(fileno=os.dup(link)) as line:
        _, parts, _, _ = line.recvmsg(MESSAGE_MAX_BYTES, socket.CMSG_SPACE(4))
    for level, kind, data in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            with os.fdopen(array.array("i", data[:4])[0], "rb") as file:
                return file.read()
    os._exit(0)


def _become_cold(wish: dict[str, Any]) -> None:
    """What was imported does not suit any more: start as if there had been no standby."""
    import signal

    for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.chdir(wish["directory"])
    os.execvpe(wish["argv"][0], wish["argv"], wish["environment"])  # noqa: S606 - no shell is the point
