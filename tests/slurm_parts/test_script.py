"""The batch script: what sbatch reads in it, what bash does with it, and what no script can carry."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.slurm.commands import NOT_FOUND, Answer
from gangrun.adapters.slurm.submission import NoSbatch, SbatchRefused, Unfit, Unknown, words_of
from gangrun.launch.executor import BatchExecutor
from gangrun.wire.submission import Requeue, Submission
from tests.slurm_parts.scripts import RUN, asked, made, options, run_by_hand, script

PATHS = RunPaths(Path("/runs") / RUN)
COMMAND = ["/usr/bin/python3", "-I", "-c", "import sys", "--run-dir", "/runs"]
HOSTILE = (
    "a b", "it's", 'say "x"', "$HOME", "$(id)", "`id`", "a\\b", "tail\\", "#c", "a #c", "%j%%", "ü語☃", "-x", "--y",
    "", "*", "~", "a;b", "a&b|c>d<e", "!!", "=", "{a,b}", "'", '"', "\\'", '\\\\"', " ",
)  # fmt: skip
PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cs"]))
PRINT = "import json, os, sys; print(json.dumps(sys.argv[1:] + [os.environ.get('SUBMITIT_EXECUTOR')]))"


def text(submission: Submission, **more: Any) -> str:
    return script(submission, more.pop("paths", PATHS), more.pop("seq", 0), more.pop("command", COMMAND), **more)


def test_the_least_that_is_asked() -> None:
    assert options(text(asked())) == {
        "nodes": "2",
        "ntasks-per-node": "1",
        "job-name": f"train.{RUN}",
        "comment": f"gr:{RUN}:0",
        "chdir": "/w",
        "output": f"/runs/{RUN}/logs/job-%j.out",
        "open-mode": "append",
        "signal": "B:URG@60",  # nobody's default action, and to the batch shell alone
        "no-kill": None,
        "no-requeue": None,
    }


def test_all_that_can_be_asked() -> None:
    submission = asked(
        gpus_per_node="a100:8", gres="ssd:1", partition="gpu,long", account="me", qos="high", time="1-12:00:00",
        exclude="n[1-3]", nodelist="n9", constraint="ib&big", cpus_per_task="12", mem="0", exclusive=True,
        reservation="res", sbatch=(("mail-type", "END"), ("spread-job", None)), requeue=Requeue.SAME_JOB,
    )  # fmt: skip
    found = options(text(submission, seq=3, exclude=("n7", "n8")))
    assert "no-requeue" not in found
    assert {"requeue", "exclusive", "spread-job", "no-kill"} <= found.keys()
    assert found["exclude"] == "n[1-3],n[7-8]"
    assert found["comment"] == f"gr:{RUN}:3"
    told = {"gpus-per-node": "a100:8", "gres": "ssd:1", "partition": "gpu,long", "account": "me", "qos": "high",
            "time": "1-12:00:00", "nodelist": "n9", "constraint": "ib&big", "cpus-per-task": "12", "mem": "0",
            "reservation": "res", "mail-type": "END"}  # fmt: skip
    assert told.items() <= found.items()


def test_nodes_that_were_asked_for_and_are_left_out_are_not_asked_for_again() -> None:
    """Slurm refuses such a job: "Invalid node name specified"."""
    named = asked(nodelist="n[1-3]")
    assert options(text(named))["nodelist"] == "n[1-3]"
    assert options(text(named, seq=1, exclude=("n2", "n9")))["nodelist"] == "n[1,3]"
    assert "nodelist" not in options(text(named, seq=1, exclude=("n1", "n2", "n3")))
    assert options(text(asked(nodelist="./hosts["), seq=1, exclude=("n1",)))["nodelist"] == "./hosts["


def test_what_holds_for_the_first_job_only() -> None:
    submission = asked(dependency="afterok:17", sbatch=(("begin", "16:00"), ("hold", None), ("nice", "5")))
    first, second = options(text(submission)), options(text(submission, seq=1))
    assert (first["dependency"], first["begin"], first["hold"], first["nice"]) == ("afterok:17", "16:00", None, "5")
    assert second.keys() & {"dependency", "begin", "hold", "nice"} == {"nice"}
    assert options(text(submission, seq=1, dependency="afterany:18"))["dependency"] == "afterany:18"


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_words_reach_sbatch_as_they_are(word: str) -> None:
    submission = asked(partition=word, sbatch=(("mail-user", word),), working_directory=f"/w/{word}")
    found = options(text(submission))
    assert found["mail-user"] == word
    assert found["chdir"] == f"/w/{word}"
    assert found.get("partition", "") == word


@given(PRINTABLE)
def test_any_words_reach_sbatch_as_they_are(word: str) -> None:
    assert options(text(asked(sbatch=(("mail-user", word),))))["mail-user"] == word


@pytest.mark.parametrize("word", [one for one in HOSTILE if "\\" not in one and one])
def test_the_log_lies_in_the_run_directory_whatever_its_name(word: str) -> None:
    found = options(text(asked(), paths=RunPaths(Path("/runs", word, RUN))))["output"]
    assert found is not None
    assert found.replace("%%", "\0").replace("%j", "17").replace("\0", "%") == f"/runs/{word}/{RUN}/logs/job-17.out"


@pytest.mark.parametrize("word", HOSTILE)
def test_hostile_words_reach_the_command_as_they_are(word: str, tmp_path: Path) -> None:
    """Run by hand, as anybody may: the same script, without Slurm."""
    where = word if word.strip() and "/" not in word and "\\" not in word else "plain"
    paths = made(tmp_path / where)
    command = [sys.executable, "-I", "-c", PRINT, "--run-dir", str(paths.root), word]
    setup = (f"true {shlex.quote(word)}", "true # comment", "true; true")
    done = run_by_hand(text(asked(setup=setup), paths=paths, command=command), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == ["--run-dir", str(paths.root), word, None]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("true", "nosuchcommand-x", "touch late"), "the setup line [nosuchcommand-x] failed (exit code 127)"),
        (("true; false",), "the setup line [true; false] failed (exit code 1)"),
        (("exit 0", "touch late"), "the setup line [exit 0] ended the job (exit code 0)"),
        (("set -e", "false", "touch late"), "the setup line [false] ended the job (exit code 1)"),
        (('echo "', "touch late"), 'the setup line [echo "] failed'),
        (("if", "touch late"), "the setup line [if] failed"),
        (("source nowhere/activate",), "the setup line [source nowhere/activate] failed (exit code 1)"),
        (("set -u; echo $nothing", "touch late"), "the setup line [set -u; echo $nothing] "),
        (("(exit 7)",), "the setup line [(exit 7)] failed (exit code 7)"),
        (("true\nfalse",), "the setup line [true\nfalse] failed"),
    ],
)
def test_a_setup_line_that_fails_stops_the_job_and_says_so(lines: tuple[str, ...], words: str, tmp_path: Path) -> None:
    paths = made(tmp_path)
    done = run_by_hand(text(asked(setup=lines), paths=paths, seq=2, command=["touch", "began"]), tmp_path)
    assert done.returncode == 3
    assert f"gangrun: {words}" in done.stderr
    assert words in paths.setup_failed(2).read_text()
    assert not (tmp_path / "late").exists()
    assert not (tmp_path / "began").exists()


def test_setup_lines_change_the_environment_of_all_that_follows(tmp_path: Path) -> None:
    (tmp_path / "activate").write_text("declare -A seen; seen[x]=1; export FROM_FILE=1\nfalse\ntrue\n")
    paths = made(tmp_path)
    paths.setup_failed(0).write_text("from the last time")
    setup = (
        "source ./activate",
        "export A='x  y'; B=2",
        "cd /",
        'export C="$B ${seen[x]}"',
        "f() { false; }; f || true",
    )
    show = [
        sys.executable,
        "-c",
        "import os; print(os.environ['A'], os.environ['C'], os.environ['FROM_FILE'], os.getcwd())",
    ]
    done = run_by_hand(text(asked(setup=setup), paths=paths, command=show), tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("x  y 2 1 1 /\n", "", 0)
    assert not paths.setup_failed(0).exists()


def test_a_python_that_is_not_there_is_said(tmp_path: Path) -> None:
    paths = made(tmp_path)
    done = run_by_hand(text(asked(python="/no where/python"), paths=paths), tmp_path)
    assert done.returncode == 3
    assert paths.setup_failed(0).read_text() == "there is no /no where/python on here: it runs gangrun\n"
    gone = asked(needs_python=True, setup=("PATH=/nowhere",))
    done = run_by_hand(text(gone, paths=paths), tmp_path)
    assert (done.returncode, paths.setup_failed(0).read_text()) == (3, "the setup lines leave no python on PATH\n")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"partition": "a\nb"}, "partition .* line break"),
        ({"working_directory": "/w\n#SBATCH --array=1-9"}, "chdir .* line break"),
        ({"job_name": "\x1b[2J"}, "job-name .* control character"),
        ({"sbatch": (("mail-user", "a\tb"),)}, "mail-user .* control"),
        ({"exclude": ",".join(f"node{n}a" for n in range(2000))}, "exclude=.* is longer than the 8000 bytes"),
        ({"setup": ("a\r\nb",)}, "DOS line break"),
        ({"setup": ("a\0b",)}, "NUL"),
        ({"setup": ("a\udcffb",)}, "not valid UTF-8"),
        ({"paths": RunPaths(Path("/runs/a\nb/r"))}, "run directory .* line break"),
        ({"paths": RunPaths(Path("/runs/a\\b/r"))}, "run directory.* backslash"),
    ],
)
def test_what_no_script_can_carry_is_refused_in_words(more: dict[str, Any], words: str) -> None:
    paths = more.pop("paths", PATHS)
    with pytest.raises(Unfit, match=f"(?s){words}"):
        text(asked(**more), paths=paths)


def test_submitit_has_nothing_to_complain_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text(asked(cpus_per_task="2", gpus_per_node="1"))


class Sbatch:
    """Answers as told, and keeps what it was sent."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.sent, self.within_s = answer, "", 0.0

    def run(self, argv: Any, within_s: float) -> Answer:
        program, path = argv
        assert program == "sbatch"
        self.sent, self.within_s = Path(path).read_text(), within_s
        return self.answer


