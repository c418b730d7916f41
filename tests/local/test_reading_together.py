"""A checkpoint is read by the agents of all nodes before it is resumed from; one damaged shard anywhere is found."""

from __future__ import annotations

import re

from tests.local import saves
from tests.local.harness import Box

SHARDS_COUNT = 12


def test_agents_of_all_nodes_read_it_and_damage_in_any_share_is_found(box: Box) -> None:
    directory = box.work / "its ckpt"
    for step in (10, 20, 30):
        saves.own(directory, step, SHARDS_COUNT)
    saves.flip(directory / "step-30", f"__{SHARDS_COUNT - 1}_0.distcp")  # the last reader's
    saves.flip(directory / "step-20", f"__{SHARDS_COUNT // 2}_0.distcp")  # the second one's
    script = box.script("")
    box.start(
        "--nodes", "3", "--local-hosts", "--no-health", "--reading-share", "1K", "--checkpoint-dir", directory, script
    )  # fmt: skip
    assert box.end(deadline_s=120.0) == 0, box.told()
    assert box.status()["attempts"][0]["resumed_from_step"] == 10
    told = box.explain()  # on a busy machine one of them may be too late
    assert re.search(r"read by [23] nodes, 72\.0 kB in \d+\.\d s", told), told
    for step, shard in ((30, SHARDS_COUNT - 1), (20, SHARDS_COUNT // 2)):
        assert f"step {step}: __{shard}_0.distcp is damaged" in told


def test_agents_read_a_plain_checkpoint_too(box: Box) -> None:
    directory = box.work / "its ckpt"
    for step in (10, 20, 30):
        save = saves.plain(directory, step, SHARDS_COUNT)
        shards = saves.files_of(save)
        if step > 10:
            saves.flip(save, shards[0 if step == 20 else -1])  # the one's share, and the other's
    script = box.script("")
    box.start(
        "--nodes", "2", "--local-hosts", "--no-health", "--reading-share", "1K", "--checkpoint-dir", directory, script
    )  # fmt: skip
    assert box.end(deadline_s=120.0) == 0, box.told()
    assert box.status()["attempts"][0]["resumed_from_step"] == 10
    told = box.explain()
    # on a busy machine the other one may be too late, but it does not refuse
    assert re.search(r"read by (2 nodes, \d+|1 node, [^;]*\(([^:;]+: )?no answer\))", told), told
    assert all(re.search(rf"step {step}: \w+ in \w+\.distcp is damaged", told) for step in (20, 30)), told
