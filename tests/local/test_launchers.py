"""Launchers' lines run: each rank sees what the launcher itself would have given it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, os, pathlib, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
seen = {name: os.environ.get(name, "") for name in names}
seen |= {name: value for name, value in os.environ.items() if name.startswith(("ACCELERATE_", "FSDP_"))}
seen["words"] = sys.argv[1:]
pathlib.Path("seen." + seen["RANK"]).write_text(json.dumps(seen))
"""
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
GANGRUN = (sys.executable, "-m", "gangrun", "run", "--no-health")


def seen(folder: Path, *line: str) -> list[dict[str, Any]]:
    """What each rank saw, in order of the ranks."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PATH"] = PATH
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"seen.{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc-per-node 2 train.py --lr 3",
        "python -m torch.distributed.launch --nproc_per_node 2 train.py --lr 3",
        "accelerate launch --num_processes 2 --use_fsdp --fsdp_version 2 --mixed_precision no train.py --lr 3",
    ],
    ids=["torchrun", "launch", "accelerate"],
)
def test_ranks_see_what_the_launcher_gives_them(tmp_path: Path, line: str) -> None:
    assert shutil.which(line.split(maxsplit=1)[0], path=PATH)
    theirs, ours = seen(tmp_path / "theirs", *line.split()), seen(tmp_path / "ours", *GANGRUN, *line.split())
    assert ours == theirs


def test_what_gangrun_was_told_is_stronger_than_the_line(tmp_path: Path) -> None:
    line = ("torchrun", "--nproc-per-node", "4", "train.py")
    ours = seen(tmp_path / "ours", *GANGRUN, "--nproc-per-node", "2", *line)
    assert [one["WORLD_SIZE"] for one in ours] == ["2", "2"]
