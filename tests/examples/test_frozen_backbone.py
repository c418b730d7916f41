"""The frozen part is written once, shared by the checkpoints after it, and each of them is whole."""

from __future__ import annotations

import re

import pytest

from gangrun.checkpoint.store import CheckpointRoom, Depth
from tests.examples.test_examples import EXAMPLES, LONG_S
from tests.local.harness import Box

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.no_warm]


def test_frozen_backbone_adds_to_the_disk_what_was_learnt(box: Box) -> None:
    saves = box.work / "ckpt"
    box.start(
        "--nproc-per-node", "2", "--checkpoint-dir", saves, EXAMPLES / "frozen_backbone/train.py",
        "--steps", "12", "--step-time", "0", "--checkpoint-every", "6", "--checkpoint-dir", saves,
    )  # fmt: skip
    assert box.end(LONG_S) == 0, box.told()
    found = re.findall(r"step-(\d+): ([\d,]+) bytes, ([\d,]+) of them new", box.out.read_text())
    told = {int(step): (int(held.replace(",", "")), int(new.replace(",", ""))) for step, held, new in found}
    assert sorted(told) == [5, 11], box.told()
    assert told[5][0] == told[5][1] > 8_000_000, "all of it, once"
    assert told[11][0] > 8_000_000 > 1_000_000 > told[11][1], "and then the adapters with their moments"
    first, second = (sorted((saves / f"step-{step}").glob("*_1.distcp")) for step in (5, 11))
    assert [one.name for one in first] == ["__0_1.distcp", "__1_1.distcp"], "each rank has its part"
    assert [one.stat().st_ino for one in first] == [one.stat().st_ino for one in second]
    assert [one.valid for one in CheckpointRoom(str(saves)).survey(Depth.ALL)] == [True, True]
