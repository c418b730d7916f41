"""Hardware that breaks under a run on a real cluster: GPUs played by a small libnvidia-ml, ports by a tree of files.

What the agent's checks read is theirs host by host; everything else is the real thing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.local.played_world import H100
from gangrun.adapters.slurm.scheduler import SlurmScheduler
from tests.health.looks import write
from tests.health.test_infiniband import tree
from tests.health.test_nvml import SOURCE
from tests.slurm.cluster import Cluster
from tests.slurm.harness import TINY, Run, attempts_that_stepped
from tests.slurm.test_scheduler import UsersTools
from tests.waiting import until

pytestmark = pytest.mark.compiler
WATCHES = r"health_watch"
TWENTY_MORE = "if attempt: steps = start + 20"
FAILS_ONCE = """
while attempt == 0 and start == 0 and not (folder / "fail").exists():
    break
def hook(step):
    if attempt == 0 and rank == 1 and (folder / "fail").exists():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
if attempt: steps = start + 20
"""

PLAYED_DEVICES = """
import json, os, sys
if any(word.endswith("device_child.py") for word in sys.orig_argv):
    wrong = 3 if os.path.exists({broken!r} + "." + os.environ["SLURMD_NODENAME"]) else 0
    print(json.dumps({{"usable": 1, "gemm_mismatches": wrong, "gemm_products": 4, "gemm_tflops": 1.0}}))
    print(json.dumps({{"memory_mismatches": 0, "memory_passes": 6, "memory_bytes_tested": 10**9, "memory_gbps": 9.0}}))
    sys.stdout.flush()
    os._exit(0)
"""


class Gpus:
    """The GPUs and ports of every host, as its driver and kernel would tell of them; and what they compute at work."""

    def __init__(self, run: Run) -> None:
        self.folder = run.folder / "hardware"
        self.folder.mkdir()
        flags = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
        library = self.folder / "libnvidia-ml.so.1"
        subprocess.run(["cc", *flags, "-o", str(library), str(SOURCE)], check=True, timeout=60)
        self.root = self.folder / "root"
        self._broken = self.folder / "broken"
        (self.folder / "sitecustomize.py").write_text(PLAYED_DEVICES.format(broken=str(self._broken)))
        (run.folder / "gangrun.toml").write_text("[health]\npreflight_within_s = 60\n")  # however busy the machine is
        self.say("")
        for host in run.cluster.names:
            tree(self.root / host, {"mlx5_0": {}})
        for path in (self.folder, *self.folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        self.environment = {
            "GANGRUN_NO_HEALTH": "0",
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKE_NVML": str(self.folder / "gpus"),
            "FAULT_HEALTH_ROOT": str(self.root / "%h"),
            "PYTHONPATH": str(self.folder),
            "TINY": str(TINY),
        }

    def multiply_wrong(self, host: str) -> None:
        """From now on, whenever its devices are put to work."""
        self._broken.with_name(f"{self._broken.name}.{host}").touch()

    def say(self, host: str, changes: Mapping[str, object] | None = None) -> None:
        """What one host's driver says, or all others'."""
        lines: dict[str, object] = {"count": 2, "driver": "570.86.15"}
        lines |= {f"gpu{n}.{key}": str(value).format(n=n) for n in range(2) for key, value in H100.items()}
        lines |= changes or {}
        path = self.folder / (f"gpus.{host}" if host else "gpus")
        part = path.with_suffix(".part")
        part.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        part.chmod(0o644)
        part.replace(path)

    def link_downed(self, host: str, count: int) -> None:
        path = self.root / host / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
        part = path.with_suffix(".part")
        part.write_text(f"{count}\n")
        part.chmod(0o644)
        part.replace(path)


def told(run: Run, *words: str) -> None:
    """It is in the run's journal, which is quicker read than explained."""

    def there() -> bool:
        texts = "".join(path.read_text(errors="replace") for path in run.root.glob(".gangrun/journal/*"))
        return all(word in texts for word in words)

    until(there, 60, lambda: f"{words} in {run.explain()}\n{run.told()}")


