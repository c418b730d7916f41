"""What ranks bring forth: DataLoader workers, shared memory, saves on SIGTERM. Nothing of it outlives the attempt."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.local.harness import Box
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LONG_S = 150.0

# Two ranks, each with two workers that hand tensors over through named shared memory.
LOADER = """
import os, sys, time
import torch
import torch.multiprocessing
from pathlib import Path
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        Path(f"worker-{os.getpid()}").touch()
        time.sleep(0.002)
        return torch.full((2000,), float(index))

if __name__ == "__main__":
    torch.multiprocessing.set_sharing_strategy("file_system")
    attempt, rank = os.environ["GANGRUN_ATTEMPT"], os.environ["RANK"]
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1])
    for number, batch in enumerate(loader):
        if number == 5:
            Path(f"going-{attempt}-{rank}").touch()
        if attempt == "1" and number == 20 and sys.argv[2] == "finish":
            break
"""


def segments_of(pids: list[int]) -> set[Path]:
    """Files in /dev/shm that these processes have mapped or open, unlinked or not."""
    found: set[Path] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        for name in [*links, *maps.splitlines()]:
            if match := re.search(r"/dev/shm/\S+", name):
                found.add(Path(match[0]))
    return found


def segments_in_use(pids: list[int]) -> set[Path]:
    """As soon as tensors lie in one, or what follows would show nothing."""

    def found() -> set[Path]:
        seen = segments_of(pids)
        return seen if any(path.name.startswith("torch_") for path in seen) else set()

    return until(found, LONG_S, "tensors in shared memory")


def left_in_memory(box: Box, seen: set[Path]) -> list[Path]:
    """What is still there of what they used, or bears the run's name or the pid of any of its workers."""
    of_run = list(Path("/dev/shm").glob(f"**/*{box.status()['run']}*"))
    pids = [path.name.split("-")[1] for path in box.work.glob("worker-*")]
    of_theirs = [path for path in Path("/dev/shm").glob("torch_*") if path.name.split("_")[1] in pids]
    return [path for path in {*seen, *of_run, *of_theirs} if path.exists()]


def going(box: Box, attempt: int) -> None:
    box.until(
        lambda: all((box.work / f"going-{attempt}-{rank}").exists() for rank in (0, 1)),
        f"workers of attempt {attempt} deliver", LONG_S,
    )  # fmt: skip


def of_attempt(box: Box, attempt: int) -> list[int]:
    return [pid for pid, variables in box.left().items() if variables.get("GANGRUN_ATTEMPT") == str(attempt)]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_die_with_their_rank_and_with_the_others(box: Box, how: str) -> None:
    pytest.importorskip("torch")
    box.start("--nproc-per-node", "2", box.script(LOADER), how, "finish")
    going(box, 0)
    old = of_attempt(box, 0)
    assert len(old) >= 6  # two ranks, two workers each; helpers of multiprocessing besides
    seen = segments_in_use(old)
    os.kill(box.ranks()[1], signal.SIGKILL)
    going(box, 1)
    assert not of_attempt(box, 0)  # the slate was clean before the next attempt began
    assert not {pid for pid in old if "train.py" in command(pid)}
    assert box.end(LONG_S) == 0, box.told()
    assert not box.left()
    assert not left_in_memory(box, seen)


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


SAVES_ON_TERM = """
import os, signal, sys, time
from pathlib import Path

def save(signum, frame):
    time.sleep(1.0)  # as long as a small save takes
    Path(f"saved-{os.environ['GANGRUN_ATTEMPT']}-{os.environ['RANK']}").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
Path(f"ready-{os.environ['GANGRUN_ATTEMPT']}-{os.environ['RANK']}").touch()
while os.environ["GANGRUN_ATTEMPT"] == "0":
    time.sleep(0.05)
"""


def test_a_script_that_saves_on_sigterm_gets_the_time_to(box: Box) -> None:
    box.start("--nproc-per-node", "2", "--stop-grace", "60", box.script(SAVES_ON_TERM))
    box.until(lambda: len(list(box.work.glob("ready-0-*"))) == 2, "both ranks are ready")
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    assert box.end() == 130, box.told()
    assert sorted(path.name for path in box.work.glob("saved-*")) == ["saved-0-0", "saved-0-1"]
    assert not box.left()


def test_one_that_saves_on_another_signal_gets_that_and_its_zero_is_no_success(box: Box) -> None:
    script = SAVES_ON_TERM.replace("signal.SIGTERM", "signal.SIGUSR1")
    box.start("--nproc-per-node", "2", "--save-signal", "USR1", "--stop-grace", "0", box.script(script))
    box.until(lambda: len(list(box.work.glob("ready-0-*"))) == 2, "both ranks are ready")
    for pid in box.ranks().values():  # as a scheduler would, to all
        os.kill(pid, signal.SIGUSR1)
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    assert box.end() == 130, box.told()
    assert sorted(path.name for path in box.work.glob("saved-*")) == ["saved-0-0", "saved-0-1"]
    assert box.status()["state"] == "CANCELLED"
    assert not box.left()
