"""What Slurm can be asked for: options, variables and gangrun.toml alike, and what is refused with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangrun.config.layers import layered
from gangrun.config.parsers import BadValue, shell_lines
from gangrun.config.slurm_options import (
    ALL_SETTINGS,
    SBATCH_REFUSED,
    SRUN_REFUSED,
    gpus_count,
    sbatch_pairs,
    spares_count,
    srun_pairs,
)
from gangrun.errors import UserError
from gangrun.wire.submission import Requeue


@pytest.mark.parametrize(
    ("gpus_per_node", "gres", "count"),
    [
        ("", "", 0), ("8", "", 8), ("a100:4", "", 4), ("a100:4,v100:2", "", 6), ("", "gpu:8", 8), ("", "gpu", 1),
        ("", "gpu:a100:4", 4), ("", "gpu:a100", 1), ("", "gpu:a100:2,gpu:v100:2,ssd:1", 4), ("", "ssd:1", 0),
        ("", "gres:gpu:4", 4), ("8", "gpu:2", 8), ("", "gpu:2(S:0-1)", 2), ("x", "y", 0),
        ("", "gpux:4", 0), ("٣", "", 0),
    ],
)  # fmt: skip
def test_gpus_of_a_node_are_read_from_what_is_asked(gpus_per_node: str, gres: str, count: int) -> None:
    assert gpus_count(gpus_per_node, gres) == count


def test_pairs_in_all_the_ways_that_they_are_written() -> None:
    typed = sbatch_pairs(("mail-type=END", "spread_job", "--mail-user=a=b", "nice="))
    assert typed == (("mail-type", "END"), ("spread-job", None), ("mail-user", "a=b"), ("nice", ""))
    assert sbatch_pairs({"mail_type": "END", "nice": 5, "spread-job": True, "hold": False}) == (
        ("mail-type", "END"),
        ("nice", "5"),
        ("spread-job", None),
    )
    assert srun_pairs(["mpi=none", "mpi=pmix"]) == (("mpi", "pmix"),)
    assert sbatch_pairs(()) == ()


@pytest.mark.parametrize("key", SBATCH_REFUSED)
def test_what_would_break_a_run_is_not_passed_to_sbatch(key: str) -> None:
    for spelt in (key, f"{key}=1", f"--{key}=1", key.replace("-", "_")):
        with pytest.raises(ValueError, match=f"{key} is not passed on"):
            sbatch_pairs((spelt,))


@pytest.mark.parametrize("key", SRUN_REFUSED)
def test_what_would_break_a_run_is_not_passed_to_srun(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is not passed on"):
        srun_pairs((f"{key}=1",))


@pytest.mark.parametrize(
    ("key", "option"), [("partition", "--partition"), ("nodes", "-N"), ("gpus-per-node", "--gpus")]
)
def test_what_has_an_option_of_its_own_is_given_by_that(key: str, option: str) -> None:
    with pytest.raises(BadValue) as refused:
        sbatch_pairs((f"{key}=1",))
    assert refused.value.hint.startswith(f"use {option}")


@pytest.mark.parametrize("bad", ["p=gpu", "=1", "", "a b=1", "a\nb=1", "a=1\nb", "ü=1", "-=1", "a--b=1"])
def test_no_option_of_sbatch(bad: str) -> None:
    if not bad:
        assert sbatch_pairs((bad,)) == ()
        return
    with pytest.raises(ValueError, match=r"is not an option|line break"):
        sbatch_pairs((bad,))


def test_a_line_of_shell_is_one_text() -> None:
    assert shell_lines("module load x\nexport A=1") == ("module load x\nexport A=1",)
    assert shell_lines(["a", " ", "b"]) == ("a", "b")
    for bad in (3, ["a", 3], {"a": "b"}, ["a\0"]):
        with pytest.raises(ValueError, match="shell"):
            shell_lines(bad)


def test_files_and_variables_say_the_same_as_options(tmp_path: Path) -> None:
    file = tmp_path / "gangrun.toml"
    file.write_text(
        'partition = "gpu"\ncpus-per-task = 8\ntime = 90\n'
        'setup = ["module load a", "export B=1"]\nrequeue = "same-job"\n'
        'exclusive = true\n[sbatch]\nmail-type = "END"\nspread-job = true\n'
    )
    found = {name: value.value for name, value in layered({"qos": "q"}, {"GANGRUN_ACCOUNT": "me"}, (file,)).items()}
    assert found.keys() == {row.name for row in ALL_SETTINGS}
    asked = {
        "partition": "gpu", "cpus_per_task": "8", "time": "90", "setup": ("module load a", "export B=1"), "qos": "q",
        "requeue": Requeue.SAME_JOB, "exclusive": True, "sbatch": (("mail-type", "END"), ("spread-job", None)),
        "account": "me", "mem": "", "spares": 0, "srun": (),
    }  # fmt: skip
    assert asked.items() <= found.items()


@pytest.mark.parametrize(
    ("asked", "nodes_count", "count"),
    [("2", 64, 2), ("0%", 64, 0), ("5%", 64, 4), ("5%", 20, 1), ("2.5 %", 40, 1), ("100%", 3, 3)],
)
def test_spares_are_a_number_or_a_share_of_the_nodes_rounded_up(asked: str, nodes_count: int, count: int) -> None:
    assert spares_count(layered({"spares": asked}, {}, ())["spares"].value, nodes_count) == count


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"requeue": "perhaps"}, "not one of resubmit, same-job, none"),
        ({"cpus_per_task": "0"}, "from 1 up"),
        ({"cpus_per_task": "x"}, "whole number"),
        ({"partition": True}, "not text"),
        ({"mem": 1.5}, "not text"),
        ({"spares": "-1"}, "whole number"),
        ({"spares": "101%"}, "not a share of the nodes"),
        ({"spares": "-5%"}, "not a share of the nodes"),
        ({"sbatch": ("array=1-4",)}, "array is not passed on"),
        ({"setup": 3}, "line of shell"),
    ],
)
def test_mistakes_are_told_with_the_option(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(flags)).replace('_', '-')}: .*{words}"):
        layered(flags, {}, ())
