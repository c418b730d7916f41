"""``gangrun submit`` on a real cluster, as an ordinary user: what Slurm makes of it, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.faults.inject import PLAIN, gangrun
from tests.slurm import reach
from tests.slurm.cluster import Cluster
from tests.waiting import until

SUBMIT = [*PLAIN, "submit"]
HOSTILE = "a 'b' $HOME %j %% ü \"q\" `x` #h"
SHORT = ["--silence-after", "2", "--fence-after", "15"]


@pytest.fixture
def folder(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """Where the user stands."""
    path = cluster.folder(f"{request.node.name} {HOSTILE}")
    (path / "train.py").write_text("print('trained')\n")
    return path


def submit(cluster: Cluster, folder: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """``gangrun submit WORDS``, however it ends."""
    return cluster.user_run([*gangrun(more.get("env")), "submit", *SHORT, *words], cwd=folder, check=False, **more)


def submitted(cluster: Cluster, folder: Path, *words: str, **more: Any) -> dict[str, Any]:
    """Its JSON."""
    done = submit(cluster, folder, "--json", *words, **more)
    assert done.returncode == 0, done
    return dict(json.loads(done.stdout))


def runs(folder: Path) -> list[Path]:
    where = folder / "gangrun_runs"
    return list(where.iterdir()) if where.exists() else []


def test_a_run_from_beginning_to_end(cluster: Cluster, folder: Path) -> None:
    after = [cluster.submit("true", "--hold")]
    done = submit(cluster, folder, "-N", "2", "--gpus-per-node", "2", "--wait", "train.py", within_s=100)
    assert done.returncode == 0, (done, cluster.told())
    assert "SUCCEEDED" in done.stdout
    (run,) = runs(folder)
    job = next(line.split()[1] for line in done.stdout.splitlines() if line.strip().startswith("job"))
    told = cluster.wait_job(job, "COMPLETED")
    assert told["ExitCode"] == "0:0"
    logs = [path.read_text() for path in sorted((run / "logs" / "0").iterdir())]
    assert sum(text.count("trained") for text in logs) == 4
    assert (run / "logs" / f"job-{job}.out").exists()
    again = cluster.user_run(["sbatch", run / ".gangrun" / "slurm" / "job-0.sh"])
    told = cluster.wait_job(again.stdout.split()[-1], "COMPLETED", "FAILED", "CANCELLED")
    assert told["JobState"] == "COMPLETED", told
    assert "nothing is started: the run has ended" in (run / "logs" / f"job-{told['JobId']}.out").read_text()
    assert sum(path.read_text().count("trained") for path in (run / "logs" / "0").iterdir()) == 4
    cluster.tool("scancel", str(after[0]))
    cluster.assert_clean(10)


def test_the_template_for_a_script_of_ones_own(cluster: Cluster) -> None:
    folder = cluster.folder("own script")  # without %: Slurm reads it in the folder of a relative --output too
    (folder / "train.py").write_text("print('trained')\n")
    text = (reach.ROOT / "slurm-templates" / "inside-an-sbatch-script.sbatch").read_text()
    fewer = {
        "--nodes=4": "--nodes=2",
        "--gpus-per-node=8": "--gpus-per-node=2",
        "--cpus-per-task=96": "--cpus-per-task=2",
    }
    on_this_cluster = {
        "module load cuda/12.4": "true",
        "source venv/bin/activate": f'gangrun() {{ {shlex.join([reach.PYTHON, "-m", "gangrun"])} "$@"; }}',
        "exec gangrun run": f"gangrun run {shlex.join(SHORT)}",
    }
    for theirs, ours in {**fewer, **on_this_cluster}.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    (folder / "own.sbatch").write_text(text)
    job = cluster.user_run(["sbatch", "own.sbatch"], cwd=folder).stdout.split()[-1]
    told = cluster.wait_job(job, "COMPLETED", "FAILED", deadline_s=60)
    said = (folder / f"train-{job}.out").read_text()
    assert (told["JobState"], told["Requeue"]) == ("COMPLETED", "1"), said
    (run,) = runs(folder)
    assert sum(path.read_text().count("trained") for path in (run / "logs" / "0").iterdir()) == 4, said


def test_slurm_is_asked_for_what_was_asked_for(cluster: Cluster, folder: Path) -> None:
    told = submitted(
        cluster, folder, "-N", "2", "--spares", "1", "-p", "high,main", "-t", "1:00:00", "-x", "n1", "-w", "n3",
        "-c", "4", "--mem", "100M", "--gres", "gpu:2", "--sbatch", "hold", "--sbatch", "nice=7", "--exclusive",
        "train.py",
    )  # fmt: skip
    job = cluster.job(told["job"])
    job["TresPerNode"] = job["TresPerNode"].replace("gres:", "gres/")  # as Slurm 23 and newer write it
    asked = {
        "JobName": f"train.{told['run']}", "Comment": f"gr:{told['run']}:0", "NumNodes": "3-3",
        "Partition": "high,main", "TimeLimit": "01:00:00", "ExcNodeList": "n1", "ReqNodeList": "n3", "CPUs/Task": "4",
        "MinMemoryNode": "100M",
        "TresPerNode": "gres/gpu:2", "Nice": "7", "OverSubscribe": "NO", "Requeue": "0", "WorkDir": str(folder),
        "JobState": "PENDING", "Reason": "JobHeldUser", "NtasksPerN:B:S:C": "1:0:*:*",
    }  # fmt: skip
    assert asked == {key: job[key].strip() for key in asked}
    assert (told["job_state"], told["job_reason"]) == ("PENDING", "JobHeldUser")
    same = submitted(cluster, folder, "--requeue", "same-job", "--sbatch", "hold", "train.py")
    assert cluster.job(same["job"])["Requeue"] == "1"


def test_what_surrounds_it_does_not_reach_the_job(cluster: Cluster, folder: Path) -> None:
    """Defaults of a site, and a job around: sbatch would heed both."""
    around = {
        "SBATCH_PARTITION": "nowhere", "SBATCH_TIMELIMIT": "1", "SBATCH_EXPORT": "NONE", "SBATCH_ARRAY_INX": "1-3",
        "SLURM_JOB_ID": "1", "SLURM_NTASKS": "64", "SLURM_GPUS_PER_NODE": "9", "SLURM_STEP_ID": "0", "PMI_RANK": "3",
        "SUBMITIT_EXECUTOR": "slurm", "MINE": "a  b$", "SLURM_CONF": str(cluster.site.conf),
    }  # fmt: skip
    told = submitted(
        cluster, folder, "--env", "TOKEN=se cret", "--setup", "env -0 >seen", "--setup", "false", "train.py", env=around
    )
    job = cluster.wait_job(told["job"], "FAILED")
    assert (job["Partition"], job["ExitCode"]) == ("main", "3:0")
    seen = dict(line.partition("=")[::2] for line in (folder / "seen").read_text().split("\0"))
    assert (seen["MINE"], seen["TOKEN"], seen["SLURM_JOB_ID"]) == ("a  b$", "se cret", told["job"])
    assert not seen.keys() & {"SBATCH_PARTITION", "PMI_RANK", "SLURM_STEP_ID", "SBATCH_EXPORT", "SUBMITIT_EXECUTOR"}
    assert seen["SLURM_NTASKS"] == "1"
    assert (Path(told["directory"]) / ".gangrun" / "setup-failed-0").read_text() == (
        "the setup line [false] failed (exit code 1)\n"
    )


REFUSED = {
    "Invalid partition name specified": ["-p", "nowhere"],
    "Batch job submission failed": ["-N", "20"],  # as EnforcePartLimits
    "Requested node configuration is not available": ["--gpus-per-node", "99"],
    "Invalid --time specification": ["-t", "soon"],
    "ependency": ["-d", "afterok:x"],
    "unrecognized option": ["--sbatch", "nonsense=1"],
    "Invalid node name specified": ["-w", "no-such-node"],
}


def test_what_slurm_refuses_leaves_nothing(cluster: Cluster, folder: Path) -> None:
    cluster.reconfigure(EnforcePartLimits="ALL")
    for said, words in REFUSED.items():
        done = submit(cluster, folder, *words, "train.py")
        assert done.returncode == 4, (words, done)
        assert "Slurm refused the job: " in done.stderr
        assert said in done.stderr
        assert "sbatch:" not in done.stderr
        assert sorted(path.name for path in folder.iterdir()) == ["train.py"]
    assert cluster.squeue() == []


def test_ctrl_c_while_sbatch_hangs(cluster: Cluster, folder: Path) -> None:
    cluster.hang("sbatch", times=1)
    started = cluster.popen([*SUBMIT, "train.py"], cwd=folder)
    until(lambda: cluster.calls("sbatch"), 20, "sbatch was called")
    cluster.kill_on("login", "gangrun submit", 2)
    until(lambda: started.poll() is not None, 20, "it has left")
    (run,) = runs(folder)
    assert (run / "cancelled").exists()


SHOWS = """
import json, os, sys
print("SAW " + json.dumps([sys.argv[1:], os.path.basename(os.getcwd()), os.environ["FOO"]]))
sys.exit(0 if os.path.exists("fixed") else 7)
"""


def test_a_batch_script_is_submitted_and_each_job_runs_it_again(cluster: Cluster) -> None:
    folder = cluster.folder("batch script")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "train.py").write_text(SHOWS)
    (folder / "train.sbatch").write_text(
        f"""#!/bin/bash