@pytest.mark.timeout(240)
def test_a_sick_node_is_never_used_and_one_that_falls_sick_is_left_behind(cluster: Cluster, run: Run) -> None:
    """ECC errors at the gate: the spare takes its place. XID 79 under way: no spare is left, so another job."""
    gpus = Gpus(run)
    gpus.say("n2", {"gpu1.ecc10": 3})
    run.step(2, 1, "--spares", "1", "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE, env=gpus.environment)
    run.wait_for_step(12)
    (first,) = run.jobs()
    assert {host for host, _ in run.ranks().values()} == {"n1", "n3"}
    gpus.say("n3", {"event0": "1 8 79"})
    status = run.end(deadline_s=120)
    second = run.jobs()[1]
    assert second["ExcNodeList"] == "n[2-3]"
    assert {one["node"] for one in status["excluded"]} == {"n2", "n3"}
    assert [one["job"] for one in status["attempts"]] == [first["JobId"], second["JobId"]]
    assert status["attempts"][1]["resumed_from_step"] >= 10
    assert attempts_that_stepped(run.rows()) == [0, 1]
    assert "n2" not in {row.host for row in run.rows()}
    story = run.explain()
    assert "number of uncorrectable memory errors" in story, story
    assert "XID 79 on gpu 1: GPU fell off the bus" in story
    cluster.wait_job(second["JobId"], "COMPLETED")
    known = {"GANGRUN_NO_HEALTH": "0"}
    listed = json.loads(run.gangrun("nodes", "--json"))["nodes"]
    assert {(one["node"], one["left_out"], one["run"]) for one in listed} == {
        ("n2", True, run.id),
        ("n3", True, run.id),
    }
    assert "--exclude='n[2-3]'" in run.gangrun("submit", "--dry-run", "-N", "2", "true", env=known)
    assert "--exclude=n2\n" in run.gangrun("submit", "--dry-run", "-N", "1", "-w", "n3", "true", env=known)
    run.gangrun("nodes", "clear", "n[2-3]")
    assert run.gangrun("nodes").strip() == "no node is excluded"
    cluster.assert_clean(20)


@pytest.mark.timeout(240)
def test_what_is_the_programs_or_unknown_or_heals_excludes_nobody(cluster: Cluster, run: Run) -> None:
    """The checker killed, one link's flap, XID 31 with a rank that dies of it: the same nodes go on."""
    gpus = Gpus(run)
    run.step(2, 1, steps=9999, every=5, hook=FAILS_ONCE, env=gpus.environment)
    run.wait_for_step(8)
    host, other = run.host_of(1), run.host_of(0)
    gpus.link_downed(other, 4)
    told(run, "mlx5_0 port 1: lost links rose from")
    watch, *_ = cluster.processes_on(host, WATCHES)  # what it starts looks like itself for a moment
    os.kill(watch.pid, signal.SIGKILL)
    told(run, "the health checks were killed by signal 9", "nothing is known of this node now")
    again = until(lambda: cluster.processes_on(host, WATCHES), 30, lambda: f"another checker\n{run.told()}")
    assert again[0].pid != watch.pid
    gpus.say(host, {"event0": "0 8 31"})
    told(run, "XID 31 on gpu 0", "by itself it is the program's")
    (run.steps / "fail").touch()
    status = run.end()
    assert "XID 31 on gpu 0" in run.explain()
    assert status["excluded"] == []
    assert (status["restarts"], len(run.jobs())) == (1, 1)
    assert {row.host for row in run.rows()} == {host, other}
    assert attempts_that_stepped(run.rows()) == [0, 1]
    cluster.assert_clean(10)


FALLS_TWICE = """
def hook(step):
    if attempt < 2 and rank == 1 and (folder / f"fall{attempt}").exists():
        raise (RuntimeError, ValueError)[attempt]("CUDA error: unspecified launch failure")
if attempt > 1: steps = start + 5
"""


def suspected(run: Run, gpus: Gpus, attempt: int) -> str:
    """A memory error that was contained, and a rank that falls soon after: which host it was."""
    host = run.host_of(1)
    gpus.say(host, {"event0": "1 8 94"})
    told(run, f"{host}: XID 94 on gpu 1")
    (run.steps / f"fall{attempt}").touch()
    return host


@pytest.mark.timeout(240)
def test_a_suspect_is_put_to_work_and_what_comes_out_decides(cluster: Cluster, run: Run) -> None:
    """The first one multiplies wrong, so it is left behind; the second one works, and goes on where it was."""
    gpus = Gpus(run)
    run.step(2, 1, steps=9999, every=5, hook=FALLS_TWICE, env=gpus.environment)
    run.wait_for_step(8)
    host = run.host_of(1)
    gpus.multiply_wrong(host)
    assert suspected(run, gpus, 0) == host
    until(lambda: any(row.rank == 1 and row.attempt == 1 for row in run.rows()), 60, run.told)
    clean = suspected(run, gpus, 1)
    status = run.end(deadline_s=120)
    assert [one["node"] for one in status["excluded"]] == [host]
    first, second = run.jobs()
    assert second["ExcNodeList"] == host
    assert [one["job"] for one in status["attempts"]] == [first["JobId"], second["JobId"], second["JobId"]]
    assert clean in status["attempts"][2]["nodes"]
    assert host not in {row.host for row in run.rows() if row.attempt}
    story = run.explain()
    assert f"devices of {host} are tested first" in story
    assert "cpu: number of wrong results in products whose result is known is 3 (limit 0)" in story
    assert f"{clean} was suspected (attempt 1: hardware), and its devices work: 0 wrong in 4 products" in story
    run.gangrun("nodes", "clear", host)
    cluster.assert_clean(20)


EDAC = "sys/devices/system/edac/mc/mc0/"


def memory(gpus: Gpus, host: str, lost_count: int) -> None:
    """A host with a memory controller, in a boot of its own; readable by the user."""
    root = gpus.root / host
    files = {f"{EDAC}ue_count": f"{lost_count}\n", f"{EDAC}ce_count": "0\n"}
    write(root, {"proc/sys/kernel/random/boot_id": f"boot-of-{host}\n", **files})


def kept(run: Run, host: str) -> Path:
    return run.root / ".gangrun" / "health" / f"{host}.json"


@pytest.mark.timeout(240)
def test_memory_that_failed_between_two_jobs_is_seen_by_the_next(cluster: Cluster, run: Run) -> None:
    gpus = Gpus(run)
    for host in ("n1", "n2", "n3"):
        memory(gpus, host, 7)  # of a time before the run: says nothing
    run.step(2, 1, "--spares", "1", "-w", "n[1-3]", steps=9999, every=5, hook=TWENTY_MORE, env=gpus.environment)
    run.wait_for_step(8)
    sick = run.host_of(0)
    file = kept(run, sick)
    until(lambda: file.exists() and "ue_count" in file.read_text(), 60, run.told)
    run.gangrun("cancel", run.id)
    (first,) = run.jobs()
    cluster.wait_job(first["JobId"], "COMPLETED", "CANCELLED", "FAILED", deadline_s=60)
    memory(gpus, sick, 9)
    run.gangrun("resume", run.id, env={**gpus.environment, "HOOK": TWENTY_MORE, "MAY_END": ""})
    status = run.end(deadline_s=120)
    assert [one["node"] for one in status["excluded"]] == [sick]
    assert {row.host for row in run.rows() if row.attempt} == {"n1", "n2", "n3"} - {sick}
    assert "mc0: uncorrected memory errors rose from 7 to 9 in" in run.explain()
    run.gangrun("nodes", "clear", sick)
    cluster.assert_clean(20)


def test_slurm_says_when_a_node_has_booted(cluster: Cluster) -> None:
    slurm, now = SlurmScheduler(UsersTools(cluster)), SystemClock().wall()
    assert slurm.booted_since({"n1": 0.0, "n2": now, "n9": 0.0, "n3": 0.0}) == (), "one is no node: nothing is known"
    assert slurm.booted_since({"n1": 0.0, "n2": now, "n3": 0.0}) == ("n1", "n3")


LOSES_PEERS = """
def hook(step):
    if attempt == 0 and (folder / "fail").exists():
        from torch.distributed import DistBackendError
        raise DistBackendError(
            "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there"
            " was a network error, NCCL version 2.19.3\\nncclRemoteError: A call failed possibly due to a network error"
            " or a remote process exiting prematurely.\\nLast error:\\nsocketProgress: Connection closed by remote peer"
        )
if attempt: steps = start + 20
"""


@pytest.mark.timeout(240)
def test_nodes_meet_by_themselves_after_ranks_lost_each_other(cluster: Cluster, run: Run) -> None:
    """One node reaches only the supervisor's host, and all ranks say the same. It goes, and the spare comes."""
    run.step(3, 1, "--spares", "1", steps=9999, every=5, hook=LOSES_PEERS, env={"GANGRUN_NO_HEALTH": "0"})
    run.wait_for_step(8)
    (job,) = run.jobs()
    nodes = {host for host, _ in run.ranks().values()}
    cut = next(host for host in sorted(nodes) if host != job["BatchHost"])
    peers = [host for host in cluster.room.hosts if host not in (cut, job["BatchHost"]) and host.startswith("n")]
    for peer in peers:
        cluster.room.run(cut, "ip", "route", "add", "blackhole", f"{cluster.room.hosts[peer].address}/32")
    try:
        (run.steps / "fail").touch()
        status = run.end(deadline_s=120)
    finally:
        for peer in peers:
            cluster.room.run(cut, "ip", "route", "del", "blackhole", f"{cluster.room.hosts[peer].address}/32")
    assert [one["node"] for one in status["excluded"]] == [cut]
    assert [one["job"] for one in status["attempts"]] == [job["JobId"]] * 2
    assert cut not in {row.host for row in run.rows() if row.attempt}
    story = " ".join(run.explain().split())
    assert "is tested first" in story
    assert "the network test failed between" in story
    assert f"{cut} excluded" in story
    cluster.assert_clean(20)
