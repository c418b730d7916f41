"""A thread in each Python rank that says where the main thread stands, and since when.

``boot`` starts it by path: standard library only, and no import of torch. Each half second it looks at the main
thread's stack, and writes the page of ``place_page``. Three signs:

- *the place*: a checksum over the stack. That two looks show the same place does not say that it was never left.
- *exact*: a pending call of the interpreter, which is ``sem_post`` of the C library. The main thread runs it when it
  next executes Python. As long as it has not, it has not left its call since the thread asked. No Python code of ours
  runs in the main thread.
- *collectives*: how many of each group this rank has issued, as torch counts them itself.

It also counts its looks, and those at which the main thread waits for other ranks: whoever waits least is waited for.
For that the looks come at random moments, half a second apart on average: steps of a constant length would be seen at
the same point of each step.

If the main thread holds the GIL, or the process is stopped, the time of the newest look stands still, which the agent
sees. Without ctypes, and in a free-threaded Python, there is no exact sign. The thread must not hold a frame while it
sleeps (its tensors would live on), import, print or take a lock. It does not exist in a child after ``fork``.
"""

# ruff: noqa: PLC0415, SLF001, S110, S112
# (imports that a rank may never need come late; torch and Python tell these things to nobody else; the script must not
# notice what fails here)

from __future__ import annotations

import os
import sys
from _thread import get_ident, start_new_thread
from time import monotonic_ns, sleep
from zlib import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

LOOK_EVERY_S = 0.5
FRAMES_MAX_COUNT = 200
CODES_MAX_COUNT = 20_000
# Where Python waits for other ranks. In the first two nothing else takes time; in the others only a thread that sleeps
# waits.
# The backward pass reduces gradients. On CUDA it runs in a thread of its own, for which the main thread sleeps.
WAITS = ("/torch/distributed/distributed_c10d", "/torch/distributed/_functional_collectives")
WAITS_ASLEEP = ("/torch/distributed/fsdp/", "/torch/nn/parallel/distributed", "/torch/autograd/graph")
DUMP_ENTRIES_MAX_BYTES = 16 * 1024 * 1024
# NCCL's own, which only builds with CUDA have, and that of gloo and all others: neither holds what the other does.
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
OLDER_NAMES = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)
VERSION_MAX_BYTES = 4096
C10D, C10D_C = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"


class PendingCall:
    """Has the main thread executed Python since it was last asked?"""

    def __init__(self) -> None:
        """ImportError, OSError or AttributeError if this Python or C library cannot tell."""
        import ctypes

        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise OSError("a free-threaded Python")
        libc = ctypes.CDLL(None)
        self._semaphore = ctypes.create_string_buffer(64)  # a sem_t has 32 bytes; must live as long as the process
        if libc.sem_init(self._semaphore, 0, 0) != 0:
            raise OSError("no semaphore")
        self._try = libc.sem_trywait
        self._add = ctypes.pythonapi.Py_AddPendingCall
        self._add.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._post = ctypes.cast(libc.sem_post, ctypes.c_void_p)
        self._where = ctypes.cast(self._semaphore, ctypes.c_void_p)
        self._since = 0  # when the call was added that has not run

    def look(self, now: int) -> int:
        """Since when the main thread has surely executed no Python; 0: it has since the last look."""
        if self._since and self._try(self._semaphore) != 0:
            return self._since
        self._since = now if self._add(self._post, self._where) == 0 else 0  # not 0: 32 calls of others wait
        return 0


