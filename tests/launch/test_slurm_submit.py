"""``gangrun submit`` on a host without a cluster: a dry run, every way in which sbatch can fail, and what is left."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import FailedSubmissionError

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths, read_spec, read_submission
from gangrun.adapters.slurm.scheduler import COLUMNS
from gangrun.launch import slurm_submit
from gangrun.launch.executor import BatchExecutor
from gangrun.submitit import GangExecutor
from gangrun.wire.submission import Requeue
from tests.command_line import Call
from tests.slurm_parts.scripts import options

SHOWN = {"%i": "19", "%u": "me", "%T": "PENDING", "%r": "Resources", "%e": "N/A", "%j": "%s", "%k": "%s"}


@pytest.fixture
def tools(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH: no tool of Slurm is there unless a test puts it there."""
    folder = home / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    (home / "train.py").write_text("print(1)\n")
    return folder


def tool(folder: Path, name: str, shell: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\nPATH=/usr/bin:/bin\n{shell}\n")
    path.chmod(0o755)


def left(home: Path) -> list[str]:
    """All that lies below a user's home that he did not put there."""
    return sorted(p.name for p in home.iterdir() if p.name not in {"bin", "train.py"})


def the_run(home: Path) -> RunPaths:
    (root,) = (home / "gangrun_runs").iterdir()
    return RunPaths(root)


def test_a_dry_run_needs_no_slurm_and_leaves_nothing(tools: Path, home: Path, gangrun: Call) -> None:
    said = gangrun(
        "submit", "-N", "4", "--spares=1", "--gpus_per_node", "8", "-p", "gpu", "-x", "n1", "--dry-run", "train.py"
    )
    assert said.code == 0, said
    found = options(said.out)
    assert (found["nodes"], found["gpus-per-node"], found["partition"], found["exclude"]) == ("5", "8", "gpu", "n1")
    assert found["chdir"] == str(home)
    assert found["output"] == f"{home}/gangrun_runs/{str(found['comment']).split(':')[1]}/logs/job-%j.out"
    assert "gangrun.entry.slurm_job" in said.out
    assert options(gangrun("submit", "-N41", "--spares=5%", "--dry-run", "train.py").out)["nodes"] == "44"
    script = gangrun("submit", "--dry-run", "--json", "train.py").json["script"]
    assert script.startswith("#!/bin/bash\n")
    assert left(home) == []


def test_submitted(tools: Path, home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tools, "sbatch", f'env >{home}/bin/seen-env; cat "$1" >{home}/bin/seen-sent; echo Submitted batch job 17')
    tool(tools, "scontrol", "cat <<'X'\nJobId=17 JobName=x\n   UserId=me(1)\n   JobState=PENDING Reason=Resources\nX")
    for name, value in {
        "SLURM_JOB_ID": "3",
        "SBATCH_PARTITION": "bad",
        "PMI_RANK": "1",
        "SLURM_CONF": "/c",
        "MINE": "ü",
    }.items():
        monkeypatch.setenv(name, value)
    said = gangrun(
        "submit", "-N", "2", "--gres", "gpu:4", "--requeue", "none", "-J", "a b/ü", "-q", "high", "-t", "10",
        "--env", "TOKEN=s e c",
        "--checkpoint-dir", "ckpt", "--sbatch", "mail-type=END", "--srun", "mpi=none", "train.py", "--json",
    )  # fmt: skip
    assert said.code == 0, said
    paths = the_run(home)
    assert said.out.splitlines()[0] == f"run {paths.run} (a b/ü) in {paths.root}"
    assert "job     17 on 2 nodes: pending (Resources: for free nodes)" in said.out
    assert '  plan    expects a failure every 1 d on 2 nodes, so every_s="auto" saves every 6 min' in said.out
    assert f"nothing: no checkpoint in {home}/ckpt yet" in said.out
    spec = read_spec(Disk(), paths)
    assert (spec.world, spec.nodes, spec.nodes_count, spec.spares_count) == ("slurm", (), 2, 0)
    assert (spec.slots_per_node, spec.ranks_per_slot, spec.nodes_min_count) == (1, 4, 2)
    assert spec.command[1:] == ("train.py", "--json")
    assert not spec.policy.can_requeue
    submission = read_submission(Disk(), paths)
    assert submission.requeue is Requeue.NONE
    assert submission.job_name == f"a_b.{paths.run}"
    assert (submission.srun, submission.sbatch) == ((("mpi", "none"),), (("mail-type", "END"),))
    sent = (home / "bin" / "seen-sent").read_text()
    assert sent == (paths.batch_scripts / "job-0.sh").read_text()
    assert options(sent)["qos"] == "high"
    assert (paths.batch_scripts / "job-0.number").read_text() == "17"
    handed_on = dict(line.partition("=")[::2] for line in (home / "bin" / "seen-env").read_text().splitlines())
    assert {"MINE": "ü", "TOKEN": "s e c", "SLURM_CONF": "/c"}.items() <= handed_on.items()
    assert not handed_on.keys() & {"SLURM_JOB_ID", "SBATCH_PARTITION", "PMI_RANK"}
    assert "s e c" not in paths.spec.read_text() + sent
    assert gangrun("status", "17", "--json").json["run"] == paths.run


def test_the_first_attempt_begins_from_what_the_script_loads(tools: Path, home: Path, gangrun: Call) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 17")
    (home / "ckpt").mkdir()
    (home / "ckpt" / "latest.pt").touch()
    said = gangrun("submit", "--checkpoint-dir", "ckpt", "train.py")
    told = " ".join(said.out.split())
    assert (
        f"what the script itself loads from {home}/ckpt: gangrun cannot judge latest.pt (looks like torch.save" in told
    )


def test_a_job_that_slurm_takes_and_never_starts(tools: Path, home: Path, gangrun: Call) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 17")
    facts = "JobId=17 JobName=x\n   UserId=me(1)\n   JobState=PENDING Reason=PartitionNodeLimit"
    tool(tools, "scontrol", f"cat <<'X'\n{facts}\nX")
    said = gangrun("submit", "-N", "99", "train.py").out
    assert "pending (PartitionNodeLimit: it asks for more nodes than its partition gives)" in said
    assert "Slurm cannot start this job with these options" in said


def test_json_tells_where_it_would_go_on(tools: Path, home: Path, gangrun: Call) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 18; echo 'sbatch: warning: 3 hours left' >&2")
    for step in (100, 200, 300):
        (home / "ckpt" / f"step-{step}").mkdir(parents=True)
        if step < 300:
            (home / "ckpt" / f"step-{step}" / ".metadata").touch()
    first = gangrun("submit", "--checkpoint-dir", "ckpt", "--json", "train.py").json
    page = (Path(__file__).parents[2] / "docs" / "status-json.md").read_text("utf-8")
    for key in (first.keys() | first["resume_from"].keys()) - {"schema"}:
        assert f"`{key}`" in page, key
    assert first["resume_from"]["step"] == 200
    assert first["resume_from"]["run"] is None
    assert first["resume_from"]["user"]
    assert (first["job"], first["job_state"], first["schema"]) == ("18", "", 1)
    now = time.time()  # the first run exists, those that follow do not
    os.utime(home / "ckpt" / "step-200", (now, now))
    again = gangrun("submit", "--checkpoint-dir", "ckpt", "--json", "train.py").json
    assert again["resume_from"]["run"] == first["run"]
    said = gangrun("submit", "--checkpoint-dir", "ckpt", "train.py")
    assert "sbatch says: warning: 3 hours left" in said.err
    assert f"by run {first['run']} (train)" in said.out
    for asked, words in (("none", "nothing, as --resume none asks"), ("100", "100, as --resume asks")):
        assert words in gangrun("submit", "--resume", asked, "--checkpoint-dir", "ckpt", "train.py").out
    said = gangrun("submit", "--resume", "ckpt/step-9", "--checkpoint-dir", "ckpt", "train.py")
    assert said.code == 2 and "--resume ckpt/step-9: there is no such checkpoint" in said.err
    assert f"gangrun checkpoints {home / 'ckpt'} lists" in said.err
    unseen = "/of/the/nodes/alone/step-9"
    assert gangrun("submit", "--resume", unseen, "--checkpoint-dir", "ckpt", "train.py").code == 0


def test_checkpoints_that_nobody_can_list(tools: Path, home: Path, gangrun: Call) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 18")
    (home / "ckpt").symlink_to("ckpt")  # round and round
    said = gangrun("submit", "--checkpoint-dir", "ckpt", "train.py")
    assert said.code == 0
    assert "symbolic links): gangrun does not know which checkpoints exist" in said.out
    assert gangrun("submit", "--checkpoint-dir", "ckpt", "--json", "train.py").json["resume_from"] is None


def test_a_disk_that_fills_up_meanwhile(
    tools: Path, home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 18")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(slurm_submit, "write_submission", full)
    said = gangrun("submit", "train.py")
    assert (said.code, left(home)) == (2, [])
    assert "No space left on device" in said.err


FAILED = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("shell", "words", "hint"),
    [
        ("", "there is no sbatch", "login node"),
        (f'echo "{FAILED}Invalid partition name specified" >&2; exit 1', "Invalid partition name", "sinfo -s"),
        (f'echo "{FAILED}Invalid account or account/partition combination" >&2; exit 1', "Invalid account", "sinfo"),
        (f'echo "{FAILED}Invalid qos specification" >&2; exit 1', "Invalid qos", "sacctmgr"),
        (f'echo "{FAILED}Requested node configuration is not available" >&2; exit 1', "not available", "what there is"),
        ('printf "sbatch: error: \\033[2Jlimit\\n" >&2; exit 1', "\\e[2Jlimit", "--dry-run"),
    ],
)
def test_a_refusal_leaves_nothing(tools: Path, home: Path, gangrun: Call, shell: str, words: str, hint: str) -> None:
    if shell:
        tool(tools, "sbatch", shell)
    said = gangrun("submit", "train.py", "--json")
    assert (said.code, said.out) == (4, "")
    assert words in said.err
    assert hint in said.err
    assert left(home) == []
    error = gangrun("submit", "--json", "train.py").error
    assert error["kind"] == "slurm"
    (home / "gangrun_runs").mkdir(mode=0o700)
    assert gangrun("submit", "train.py").code == 4
    assert left(home) == ["gangrun_runs"]


def test_nobody_can_tell(tools: Path, home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_submit, "LOOK_FOR_S", 0.1)
    tool(tools, "sbatch", f'echo "{FAILED}Socket timed out on send/recv operation" >&2; exit 1')
    said = gangrun("submit", "train.py")
    assert said.code == 3
    paths = the_run(home)
    assert (
        f"whether Slurm accepted the job of run {paths.run}: Batch job submission failed: Socket timed out" in said.err
    )
    assert f"squeue --me --name train.{paths.run}" in said.err
    assert gangrun("status", paths.run).code == 0


def test_it_was_submitted_after_all(tools: Path, home: Path, gangrun: Call) -> None:
    tool(
        tools,
        "sbatch",
        f'grep -o "gr:.*:0" "$1" >{home}/bin/seen-comment; echo "sbatch: error: Socket timed out" >&2; exit 1',
    )
    line = "\\x1f".join(SHOWN.get(column, "") for column in COLUMNS) + "\\x1e"
    tool(tools, "squeue", f'c=$(cat {home}/bin/seen-comment); r=${{c#gr:}}; printf "{line}" "train.${{r%:0}}" "$c"')
    said = gangrun("submit", "--json", "train.py")
    assert said.code == 0, said
    assert said.json["job"] == "19"


def test_ctrl_c_while_it_is_submitted(tools: Path, home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(BatchExecutor, "submit_job", interrupted)
    said = gangrun("submit", "train.py")
    assert said.code == 130
    assert json.loads(the_run(home).cancelled.read_text())["by"].startswith("Ctrl-C")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "no script or command was given"),
        (("-m",), "-m needs a module"),
        (("missing.py",), "no such script"),
        (("no-such-command",), "no such command"),
        (("--nproc-per-node", "gpu", "train.py"), "not known here"),
        (("--nproc-per-node", "auto", "train.py"), "--gpus-per-node or --cpus-per-task"),
        (("--min-nodes", "3", "-N", "2", "train.py"), "--min-nodes 3 is more than --nodes 2"),
        (
            ("--min-nodes", "3", "-N", "4", "--nproc-per-node", "4", "--world-multiple-of", "8", "train.py"),
            "which is no multiple of 8 (--world-multiple-of)\n  with 4 ranks per node, a multiple of 2 nodes fits",
        ),
        (("-N", "4", "--world-multiple-of", "8", "train.py"), "--nodes 4 means 4 ranks, which is no multiple of 8"),
        (("-N", "4", "--world-multiple-of", "0", "train.py"), "not a whole number from 1 up"),
        (("-N", "4", "--on-resize", "--accum {factor}", "train.py"), "all nodes are needed"),
        (("--on-resize", "--accum {ranks}", "train.py"), "{ranks} is not a name that gangrun fills in here"),
        (("--spare-gpus", "1", "train.py"), "--spare-gpus is for one machine"),
        (("--nproc-per-node", "2:4", "train.py"), "--nproc-per-node 2:4 is for one machine"),
        (("--sbatch", "array=1-4", "train.py"), "submit several runs instead"),
        (("--sbatch", "output=x", "train.py"), "not passed on"),
        (("--local-hosts", "train.py"), "No such option"),
        (("-p", "a\nb", "train.py"), "line break"),
        (("-p", "a\udcffb", "train.py"), "not valid UTF-8"),
        (("--setup", "a\r\nb", "train.py"), "DOS line break"),
    ],
)
def test_mistakes_cost_nothing(tools: Path, home: Path, gangrun: Call, words: tuple[str, ...], told: str) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 1")
    said = gangrun("submit", *words)
    assert said.code == 2, said
    assert told in said.err
    assert left(home) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), False), (("--min-nodes", "4"), False), (("--min-nodes", "3"), True),
        (("--min-nodes", "3", "--on-resize", "--accum {factor}"), False),
    ],
)  # fmt: skip
def test_what_is_assumed_of_a_script_that_may_shrink_is_said(
    tools: Path, home: Path, gangrun: Call, words: tuple[str, ...], told: bool
) -> None:
    said = gangrun("submit", "--dry-run", "-N", "4", *words, "train.py")
    assert said.code == 0, said
    assert ("the script keeps its global batch at each size" in said.err) is told, said.err


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ((), 1), (("--gpus-per-node", "a100:8"), 8), (("--gres", "gpu:2"), 2), (("--nproc_per_node", "3"), 3),
        (("--gpus-per-node", "4", "--nproc-per-node", "auto"), 4), (("-c", "6", "--nproc-per-node", "cpu"), 6),
        (("-c", "6", "--nproc-per-node", "auto"), 6), (("--gpus-per-node", "4", "--nproc-per-node", "gpu"), 4),
    ],
)  # fmt: skip
def test_ranks_of_a_node(tools: Path, home: Path, gangrun: Call, words: tuple[str, ...], ranks: int) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 1")
    assert gangrun("submit", *words, "train.py").code == 0
    assert read_spec(Disk(), the_run(home)).ranks_per_slot == ranks


