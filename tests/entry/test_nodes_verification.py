"""The checkpoint thread reads its share, and again what others did not find whole: its own verdict alone counts."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gangrun.agent.background_tasks import VerifyTask
from gangrun.checkpoint.store import CheckpointRoom
from gangrun.core.checkpoints.resume import Chosen, parse_resume, patience_s
from gangrun.core.model import Level
from gangrun.entry.checkpoint_service import NodesVerification
from gangrun.ports import VerifyAsked
from gangrun.runs.times import steady_now
from gangrun.wire.messages import VerifyShare
from tests.local import saves

Unread = Mapping[int, str]
OTHERS = {0: "n2", 1: "n3", 3: "n1"}

CHECKPOINT_SERVICE = "gangrun.entry.checkpoint_service"


class Told:
    """A room that reads with others; ``answer`` plays the loop, and says which shares of others were not read."""

    def __init__(
        self,
        directory: Path,
        answer: Callable[[VerifyAsked], Unread] = lambda asked: {},
        now: Callable[[], float] = steady_now,
    ) -> None:
        self.asked: list[VerifyAsked] = []
        self._answer = answer
        self.reading = NodesVerification(self._heard, 1000, now)
        self.room = CheckpointRoom(str(directory), verify_all=self.reading.verify_all)

    def _heard(self, asked: VerifyAsked) -> None:
        self.asked.append(asked)
        unread = self._answer(asked)
        asked.dealt(2, OTHERS)
        for share in OTHERS:
            asked.read(share, unread.get(share, ""))

    def choose(self) -> tuple[int, str, str]:
        """Step, reason, and what is said of who read."""
        with self.reading.shared():
            choice = self.room.choose_and_set_aside(parse_resume("auto"), "r-0").choice
        assert isinstance(choice, Chosen)
        return choice.checkpoint.step, choice.reason, self.reading.words_of(choice.checkpoint.path)


def by_agents(asked: VerifyAsked) -> Unread:
    """What becomes of the shares of others, each read as an agent reads it."""
    shares = [VerifyShare(1, (1, share), asked.directory, asked.nonce, share, 4) for share in (0, 1, 3)]
    with ThreadPoolExecutor(1) as agents:  # its thread keeps the priority that it is given
        answers = list(agents.map(VerifyTask().answer, shares))
    return {one.command.act[1]: one.why for one in answers if not one.ok}


def test_others_are_asked_for_a_large_one_and_it_is_remembered(tmp_path: Path) -> None:
    save = saves.own(tmp_path, 7, 8)
    told = Told(tmp_path)
    step, _, words = told.choose()
    assert step == 7 and words.startswith("; read by 4 nodes, 48.0 kB in ")
    assert [(one.directory, one.nonce, one.readers_max_count) for one in told.asked] == [(str(save), f"{7:016x}", 48)]
    assert told.asked[0].over()
    assert told.choose()[::2] == (7, "") and len(told.asked) == 1, "what was proven is remembered"


def test_others_are_given_time_to_look_at_what_is_there_as_this_host_did_before_it_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of a large plain checkpoint alone takes longer than a share of its bytes."""
    saves.flip(saves.plain(tmp_path, 9, 8), "__0_7.distcp")
    saves.plain(tmp_path, 7, 8)
    now_s, waited = 100.0, list[float]()

    def no_patience_s(own_s: float) -> float:
        waited.append(own_s)
        return 0.0

    monkeypatch.setattr(CHECKPOINT_SERVICE + ".patience_s", no_patience_s)
    told = Told(tmp_path, by_agents, lambda: now_s)
    with told.reading.shared():
        now_s += 40.0
        told.room.survey()
    assert [patience_s(own_s) for own_s in waited] == [80.0, 10.0]


def test_a_small_one_is_read_alone_and_so_is_everything_while_ranks_train(tmp_path: Path) -> None:
    saves.own(tmp_path / "small", 7, 0)
    told = Told(tmp_path / "small")
    assert told.choose()[::2] == (7, "")
    saves.own(tmp_path / "large", 7, 8)
    busy = Told(tmp_path / "large")
    found = busy.room.newest_valid_above(-1)
    assert found is not None and found.step == 7
    assert told.asked == busy.asked == []


