"""What a drilled run of one's own may have and no other: mounts that nobody else sees, a played driver, a played clock.

``own_mounts`` gives this process, and all that it starts, a mount table of its own. An ordinary user needs a user
namespace for that, in which the process keeps its number. All of it goes with the last process, however that dies.
A file system that never answers is FUSE without a server: the kernel waits for the first reply, and whoever asks waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
BUILT_WITHIN_S = 120.0
PLAYED_SOURCES = Path(__file__).resolve().parents[2] / "launch" / "chaos"


class NotPossibleHere(OSError):
    """This machine does not let this user do it; the message says what is missing."""


def own_mounts() -> None:
    """From now on mounts of this process are seen by its children only. To be called before any thread is started."""
    try:
        if os.getuid() == 0:
            with contextlib.suppress(OSError):
                unshare(CLONE_NEWNS)
                _mount("none", "/", "", MS_REC | MS_PRIVATE, "")
                return
        own_user(CLONE_NEWNS)
        _mount("none", "/", "", MS_REC | MS_PRIVATE, "")
    except OSError as error:
        words = f"this machine gives no mounts of their own to its users ({error.strerror})"
        raise NotPossibleHere(error.errno, words) from error


def own_user(more: int = 0) -> None:
    """Enter a user namespace in which this process keeps its number, and ``more`` namespaces that belong to it."""
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | more)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def mount_memory(folder: Path, size_bytes: int) -> None:
    """An empty file system in memory, of that size."""
    _mount("none", str(folder), "tmpfs", 0, f"size={size_bytes},mode=0700")


def also_at(folder: Path, other: Path) -> None:
    """The same files under another name, whatever is mounted over the first one later."""
    _mount(str(folder), str(other), "", MS_BIND | MS_REC, "")


def make_read_only(folder: Path) -> None:
    """Mount a read-only view of the folder over itself; files that are open for writing stay so."""
    _mount(str(folder), str(folder), "", MS_BIND, "")
    _mount("none", str(folder), "", MS_REMOUNT | MS_BIND | MS_RDONLY, "")


def make_silent(folder: Path) -> int:
    """Mount a file system over the folder that never answers; the file that ends it when it is closed."""
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise NotPossibleHere(error.errno, f"/dev/fuse cannot be opened ({error.strerror})") from error
    try:
        options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        _mount("silent", str(folder), "fuse", 0, options)
    except OSError as error:
        os.close(server)
        raise NotPossibleHere(error.errno, f"FUSE cannot be mounted here ({error.strerror})") from error
    return server


def unmount(folder: Path) -> None:
    """Take off what was mounted last over the folder; who uses it still has it."""
    if _libc().umount2(os.fsencode(folder), MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give this thread new namespaces of these kinds."""
    if _libc().unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "unshare")


