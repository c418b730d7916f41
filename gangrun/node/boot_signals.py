"""What TERM, USR1 and USR2 do to a rank and its multiprocessing workers.

A scheduler sends them to every process of a job step at once. Until the agent has decided, nothing may break by that:
- the rank without a handler of its own: faulthandler, whose C code also answers where the main thread is stuck in a
  collective, writes a line to GANGRUN_SIGNALS_FILE, by which the agent knows that there is nothing to wait for;
- the rank's own Python handler for TERM and for the save signal runs when the agent has ordered it, once per order;
- workers (fork, spawn, forkserver) keep the signals blocked, as torch gives them a handler for TERM that dies of it. A
  thread takes them one by one: what a process above the agent sent is dropped, what others sent is delivered as ever.
"""

# ruff: noqa: PLC0415
# (imports that a rank may never need come late: this runs before every script)

from __future__ import annotations

import os
import signal
import sys
from _thread import get_ident, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, ModuleType
    from typing import Any

ROLE = globals().get("ROLE", "")  # set by the first words of a spawned process
SPAWNING = ("multiprocessing.util", "multiprocess.util")
FORKING = (".popen_fork", ".forkserver")
WAKE_OFFSET = 5  # SIGRTMIN + 5 brings a worker's main thread back to Python, where handlers run
SI_USER = 0
QUEUE_TO_THREAD = {"x86_64": 297, "aarch64": 240}  # rt_tgsigqueueinfo

_signal, _getsignal = signal.signal, signal.getsignal


SAVE_SIGNAL = int(os.environ.get("GANGRUN_SAVE_SIGNAL") or 0)
HELD = {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2} | ({SAVE_SIGNAL} - {0, signal.SIGINT})  # INT is Python's


# ---- the rank ------------------------------------------------------------------------------------------------------


STACK_FILE, SIGNALS_FILE = "GANGRUN_STACK_FILE", "GANGRUN_SIGNALS_FILE"


def in_rank(stack_signal: int) -> dict[str, int]:
    """Stacks on demand, and the signals survived; they were blocked by the agent, and are until ``unblock``.

    The files that were opened, by the variable that names them.
    """
    import faulthandler

    try:
        faulthandler.enable()
    except (OSError, ValueError, AttributeError, RuntimeError):
        pass  # stderr is closed
    files: dict[str, int] = {}
    try:
        for name in (STACK_FILE, SIGNALS_FILE):
            if os.environ.get(name):
                files[name] = _open_high(os.environ[name])
        if STACK_FILE in files:
            faulthandler.register(stack_signal, file=files[STACK_FILE], all_threads=True, chain=False)
        if SIGNALS_FILE in files:
            _survive(files[SIGNALS_FILE])
    except (OSError, RuntimeError) as error:
        sys.stderr.write(f"gangrun: signals stay as they are: {error}\n")
    return files


def reopen(files: dict[str, int]) -> None:
    """A standby has become a rank: the same descriptors, and the rank's own files behind them."""
    for name, fd in files.items():
        try:
            new = _open_high(os.environ[name])
            os.dup2(new, fd, inheritable=False)
            os.close(new)
        except (OSError, KeyError) as error:
            sys.stderr.write(f"gangrun: {name} cannot be opened: {error}\n")


def unblock(forget: bool) -> None:
    """From now on signals are answered. ``forget``: those that came to a standby were not meant for the rank."""
    while forget and signal.sigtimedwait(HELD, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def before_exec() -> None:
    """A command that is not Python: what is ignored stays ignored. TERM is not: shells could not trap it any more, and
    what they start could not be ended by it.
    """
    for number in {signal.SIGUSR1, signal.SIGUSR2} - {SAVE_SIGNAL}:
        if _getsignal(number) is signal.SIG_DFL:
            _signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def _open_high(path: str) -> int:
    """A descriptor that a script which closes "all" low ones does not hit."""
    import fcntl

    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 200)
    except OSError:
        return os.dup(low)
    finally:
        os.close(low)