def test_what_a_sick_node_finds_is_read_again_here_and_is_no_damage(tmp_path: Path) -> None:
    saves.own(tmp_path, 7, 8)
    told = Told(tmp_path, lambda asked: {1: "n2: __4_0.distcp is damaged"})
    step, _, words = told.choose()
    assert step == 7 and words.startswith("; read by 3 nodes, ")
    assert words.endswith("this host read the other shares again (n2: __4_0.distcp is damaged)")


@pytest.mark.parametrize("shard", range(8))
def test_damage_wherever_it_is_is_found_by_whose_share_it_is(tmp_path: Path, shard: int) -> None:
    saves.own(tmp_path, 7, 8)
    saves.flip(saves.own(tmp_path, 9, 8), f"__{shard}_0.distcp")

    step, reason, words = Told(tmp_path, by_agents).choose()
    assert step == 7 and words.startswith("; read by 4 nodes")
    assert f"step 9: __{shard}_0.distcp is damaged" in reason


def test_plain_checkpoints_are_read_by_all_too_and_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    saves.plain(tmp_path, 7, 8)
    for shard in range(8):
        save = saves.plain(tmp_path, 8 + shard, 8)
        saves.flip(save, saves.files_of(save)[shard])
    told = Told(tmp_path, by_agents)
    with told.reading.shared():
        found = {one.step: one for one in told.room.survey()}
    assert [step for step, one in found.items() if one.valid] == [7]
    for shard in range(8):
        assert f"in __0_{shard}.distcp is damaged: checksum" in found[8 + shard].why_not
    assert re.match(r"; read by 4 nodes, \d+\.\d kB in \d+\.\d s$", told.reading.words_of(found[7].path))


def test_a_node_that_sees_other_files_proves_nothing_of_a_plain_one(tmp_path: Path) -> None:
    save = saves.plain(tmp_path, 7, 8)
    stale = Path(shutil.copytree(save, tmp_path / "stale" / "step-7"))
    os.utime(stale / saves.files_of(stale)[0], (1, 1))
    told = Told(tmp_path, lambda asked: by_agents(replace(asked, directory=str(stale))))
    step, _, words = told.choose()
    assert step == 7 and words.startswith("; read by 1 node, ")
    assert words.endswith("this host read the other shares again (another save is there)")


def test_what_nobody_can_check_is_complete_and_every_piece_is_counted(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        saves.plain(tmp_path, 7, 8)
    finally:
        torch.serialization.set_crc32_options(True)
    told = Told(tmp_path, by_agents)
    with told.reading.shared():
        found = told.room.survey()[0]
    assert (found.level, found.valid) == (Level.COMPLETE, True)
    assert found.why_not == "8 of 8 pieces cannot be checked: written without checksums"


def test_where_nobody_answers_all_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHECKPOINT_SERVICE + ".LOOP_WITHIN_S", 0.01)
    monkeypatch.setattr(CHECKPOINT_SERVICE + ".patience_s", lambda own_s: 0.0)
    saves.own(tmp_path, 7, 8)
    saves.flip(saves.own(tmp_path, 9, 8), "__7_0.distcp")
    asked: list[VerifyAsked] = []
    reading = NodesVerification(asked.append, 1000, steady_now)
    room = CheckpointRoom(str(tmp_path), verify_all=reading.verify_all)
    with reading.shared():
        assert room.choose_and_set_aside(parse_resume("auto"), "r-0").choice.reason.startswith("resuming from step 7")
    dealt = NodesVerification(lambda one: one.dealt(2, OTHERS), 1000, steady_now)
    (tmp_path / ".gangrun" / "verified.json").unlink()
    room = CheckpointRoom(str(tmp_path), verify_all=dealt.verify_all)
    with dealt.shared():
        room.choose_and_set_aside(parse_resume("auto"), "r-0")
    assert dealt.words_of(str(tmp_path / "step-7")).endswith(
        "this host read the other shares again (n1: no answer; n2: no answer; n3: no answer)"
    )
