"""What signals to the owner of a run mean, and the last thing it does: that the run was cancelled is written down."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.agent.loop import FAREWELL_S
from gangrun.agent.ranks.gang_part import ENDED_WITHIN_S, LOGS_CLOSE_AT_END_S
from gangrun.config.layers import Value
from gangrun.errors import UserError
from gangrun.launch import local, slurm_job_owner
from gangrun.launch.local import nodes_of
from gangrun.launch.owner import Cancelling
from tests.faults.disk import PausableDisk, say
from tests.waiting import until


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "disk"
    say(tmp_path / "disk", "run")


def cancelling(control: Path, told: list[str]) -> Cancelling:
    paths = RunPaths(control.parent / "run")
    paths.root.mkdir()
    made = Cancelling(
        paths, PausableDisk(control), SystemClock(), told.append, state=lambda: None, insist=lambda: None,
        kill=lambda: told.append("killed"),
    )  # fmt: skip
    made.signals += [signal.SIGINT, signal.SIGINT]
    return made


def test_a_third_signal_leaves_without_the_mark_and_says_what_to_do(control: Path) -> None:
    told: list[str] = []
    say(control, "stall")
    owner = cancelling(control, told)
    owner.turn()
    assert "killed" in told

    def hits_again(words: str) -> None:
        told.append(words)
        owner.signals.append(signal.SIGINT)

    owner.say = hits_again
    owner.keep_mark()
    assert not owner.paths.cancelled.exists()
    assert "gangrun cancel run" in told[-1]


def test_a_mark_that_is_written_is_not_waited_for(control: Path) -> None:
    told: list[str] = []
    owner = cancelling(control, told)
    owner.turn()
    until(lambda: owner._marking is not None and not owner._marking.is_alive(), 10, "the mark")
    assert owner.paths.cancelled.exists()
    owner.keep_mark()
    assert not any("waiting" in words for words in told)


class Owner:
    """Of a run that nobody supervises yet."""

    def __init__(self, root: Path, excuse: Callable[[], str] | None) -> None:
        self.said: list[str] = []
        self.kills_count = 0
        self.mark = RunPaths(root).cancelled
        self.cancelling = Cancelling(
            RunPaths(root), Disk(), SystemClock(), self.said.append, lambda: None,
            insist=lambda: None, kill=self._kill, excuse=excuse,
        )  # fmt: skip

    def _kill(self) -> None:
        self.kills_count += 1

    def gets(self, number: int) -> None:
        self.cancelling.signals.append(number)
        self.cancelling.turn()

    def says(self, words: str) -> None:
        def said() -> bool:
            self.cancelling.turn()
            return any(words in sentence for sentence in self.said)

        until(said, 10, lambda: f"{words}: {self.said}")


def test_a_sigterm_that_slurm_has_a_reason_for_cancels_nothing(tmp_path: Path) -> None:
    owner = Owner(tmp_path, lambda: "job 12 is requeued")
    for _ in range(2):
        owner.gets(signal.SIGTERM)
        owner.says("SIGTERM: job 12 is requeued")
        until(lambda: owner.cancelling._asking and not owner.cancelling._asking.is_alive(), 10, "the end of the asking")
        owner.said.clear()
    assert (owner.mark.exists(), owner.cancelling.meant, owner.kills_count) == (False, False, 0)
    assert owner.cancelling.code() == 1
    owner.gets(signal.SIGINT)
    owner.says("Ctrl-C: stopping all ranks; a second")
    until(owner.mark.exists, 10, "the mark")
    assert owner.kills_count == 0, "it was the first that meant the run"
    owner.gets(signal.SIGTERM)
    assert (owner.kills_count, owner.cancelling.code()) == (1, 130)


def test_a_sigterm_that_nobody_else_has_sent_cancels(tmp_path: Path) -> None:
    for number, excuse in enumerate((None, lambda: "")):
        root = tmp_path / str(number)
        root.mkdir()
        owner = Owner(root, excuse)
        owner.gets(signal.SIGTERM)
        owner.says("SIGTERM: stopping all ranks; a second")
        until(owner.mark.exists, 10, "the mark")
        assert (owner.kills_count, owner.cancelling.code()) == (0, 143)


def test_an_agent_has_left_before_the_owner_of_its_run_kills_what_is_left() -> None:
    leaves_within_s = FAREWELL_S + ENDED_WITHIN_S + LOGS_CLOSE_AT_END_S
    assert leaves_within_s < min(local.LETS_GO_WITHIN_S, slurm_job_owner.LETS_GO_WITHIN_S)


def test_the_signal_that_kills_at_once_kills_and_marks(tmp_path: Path) -> None:
    owner = Owner(tmp_path, lambda: "job 12 is requeued")
    owner.gets(signal.SIGQUIT)
    owner.says("SIGQUIT (gangrun cancel --now, or Ctrl-\\): killing all ranks")
    until(owner.mark.exists, 10, "the mark")
    owner.cancelling.keep_mark()
    assert (owner.kills_count, owner.cancelling.code()) == (1, 143)
    owner.gets(signal.SIGINT)
    assert owner.kills_count == 2


def test_a_closed_terminal_asks_once_and_hurries_nobody(tmp_path: Path) -> None:
    owner = Owner(tmp_path, None)
    for _ in range(3):
        owner.cancelling.note(signal.SIGHUP)
        owner.cancelling.turn()
    owner.says("SIGHUP (the terminal was closed): stopping all ranks; Ctrl-C or SIGTERM kills them")
    assert (owner.cancelling.signals, owner.kills_count) == ([signal.SIGHUP], 0)
    owner.gets(signal.SIGINT)
    assert owner.kills_count == 1, "that was meant"


def test_a_terminal_that_is_closed_after_ctrl_c_kills_nobody(tmp_path: Path) -> None:
    owner = Owner(tmp_path, None)
    owner.cancelling.note(signal.SIGINT)
    owner.cancelling.note(signal.SIGHUP)  # before either was heeded
    owner.cancelling.turn()
    owner.cancelling.note(signal.SIGHUP)
    owner.cancelling.turn()
    assert (owner.kills_count, owner.cancelling.meant) == (0, True)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Cancelling]:
    """Whose handlers are taken away again."""
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD
    kept = {number: signal.getsignal(number) for number in numbers}
    made = Owner(tmp_path, None).cancelling
    yield made
    signal.set_wakeup_fd(-1)
    for end in made._keep:
        end.close()
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_under_nohup_a_closed_terminal_is_not_heard(listener: Cancelling) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listener.listen()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is not before


def test_a_signal_after_the_last_look_at_signals_prints_nothing(listener: Cancelling) -> None:
    """The last messages are sent then, which may take a while. pytest fails for what Python would print."""
    listener.listen()
    signal.raise_signal(signal.SIGINT)
    assert listener.signals == [signal.SIGINT]


@pytest.mark.parametrize(("nodes", "least", "taken"), [(1, None, 1), (2, 1, 1), (2, None, 0), (4, 2, 0)])
def test_one_machine_is_enough_where_one_node_is(nodes: int, least: int | None, taken: int) -> None:
    """``torchrun --nnodes 1:2`` on one machine."""
    asked = {"nodes": nodes, "min_nodes": least, "local_hosts": False}
    settings = {name: Value(value, "flag") for name, value in asked.items()}
    if taken:
        assert len(nodes_of(settings)) == taken
        return
    with pytest.raises(UserError, match="this machine is one node"):
        nodes_of(settings)