def executor(paths: RunPaths, sbatch: Sbatch, hear: Callable[[str], None] = lambda words: None) -> BatchExecutor:
    return BatchExecutor(paths, asked(), sbatch, hear)  # type: ignore[arg-type]


def test_what_is_sent_is_kept_and_the_job_id_is_read(tmp_path: Path) -> None:
    paths = made(tmp_path)
    noise = Answer(0, "Checking job 9 of yours\nSubmitted batch job 17 on cluster x\n", "sbatch: a word of the site\n")
    sbatch = Sbatch(noise)
    heard: list[str] = []
    for _ in range(2):
        assert executor(paths, sbatch, heard.append).submit_job(4, ("n1",)) == "17"
    assert heard == ["a word of the site"] * 2
    assert sbatch.sent == executor(paths, sbatch).script(4, ("n1",))
    assert sbatch.within_s == 60.0
    assert {one.name for one in paths.batch_scripts.iterdir()} == {"job-4.sh", "job-4.number"}


ERROR = "sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            Answer(1, "", ERROR + "Invalid partition name specified\n"),
            SbatchRefused,
            "Batch job submission failed: Invalid part",
        ),
        (Answer(1, "", "sbatch: error: a\nsbatch: error: a\nsbatch: fatal: b\n"), SbatchRefused, "^a; b$"),
        (
            Answer(1, "", ERROR + "Unable to contact slurm controller (connect failure)"),
            SbatchRefused,
            "connect failure",
        ),
        (Answer(1, "", ERROR + "Socket timed out on send/recv operation"), Unknown, "timed out"),
        (Answer(1, "", ERROR + "Zero Bytes were transmitted or received"), Unknown, "Zero Bytes"),
        (Answer(1, "", ERROR + "Unable to contact slurm controller (receive failure)"), Unknown, "receive failure"),
        (Answer(-9, "", "sbatch did not answer within 60 s", True), Unknown, "did not answer"),
        (Answer(-15, "", ""), Unknown, "exit code -15"),
        (Answer(0, "welcome", ""), Unknown, "welcome"),
        (Answer(NOT_FOUND, "", "there is no sbatch on this host"), NoSbatch, "no sbatch"),
        (Answer(2, "", ""), SbatchRefused, "exit code 2"),
    ],
)
def test_a_job_that_was_not_made_is_told_from_one_that_may_be(
    answer: Answer, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        executor(made(tmp_path), Sbatch(answer)).submit_job(0)
    assert words_of(answer)


def test_cut_short_after_it_said_the_number(tmp_path: Path) -> None:
    late = Answer(-9, "Submitted batch job 18\n", "", True)
    assert executor(made(tmp_path), Sbatch(late)).submit_job(0) == "18"
