"""What a scheduler sends to every process of a step at once breaks nothing before the agent decides."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from gangrun.agent.brain import facts
from gangrun.node.processes import Proc, descendants, process_table
from tests.local_parts.gang import GRACE_S, NO_GRACE_S, Harness, boottime, gang, harness, lives, order, stop_order
from tests.waiting import stays, until

SPRAYED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG, signal.SIGCONT)

# Steps through a DataLoader for ever; the newest step stands in a file.
LOADER = textwrap.dedent("""
    import itertools, torch
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 100000
        def __getitem__(self, i):
            time.sleep(0.01)
            return torch.full((4,), float(i))
    def workers(loader): return sorted(worker.pid for worker in loader._workers)
    if __name__ == '__main__':
        data = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context=sys.argv[1])
        loader = iter(data)
        for step in itertools.count():
            next(loader)
            pathlib.Path('step.new').write_text(' '.join(map(str, [step, *workers(loader)])))
            os.rename('step.new', 'step')
""")


def below(pid: int) -> list[Proc]:
    table = process_table()
    return [table[pid], *descendants([pid], table)]


def spray(procs: list[Proc], *numbers: signal.Signals) -> None:
    for number in numbers:
        for proc in procs:
            os.kill(proc.pid, number)


def step_of(made: Harness) -> tuple[int, ...]:
    path = made.directory / "step"
    return tuple(map(int, path.read_text().split())) if path.exists() else (-1,)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_dataloader_workers_live_on_and_so_do_their_helpers(tmp_path: Path, method: str) -> None:
    pytest.importorskip("torch")
    with gang(tmp_path, LOADER, method) as made:
        (rank,) = made.gang.launch(order(1))
        until(lambda: step_of(made)[0] > 5, 60, lambda: made.log())
        family = below(rank.pid)
        assert len(family) >= {"fork": 3, "spawn": 4, "forkserver": 5}[method]
        workers = step_of(made)[1:]
        for _ in range(3):
            spray(family, *SPRAYED)
        reached = step_of(made)[0]
        until(lambda: step_of(made)[0] > reached + 20, 20, lambda: f"steps to go on: {made.log()}")
        assert {proc.pid for proc in below(rank.pid)} == {proc.pid for proc in family}
        assert step_of(made)[1:] == workers
        asked_at = boottime()
        made.gang.stop(stop_order(GRACE_S))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert boottime() - asked_at < NO_GRACE_S
        assert not any(lives(proc.pid) for proc in family)
        assert made.next_fact(facts.RankEnded).exit.by_us


def test_multiprocessing_ends_its_children_as_ever(tmp_path: Path) -> None:
    script = """
    import multiprocessing as mp, signal, subprocess
    def wait(): time.sleep(600)
    def starts(queue):
        child = subprocess.Popen(['sleep', '600']); child.terminate(); queue.put(child.wait(200))
        if (pid := os.fork()) == 0: time.sleep(600)
        os.kill(pid, signal.SIGTERM); queue.put(os.WTERMSIG(os.waitpid(pid, 0)[1]))
        os.kill(os.getpid(), signal.SIGUSR1); time.sleep(600)
    def handles(queue):
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(number))
        queue.put('ready')
        time.sleep(600)
    if __name__ == '__main__':
        for method in ('fork', 'spawn', 'forkserver'):
            with_ = mp.get_context(method)
            queue = with_.SimpleQueue()
            child = with_.Process(target=wait); child.start(); child.terminate(); child.join(200)
            assert child.exitcode == -15, (method, child.exitcode)
            child = with_.Process(target=starts, args=(queue,)); child.start()
            assert [queue.get(), queue.get()] == [-15, 15]
            child.join(200)
            assert child.exitcode == -signal.SIGUSR1, (method, child.exitcode)
            child = with_.Process(target=handles, args=(queue,)); child.start()
            assert queue.get() == 'ready'
            child.terminate()
            child.join(200)
            assert child.exitcode == 15, (method, child.exitcode)
            with with_.Pool(2) as pool: assert pool.map(abs, [-1]) == [1]
        print('ready', flush=True)
    """
    with gang(tmp_path, textwrap.dedent(script)) as made:
        made.gang.launch(order(1))
        assert made.next_fact(facts.RankEnded, 60).exit.code == 0, made.log()
        until(lambda: "ready" in made.log(), 10, made.log)


def test_torch_ends_its_workers_as_ever(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = """
    import torch
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 100
        def __getitem__(self, i): time.sleep(600 if i > 20 else 0); return torch.zeros(1)
    if __name__ == '__main__':
        loader = iter(torch.utils.data.DataLoader(Data(), num_workers=2, prefetch_factor=8))
        next(loader)  # the script ends while its workers are busy: torch sends them SIGTERM
    """
    with gang(tmp_path, textwrap.dedent(script)) as made:
        made.gang.launch(order(1))
        assert made.next_fact(facts.RankEnded, 60).exit.code == 0, made.log()
        assert "killed" not in made.log()


HANDLERS = """
    import signal
    def heard(number, frame):
        with open('heard', 'a') as file: file.write(f'{number} ')
        if number == int(sys.argv[1]) and sys.argv[2] == 'leaves': sys.exit(0)
    for name in sys.argv[3:]:
        assert signal.signal(getattr(signal, name), heard) is signal.SIG_DFL
        assert signal.getsignal(getattr(signal, name)) is heard
    print('ready', flush=True)
    while True: time.sleep(0.02)