def _survive(file: int) -> None:
    import faulthandler

    ours = []
    for number in sorted(HELD):
        if _getsignal(number) is signal.SIG_DFL:  # ignored by whoever started all this: stays ignored
            _survive_beneath(number)
            faulthandler.register(number, file=file, all_threads=False, chain=False)
            ours.append(number)
    _follow_forks(ours)
    _follow_spawns()
    _hold_own_handlers(file, ours)


def _survive_beneath(number: int) -> None:
    """What faulthandler brings back when the interpreter winds up: a rank that has done all must not die of it then.
    Python is not told, so that ``signal.getsignal`` says SIG_DFL as a script expects. A C function that does nothing
    stands there, since SIG_IGN would drop a signal that waits: one that came before Python ran.
    """
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.signal(number, ctypes.cast(libc.abs, ctypes.c_void_p))
    except (ImportError, OSError, AttributeError):
        pass


class _Held:
    """A script's own handler, run only for signals that the agent has written into the orders file."""

    taken: dict[int, int] = {}  # noqa: RUF012 - one table for all of a process

    def __init__(self, handler: Callable[[int, FrameType | None], Any], rank_pid: int) -> None:
        self.handler, self._rank_pid = handler, rank_pid

    def __call__(self, number: int, frame: FrameType | None) -> object:
        if os.getpid() == self._rank_pid and not self._ordered(number):
            return None
        return self.handler(number, frame)

    def _ordered(self, number: int) -> bool:
        try:
            with open(os.environ["GANGRUN_ORDERS_FILE"], "rb") as file:
                count = file.read().count(number)  # one byte per signal that was sent
        except (OSError, KeyError):
            return False
        new = count > self.taken.get(number, 0)
        self.taken[number] = count
        return new


def _hold_own_handlers(file: int, ours: Sequence[int]) -> None:
    """``signal.signal`` as ever, for all that a script can see."""
    import faulthandler

    if not os.environ.get("GANGRUN_ORDERS_FILE"):
        return
    rank_pid, numbers = os.getpid(), {signal.SIGTERM, SAVE_SIGNAL}

    def plain(handler: Any) -> Any:
        return handler.handler if isinstance(handler, _Held) else handler

    def set_handler(signalnum: int, handler: Any) -> Any:
        held = callable(handler) and signalnum in numbers
        before = plain(_signal(signalnum, _Held(handler, rank_pid) if held else handler))
        if handler == signal.SIG_DFL and signalnum in ours and os.getpid() == rank_pid:
            faulthandler.unregister(signalnum)
            faulthandler.register(signalnum, file=file, all_threads=False, chain=False)
        return before

    def get_handler(signalnum: int) -> Any:
        return plain(_getsignal(signalnum))

    for new, old in ((set_handler, _signal), (get_handler, _getsignal)):
        new.__name__, new.__qualname__, new.__doc__ = old.__name__, old.__qualname__, old.__doc__
    signal.signal, signal.getsignal = set_handler, get_handler


# ---- children ------------------------------------------------------------------------------------------------------


def _follow_forks(ours: Sequence[int]) -> None:
    """Children of multiprocessing are guarded; others have the default again, as ``os.fork`` promises.

    The signals are held back while forking: one that came between the fork and our turn in the child would be lost.
    """
    masks: dict[int, set[int]] = {}

    def hold() -> None:
        masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(get_ident()))

    def restore() -> None:
        for number in ours:
            if _getsignal(number) is signal.SIG_DFL:  # not replaced by the script since
                _signal(number, signal.SIG_DFL)  # not by faulthandler: a moment of SIG_IGN would lose what is pending
        if sys._getframe(1).f_globals.get("__name__", "").endswith(FORKING):  # noqa: SLF001 - who called os.fork
            _guard()
            return
        if _Guard.on:  # its thread has not come along
            _Guard.on = False
            masks[get_ident()] -= HELD
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=restore)


class _Guard:
    """Whether this process is a worker whose signals a thread takes."""

    on = False


def _guard() -> None:
    """From the main thread, with the signals blocked; threads to come inherit that."""
    _Guard.on = True
    try:
        _signal(signal.SIGRTMIN + WAKE_OFFSET, lambda _number, _frame: None)
        _free_subprocesses()
        start_new_thread(_watch, (get_ident(),))
    except Exception as error:  # noqa: BLE001 - a worker that cannot be guarded must run all the same
        _Guard.on = False
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        sys.stderr.write(f"gangrun: signals stay as they are in process {os.getpid()}: {error}\n")


