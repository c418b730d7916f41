"""This node's share of a checkpoint is read; damage in another's is not its matter; what nobody waits for ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gangrun.agent.facts import DiskUsed
from gangrun.agent.proving import Proving
from gangrun.checkpoint.manifest_verify import read_manifest
from gangrun.wire.messages import Prove
from tests.local import saves


def share(save: Path, reader: int, nonce: str = f"{7:016x}") -> Prove:
    return Prove(1, (1, reader), str(save), nonce, reader, 3)


def answered(proving: Proving, command: Prove) -> DiskUsed:
    """From a thread of its own, as an errand is: its priority is lowered for good."""
    told: list[DiskUsed] = []
    thread = threading.Thread(target=lambda: told.append(proving.answer(command)))
    thread.start()
    thread.join(60)
    return told[0]


def test_each_reader_says_what_is_true_of_its_own_share(tmp_path: Path) -> None:
    save = saves.own(tmp_path, 7, 6)
    proving = Proving()
    assert [answered(proving, share(save, reader)) for reader in range(3)] == [
        DiskUsed(share(save, reader), True) for reader in range(3)
    ]
    saves.flip(save, "__3_0.distcp")
    found = [answered(proving, share(save, reader)) for reader in range(3)]
    assert [one.ok for one in found] == [True, False, True]
    assert "__3_0.distcp is damaged: the checksum of its bytes from 0 on is wrong" in found[1].why


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda save: (save / "gangrun.json").unlink(), "gangrun.json is missing"),
        (lambda save: (save / "gangrun.json").write_text("{}"), "is torn or is no manifest"),
        (lambda save: (save / "__0_0.distcp").unlink(), "__0_0.distcp is missing"),
    ],
    ids=["no manifest", "a torn manifest", "no shard"],
)
def test_what_cannot_be_read_is_said_in_words(tmp_path: Path, spoil: object, why: str) -> None:
    save = saves.own(tmp_path, 7, 3)
    spoil(save)  # type: ignore[operator]
    told = answered(Proving(), share(save, 0))
    assert not told.ok and why in told.why


def test_another_save_of_that_step_is_not_taken_for_it(tmp_path: Path) -> None:
    save = saves.own(tmp_path, 7, 3)
    asked = share(save, 1, "ab" * 8)
    assert answered(Proving(), asked) == DiskUsed(asked, False, "another save is there")


@pytest.mark.parametrize("by", ["the next question", "a start of ranks"])
def test_a_reading_that_nobody_waits_for_ends(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save = saves.own(tmp_path, 7, 3)
    proving = Proving()

    def overtaken(directory: str) -> object:
        """While this one has only read the manifest, it is overtaken."""
        monkeypatch.undo()
        if by == "a start of ranks":
            proving.give_up()
        else:
            assert answered(proving, share(save, 1)).ok
        return read_manifest(directory)

    monkeypatch.setattr("gangrun.agent.proving.read_manifest", overtaken)
    told = answered(proving, share(save, 0))
    assert (told.ok, told.why) == (False, "it was given up for what was asked next")