"""


def heard(directory: Path) -> list[int]:
    path = directory / "heard"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def test_a_scripts_own_handler_runs_when_the_agent_says_so_and_once(tmp_path: Path) -> None:
    arguments = (str(int(signal.SIGTERM)), "leaves", "SIGTERM", "SIGUSR1", "SIGUSR2")
    with gang(tmp_path, textwrap.dedent(HANDLERS), *arguments, save_signal=int(signal.SIGUSR1)) as made:
        (rank,) = made.gang.launch(order(1))
        made.ready()
        spray(below(rank.pid), signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        until(lambda: heard(tmp_path), 5, "its handler for USR2, which means nothing to us")
        stays(lambda: heard(tmp_path) == [signal.SIGUSR2] and lives(rank.pid), 0.3, "no other handler runs")
        made.gang.stop(stop_order(GRACE_S))
        how = made.next_fact(facts.RankEnded).exit
        assert (how.code, how.by_us) == (0, True)
        assert made.next_fact(facts.RanksStopped).ok
        assert heard(tmp_path) == [signal.SIGUSR2, signal.SIGTERM]


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM", "SIGHUP"])
def test_a_script_that_saves_on_a_signal_gets_it_and_is_waited_for(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    with gang(tmp_path, textwrap.dedent(HANDLERS), str(int(number)), "leaves", name, save_signal=int(number)) as made:
        ranks = made.gang.launch(order(2))
        made.ready(2)
        spray([proc for rank in ranks for proc in below(rank.pid)], number)
        made.gang.stop(stop_order(0.0, checkpoint_first=True, checkpoint_grace_s=GRACE_S))
        exits = [made.next_fact(facts.RankEnded).exit for _ in range(2)]
        assert [(how.code, how.by_us) for how in exits] == [(0, True)] * 2
        assert made.next_fact(facts.RanksStopped).ok
        assert heard(tmp_path) == [number] * 2


def test_a_script_that_goes_on_after_saving_costs_the_grace_or_until_it_is_known_to_have_saved(tmp_path: Path) -> None:
    arguments = (str(int(signal.SIGUSR1)), "stays", "SIGUSR1")
    with gang(tmp_path, textwrap.dedent(HANDLERS), *arguments, save_signal=int(signal.SIGUSR1)) as made:
        for attempt, (grace_s, told) in enumerate(((2.5, False), (GRACE_S, True))):
            (rank,) = made.gang.launch(order(1, attempt))
            until(lambda number=attempt: "ready" in made.log(number), 20, "ready")  # type: ignore[misc]
            asked_at = boottime()
            made.gang.stop(stop_order(checkpoint_first=True, checkpoint_grace_s=grace_s))
            until(lambda count=attempt + 1: len(heard(tmp_path)) == count, 5, "the signal")  # type: ignore[misc]
            if told:
                assert lives(rank.pid), "it is waited for"
                made.gang.stop(stop_order())
            assert made.next_fact(facts.RanksStopped).ok
            made.next_fact(facts.RankEnded)
            assert told or boottime() - asked_at > grace_s
            assert boottime() - asked_at < NO_GRACE_S


def test_a_script_without_a_handler_for_the_save_signal_is_not_waited_for(tmp_path: Path) -> None:
    with gang(tmp_path, "print('ready', flush=True)\ntime.sleep(600)\n", save_signal=int(signal.SIGUSR1)) as made:
        made.gang.launch(order(1))
        made.ready()
        asked_at = boottime()
        made.gang.stop(stop_order(checkpoint_first=True, checkpoint_grace_s=GRACE_S, grace_s=GRACE_S))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert boottime() - asked_at < NO_GRACE_S


def test_a_stop_that_is_not_to_save_sends_no_save_signal(tmp_path: Path) -> None:
    arguments = (str(int(signal.SIGUSR1)), "leaves", "SIGUSR1")
    with gang(tmp_path, textwrap.dedent(HANDLERS), *arguments, save_signal=int(signal.SIGUSR1)) as made:
        made.gang.launch(order(1))
        made.ready()
        made.gang.stop(stop_order())
        assert made.next_fact(facts.RanksStopped).ok
        assert not heard(tmp_path)


def test_a_command_that_is_not_python_lives_through_usr_signals_and_can_be_stopped(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo ready; sleep 600; sleep 600")
    with harness(Harness(tmp_path, command, through_boot=False)) as made:
        (rank,) = made.gang.launch(order(1))
        made.ready()
        until(lambda: len(below(rank.pid)) == 2, 5, "its child")
        family = below(rank.pid)
        spray(family, signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG, signal.SIGCONT)
        stays(lambda: all(lives(proc.pid) for proc in family), 0.3, "shell and child")
        made.gang.stop(stop_order(GRACE_S))
        assert made.next_fact(facts.RanksStopped).ok
        assert made.next_fact(facts.RankEnded).exit.signal == signal.SIGTERM
        assert not any(lives(proc.pid) for proc in family)


def test_what_a_wrapper_runs_gets_the_save_signal_and_not_the_wrapper(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "import time\n" + textwrap.dedent(HANDLERS).replace("import signal", "import signal, sys")
    )
    words = f"{sys.executable} inner.py {int(signal.SIGUSR1)} leaves SIGUSR1; echo it ended with $?; exit 3"
    made = Harness(tmp_path, ("sh", "-c", words), through_boot=False, save_signal=int(signal.SIGUSR1))
    with harness(made):
        made.gang.launch(order(1))
        made.ready()
        made.gang.stop(stop_order(0.0, checkpoint_first=True, checkpoint_grace_s=GRACE_S))
        assert made.next_fact(facts.RankEnded).exit.code == 3
        assert made.next_fact(facts.RanksStopped).ok
        assert heard(tmp_path) == [signal.SIGUSR1]
        until(lambda: "it ended with 0" in made.log(), 10, made.log)
