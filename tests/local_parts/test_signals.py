"""What a scheduler sends to every process of a step at once breaks nothing before the agent decides."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from gangrun.agent import facts
from gangrun.processes import Proc, descendants, process_table
from tests.local_parts.gang import Harness, boottime, gang, lives, order, stop_order
from tests.waiting import until

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
        made.gang.stop(stop_order(grace_s=30))
        assert made.next_fact(facts.RanksStopped).ok
        assert boottime() - asked_at < 3.0
        assert not any(lives(proc.pid) for proc in family)
        assert made.next_fact(facts.RankEnded).exit.by_us
