"""Steps in a node's memory outlive its ranks and its agent, bit for bit, and nothing of them outlives the run."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.local.harness import Box
from tests.waiting import until

pytestmark = pytest.mark.no_warm

pytest.importorskip("torch")

STEPS = 30
# Two ranks, FSDP2: every rank's memory is needed. DEATHS: attempt:step:what (rank and agent are those of rank 1, host1
# is rank 1's, with all that is on it); nobody dies while a save is under way.
SCRIPT = """
import gc; gc.disable()  # torch is imported in three quarters of the time
import hashlib, os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun

dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ.get("GANGRUN_ATTEMPT", "0"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 4))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = gangrun.GlobalBatchSampler(64, 8, seed=3)
inputs = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
torch.manual_seed(100 + rank)
deaths = {(int(a), int(s)): what for a, s, what in (one.split(":") for one in os.environ["DEATHS"].split())}
with gangrun.Checkpointer(
    sys.argv[1], model=model, optimizer=optimizer, data=data, every_steps=int(os.environ["EVERY"]) or None,
    every_s=None,
    memory_every_steps=3,
) as ckpt:
    batches = None
    for step in range(ckpt.resume(), int(os.environ["STEPS"])):
        try:
            batch = next(batches)
        except (StopIteration, TypeError):
            batches = iter(data)
            batch = next(batches)
        optimizer.zero_grad()
        model(inputs[batch]).square().mean().backward()
        optimizer.step()
        ckpt.step(step)
        while ckpt.saving:
            time.sleep(0.001)
        while step == int(os.environ.get("AWAITS_DISK", -1)) and not os.path.exists(sys.argv[1] + "/step-5"):
            time.sleep(0.01)
        what = deaths.get((attempt, step))
        agent = int(os.environ.get("GANGRUN_AGENT_PID") or 0)
        if what in ("rank", "agent") and rank == 1:
            os.kill(os.getpid() if what == "rank" else agent, signal.SIGKILL)
        if what == f"host{rank}":
            warden = int(open(f"/proc/{agent}/stat").read().rpartition(")")[2].split()[1])
            os.kill(warden, signal.SIGKILL)
        if what:
            time.sleep(600)
found = hashlib.sha256()
for value in model.state_dict().values():
    found.update(value.full_tensor().numpy().tobytes())
if rank == 0:
    with open(os.environ["RESULT"], "w") as file:
        file.write(found.hexdigest())
dist.destroy_process_group()
# An interpreter that is taken down with gloo's threads alive was once aborted after all was done (SIGABRT, "terminate
# called without an active exception", no Python frame): most likely a thread that let go of a tensor wanted it then.
os._exit(0)
"""


def train(box: Box, name: str, *options: str, deaths: str = "", every: int = 1000) -> str:
    """The digest of the weights in the end."""
    result, directory = box.work / f"{name}.txt", box.work / name
    box.start(
        "--no-health", "--checkpoint-dir", directory, *options, box.script(SCRIPT), directory,
        environment={"DEATHS": deaths, "EVERY": str(every), "STEPS": str(STEPS), "RESULT": str(result)},
    )  # fmt: skip
    assert box.end(240) == 0, box.told()
    return result.read_text()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """How two ranks end that nobody disturbs."""
    box = Box(tmp_path_factory.mktemp("calm"))
    try:
        yield train(box, "calm", "--nproc-per-node", "2")
    finally:
        box.close()


def test_ranks_and_agent_die_and_nothing_but_the_steps_since_the_last_one_in_memory_is_lost(
    box: Box, calm: str
) -> None:
    options = ("--nproc-per-node", "2", "--memory-checkpoints")
    killed = train(box, "killed", *options, deaths="0:16:rank 1:25:agent", every=10)
    status = box.status()
    assert [one["resumed_from_step"] for one in status["attempts"]] == [None, 14, 23]
    told = box.explain()
    for step in (14, 23):
        assert re.search(rf"resuming from step {step}, which \S+ has\s+in memory", told), told
    assert killed == calm
    assert {path.name for path in (box.work / "killed").glob("step-*")} == {"step-9", "step-19", "step-29"}


def test_ranks_on_three_hosts_share_a_step_that_none_of_these_has_whole(
    box: Box, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And once more before they have another one: then it is written to the disk."""
    calm = Box(tmp_path_factory.mktemp("calm"))
    try:
        undisturbed = train(calm, "calm", "--nproc-per-node", "3")
    finally:
        calm.close()
    hosts = ("--local-hosts", "--nodes", "3", "--nproc-per-node", "1")
    killed = train(box, "killed", *hosts, "--memory-checkpoints", deaths="0:16:rank 1:16:rank")
    assert [one["resumed_from_step"] for one in box.status()["attempts"]] == [None, 14, 14], box.told()
    told = box.explain()
    assert re.search(r"resuming from step 14, which \S+ together have in memory", told), told
    assert re.search(r"resuming from step 14: [^;]*; written to disk from the memory of ", told), told
    assert killed == undisturbed


def test_what_a_lost_host_left_is_protected_again_and_a_second_loss_is_survived_by_what_came_since(
    box: Box, calm: str
) -> None:
    """Rank 1's host is lost when step 5 is in memory, rank 0's when step 11 is. By then the first one is back, with a
    memory that was empty: what it was given since is all there is, and no rank ever saves to the disk. While it has no
    copy of step 5, that is written there; ranks wait for it.
    """
    hosts = ("--local-hosts", "--nodes", "2", "--nproc-per-node", "1")
    box.environment["AWAITS_DISK"] = "10"
    lost = train(box, "lost", *hosts, "--memory-checkpoints", deaths="0:6:host1 1:12:host0")
    assert [one["resumed_from_step"] for one in box.status()["attempts"]] == [None, 5, 11], box.told()
    told = box.explain("--all")
    for step in (5, 11):
        assert re.search(rf"resuming from step {step}, which \S+ has in memory", told), told
    assert "step 5 was written to disk from the memory of" in told, told
    assert lost == calm


