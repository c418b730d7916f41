"""A rank's first code, started by path by the user's own python.

    python node/boot.py script.py ARGS...
    python node/boot.py -m module ARGS...
    python -E -s -S node/boot.py --exec COMMAND ARGS...

The training environment need not have gangrun, so nothing of it may be imported here. What this adds to a plain
``python script.py``: the rank dies with its agent; stacks can be taken from outside; TERM, USR1 and USR2 that some
scheduler sprays over a node are survived until the agent stops the rank (``boot_signals``); the exception that ends it
is written down. It may have waited as a standby before that, with its modules imported (``boot_standby``). All else is
as without it: ``__main__``, ``sys.argv``, ``sys.path``, exit codes, tracebacks, children.
"""

# ruff: noqa: PLC0415
# (imports that a rank may never need come late: this runs before every script)

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType, TracebackType
    from typing import Any, NoReturn

STACK_SIGNAL_OFFSET = 4  # SIGRTMIN + 4
TEXT_MAX_CHARS = 32 * 1024
SIGNATURE_FRAMES_COUNT = 6
CHAIN_MAX_COUNT = 8
CAUSE_MAX_CHARS = 400
EXIT_ORPHANED = 143
EXIT_USAGE = 2  # argparse and click leave with it, and have said why

_error_file = ""  # no child inherits its name: its report would be taken for the rank's

# Errors of a rank whose peer was gone first: the death to explain is another one's.
VICTIM_TYPES = (
    "DistBackendError",
    "DistNetworkError",
    "DistStoreError",
    "DistError",
    "ConnectionResetError",
)
VICTIM_WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
    "socket has timed out",
    "timed out waiting",
    "timed out after",
    "watchdog",
    "remote process exited",
    "ncclremoteerror",
    "ncclsystemerror",
    "nccl communicator was aborted",
    "recv 0 bytes",
    "failed to recv",
    "wait timeout",
)
VICTIM_PLACES = ("gloo", "nccl", "c10d", "tcpstore", "torch.distributed", "processgroup", "store->", "rendezvous")
OWN_FAULT_WORDS = (
    "invalid usage",
    "invalid argument",
    "address already in use",
    "eaddrinuse",
    "out of memory",
    "cuda error",
)


def looks_collective(kind: str, message: str) -> bool:
    """Whether an error is a victim's: a peer or the store went away, and this rank only noticed."""
    name, text = kind.rpartition(".")[2], message.lower()
    if any(word in text for word in OWN_FAULT_WORDS):
        return False
    if name in VICTIM_TYPES:
        return True
    return any(word in text for word in VICTIM_WORDS) and any(place in text for place in VICTIM_PLACES)


def signature(kind: str, frames: Sequence[tuple[str, str, int | None]]) -> str:
    """A short name for a failure, the same on every rank, node and attempt.

    ``frames``: (file, function, line), innermost last. Folders are left out since they differ between nodes, messages
    since they hold numbers.
    """
    import hashlib

    parts = [kind.rpartition(".")[2]]
    parts += [f"{os.path.basename(f)}:{name}:{line}" for f, name, line in frames[-SIGNATURE_FRAMES_COUNT:]]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _die_with_agent() -> None:
    """SIGKILL for us when the agent's main thread, which forked us, ends."""
    expected = os.environ.get("GANGRUN_AGENT_PID", "")
    if not expected:
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    except (ImportError, OSError, AttributeError):
        pass  # the warden's sweep is what is left
    if os.getppid() != int(expected):
        os._exit(EXIT_ORPHANED)  # it died before we asked


def _part(name: str) -> Any:
    """A file beside this one as a module; loaded by path, since ``sys.path`` need not lead to it."""
    from importlib.machinery import SourceFileLoader

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    module = type(sys)(f"_gangrun_{name}")
    module.__file__ = path
    SourceFileLoader(module.__name__, path).exec_module(module)
    return module


def _stack_signal() -> int:
    import signal

    return signal.SIGRTMIN + STACK_SIGNAL_OFFSET