def in_thread(do: Callable[[], T]) -> T:
    """``do`` it in a thread: namespaces that the thread enters are its own, and those of the processes it starts."""
    done: list[T] = []
    failed: list[OSError] = []

    def run() -> None:
        try:
            done.append(do())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="other namespaces")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    words = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if _libc().mount(*words) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _compile(what: str, source: str, library: Path, *flags: str) -> None:
    """Compile one of the C files beside the drills; ``NotPossibleHere`` says why that does not work."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NotPossibleHere(0, f"{what} has to be compiled, and there is no C compiler (cc)")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(PLAYED_SOURCES / source), *flags],
        capture_output=True, text=True, timeout=BUILT_WITHIN_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise NotPossibleHere(0, f"{what} cannot be compiled: {done.stderr.strip()[-200:]}")


# ---- a clock that is played ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlayedClock:
    """A wall clock of their own for the processes that are started with ``environment``."""

    folder: Path

    def build(self) -> None:
        """Compile the library, and see that it moves the clock of a process; the clock is right afterwards."""
        _compile("the played clock", "played_clock.c", self._library, "-ldl", "-lpthread")
        shown = []
        for ahead_s in (36_000.0, 0.0):
            self.set_ahead(ahead_s)
            done = subprocess.run(
                [sys.executable, "-I", "-c", "import time; print(time.time())"], env=self.environment({}),
                capture_output=True, text=True, timeout=BUILT_WITHIN_S, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise NotPossibleHere(0, f"the played clock cannot be loaded: {done.stderr.strip()[-200:]}")
            shown.append(float(done.stdout))
        if not shown[0] - shown[1] > 30_000.0:
            raise NotPossibleHere(0, "the played clock changes nothing in this Python")

    def set_ahead(self, seconds: float) -> None:
        """From now on the clock is ahead by so much. In place: the processes have mapped the file."""
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, struct.pack("=q", round(seconds * 1e9)), 0)
        finally:
            os.close(fd)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """What processes need besides ``variables`` that are to have this clock."""
        others = variables.get("LD_PRELOAD", "")
        return {"LD_PRELOAD": f"{self._library} {others}".strip(), "PLAYED_CLOCK": str(self._file)}

    def is_of(self, pid: int) -> bool:
        """Does this process have the clock?"""
        try:
            return str(self._library).encode() in Path(f"/proc/{pid}/maps").read_bytes()
        except OSError:
            return False

    @property
    def _library(self) -> Path:
        return self.folder / "played_clock.so"

    @property
    def _file(self) -> Path:
        return self.folder / "clock"


# ---- a driver that is played -----------------------------------------------------------------------------------------

H100 = {
    "uuid": "GPU-{n}", "name": "NVIDIA H100 80GB HBM3", "pci": "00000000:{n}B:00.0", "field230": 0, "field91": 2,
    "vbios": "96.00.89.00.01", "info_rom_version": "G520.0200.00.05", "sram": "0 0 0 0 0 0 0 0",
    "ecc00": 0, "ecc10": 0, "ecc11": 0, "remapped": "0 0 0 0", "temperature": 41, "margin": 46,
    "banks": "640 0 0 0 0", "info_rom": 1, "threshold": 95,
    "slowdown": 87, "field82": 50, "reasons": 1, "field269": 0, "field270": 0, "field271": 0, "power_limit": 700000,
    "power": 70000, "clock": 345, "width": 16, "width_max": 16, "generation": 1, "generation_max": 5, "replays": 0,
    "persistence": 1, "ecc_mode": 1, "ecc_pending": 1, "mig": 0, "compute_mode": 0, "memory_used": 1000000,
    "processes": 0, "busy": 0, "fabric": "3 0 1", "link0": 1, "link1": 1, "link0.errors0": 0, "link0.errors1": 0,
    "link0.errors2": 0, "link1.errors0": 0, "link1.errors1": 0, "link1.errors2": 0, "link0.errors3": 0,
    "link1.errors3": 0, "link0.field164": 26562, "link1.field164": 26562, "event_types": 0xC00A,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlayedDriver:
    """GPUs that are not there: a small libnvidia-ml in ``folder`` that says what a file beside it says."""

    folder: Path
    gpus_count: int

    def build(self) -> None:
        """Compile the library; all GPUs are healthy."""
        library = self.folder / "libnvidia-ml.so.1"
        _compile("the played driver", "played_nvml.c", library, "-Wl,-soname,libnvidia-ml.so.1")
        self.say({})

    def say(self, changes: Mapping[str, object]) -> None:
        """From now on the driver reports this, and else healthy GPUs."""
        lines: dict[str, object] = {"count": self.gpus_count, "driver": "570.86.15"}
        lines |= {
            f"gpu{n}.{key}": str(value).format(n=n) for n in range(self.gpus_count) for key, value in H100.items()
        }
        part = self.folder / "gpus.part"
        part.write_text("".join(f"{key} {value}\n" for key, value in (lines | dict(changes)).items()))
        part.replace(self.folder / "gpus")

    def environment(self) -> dict[str, str]:
        """What processes need that are to see these GPUs."""
        return {
            "LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML": str(self.folder / "gpus"),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.gpus_count))),
        }  # fmt: skip