class Sampler:
    """One rank's; ``look`` is one look."""

    def __init__(self, page: Any, layout: Any, thread: int) -> None:
        self._page, self._layout, self._thread = page, layout, thread
        try:
            self._pending: PendingCall | None = PendingCall()
        except (ImportError, OSError, AttributeError):
            self._pending = None
        self._codes: dict[CodeType, int] = {}
        self._key = self._sampled = self._counted = 0
        self._circle: dict[int, int] = {}  # place -> when it was last seen, oldest first
        self._circling = 0
        self._groups: list[tuple[int, int]] = []
        self._named = -1  # groups at the last look at their time-outs
        self._timeout_ms = 0
        self._text = b""
        self._waits: dict[CodeType, int] = {}  # 2: surely, 1: if it sleeps
        self._chance = os.getpid()

    def run(self) -> None:
        """Until the interpreter ends; whatever fails, the script must not notice."""
        while True:
            try:
                self.look(monotonic_ns())
            except Exception:  # noqa: BLE001 - torch's internals, any state of an ending interpreter
                pass
            self._chance = (self._chance * 1103515245 + 12345) & 0x7FFFFFFF
            sleep(LOOK_EVERY_S * (0.5 + self._chance / 0x7FFFFFFF))

    def look(self, now: int) -> None:
        """Look, and write it down."""
        exact = self._pending.look(now) if self._pending is not None else 0
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return
        key = self._key_of(frame)
        if key != self._key:
            self._key, self._sampled, self._text = key, now, b""
            self._circle_round(key, now)
        elif not self._text:
            self._text = place_of(frame)
        page = self._page.words
        page[self._layout.W_WAITS] += self._is_waiting(frame)
        page[self._layout.W_LOOKS] += 1
        del frame
        groups = counts()
        if groups != self._groups:
            self._groups, self._counted = groups, now
        if len(groups) != self._named:
            self._named, self._timeout_ms = len(groups), timeout_ms()
        self._circle[key] = now
        has_exact, since = int(self._pending is not None), (exact, self._sampled, self._circling, self._counted)
        words = (now, has_exact, key, *since, self._timeout_ms)
        self._page.write(words, groups[: self._layout.GROUPS_MAX_COUNT], self._text)
        if self._page.words[self._layout.W_DUMPED] != self._page.words[self._layout.W_ASKED]:
            asked = self._page.words[self._layout.W_ASKED]
            dump(self._page.path + ".dump")
            self._page.words[self._layout.W_DUMPED] = asked

    def _is_waiting(self, frame: FrameType) -> bool:
        """Does the main thread wait for other ranks?"""
        code = frame.f_code
        if frame.f_back is not None and "/torch/_ops" in code.co_filename:
            code = frame.f_back.f_code
        kind = self._waits.get(code)
        if kind is None:
            if len(self._waits) >= CODES_MAX_COUNT:
                self._waits.clear()
            name = code.co_filename
            asleep = any(part in name for part in WAITS_ASLEEP)
            kind = self._waits[code] = 2 if any(part in name for part in WAITS) else int(asleep)
        return kind == 2 or (kind == 1 and not _uses_cuda() and _sleeps())

    def _circle_round(self, key: int, now: int) -> None:
        """Since when were there only few places? Since the one that had to give way to this one was last seen."""
        circle = self._circle
        seen = circle.pop(key, 0)
        if not seen and len(circle) >= self._layout.CIRCLE_MAX_COUNT:
            self._circling = circle.pop(next(iter(circle)))
        elif not self._circling:
            self._circling = now
        circle[key] = now

    def _key_of(self, frame: FrameType | None) -> int:
        """The same on every rank for the same code: folders differ between nodes, so they are left out."""
        key, codes, left = 0, self._codes, FRAMES_MAX_COUNT
        while frame is not None and left:
            code = frame.f_code
            own = codes.get(code)
            if own is None:
                if len(codes) >= CODES_MAX_COUNT:
                    codes.clear()
                name = getattr(code, "co_qualname", code.co_name)
                words = f"{os.path.basename(code.co_filename)}:{name}:{code.co_firstlineno}"
                own = codes[code] = crc32(words.encode("utf-8", "backslashreplace"))
            key = crc32(b"%d:%d" % (own, frame.f_lasti), key)
            frame = frame.f_back
            left -= 1
        return key


def _uses_cuda() -> bool:
    return bool(getattr(sys.modules.get("torch.cuda"), "_initialized", False))


