"""Several ranks save and resume: bit by bit on as many, and with every sample once on more or fewer."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import venv
from collections import Counter
from pathlib import Path

import pytest

from gangrun.checkpoint.formats.manifest import read_manifest
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.core.checkpoints.resume import Kind
from tests.training.harness import json_lines, run_program

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(900)

SAMPLES, GLOBAL_BATCH = 101, 12
BARE = """
import importlib.util, sys, torch
import torch.distributed.checkpoint as dcp
assert importlib.util.find_spec("gangrun") is None and sys.flags.isolated
state = {"model": {"0.weight": torch.zeros(61, 37), "3.weight": torch.zeros(5, 61),
    "4.weight": torch.zeros(4000, 5)}}
dcp.load(state, checkpoint_id=sys.argv[1], no_dist=True)
print(*(bool((one.abs().sum(1) > 0).all()) for one in state["model"].values()))
"""


def run(out: Path, *phases: dict) -> list[dict]:
    told = [{"out": str(out), "kind": "fsdp", **phase} for phase in phases]
    run_program("gang.py", json.dumps(told))
    return sorted(json_lines(out), key=lambda row: row["rank"])


def bare_python(folder: Path) -> str:
    """Of a virtual environment that has all that this one has, but gangrun."""
    venv.create(folder, symlinks=True)
    (here,) = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    there = sysconfig.get_path("purelib", vars={"base": str(folder)})
    for package in Path(here).iterdir():
        if "gangrun" not in package.name:
            Path(there, package.name).symlink_to(package)
    return str(folder / "bin" / "python")


def of(rows: list[dict], what: str) -> str:
    return next(row[what] for row in rows if row["rank"] == 0)


def test_four_ranks_then_two_then_three_train_each_sample_once_per_epoch(tmp_path: Path) -> None:
    save = {"directory": str(tmp_path / "saves")}
    rows = run(
        tmp_path / "out",
        {"world": 4, "steps": 7, **save},
        {"world": 2, "steps": 11, **save},
        {"world": 3, "steps": 18, **save},
    )
    by_world = {world: [row for row in rows if row["world"] == world] for world in (4, 2, 3)}
    assert [len(by_world[world]) for world in (4, 2, 3)] == [4, 2, 3]
    assert [by_world[world][0]["start"] for world in (4, 2, 3)] == [0, 7, 11]
    for before, after in ((4, 2), (2, 3)):
        ended, loaded = (of(by_world[before], "ends"), of(by_world[after], "loads"))
        assert ended == loaded, "weights and moments, bit by bit"
    order = [i for step in range(18) for row in rows for at, batch in row["seen"] if at == step for i in batch]
    assert len(order) == 18 * GLOBAL_BATCH
    for epoch in range(2):
        taken = Counter(order[epoch * SAMPLES : (epoch + 1) * SAMPLES])
        assert taken == Counter(range(SAMPLES)), f"epoch {epoch}: {taken.most_common(3)}"
    found = CheckpointRoom(str(tmp_path / "saves")).survey(Depth.ALL)
    assert all(one.valid and one.kind is Kind.GANGRUN for one in found) and found[0].step == 17
    linked = [row.path for row in read_manifest(str(tmp_path / "saves" / "step-17")).files if row.linked_from]
    assert linked == [f"__{rank}_1.distcp" for rank in range(3)], "each rank's shard of what is frozen"
    bare = subprocess.run(
        [bare_python(tmp_path / "bare"), "-I", "-c", BARE, str(tmp_path / "saves" / "step-17")],
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert bare.stdout == "True True True\n", bare.stderr


def test_after_a_kill_training_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def phases(kind: str) -> list[dict]:
        calm, killed = str(tmp_path / f"{kind}-calm"), str(tmp_path / f"{kind}-killed")
        return [
            {"world": 2, "steps": 9, "kind": kind, "directory": calm},
            {"world": 2, "steps": 9, "kind": kind, "directory": killed, "kill_after": 5},
            {"world": 2, "steps": 9, "kind": kind, "directory": killed},
        ]

    other_world = {"world": 3, "steps": 10, "kind": "ddp", "directory": str(tmp_path / "ddp-killed")}
    for kind, more in (("ddp", [other_world]), ("fsdp", [])):
        calm, resumed, *others = (row for row in run(tmp_path / kind, *phases(kind), *more) if row["rank"] == 0)
        assert (calm["start"], resumed["start"]) == (0, 6), kind
        assert calm["ends"] == resumed["ends"], kind
        assert [(one["start"], one["loads"]) for one in others] == [(9, resumed["ends"]) for _ in more], kind
