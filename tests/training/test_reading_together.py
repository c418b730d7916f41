"""Without gangrun's launcher all ranks prove a checkpoint together: each byte once; a rank's trouble is no damage."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

import gangrun

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gangrun.training.save import plan  # noqa: E402
from tests.local.saves import files_of, plain  # noqa: E402
from tests.training.harness import json_lines, run_program  # noqa: E402

WORLD = 3
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three steps, each of a dozen files, of which nothing was read yet."""
    monkeypatch.setattr(plan, "GROUP_BYTES", 1)
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(10)).requires_grad_(requires_grad=False)
    for step in range(3):
        with gangrun.Checkpointer(tmp_path / "saves", model=model) as ckpt:  # the first save of each shares nothing
            ckpt.save(step, wait=True)
    shutil.rmtree(tmp_path / "saves" / ".gangrun")
    return tmp_path / "saves"


def damage(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def shards(directory: Path) -> list[Path]:
    """In the order of the manifest."""
    files = json.loads((directory / "gangrun.json").read_text())["body"]["files"]
    return [directory / row["path"] for row in files if row["path"].endswith(".distcp")]


def test_ranks_prove_together_and_one_ranks_trouble_is_no_damage(saves: Path, tmp_path: Path) -> None:
    broken, blind = shutil.copytree(saves, tmp_path / "broken"), shutil.copytree(saves, tmp_path / "blind")
    damage(shards(broken / "step-2")[-1])
    damage(shards(broken / "step-1")[0])
    foreign = plain(tmp_path / "plain", 2, 12)
    told = [str(saves), "-1", str(saves), "-1", str(broken), "-1", str(blind), "1", str(foreign.parent), "-1"]
    run_program("readers.py", tmp_path / "out", WORLD, *told)
    rows = sorted(json_lines(tmp_path / "out"), key=lambda row: (row["phase"], row["rank"]))
    assert [row["chosen"] for row in rows] == [2] * WORLD + [2] * WORLD + [0] * WORLD + [2] * WORLD * 2

    first, again, _, blinded, other = ([row["read"] for row in rows if row["phase"] == phase] for phase in range(5))
    names = {f"step-2/{path.name}" for path in (saves / "step-2").iterdir()} - {"step-2/gangrun.json"}
    assert len(names) > 10 and Counter(name for read in first for name in read) == Counter(names), "each by one rank"
    assert all(2 <= len(read) <= 6 for read in first)
    assert again == [[], [], []], "what was proven is remembered"

    assert sorted(path.name for path in broken.glob("step-*")) == ["step-0"], "the other two were set aside"
    assert not any(name.endswith(".distcp") for name in blinded[1])
    assert {name for read in blinded for name in read} == names, "the first rank reads what another could not"

    assert Counter(name for read in other for name in read) == Counter(f"step-2/{name}" for name in files_of(foreign))
    assert [len(read) for read in other] == [4] * WORLD, "a plain one is read by all too"