#SBATCH --job-name=mine --nodes=3
#SBATCH --ntasks-per-node=2 --output=nowhere-%j.out
cd deeper
export PATH={Path(reach.PYTHON).parent}:$PATH
ARGS=(--name "two words" --job)
export FOO=bar
gangrun run --max-restarts 0 python train.py "${{ARGS[@]}}" "$1" "$SLURM_JOB_ID"
"""
    )
    done = submit(cluster, folder, "-N", "1", "--wait", "train.sbatch", "the first", within_s=100)
    assert done.returncode == 1, (done, cluster.told())
    assert "FAILED" in done.stdout
    (run,) = runs(folder)
    (folder / "deeper" / "fixed").touch()
    cluster.user_run([*gangrun(None), "resume", run.name], cwd=folder)
    again = cluster.user_run([*gangrun(None), "wait", run.name], cwd=folder, check=False, within_s=100)
    assert again.returncode == 0, (again, cluster.told())
    jobs = sorted(path.stem.removeprefix("job-") for path in (run / "logs").glob("job-*.out"))
    text = "".join(path.read_text() for path in sorted(run.glob("logs/*/*.log")))
    saw = [json.loads(line.partition("SAW ")[2]) for line in text.splitlines() if "SAW " in line]
    expected = [[["--name", "two words", "--job", "the first", job], "deeper", "bar"] for job in jobs]
    assert len(jobs) == 2
    assert sorted(saw) == sorted(expected * 2), (saw, cluster.told())  # two ranks in each of two jobs
    cluster.assert_clean(10)


FUNCTION = """
import os, signal, sys
import submitit

def work(folder):
    env = submitit.JobEnvironment()
    mark = os.path.join(folder, "died")
    if env.global_rank == 1 and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return env.global_rank, env.num_nodes, env.hostname

executor = submitit.AutoExecutor("pickles", cluster="gangrun")
executor.update_parameters(nodes=2, tasks_per_node=1, timeout_min=5, name="mine", gangrun_silence_after="2s")
job = executor.submit(work, os.getcwd())
print(job.job_id, job.results(), job.state)
"""


def test_a_function_is_submitted_by_submitit_and_survives_the_death_of_a_rank(cluster: Cluster) -> None:
    folder = cluster.folder("by submitit")
    (folder / "work.py").write_text(FUNCTION)
    done = cluster.user_run([reach.PYTHON, "work.py"], cwd=folder, check=False, within_s=100)
    assert done.returncode == 0, (done, cluster.told())
    (run,) = runs(folder)
    found = re.fullmatch(r"(\S+) \[\(0, 2, '(\w+)'\), \(1, 2, '(\w+)'\)\] COMPLETED\n", done.stdout)
    assert found is not None, done.stdout
    assert found[1] == run.name
    assert found[2] != found[3]
    assert (folder / "died").exists()
    cluster.assert_clean(10)
