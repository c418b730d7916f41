"""The tutorials for Slurm on a real cluster: every command of each page runs, in its order."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.docs.tutorial import commands_of, files_of
from tests.slurm import reach
from tests.slurm.cluster import Cluster

EXPECTED = {"sbatch": ("SUCCEEDED", "gangrun.entry.slurm_job"), "salloc": ("SUCCEEDED", "step 100 loss")}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_tutorial(cluster: Cluster, name: str) -> None:
    folder = cluster.folder(f"tutorial {name}")
    for file, text in files_of(name).items():
        (folder / file).write_text(text)
    path = f"export PATH={shlex.quote(str(Path(reach.PYTHON).parent))}:$PATH OMP_NUM_THREADS=1\n"
    done = cluster.user_run(["bash", "-c", path + commands_of(name)], cwd=folder, check=False, within_s=400)
    assert done.returncode == 0, (done, cluster.told())
    assert all(words in done.stdout for words in EXPECTED[name]), done.stdout
    cluster.assert_clean(30)