def _without_boot(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == _CODE_FILE:
        traceback = traceback.tb_next
    return traceback


def _words(error: BaseException) -> tuple[str, str]:
    """Kind and message. An OSError keeps its number and its file: its class alone would tell a lost mount as a broken
    pipe (108) or a time-out (110).
    """
    kind = type(error).__qualname__
    if type(error).__module__ not in ("builtins", "__main__"):
        kind = type(error).__module__ + "." + kind
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may do anything
        message = "<no message: str() of the exception failed>"
    if isinstance(error, OSError) and isinstance(error.errno, int):
        if f"rrno {error.errno}]" not in message:
            message = f"[Errno {error.errno}] {message}"
        if error.filename is not None and str(error.filename) not in message:
            message = f"{message}: {error.filename!r}"
    return kind, message


def _story(error: BaseException, seen: set[int]) -> list[BaseException]:
    """The exceptions that explain this end; the first one judges, and that is not always the last raised.

    A group is told by its members, those first that are no victims. What ``raise ... from`` names explains the
    exception. What Python only notes as "during handling of" does so in two cases (``_role``): the handler raised the
    exception itself; or clean-up failed, and then the error before it judges. Else it was handled.
    """
    if id(error) in seen or len(seen) > CHAIN_MAX_COUNT:
        return []
    seen.add(id(error))
    own: list[BaseException] = []
    members = getattr(error, "exceptions", None) if type(error).__name__.endswith("ExceptionGroup") else None
    if isinstance(members, (tuple, list)):
        for member in sorted(members, key=lambda one: looks_collective(*_words(one))):
            own += _story(member, seen)
    own = own or [error]
    inner, role = error.__cause__, "cause"
    if inner is None and not error.__suppress_context__ and error.__context__ is not None:
        inner, role = error.__context__, _role(error, error.__context__)
    if inner is None or not role:
        return own
    return _story(inner, seen) + own if role == "cleanup" else own + _story(inner, seen)


def _role(error: BaseException, inner: BaseException) -> str:
    """What raised ``error`` while ``inner`` was handled: "cleanup", "cause" for a ``raise`` of the handler, or "".

    Clean-up is ``finally``, the end of a ``with``, and a handler whose last act is to raise again or to exit.
    """
    import ast
    import linecache

    frames, place = set(), None
    trace = inner.__traceback__
    while trace is not None:
        frames.add(trace.tb_frame)
        trace = trace.tb_next
    trace = error.__traceback__
    while trace is not None:
        place = trace if trace.tb_frame in frames else place
        trace = trace.tb_next
    if place is None:
        return ""
    below, line = place.tb_next, place.tb_lineno
    if below is not None and below.tb_frame.f_code.co_name in ("__exit__", "__aexit__"):
        return "cleanup"
    lines = linecache.getlines(place.tb_frame.f_code.co_filename, place.tb_frame.f_globals)
    roles: list[tuple[int, str]] = []  # of the blocks around the line, with their sizes

    def block(body: list[ast.stmt], role: str) -> None:
        size = (body[-1].end_lineno or 0) - body[0].lineno if body else -1
        if size >= 0 and 0 <= line - body[0].lineno <= size:
            roles.append((size, role))

    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line < node.body[0].lineno:
            roles.append((0, "cleanup"))
        block(getattr(node, "finalbody", []), "cleanup")
        if isinstance(node, ast.ExceptHandler):
            last = node.body[-1]
            block(node.body, "cleanup" if _leaves(last) else "")
            if isinstance(last, ast.Raise) and last.exc is not None and below is None:
                block([last], "cause")
    return min(roles, key=lambda one: (one[0], not one[1]))[1] if roles else ""


def _leaves(statement: Any) -> bool:
    """Is it a plain ``raise``, or a call that ends the process?"""
    import ast

    if isinstance(statement, ast.Raise):
        return statement.exc is None
    call = getattr(statement, "value", None)
    name = getattr(call, "func", None)
    return str(getattr(name, "attr", getattr(name, "id", ""))) in ("exit", "_exit", "abort")


def _explained(error: BaseException) -> list[BaseException]:
    """The story, or the error alone: it is read from the user's objects and files, which may be anything."""
    try:
        return _story(error, set())
    except Exception:  # noqa: BLE001 - without its story the error is told nevertheless
        return [error]


def _on_one_line(error: BaseException) -> str:
    text = " ".join(": ".join(_words(error)).split())
    half = CAUSE_MAX_CHARS // 2
    return text if len(text) <= CAUSE_MAX_CHARS else f"{text[:half]}…{text[1 - half :]}"


def _report(error: BaseException) -> None:
    """Write the exception that ends this rank to the error file, whole or not at all."""
    path = _error_file
    if not path:
        return
    import json
    import time
    import traceback

    written_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    text = "".join(traceback.format_exception(type(error), error, _without_boot(error.__traceback__)))
    first, *others = _explained(error)
    kind, message = _words(first)
    trace = _without_boot(first.__traceback__)
    frames = [(frame.filename, frame.name, frame.lineno) for frame in traceback.extract_tb(trace)]
    if isinstance(first, SyntaxError):
        frames.append((first.filename or "", "", first.lineno or 0))
    report = {
        "type": kind,
        "message": message[:TEXT_MAX_CHARS],
        "traceback": text[-TEXT_MAX_CHARS:],
        "signature": signature(kind, frames),
        "collective": looks_collective(kind, message),
        "chain": [_on_one_line(other) for other in others[:CHAIN_MAX_COUNT]],
        "written_at": written_at,
        "rank": int(os.environ.get("RANK", "-1")),
        "pid": os.getpid(),
    }
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(report, file)
    os.replace(temporary, path)


def _report_safely(error: BaseException) -> None:
    try:
        _report(error)
    except Exception as problem:  # noqa: BLE001 - the user's traceback matters more than ours
        sys.stderr.write(f"gangrun: could not write the error report: {problem!r}\n")


def _shown_before(left: SystemExit) -> BaseException | None:
    """The error whose handler left with a code of failure: the script has shown it in its own way."""
    if left.code in (None, 0, EXIT_USAGE) or left.__suppress_context__:
        return None
    return left.__context__


def _run(start: Callable[[], object]) -> None:
    """Run the script; an exception leaves by the interpreter's own door: exit codes, hooks and signals are its own."""
    import atexit

    rank_pid = os.getpid()
    code: object = None

    def note_end() -> None:
        if code == 0 and os.getpid() == rank_pid and error_file:
            with open(f"{error_file}.ended", "w"):
                pass  # what native code does to the process from now on is no failure of the training

    error_file = _error_file
    atexit.register(note_end)  # first, so that it is called last: after all threads have ended, too
    try:
        start()
        code = 0
    except SystemExit as left:
        code = left.code or 0
        shown = _shown_before(left)
        if shown is not None and os.getpid() == rank_pid:
            _report_safely(shown)
        raise
    except BaseException as error:
        if os.getpid() == rank_pid:  # not in a child by fork that fell out of the script
            _report_safely(error)
        users_hook = sys.excepthook

        def hook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
            traceback = _without_boot(traceback)
            value.__traceback__ = traceback
            users_hook(kind, value, traceback)

        sys.excepthook = hook
        raise


def _new_main() -> ModuleType:
    """A fresh ``__main__``, so that nothing of this file is in the script's names; ours lives on under another."""
    import builtins

    if "_gangrun_boot" in sys.modules:
        return sys.modules["__main__"]  # made while this was a standby
    sys.modules["_gangrun_boot"] = sys.modules["__main__"]
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        module.__dict__["__annotations__"] = {}  # noqa: RUF063 - set, as the interpreter does
    sys.modules["__main__"] = module
    return module


def _has_path_zero() -> bool:
    """Whether this python puts the script's folder first (not with -P or -I)."""
    return not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def _is_bundle(script: str) -> bool:
    """A folder or an archive with a ``__main__.py``."""
    return os.path.isdir(script) or script.endswith((".zip", ".pyz"))


def _path_zero(script: str) -> str:
    """What the interpreter puts first for ``python script``."""
    if _is_bundle(script):
        return os.path.abspath(script) if sys.version_info >= (3, 9) else script
    return os.path.dirname(os.path.realpath(script))


def _start_script(argv: list[str]) -> Callable[[], object]:
    """``python script.py``: what to call."""
    script = argv[0]
    sys.argv[:] = argv
    shown = os.path.abspath(script) if sys.version_info >= (3, 9) else script
    if _has_path_zero():
        sys.path[0] = _path_zero(script)
    if _is_bundle(script):
        if not _has_path_zero():
            sys.path.insert(0, shown)
        return _start_module("__main__", alter_argv=False)
    import io
    from importlib.machinery import SourceFileLoader

    try:
        with io.open_code(shown) as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {shown!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    module = _new_main()
    module.__dict__.update(__file__=shown, __cached__=None, __loader__=SourceFileLoader("__main__", shown))

    def start() -> None:
        exec(compile(source, shown, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - it is what we are for

    return start


def _start_module(name: str, *, alter_argv: bool = True) -> Callable[[], object]:
    """``python -m name``: what to call; runpy's own function for it, as the interpreter uses."""
    import runpy

    _new_main()
    return lambda: runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]  # noqa: SLF001


def _wait_as_standby(argv: list[str]) -> list[str]:
    """What the rank will find when the imports are done: its own first words, its path, and a ``__main__``."""
    named = argv[0] == "-m"
    sys.argv[:] = ["-m", *argv[2:]] if named else argv
    if _has_path_zero():
        sys.path[0] = os.getcwd() if named else _path_zero(argv[0])
    main = _new_main()
    if not named and not _is_bundle(argv[0]):
        main.__file__ = os.path.abspath(argv[0])
    return _part("boot_standby").wait()  # type: ignore[no-any-return]


def _exec(argv: list[str]) -> NoReturn:
    """Become the command: same pid, same death signal, nothing else of ours."""
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is the point
    except OSError as error:
        missing = " (it, or what its first line names)" if isinstance(error, FileNotFoundError) else ""
        words = f"cannot run {argv[0]}: {error.strerror}{missing}"
        sys.stderr.write(f"gangrun: {words}\n")
        sys.stderr.flush()
        _report_safely(type(error)(words))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _boot(argv: list[str]) -> None:
    global _error_file  # noqa: PLW0603 - one process, one name
    is_standby = "GANGRUN_STANDBY_FDS" in os.environ
    _die_with_agent()
    if not argv or (argv[0] in ("-m", "--exec") and len(argv) < 2):
        sys.stderr.write("usage: node/boot.py SCRIPT ARGS... | -m MODULE ARGS... | --exec COMMAND ARGS...\n")
        sys.exit(2)
    signals = _part("boot_signals")
    if argv[0] == "--exec":
        _error_file = os.environ.pop("GANGRUN_ERROR_FILE", "")
        signals.before_exec()
        _exec(argv[1:])
    files = signals.in_rank(_stack_signal())
    if is_standby:
        argv = _wait_as_standby(argv)
        signals.reopen(files)
    _error_file = os.environ.pop("GANGRUN_ERROR_FILE", "")
    signals.unblock(is_standby)
    sampler = _part("sampler")
    sampler.name_as_older_torch()
    sampler.start(_part("place_page"))
    if "GANGRUN_IMPORTS_FILE" in os.environ:
        _part("boot_standby").learn()  # last: from here on a variable that changes is changed by the script
    if argv[0] == "-m":
        sys.argv[:] = ["-m", *argv[2:]]
        if _has_path_zero():
            sys.path[0] = os.getcwd()
        start = _start_module(argv[1])
    else:
        start = _start_script(argv)
    _run(start)


_CODE_FILE = _boot.__code__.co_filename

if __name__ == "__main__":
    _boot(sys.argv[1:])