def test_a_run_that_ends_leaves_on_disk_what_was_in_memory_only_and_goes_on_from_there(
    box: Box, tmp_path: Path
) -> None:
    """Two hosts, each of which holds one half; rank 1 dies at step 8, when 8 is in memory, and no restart is left."""
    saves, result = box.work / "saves", tmp_path / "result.txt"
    box.environment |= {"DEATHS": "0:8:rank", "EVERY": "1000", "STEPS": "12", "RESULT": str(result)}
    box.start(
        "--local-hosts", "--nodes", "2", "--nproc-per-node", "1", "--no-health", "--max-restarts", "0",
        "--checkpoint-dir", saves, "--memory-checkpoints", box.script(SCRIPT), saves,
    )  # fmt: skip
    assert box.end(240) == 1, box.told()
    assert [path.name for path in saves.glob("step-*")] == ["step-8"], box.told()
    assert "step 8 was written to disk from the memory of" in box.status()["reason"], box.told()
    again = box.gangrun("resume", box.status()["run"], "--runs-dir", str(box.runs), check=False)
    assert again.returncode == 0, again.stderr + box.told()
    assert [one["resumed_from_step"] for one in box.status()["attempts"]] == [None, 8]
    assert result.exists()
    assert "for the newest step in memory" in box.explain()


def test_ranks_that_save_to_memory_only_have_it_written_to_the_disk_while_they_train_on(
    box: Box, tmp_path: Path
) -> None:
    """At step 6 ranks wait until step 5 is on disk, which none of them writes."""
    saves, result = box.work / "saves", tmp_path / "result.txt"
    box.environment |= {"DEATHS": "", "EVERY": "0", "STEPS": "10", "RESULT": str(result), "AWAITS_DISK": "6"}
    box.start(
        "--local-hosts", "--nodes", "2", "--nproc-per-node", "1", "--no-health", "--flush-every", "1",
        "--checkpoint-dir", saves, "--memory-checkpoints", box.script(SCRIPT), saves,
    )  # fmt: skip
    assert box.end(240) == 0, box.told()
    assert box.status()["restarts"] == 0
    names = {path.name for path in saves.glob("step-*")}
    assert {"step-5", "step-9"} <= names, names
    story = box.gangrun("explain", box.status()["run"], "--runs-dir", str(box.runs), "--all").stdout
    assert "step 5 was written to disk from the memory of" in story, story
    assert not list((saves / ".gangrun").glob("*/*/*-memory"))


SIZE = 4 * 2**20
KEEPS = f"""
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, StepName
line = KeeperClient(os.environ["GANGRUN_MEMORY"])
def hook(step):
    name = StepName(attempt, step, "ab" * 8)
    line.put(name, f"file-{{rank}}", bytes({SIZE}))
    line.whole(name)
"""


def memfds(pids: list[int]) -> set[tuple[int, int]]:
    """Device and inode of what these processes hold in memory, one or more of them."""
    found = set()
    for pid in pids:
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if "memfd:gangrun-checkpoint" in os.readlink(entry):
                    told = entry.stat()
                    found.add((told.st_dev, told.st_ino))
        except OSError:
            continue
    return found


def everybody() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def shared_bytes(box: Box) -> int | None:
    """Of the run's files in shared memory; None where there are none."""
    sizes = [path.stat().st_size for path in Path("/dev/shm").glob(f"gangrun-*/{box.run_dir().name}/**/*")]
    return sum(sizes) if sizes else None


def succeeds(box: Box) -> None:
    assert box.end() == 0, box.told()


def is_cancelled(box: Box) -> None:
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    box.process.wait(120)


def is_killed(box: Box) -> None:
    """``gangrun run`` and its wardens: nobody is left who could kill the others, so these have to go by themselves."""
    assert box.process is not None
    box.process.send_signal(signal.SIGSTOP)
    for pid in box.process_ids("node/warden.py"):
        os.kill(pid, signal.SIGKILL)
    box.process.kill()
    box.process.wait(120)


@pytest.mark.parametrize("ends", [succeeds, is_cancelled, is_killed])
def test_nothing_is_left_in_memory(box: Box, ends: Callable[[Box], None]) -> None:
    box.step(
        1, "--local-hosts", "--nodes", "2", "--memory-checkpoints", "--checkpoint-dir", str(box.work / "saves"),
        "--checkpoint-grace", "1", steps=100_000 if ends is not succeeds else 20, hook=KEEPS,
    )  # fmt: skip
    box.wait_for_step(10, deadline_s=60)
    keepers = box.process_ids("node/memory_keeper.py")
    assert len(keepers) == 2
    held = until(lambda: memfds(keepers), 60, "something in memory")
    ends(box)
    until(lambda: not box.left(), 60, lambda: f"all processes to be gone: {box.left()}")
    assert not held.intersection(memfds(everybody()))
    left_bytes = shared_bytes(box)
    if ends is is_killed:
        assert left_bytes is None or left_bytes < SIZE / 8, "small files, which the next run removes"
    else:
        assert left_bytes is None