def test_setup_lines_may_bring_the_command(tools: Path, home: Path, gangrun: Call) -> None:
    tool(tools, "sbatch", "echo Submitted batch job 1")
    assert gangrun("submit", "--setup", "module load x", "train.py").code == 0
    paths = the_run(home)
    assert read_spec(Disk(), paths).command == ("python", "train.py")
    assert read_submission(Disk(), paths).needs_python
    assert gangrun("submit", "--setup", "module load x", "no-such-command-here", "y").code == 0


def test_places_that_other_nodes_do_not_see(
    tools: Path, home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = gangrun("submit", "--runs-dir", "/dev/shm/gr", "--checkpoint-dir", "/tmp/x", "--dry-run", "train.py")
    assert "the runs directory /dev/shm/gr must be visible on all nodes" in said.err
    assert "the checkpoint directory /tmp/x must be visible" in said.err
    assert "shared" not in gangrun("submit", "--runs-dir", "/shared/gr", "--dry-run", "train.py").err


def test_one_cpu_for_many_ranks(tools: Path, home: Path, gangrun: Call) -> None:
    eight = ("submit", "--gpus-per-node", "8", "--dry-run")
    assert "without -c, all 8 ranks of a node share one CPU" in gangrun(*eight, "train.py").err
    for more in (("-c", "16"), ("--exclusive",), ("--sbatch", "cpus-per-gpu=4")):
        assert "one CPU" not in gangrun(*eight, *more, "train.py").err
    assert "one CPU" not in gangrun("submit", "--dry-run", "train.py").err


def test_a_function_is_submitted_as_a_command_is_and_by_no_other_process(tools: Path, home: Path) -> None:
    """PATH holds no program but sbatch."""
    executor = GangExecutor(home / "pickles", here=False)
    executor.update_parameters(
        tasks_per_node=2, cpus_per_task=3, mem_gb=4, partition="gpu", no_health=True, max_restarts=1
    )
    with pytest.raises(
        FailedSubmissionError, match=r"^gangrun: Slurm cannot be asked: there is no sbatch .*\n  submit from"
    ):
        executor.submit(max, 1, 2)
    tool(tools, "sbatch", f'echo "{FAILED}Invalid qos specification" >&2; exit 1')
    with pytest.raises(FailedSubmissionError, match=r"Slurm refused the job: .* Invalid qos specification\n  sacctmgr"):
        executor.submit(max, 1, 2)
    assert left(home) == ["pickles"]
    tool(tools, "sbatch", "echo Submitted batch job 18")
    job = executor.submit(max, 1, 2)
    paths = the_run(home)
    spec = read_spec(Disk(), paths)
    assert (job.job_id, job.num_tasks) == (paths.run, 2)
    assert spec.command == (sys.executable, "-m", "submitit.core._submit", str(home / "pickles"))
    assert (spec.ranks_per_slot, spec.policy.restarts_max_count, spec.health.enabled) == (2, 1, False)
    assert spec.environment == {"SUBMITIT_EXECUTOR": "gangrun"}
    assert job.paths.submitted_pickle.exists()
    found = options(job.paths.submission_file.read_text())
    assert (found["partition"], found["cpus-per-task"], found["mem"]) == ("gpu", "6", "4G")