def _watch(main_thread: int) -> None:
    while True:
        try:
            came = signal.sigwaitinfo(HELD)
            if came.si_code == SI_USER and (not came.si_pid or _is_above(came.si_pid)):
                continue  # the scheduler's; a sender outside of our PID namespace shows as 0
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {came.si_signo})
            try:
                _queue(came.si_signo, came.si_code, came.si_pid, came.si_uid)
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, {came.si_signo})
            if callable(_getsignal(came.si_signo)):
                signal.pthread_kill(main_thread, signal.SIGRTMIN + WAKE_OFFSET)
        except Exception as error:  # noqa: BLE001 - without this thread nothing would end the worker but SIGKILL
            sys.stderr.write(f"gangrun: a signal was lost in process {os.getpid()}: {error}\n")


def _is_above(pid: int) -> bool:
    """Whether it is the agent or a process above it: warden, job step, scheduler."""
    at = int(os.environ.get("GANGRUN_AGENT_PID") or 0)
    while at > 0:
        if at == pid:
            return True
        try:
            with open(f"/proc/{at}/stat", "rb") as file:
                at = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _queue(number: int, code: int, pid: int, uid: int) -> None:
    """To this very thread, as if from ``pid``: torch's workers end quietly when it is their parent's."""
    call = QUEUE_TO_THREAD.get(os.uname().machine)
    if call:
        import ctypes
        import struct
        from _thread import get_native_id

        info = struct.pack("=iiiiiI104x", number, 0, code, 0, pid, uid)
        syscall = ctypes.CDLL(None).syscall
        if syscall(ctypes.c_long(call), os.getpid(), get_native_id(), number, ctypes.c_char_p(info)) == 0:
            return
    signal.pthread_kill(get_ident(), number)


def _free_subprocesses() -> None:
    """What a worker starts by ``subprocess`` must not inherit blocked signals: ``terminate`` could not end it."""
    import subprocess

    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]  # noqa: SLF001
    if getattr(execute, "frees", False):
        return

    def _execute_child(self: subprocess.Popen[Any], *args: Any, **names: Any) -> None:
        if not _Guard.on:
            return execute(self, *args, **names)  # type: ignore[no-any-return]
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)
        try:
            return execute(self, *args, **names)  # type: ignore[no-any-return]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    _execute_child.frees = True  # type: ignore[attr-defined]
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]  # noqa: SLF001


def _follow_spawns() -> None:
    """Spawned children, fork server and tracker are all started by one function of multiprocessing: ours goes first."""
    for name in SPAWNING:
        if name in sys.modules:
            _wrap_spawn(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Sees multiprocessing being imported; loads nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in SPAWNING:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                loader.exec_module = execute
                execute(module)
                _wrap_spawn(module)

            loader.exec_module = exec_module
        return spec


def _wrap_spawn(module: Any) -> None:
    spawn = module.spawnv_passfds

    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> Any:
        words = _with_first_words(list(args))
        if words is None:
            return spawn(path, args, passfds)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        try:
            return spawn(path, words, passfds)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    module.spawnv_passfds = spawnv_passfds


def _with_first_words(args: list[Any]) -> list[Any] | None:
    """The command with this file's code before its own; None where nobody would take the signals."""
    if "-c" not in args[:-1]:
        return None
    at = args.index("-c") + 1
    code = args[at]
    if "resource_tracker" in code:
        return args  # it only waits for the end of all others
    role = "spawned" if "spawn_main" in code else "forkserver" if "forkserver" in code else ""
    if not role or not os.environ.get("GANGRUN_AGENT_PID"):
        return None
    names = {"__name__": "_gangrun_signals", "__file__": __file__, "ROLE": role}
    args[at] = f"exec(compile(open({__file__!r}, 'rb').read(), {__file__!r}, 'exec'), {names!r}); {code}"
    return args


if ROLE:
    _follow_forks(())
    _follow_spawns()
    if ROLE == "spawned":
        _guard()
