"""Whoever is started beside a live run, by mistake or by malice, does not get between its supervisor and its ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.fs.terms import FsTerms
from gangrun.entry.wiring import own_command
from gangrun.wire.record import Claim
from tests.local.evidence import alive, never_two_gangs
from tests.local.harness import Box
from tests.waiting import until


def by_hand(box: Box, entry: str, *arguments: str) -> subprocess.Popen[str]:
    """One of our processes as a person would start it who has read ``ps``."""
    command = own_command(f"gangrun.{entry}", ["--run-dir", str(box.run_dir()), *arguments], sys.executable)
    return subprocess.Popen(command, env=box.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def newest_claim(box: Box) -> Claim:
    """Who holds the run."""
    claim = FsTerms(RunPaths(box.run_dir()), SystemClock(), Disk()).newest()
    assert claim is not None
    return claim


def live_run(box: Box) -> tuple[Claim, list[int]]:
    """A run in the middle, its holder and its ranks."""
    box.step(2, steps=100_000)
    box.wait_for_step(5)
    return newest_claim(box), [box.pid_of(rank) for rank in (0, 1)]


def untouched(box: Box, holder: Claim, ranks: list[int]) -> None:
    """The same supervisor, the same ranks, stepping."""
    reached = len(box.rows())
    until(lambda: len(box.rows()) > reached + 40, 20, f"the gang steps on\n{box.told()}")
    assert newest_claim(box) == holder
    assert alive(holder.pid)
    assert [box.pid_of(rank) for rank in (0, 1)] == ranks
    assert len(box.status()["attempts"]) == 1


@pytest.mark.slow
def test_nobody_started_by_hand_disturbs_a_live_run(box: Box) -> None:
    holder, ranks = live_run(box)
    same_job = by_hand(box, "entry.supervisor", "--node", holder.node, "--job", holder.job)
    other_job = by_hand(box, "entry.supervisor", "--node", holder.node, "--job", "local-elsewhere-1-1")
    agent = by_hand(box, "entry.agent", "--node", holder.node, "--job", holder.job)
    run = box.status()["run"]
    resume = box.gangrun("resume", run, "--runs-dir", str(box.runs), check=False)

    told, _ = other_job.communicate(timeout=200)
    assert other_job.returncode == 75, told
    assert "not the job" in told, told
    told, _ = same_job.communicate(timeout=200)
    assert same_job.returncode == 75, told
    assert "Traceback" not in told, told
    told, _ = agent.communicate(timeout=200)
    assert agent.returncode == 78, told
    assert "not by hand" in told, told
    assert resume.returncode == 2, resume.stderr
    assert f"is being run by process {box.process.pid if box.process else 0}" in resume.stderr
    untouched(box, holder, ranks)

    # one that lies about promises gets a term, as any majority would; no agent follows it, and at its next record the
    # old holder finds its acts sealed: whoever decides then, it is one
    liar = by_hand(
        box, "entry.supervisor", "--node", holder.node, "--job", holder.job, "--promises", f'["{holder.node}"]'
    )
    until(lambda: newest_claim(box).pid == liar.pid, 20, "the liar holds a term")
    os.kill(ranks[1], signal.SIGKILL)
    until(lambda: not alive(holder.pid), 20, f"the old holder is deposed\n{box.told()}")
    box.wait_for_step(3, attempt=1, deadline_s=60)
    assert newest_claim(box).term > holder.term
    box.interrupt()
    told, _ = liar.communicate(timeout=300)
    assert "Traceback" not in told, told
    assert never_two_gangs(box, 2) == [0, 1]


@pytest.mark.slow
def test_the_acts_of_a_sealed_term_stop_its_holder_and_the_run_goes_on(box: Box) -> None:
    """What a claimant does first, done by hand: the holder finds its acts sealed, leaves, and the next one adopts."""
    holder, ranks = live_run(box)
    terms = FsTerms(RunPaths(box.run_dir()), SystemClock(), Disk())
    terms.seal_before(holder.term + 1)
    os.kill(ranks[1], signal.SIGKILL)  # now it has something to write
    until(lambda: not alive(holder.pid), 20, f"the sealed holder leaves\n{box.told()}")
    box.wait_for_step(3, attempt=1, deadline_s=60)
    assert newest_claim(box).term > holder.term
    assert box.process is not None
    box.process.send_signal(signal.SIGINT)
    assert box.end(40) == 130, box.told()
    assert never_two_gangs(box, 2) == [0, 1]
