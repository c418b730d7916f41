"""Batch scripts of the user's: what ``gangrun submit`` makes of them, and what ``gangrun convert`` changes in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangrun.config.slurm_script import literal, plain_value, read_script, shell_lines, split_words
from gangrun.errors import UserError
from tests.faults.inject import PLAIN

SCRIPTS = Path(__file__).with_name("slurm_scripts")
OWN = ("comment", "chdir", "output", "no-kill", "no-requeue", "open-mode", "ntasks-per-node", "signal", "job-name")


def gangrun(*words: str, where: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "HOME": "/home/me", "VIRTUAL_ENV": str(Path(sys.executable).parent.parent)}
    return subprocess.run([*PLAIN, *words], cwd=where, capture_output=True, text=True, check=False, env=variables)


def submitted(path: Path, *words: str) -> str:
    """What a dry run asks of Slurm beside gangrun's own, and what the job's shell gets to expand."""
    done = gangrun("submit", "--dry-run", "--runs-dir", "/shared/runs", *words, path.name, where=path.parent)
    assert done.returncode == 0, done.stderr
    head, _, body = done.stdout.partition("# setup")
    asked = [
        line for line in head.splitlines() if line.startswith("#SBATCH") and line[10:].partition("=")[0] not in OWN
    ]
    return "\n".join((*asked, *(line.partition(' --directory "$PWD" ')[2] for line in body.splitlines()[-1:]), ""))


@pytest.mark.processes
@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sbatch")), ids=lambda path: path.stem)
def test_scripts_of_the_kinds_that_people_have(script: Path, tmp_path: Path) -> None:
    done = gangrun("convert", script.name, where=SCRIPTS)
    assert done.returncode == 0, done.stderr
    made = tmp_path / script.name
    made.write_text(done.stdout)
    golden = script.with_suffix(".golden")
    found = f"{done.stderr}--- asked of Slurm, and the command\n{submitted(made)}"
    if "GANGRUN_GOLDEN" in os.environ:
        golden.write_text(found)
    assert found == golden.read_text()


def script_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "train.sbatch"
    path.write_text("\n".join(("#!/bin/bash", "#SBATCH -N 2", *lines, "")))
    return path


def test_numbers_that_slurm_sets_are_known_as_the_script_asks_for_them(tmp_path: Path) -> None:
    script = read_script(str(script_of(tmp_path, "#SBATCH --gpus-per-node=h100:8", "G=4", "D=$(date)")))
    assert script is not None
    products = {
        "$SLURM_NNODES": "2", "${SLURM_JOB_NUM_NODES}": "2", "$SLURM_GPUS_ON_NODE": "8", "$SLURM_JOB_ID": None,
        "$((SLURM_NNODES * G))": "8", '"$(( ${SLURM_NNODES}*$SLURM_GPUS_ON_NODE ))"': "16", "$((3))": "3",
        "$((G * D))": None, "$((G + 1))": None, "$((G * NONE))": None, "a$((2 * 3)).$G": "a6.4",
    }  # fmt: skip
    assert {word: plain_value(script, word, {}) for word in products} == products


@pytest.mark.processes
def test_the_line_outweighs_its_script_and_what_is_typed_outweighs_both(tmp_path: Path) -> None:
    lines = (
        "#SBATCH --ntasks-per-node=4 -c 2 -t 60",
        "CKPT=/scratch/$USER/ckpt",
        "gangrun run -q --nproc-per-node 8 a.py",
    )
    asked = submitted(script_of(tmp_path, *lines), "-t", "90", "-c", "3")
    assert "--cpus-per-task=3\n" in asked
    assert "--time=90\n" in asked
    assert "--nodes=2\n" in asked
    assert asked.endswith("-- python a.py\n")
    script_of(tmp_path, "cd deeper", 'A="1 2"', "gangrun run -m trainer")
    assert submitted(tmp_path / "train.sbatch").endswith("-- python -m trainer\n")
    script_of(tmp_path, "gangrun run --nodes 1 a.py")
    dry = gangrun("submit", "--dry-run", "--json", "train.sbatch", where=tmp_path)
    assert "--nodes=2" in json.loads(dry.stdout)["script"], "one of two is a spare"
    script_of(tmp_path, "N=4", "gangrun run torchrun --nproc-per-node $N a.py $A *.txt")
    assert submitted(tmp_path / "train.sbatch").endswith("-- python a.py $A *.txt\n")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lines", "line", "command"),
    [
        (
            ['ARGS="--num_processes 4 --machine_rank $SLURM_PROCID"', "srun accelerate launch $ARGS a.py --x $Y"],
            "accelerate launch --num_processes 4 a.py --x $Y",
            "python a.py --x $Y",
        ),
        (
            ['ARGS="--nproc_per_node 4 --nnodes 2"', "srun torchrun $ARGS a.py $ARGS"],
            "--nproc-per-node 4 a.py $ARGS",
            "python a.py $ARGS",
        ),
        (
            ["N=4", "ARGS=(", "  --nproc_per_node $N  # ranks", ")", 'srun torchrun ${ARGS[@]} a.py "${ARGS[@]}"'],
            '--nproc-per-node 4 a.py "${ARGS[@]}"',
            'python a.py "${ARGS[@]}"',
        ),
        (
            ['ARGS="a.py --lr 0.1"', "deepspeed --num_gpus 8 --no_local_rank $ARGS"],
            "deepspeed --num_gpus 8 --no_local_rank a.py --lr 0.1",
            "python a.py --lr 0.1",
        ),
        (
            ['ARGS="--lr 0.1 --name $SLURM_JOB_ID"', "deepspeed --no_local_rank --module trainer $ARGS"],
            "deepspeed --no_local_rank --module trainer $ARGS",
            "python -m trainer $ARGS",
        ),
    ],
)
def test_a_variable_of_several_words_is_several_words(
    lines: list[str], line: str, command: str, tmp_path: Path
) -> None:
    made = gangrun("convert", script_of(tmp_path, *lines).name, where=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == f"gangrun run {line}"
    (tmp_path / "train.sbatch").write_text(made.stdout)
    assert submitted(tmp_path / "train.sbatch").endswith(f"-- {command}\n")


@pytest.mark.processes
def test_options_and_command_of_the_gangrun_run_line_may_be_variables(tmp_path: Path) -> None:
    lines = ('ARGS="-q --nproc-per-node 2"', 'SCRIPT="a.py --lr 0.1"', "gangrun run $ARGS torchrun $SCRIPT $LATER")
    script = script_of(tmp_path, *lines)
    assert submitted(script).endswith("-- python a.py --lr 0.1 $LATER\n")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["srun python train.py"], "train.sbatch has no gangrun run line to submit\n  gangrun convert"),
        (["gangrun run a.py", "gangrun run b.py"], "train.sbatch:4: a second gangrun run line"),
        (["gangrun run a.py > log"], "train.sbatch:3: '>' follows the command"),
        (["gangrun run a.py || exit 1"], "train.sbatch:3: '||' follows the command"),
        (["gangrun run a.py", "cp -r out /home"], "train.sbatch:4: 'cp -r out /home' follows the gangrun run line"),
        (["if true; then", "gangrun run a.py", "exit"], "the batch script is not complete up to its gangrun run line"),
        (["gangrun run --nproc-per-node $N a.py"], "gangrun must know what $N is before the job runs"),
        (["gangrun run $SCRIPT"], "gangrun must know what $SCRIPT is before the job runs"),
        (["gangrun run torchrun --nproc-per-node $N a.py"], "--nproc-per-node: '$N' is neither a number"),
        (["#SBATCH --array=1-4", "gangrun run a.py"], "train.sbatch:3: --array=1-4 does not go with gangrun submit"),
        (["#SBATCH --export=NONE", "gangrun run a.py"], "train.sbatch:3: --export=NONE does not go with"),
        (["#SBATCH --gpus=7", "gangrun run a.py"], "train.sbatch:3: --gpus=7 does not say how many each node has"),
        (["#SBATCH --ntasks-per-node=x", "gangrun run a.py"], "train.sbatch:3: --ntasks-per-node=x is not a number"),
        (["cd x", "gangrun run --checkpoint-dir c a.py"], "train.sbatch:3 leaves this directory"),
        (["gangrun run --here a.py"], "No such option '--here'"),
    ],
)  # fmt: skip
def test_what_cannot_run_in_job_after_job_is_refused_with_its_line(lines: list[str], said: str, tmp_path: Path) -> None:
    script_of(tmp_path, *lines)
    done = gangrun("submit", "--dry-run", "train.sbatch", where=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["gangrun run a.py"], "train.sbatch:3 is a gangrun run line already"),
        (["echo hello"], "train.sbatch holds no line that starts ranks"),
        (["srun uv run torchrun a.py"], "train.sbatch:3: uv run starts torchrun\n  activate the environment"),
        (["srun python a.py", "srun python b.py"], "train.sbatch: lines 3, 4 each start ranks"),
        (["srun bash -c 'cd x && torchrun a.py'"], "train.sbatch:3: bash -c runs more than one command"),
        (["torchrun --nproc_per_node=$(nproc) a.py"], "train.sbatch:3: how many ranks per node is $(nproc)?"),
        (["srun singularity exec i.sif deepspeed a.py"], "train.sbatch:3: deepspeed runs in a container"),
        (["srun python a.py && touch done"], "train.sbatch:3: '&& touch done' follows the command"),
        (["srun deepspeed --num_gpus $(nproc) a.py"], "train.sbatch:3: gangrun must know what $(nproc) is"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_refused_with_its_line(lines: list[str], said: str, tmp_path: Path) -> None:
    script_of(tmp_path, *lines)
    done = gangrun("convert", "train.sbatch", where=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_only_a_shell_script_with_sbatch_lines_is_a_batch_script(tmp_path: Path) -> None:
    plain = tmp_path / "wrapper.sh"
    plain.write_text("#!/bin/bash\nexec python train.py\n")
    assert read_script(str(plain)) is None
    assert read_script(str(tmp_path / "missing")) is None
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\xff\xfe")
    assert read_script(str(binary)) is None
    other = tmp_path / "train.py"
    other.write_text("#!/usr/bin/env python\n#SBATCH -N 2\n")
    with pytest.raises(UserError, match="env python is not bash or sh"):
        read_script(str(other))


def test_options_are_read_as_sbatch_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "s.sbatch"
    lines = (
        "#!/bin/sh",
        '#SBATCH -N4 -J "a b" --exclusive -t=5 # note',
        "##SBATCH -p no",
        "",
        "#SBATCH --mem 3G",
        "true",
    )
    path.write_text("\n".join((*lines, "#SBATCH --qos=late")))
    found = read_script(str(path))
    assert found is not None
    assert [(one.number, one.name, one.value) for one in found.options] == [
        (2, "nodes", "4"), (2, "job-name", "a b"), (2, "exclusive", None), (2, "time", "5"), (5, "mem", "3G"),
    ]  # fmt: skip


def test_command_lines_are_split_as_the_shell_splits_them() -> None:
    text = "a=1 # one\nb \\\n  'c\n d' \"$e f\"  # g\n\n# h\ni 2>&1 | j; k\n"
    found = [(line.number, line.last, line.words, line.rest) for line in shell_lines(text)]
    assert found == [
        (1, 1, ("a=1",), ""),
        (2, 4, ("b", "'c\n d'", '"$e f"'), ""),
        (7, 7, ("i",), "2>&1 | j; k"),
    ]
    assert split_words("x $(a (b) c) `d e` ${f:-g h} \"i 'j'\" k\\ l")[0] == (
        "x", "$(a (b) c)", "`d e`", "${f:-g h}", "\"i 'j'\"", "k\\ l",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("plain", "plain"), ("'a $b'", "a $b"), ('"a b"', "a b"), ("a\\ b", "a b"), ("$a", None), ('"$a"', None),
        ("*.py", None), ("~/x", None), ("x=~", "x=~"), ('"*"', "*"), ("{a,b}", None), ("`a`", None), ("\\$a", "$a"),
    ],
)  # fmt: skip
def test_what_a_word_is_before_the_job_runs(word: str, value: str | None) -> None:
    assert literal(word) == value


def test_variables_that_the_script_sets_once_are_known(tmp_path: Path) -> None:
    path = script_of(
        tmp_path,
        "export A=1",
        'B="$A/x"',
        "C=2",
        "C=3",
        "D=$(date)",
        "export E=$E:more",
        "F+=4",
        "G=",
        "H=$H2",
        "H2=$H",
    )
    script = read_script(str(path))
    assert script is not None
    environment = {"HOME": "/home/me", "C": "9", "SLURM_X": "1"}
    found = {
        word: plain_value(script, word, environment)
        for word in ("$A", '"$B/${A}"', "$C", "$D", "$E", "$F", "$G", "$H", "$HOME/c", "$SLURM_X", "$NONE", "'$A'")
    }
    assert found == {
        "$A": "1", '"$B/${A}"': "1/x/1", "$C": None, "$D": None, "$E": None, "$F": None, "$G": "", "$H": None,
        "$HOME/c": "/home/me/c", "$SLURM_X": None, "$NONE": None, "'$A'": "$A",
    }  # fmt: skip
