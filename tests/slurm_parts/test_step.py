"""srun's command line, its surroundings, and what its words tell of nodes."""

from __future__ import annotations

import sys

import pytest

from gangrun.adapters.slurm.commands import Tools
from gangrun.adapters.slurm.step import Left, Step, StepShape, argv, environment_of, left_of
from tests.waiting import until

# As srun 22.05 and 24.11 said it.
UNREACHED = "srun: error: Task launch for StepId=12.0 failed on node n3: Communication connection failure"
EXITED = "srun: error: n[3-4]: tasks 2-3: Exited with exit code 78"
KILLED = "srun: error: n2: task 1: Killed"


def test_nothing_but_its_own_end_ends_the_step():
    words = argv(StepShape(("n1", "n2", "n10"), 4, ("--mpi=none",)), ["python", "warden"])
    assert words[0] == "srun"
    assert words[-2:] == ["python", "warden"]
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--overlap", "--cpu-bind=none"} <= set(words)
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--nodelist=n[1-2,10]", "--cpus-per-task=4"} <= set(words)
    assert words.index("--mpi=none") < words.index("python")


def test_without_a_request_for_cpus_srun_is_not_told_any():
    assert not [word for word in argv(StepShape(("n1",), None), ["x"]) if word.startswith("--cpus")]


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (UNREACHED, (Left("n3", "Communication connection failure", True),)),
        (EXITED, (Left("n3", "Exited with exit code 78", False), Left("n4", "Exited with exit code 78", False))),
        (KILLED, (Left("n2", "Killed", False),)),
        ("srun: error: Application launch failed: Communication connection failure", ()),
        ("srun: launch/slurm: _step_signal: Terminating StepId=12.0", ()),
        ("srun: error: n[3: task 2: Killed", ()),
        ("", ()),
    ],
)
def test_what_a_line_of_srun_tells(line, left):
    assert left_of(line) == left


def test_a_users_habits_do_not_bend_the_step():
    mine = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "PATH": "/bin", "SLURM_GPUS_PER_NODE": "8"}
    habits = {"SRUN_CPUS_PER_TASK": "1", "SLURM_CPU_BIND": "cores", "SLURM_NTASKS": "9", "SLURM_KILL_BAD_EXIT": "1"}
    assert environment_of({**mine, **habits}) == mine


def test_a_step_is_heard_to_its_end():
    heard: list[str] = []
    code = f"import sys; sys.stderr.write({UNREACHED!r} + chr(10) + 'srun: Job step aborted' + chr(10)); sys.exit(3)"
    step = Step([sys.executable, "-c", code], {"PATH": "/bin"}, "7", Tools({}), heard.append)
    step.start()
    assert until(lambda: step.ended, 20, "the step ended") == 3
    assert heard == [UNREACHED, "srun: Job step aborted"]
    assert step.left == [Left("n3", "Communication connection failure", True)]
    assert step.words == [UNREACHED]  # what Slurm always says is left out


def test_what_tasks_say_is_kept_apart_from_srun():
    said = [" 0: a", "10: Traceback:", "10: ", "10:   in x", "10: no gangrun", KILLED]
    code = f"import sys; sys.stderr.write(chr(10).join({said!r}))"
    step = Step([sys.executable, "-c", code], {"PATH": "/bin"}, "7", Tools({}))
    step.start()
    until(lambda: step.ended == 0, 20, "the step ended")
    assert [step.last_words(task) for task in (0, 1, 10)] == ["a", "", "in x; no gangrun"]
    assert step.words == [KILLED]


def test_what_a_task_says_to_somebody_else_is_no_last_word_of_it():
    said = ["0: mine", "0: [>] [n1:rank0] step 7", "0: [n1:agent!] the disk is full"]
    heard: list[str] = []

    def hear(line: str) -> bool:
        heard.append(line)
        return not line.startswith("[>] ")

    step = Step([sys.executable, "-c", f"import sys; sys.stderr.write(chr(10).join({said!r}))"], {}, "7", Tools({}))
    step.hear_task = hear
    step.start()
    until(lambda: step.ended == 0, 20, "the step ended")
    assert heard == ["mine", "[>] [n1:rank0] step 7", "[n1:agent!] the disk is full"]
    assert step.last_words(0) == "mine; [n1:agent!] the disk is full"


def test_no_srun_is_an_error_of_its_own():
    with pytest.raises(FileNotFoundError):
        Step(["/nowhere/srun"], {}, "7", Tools({})).start()
