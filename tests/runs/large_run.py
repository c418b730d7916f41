"""A run of thousands of nodes and hundreds of recoveries. No core decides its records: that would take minutes.

Every failure loses one node, which a spare replaces; the loss falls from attempt to attempt.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangrun.adapters.fs.journal import Live
from gangrun.core.model import Attempt, AttemptRecord, Budget, Phase, RunState
from gangrun.core.nodeset import fold
from gangrun.runs.snapshot import RunSnapshot, read
from gangrun.wire.record import Act, Record
from tests.runs.builder import BEGAN
from tests.runs.stories import running

HOURS_S = 3600.0


class _Journal:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.at, self.phase = BEGAN, "PENDING"

    def add(self, kind: str, after_s: float, phase: str = "", reason: str = "", **event: Any) -> None:
        """One record, so long after the last."""
        self.at += after_s
        acts = event.pop("acts", ())
        patch = event.pop("patch", {})
        self.records.append(
            Record(
                v=1, term=1, n=len(self.records), at=self.at, wall=self.at, kind=kind, event=event, was=self.phase,
                phase=phase or self.phase, reason=reason, actions=acts, patch=patch,
            )
        )  # fmt: skip
        self.phase = phase or self.phase


def large(runs: Path, nodes_count: int, failures_count: int, days: float = 54.0) -> RunSnapshot:
    """Its snapshot with every record; it still runs."""
    story = running(runs)
    names = [f"n{k:04d}" for k in range(nodes_count)]
    spares_count = max(1, nodes_count // 20)
    placed, spares = names[:-spares_count], names[-spares_count:]
    journal = _Journal()
    journal.add("TermTaken", 0.0, job="4711", term=1)
    for name in names:
        journal.add("AgentJoined", 0.01, node=name)
    journal.add("NodeChecked", 20.0, "STARTING")
    lasts_s = days * 24 * HOURS_S / (failures_count + 1)
    attempts: list[AttemptRecord] = []
    step = 0
    for number in range(failures_count + 1):
        placement = {"nodes": fold(placed), "slots": 1, "ranks": 8}
        began = journal.at
        act = Act("StartGang", {"attempt": number, "placement": placement, "resume": {"step": step}}, number + 1)
        journal.add("ResumeChosen", 3.0, acts=(act,), patch={"attempt": number})
        journal.add("GangStarted", 5.0, "RUNNING", f"attempt {number}: all ranks run", attempt=number)
        for k in range(60):
            step += 50
            kind = "ProgressMarked" if k else "FirstStepSeen"
            loss = 2.0 + 8 * math.exp(-step / 400_000) + (k % 7) * 0.01
            journal.add(kind, lasts_s / 61, attempt=number, step=step, loss=loss)
        lost, why = placed[number * 37 % len(placed)], f"NVLink error <{number}> on GPU 3 & more"
        if number < failures_count:
            patch = {"excluded": {lost: {"reason": why, "since": journal.at, "until": journal.at + HOURS_S}}}
            journal.add("NodeLost", 5.0, "STOPPING", f"{lost} was lost: {why}", node=lost, why=why, patch=patch)
            journal.add("GangStopped", 4.0, "STARTING", f"{spares[0]} takes the place of {lost}", attempt=number)
        running_still = number == failures_count
        attempts.append(
            AttemptRecord(
                number, "4711", tuple(placed), began, None if running_still else journal.at,
                "" if running_still else "node silent", "" if running_still else why, step, step,
            )
        )  # fmt: skip
        placed = [spares[0] if node == lost else node for node in placed]
        spares = [*spares[1:], lost]
        if number % 3 == 0 and number < failures_count:  # some come back soon
            journal.add("AgentRejoined", 1.0, node=lost, patch={"excluded": {lost: None}})
    read_back = read(story.paths, timeline=True)
    assert read_back.state is not None
    state: RunState = replace(
        read_back.state, phase=Phase.RUNNING, attempts=tuple(attempts), updated_at=journal.at, budget=Budget(),
        attempt=replace(Attempt(), number=failures_count, step=step),
    )  # fmt: skip
    live = Live(1, journal.at, {"attempt": failures_count, "step": step, "loss": 2.01})
    return replace(read_back, state=state, records=tuple(journal.records), live=live)