def _sleeps() -> bool:
    """Does the main thread sleep? Its number is the process's."""
    with open(f"/proc/self/task/{os.getpid()}/stat", "rb") as file:
        return file.read().rpartition(b")")[2][1:2] == b"S"


def place_of(frame: FrameType | None) -> bytes:
    """The innermost frame, and before it the script's own that leads there: ``train.py:40 in loss > x.py:3 in f``."""
    inner, own = _words(frame), ""
    while frame is not None and not own:
        name = frame.f_code.co_filename
        if "/site-packages/" not in name and "/lib/python" not in name and not name.startswith("<"):
            own = _words(frame)
        frame = frame.f_back
    text = inner if own in ("", inner) else f"{own} > {inner}"
    return text.encode("utf-8", "backslashreplace")


def _words(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def groups_of_torch() -> list[tuple[Any, str]]:
    """The process groups of this rank with their names; none if the script does not use torch.distributed."""
    c10d = sys.modules.get(C10D)
    world = getattr(c10d, "_world", None)
    return list(world.pg_names.items()) if world is not None else []


def counts() -> list[tuple[int, int]]:
    """For each group a checksum of its name, and how many collectives this rank has issued in it."""
    found = []
    for group, name in groups_of_torch():
        try:
            found.append((crc32(str(name).encode()), int(group._get_sequence_number_for_group())))
        except Exception:  # noqa: BLE001 - a backend that does not count
            continue
    return sorted(found)


def timeout_ms() -> int:
    """The longest time that the script lets a collective take; 0: not known."""
    longest = 0
    torch = sys.modules.get("torch")
    for group, _ in groups_of_torch():
        for name in ("cuda", "cpu"):
            try:
                timeout = group._get_backend(torch.device(name)).options._timeout  # type: ignore[union-attr]
                longest = max(longest, int(timeout.total_seconds() * 1000))
            except Exception:  # noqa: BLE001 - a backend without such options, or not for this device
                continue
    return longest


def dump(path: str) -> None:
    """What torch's flight recorders hold, if there are any, next to the page: a JSON list; whole or not at all."""
    told = []
    for name in RECORDERS:
        try:
            one = getattr(sys.modules.get(C10D_C), name)()
        except Exception:  # noqa: BLE001 - this torch has none of the kind, or it fails
            continue
        told.append(one if isinstance(one, bytes) else str(one).encode())
    data = b"[%s]" % b",".join(told)
    if not told or len(data) > DUMP_ENTRIES_MAX_BYTES:
        return
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.rename(path + ".new", path)


def name_as_older_torch() -> None:
    """Called by the main thread, before the script: torch before 2.8 knows its flight recorder's variables by other
    names, of which later ones warn. What is set already stays.
    """
    found = (os.path.join(folder, "torch", "version.py") for folder in sys.path)
    path = next(filter(os.path.isfile, found), "")
    if not path:
        return
    try:
        with open(path, "rb") as file:
            words = file.read(VERSION_MAX_BYTES).partition(b"__version__ = ")[2][1:].split(b".")
    except OSError:  # whoever imports it will say so
        return
    if not (len(words) > 1 and words[0].isdigit() and words[1].isdigit()) or (int(words[0]), int(words[1])) >= (2, 8):
        return
    for name, older in OLDER_NAMES:
        if name in os.environ:
            os.environ.setdefault(older, os.environ[name])


def start(layout: Any) -> None:
    """Called by the main thread, before the script; without a page of the agent's nothing is started.

    ``layout``: the module ``place_page``, loaded by path.
    """
    path = os.environ.pop("GANGRUN_PLACE_PAGE", "")  # no child takes it for its own
    if not path:
        return
    import atexit

    try:
        page = layout.PlacePage(path)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"gangrun: hangs of this rank are found later: {error}\n")
        return
    pid = os.getpid()

    def ended() -> None:
        if os.getpid() == pid:  # a child by fork ends without an end of the rank
            page.words[layout.W_PID] = 0

    atexit.register(ended)
    page.words[layout.W_PID] = pid
    start_new_thread(Sampler(page, layout, get_ident()).run, ())
