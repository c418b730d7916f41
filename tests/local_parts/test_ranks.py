"""Ranks as real processes: launched, seen dying, stopped with all that came from them."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import textwrap
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from gangrun.agent.brain import facts
from gangrun.agent.ranks import gang_part, stop
from gangrun.agent.ranks.exits import OomCounter
from gangrun.agent.ranks.gang_part import LaunchError
from gangrun.agent.ranks.observe import CpuDemand, NodeRoom, look_at
from gangrun.agent.ranks.stop import free_port, mapped_segments
from gangrun.core.events import StacksTaken
from gangrun.core.recovery.gpu_rules import GpuUse
from gangrun.node.place_page import now_ns
from gangrun.node.processes import Proc, process_table
from gangrun.wire.messages import Prepare, Stacks
from tests.local_parts.gang import (
    GRACE_S,
    NO_GRACE_S,
    Harness,
    boottime,
    gang,
    harness,
    lives,
    number_in,
    order,
    stop_order,
)
from tests.waiting import PATIENCE, until

READY = "print('ready', flush=True)\n"
SLEEP = READY + "time.sleep(600)\n"


@pytest.mark.parametrize(
    ("changes", "slots", "told"),
    [
        ({}, (0, 0), {0: 0, 1: 1}),  # the first ranks have the first GPUs, as LOCAL_RANK counts
        ({"slots_count": 3}, (0, 2), {0: 0, 1: 2}),  # GPU 1 gets no rank
        ({"per_node": True}, (0, 0), {}),  # the launcher's processes share all of them
    ],
)
def test_each_rank_tells_of_its_own_gpu_once_for_each_reading(
    tmp_path: Path, changes: dict[str, object], slots: tuple[int, ...], told: dict[int, int]
) -> None:
    read = [{n: GpuUse(7 - n, busy_percent=n) for n in range(3)}, {}]
    with gang(tmp_path, SLEEP, **changes, gpu_use=lambda: read.pop(0)) as made:
        made.gang.launch(order(2, slots=slots))
        first, second = made.gang.readings(), made.gang.readings()
    assert {one.rank: one.gpu for one in first if one.gpu is not None} == {
        rank: GpuUse(7 - n, busy_percent=n) for rank, n in told.items()
    }
    assert [one.gpu for one in second] == [None, None]


@pytest.mark.serial
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_ranks_death_is_seen_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with gang(tmp_path, SLEEP) as made:
        ranks = made.gang.launch(order(3))
        made.ready(3)
        seen_after_s = []
        for victim in (1, 0, 2):
            killed_at = boottime()
            os.kill(ranks[victim].pid, number)
            how = made.next_fact(facts.RankEnded).exit
            seen_after_s.append(boottime() - killed_at)
            assert (how.rank, how.code, how.signal, how.by_us, how.oom_kill) == (victim, None, number, False, False)
            assert 0 <= how.at - killed_at <= seen_after_s[-1]
            assert victim not in {rank.rank for rank in made.gang.live()}
        assert min(seen_after_s) < 0.2, seen_after_s


def test_an_exception_comes_with_its_signature_the_same_on_all_ranks(tmp_path: Path) -> None:
    script = "import os\ndef deep(n):\n    raise ValueError(f'bad {n}')\ndeep(os.environ['RANK'])\n"
    with gang(tmp_path, script) as made:
        made.gang.launch(order(2))
        exits = [made.next_fact(facts.RankEnded).exit for _ in range(2)]
        errors = [how.error for how in exits if how.error]
        assert [how.code for how in exits] == [1, 1]
        assert {error.kind for error in errors} == {"ValueError"}
        assert [how.mark for how in exits] == ["-", "-"], "the supervisor need not match their texts"
        assert len({error.message for error in errors}) == 2
        assert len({error.signature for error in errors}) == 1
        assert "in deep" in errors[0].traceback
        assert not errors[0].collective
        until(lambda: "[n0:rank1] ValueError: bad 1" in made.log(), 5, "the traceback in the log")


def test_a_traceback_of_a_wrapped_python_is_found_on_stderr_with_the_same_signature(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "def f():\n    raise RuntimeError('[gloo/tcp/pair.cc:534] Connection closed by peer [::1]:1')\nf()\n"
    )
    with harness(Harness(tmp_path, ("sh", "-c", f"{sys.executable} {script}; exit 5"), through_boot=False)) as made:
        made.gang.launch(order(1))
        how = made.next_fact(facts.RankEnded).exit
    with harness(Harness(tmp_path, (str(script),))) as made:
        made.gang.launch(order(1, attempt=1))
        direct = made.next_fact(facts.RankEnded).exit
    assert how.code == 5
    assert how.error is not None
    assert direct.error is not None
    assert how.error.signature == direct.error.signature
    assert how.error.collective
    assert direct.error.collective


def test_an_exception_stays_the_error_of_a_rank_that_crashes_while_it_ends(tmp_path: Path) -> None:
    crash = "import atexit, os, time\natexit.register(os.abort)\natexit.register(time.sleep, 0.2)\n"
    with gang(tmp_path, crash + "raise ValueError('bad')\n") as made:
        made.gang.launch(order(1))
        how = made.next_fact(facts.RankEnded).exit
    assert (how.signal, how.error and how.error.kind) == (signal.SIGABRT, "ValueError")
    assert 0.2 <= how.at - how.written_at < 10 * PATIENCE
    assert "Fatal Python error: Aborted" in how.tail
    assert not any("ValueError" in line for line in how.tail)


def test_the_last_lines_of_a_native_crash_are_kept_before_thousands_of_frames(tmp_path: Path) -> None:
    said = "terminate called after throwing an instance of 'c10::DistBackendError'"
    script = f"""
        import os, sys
        sys.stderr.write({said!r} + "\\n")
        for n in range(3000):
            sys.stderr.write(f"frame #{{n}}: c10::Error::Error() + 0x{{n:x}} (0x7f in /lib/libc10.so)\\n")
        sys.stderr.flush()
        os.abort()
    """
    with gang(tmp_path, textwrap.dedent(script)) as made:
        made.gang.launch(order(1))
        how = made.next_fact(facts.RankEnded).exit
    assert (how.signal, how.error) == (signal.SIGABRT, None)
    assert how.mark == "-" and said in how.tail and 0 < how.written_at <= how.at


def test_a_command_without_python_leaves_its_last_lines(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo fine >&2; echo train: libcudart.so.12: not found >&2; exit 127")
    with harness(Harness(tmp_path, command, through_boot=False)) as made:
        made.gang.launch(order(1))
        how = made.next_fact(facts.RankEnded).exit
    assert (how.code, how.error) == (127, None)
    assert how.tail == ("fine", "train: libcudart.so.12: not found")


RAISES = (
    READY
    + """
import os, pathlib, time
go = pathlib.Path("go")
while not go.exists(): time.sleep(0.01)
"""
)


def test_ranks_that_fail_while_a_stop_settles_fail_of_themselves(tmp_path: Path) -> None:
    """One ends at once, one is kept by its destructors, one never fails: only the last falls because of us."""
    script = RAISES + textwrap.dedent("""
        import atexit
        rank = int(os.environ["RANK"])
        if rank == 2: time.sleep(600)
        if rank == 1: atexit.register(time.sleep, 600)
        raise ValueError(f"bad {rank}")
    """)
    settle_s = 3.0 * PATIENCE
    with gang(tmp_path, script) as made:
        made.gang.launch(order(3))
        made.ready(3)
        began = boottime()
        made.gang.stop(stop_order(GRACE_S, settle_s=settle_s))
        (tmp_path / "go").touch()
        exits = [made.next_fact(facts.RankEnded, settle_s + 20).exit for _ in range(3)]
        assert made.next_fact(facts.RanksStopped).ok
    ends = {how.rank: how for how in exits}
    assert [ends[rank].by_us for rank in range(3)] == [False, False, True]
    assert ends[1].error is not None and ends[1].error.message == "bad 1"
    assert ends[1].at - began >= settle_s > ends[1].written_at - began, "its error is older than its end"
    assert ends[2].error is None and ends[2].tail == ()


def test_a_stop_settles_no_longer_than_ranks_live(tmp_path: Path) -> None:
    with gang(tmp_path, RAISES + "raise ValueError('bad')\n") as made:
        made.gang.launch(order(2))
        made.ready(2)
        began = boottime()
        made.gang.stop(stop_order(GRACE_S, settle_s=GRACE_S))
        (tmp_path / "go").touch()
        made.next_fact(facts.RanksStopped, NO_GRACE_S)
        assert boottime() - began < NO_GRACE_S
        assert [how.exit.by_us for how in made.seen if isinstance(how, facts.RankEnded)] == [False, False]


VICTIM = """
import atexit
atexit.register(time.sleep, 600)
raise RuntimeError("[gloo/tcp/pair.cc:534] Connection closed by peer [::1]:1")
"""


def test_a_stop_does_not_wait_for_a_victim_that_has_told_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pause of the stop's own is waited out either: not even much longer ones would be."""
    for name in ("POLL_S", "LAST_LINES_S", "LOOK_AGAIN_S"):
        monkeypatch.setattr(stop, name, GRACE_S)
    looks: list[object] = []

    def segments(found: Iterable[Proc]) -> set[str]:
        looks.append(found)
        return mapped_segments(found)

    monkeypatch.setattr(stop, "mapped_segments", segments)
    with gang(tmp_path, RAISES + VICTIM) as made:
        made.gang.launch(order(2))
        made.ready(2)
        began = boottime()
        made.gang.stop(stop_order(GRACE_S, settle_s=GRACE_S))
        (tmp_path / "go").touch()
        exits = [made.next_fact(facts.RankEnded, NO_GRACE_S).exit for _ in range(2)]
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert boottime() - began < NO_GRACE_S
        assert [(how.by_us, how.error and how.error.collective) for how in exits] == [(False, True)] * 2
        until(lambda: made.log().count("] RuntimeError: [gloo") == 2, 5, "the whole traceback in the log")
        assert len(looks) == 1, "the first look is young enough"


def test_a_stop_of_ranks_that_have_ended_reads_the_process_table_thrice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ours; that nothing of it is left; and once more, since a process may have been born during that look."""
    reads: list[int] = []

    def table() -> dict[int, Proc]:
        reads.append(1)
        return process_table()

    with gang(tmp_path, READY + "os._exit(3)\n") as made:
        made.gang.launch(order(2))
        for _ in range(2):
            made.next_fact(facts.RankEnded)
        monkeypatch.setattr(stop, "process_table", table)
        made.gang.stop(stop_order(GRACE_S))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert len(reads) == 3


def test_a_rank_that_is_stopped_tells_the_known_lines_that_it_had_written_before(tmp_path: Path) -> None:
    script = """
import signal, sys, time
def end(*_):
    print("RuntimeError: Unable to open shared memory: /dev/shm is full", file=sys.stderr, flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
print("UCX ERROR ibv_create_qp failed: bad address", file=sys.stderr)
print("ready", file=sys.stderr, flush=True)
while True:
    time.sleep(600)
"""
    with gang(tmp_path, script) as made:
        made.gang.launch(order())
        made.ready()
        made.gang.stop(stop_order())
        how = made.next_fact(facts.RankEnded).exit
    assert (how.code, how.by_us, how.tail) == (3, True, ())
    assert [entry.partition("/")[0] for entry in how.shown] == ["rdma-memory"], "not what it said as we stopped it"


def test_a_second_stop_ends_the_settling(tmp_path: Path) -> None:
    with gang(tmp_path, "import time\n" + SLEEP) as made:
        made.gang.launch(order(1))
        made.ready()
        made.gang.stop(stop_order(GRACE_S, settle_s=GRACE_S))
        made.gang.stop(stop_order(0.0))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert made.next_fact(facts.RankEnded).exit.by_us


def test_a_script_stuck_in_c_code_is_stopped_without_waiting_for_the_grace(tmp_path: Path) -> None:
    script = "import ctypes\n" + READY + "ctypes.PyDLL(None).pause()\n"  # with the interpreter lock held
    with gang(tmp_path, script) as made:
        made.gang.launch(order(1))
        made.ready()
        asked_at = boottime()
        made.gang.stop(stop_order(GRACE_S))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert boottime() - asked_at < NO_GRACE_S


def test_a_handler_of_the_scripts_own_gets_its_grace_and_no_more(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import signal
        def save(*_):
            time.sleep(0.5)
            pathlib.Path('saved').write_text('x')
            if len(sys.argv) == 1: sys.exit(9)
        assert signal.signal(signal.SIGTERM, save) is signal.SIG_DFL
    """)
    with gang(tmp_path, script + READY + "while True: time.sleep(0.05)\n") as made:
        made.gang.launch(order(1))
        made.ready()
        made.gang.stop(stop_order(grace_s=30))
        assert made.next_fact(facts.RanksStopped).ok
        assert made.next_fact(facts.RankEnded).exit.code == 9
        assert (tmp_path / "saved").exists()
        made.gang.close()
    with gang(tmp_path, script + READY + "while True: time.sleep(0.05)\n", "stay") as made:
        made.gang.launch(order(1, attempt=1))
        until(lambda: "ready" in made.log(1), 20, "ready")
        made.gang.stop(stop_order(grace_s=0.7))
        assert made.next_fact(facts.RanksStopped).ok
        assert made.next_fact(facts.RankEnded).exit.signal == signal.SIGKILL


@pytest.mark.parametrize(("saves", "code"), [(False, None), (True, 9)])
def test_a_handler_that_waits_for_a_rank_that_is_gone_is_cut_short_unless_it_is_there_to_save(
    tmp_path: Path, saves: bool, code: int | None
) -> None:
    script = textwrap.dedent("""
        import signal
        from gangrun.training import step
        if len(sys.argv) > 1: step.save_on_stop()
        def end(*_):
            time.sleep(1.5 if len(sys.argv) > 1 else 600)
            sys.exit(9)
        signal.signal(signal.SIGTERM, end)
    """)
    with gang(tmp_path, script + READY + "while True: time.sleep(0.05)\n", *(["saves"] if saves else [])) as made:
        made.gang.launch(order(1))
        made.ready()
        made.gang.stop(stop_order(GRACE_S, peer_gone_grace_s=0.1))
        assert made.next_fact(facts.RanksStopped).ok
        assert made.next_fact(facts.RankEnded).exit.code == code


def test_the_end_of_a_rank_is_told_although_its_gang_was_let_go_of_meanwhile(tmp_path: Path) -> None:
    with gang(tmp_path, SLEEP) as made:
        (first,) = made.gang.launch(order(1))
        made.ready()
        old = made.gang._gang
        assert old is not None
        with old.told[0]._lock:  # so far comes the thread that tells how the rank ended
            os.kill(first.pid, signal.SIGKILL)
            assert old.ranks[0].ended.wait(20)
            made.gang.launch(order(1, attempt=1))
        assert made.next_fact(facts.RankEnded, which=lambda fact: fact.attempt == 0).exit.signal == signal.SIGKILL


def test_a_stopped_rank_and_a_second_stop_are_killed_at_once(tmp_path: Path) -> None:
    script = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with gang(tmp_path, script + SLEEP) as made:
        ranks = made.gang.launch(order(2))
        made.ready(2)
        os.kill(ranks[0].pid, signal.SIGSTOP)
        until(lambda: made.gang.readings()[0].state == "T", 5, "the state to be seen")
        made.gang.stop(stop_order(GRACE_S))
        assert made.next_fact(facts.RankEnded).exit.rank == 0
        assert lives(ranks[1].pid)
        made.gang.stop(stop_order(grace_s=0))
        assert made.next_fact(facts.RanksStopped).ok
        assert not lives(ranks[1].pid)


def test_the_checkpoint_is_asked_for_first_where_the_script_wants_that(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        from gangrun.training import step
        step.save_on_stop()
        print('ready', flush=True)
        for n in range(100000):
            asked = step.step(n, 0.5)
            if asked.checkpoint: pathlib.Path('saved-' + os.environ['RANK']).write_text(str(n))
            if asked.stop: break
            time.sleep(0.01)
    """)
    with gang(tmp_path, script) as made:
        made.gang.launch(order(2))
        made.ready(2)
        until(lambda: all(r.step > 3 for r in made.gang.readings()), 10, "steps to be read")
        made.gang.stop(stop_order(checkpoint_first=True))
        assert made.next_fact(facts.RanksStopped).ok
        assert [made.next_fact(facts.RankEnded).exit.code for _ in range(2)] == [0, 0]
        assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_script_that_leaves_after_its_save_ends_by_itself_and_one_that_trains_on_is_stopped(
    tmp_path: Path, leaves: bool
) -> None:
    """Without a checkpoint directory nobody sees the save, so what the script does next tells that it is done."""
    script = textwrap.dedent("""
        from gangrun.training import step
        step.hold_requests()
        step.save_on_stop()
        print('ready', flush=True)
        for n in range(100000):
            step.step(n, 0.5)
            if step.should_checkpoint():
                step.checkpoint_saved()
                if len(sys.argv) > 1: break
            time.sleep(0.01)
        time.sleep(1.0)
        pathlib.Path('exported').touch()
    """)
    with gang(tmp_path, script, *(["leave"] if leaves else [])) as made:
        made.gang.launch(order(1))
        made.ready()
        until(lambda: made.gang.readings()[0].step > 3, 10, "steps to be read")
        made.gang.stop(stop_order(checkpoint_first=True, checkpoint_grace_s=GRACE_S))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert (tmp_path / "exported").exists() is leaves


def test_no_descendant_outlives_a_stop_even_one_that_left_group_and_session(tmp_path: Path) -> None:
    with gang(tmp_path, "stray('stray')\n" + SLEEP) as made:
        (rank,) = made.gang.launch(order(1))
        made.ready()
        stray = until(lambda: number_in(tmp_path / "stray"), 5, "the stray")
        os.kill(rank.pid, signal.SIGKILL)
        made.next_fact(facts.RankEnded)
        assert lives(stray)
        made.gang.stop(stop_order())
        assert made.next_fact(facts.RanksStopped).ok
        assert not lives(stray)


def test_the_slate_is_cleaned_and_a_port_found_outside_the_ephemeral_range(tmp_path: Path) -> None:
    with gang(tmp_path, "stray('stray')\n") as made:
        made.gang.launch(order(1))
        made.next_fact(facts.RankEnded)
        stray = until(lambda: number_in(tmp_path / "stray"), 5, "the stray")
        made.gang.prepare(Prepare(1, (1, 3), 1, True))
        slate = made.next_fact(facts.NodePrepared)
        assert slate.ok
        assert not lives(stray)
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        assert not low <= slate.port <= high


def test_dataloader_workers_by_fork_and_by_spawn_go_with_their_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = textwrap.dedent("""
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 1000
            def __getitem__(self, i):
                pathlib.Path(f'worker-{os.getpid()}').touch()
                return torch.zeros(4)
        if __name__ == '__main__':
            torch.multiprocessing.set_sharing_strategy('file_system')
            kept = []
            for method in ('fork', 'spawn'):
                loader = iter(torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context=method))
                kept += [loader, [next(loader) for _ in range(4)]]
            print('ready', flush=True)
            time.sleep(600)
    """)
    with gang(tmp_path, script) as made:
        (rank,) = made.gang.launch(order(1))
        until(lambda: "ready" in made.log(), 40, lambda: made.log())
        workers = [int(path.name.partition("-")[2]) for path in tmp_path.glob("worker-*")]
        assert len(workers) == 4
        assert all(map(lives, workers))
        made.gang.readings()  # as every beat does
        os.kill(rank.pid, signal.SIGKILL)
        made.next_fact(facts.RankEnded)
        stop_at = boottime()
        made.gang.stop(stop_order(GRACE_S))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert boottime() - stop_at < NO_GRACE_S
        assert not any(map(lives, workers))
        assert not [
            n for n in os.listdir("/dev/shm") if n.startswith(tuple(f"torch_{pid}_" for pid in (*workers, rank.pid)))
        ]


def test_stacks_name_the_frame_or_say_why_there_is_none(tmp_path: Path) -> None:
    script = "def wait_here():\n    print('ready', flush=True)\n    time.sleep(600)\nwait_here()\n"
    with gang(tmp_path, script) as made:
        ranks = made.gang.launch(order(2))
        made.ready(2)
        os.kill(ranks[1].pid, signal.SIGSTOP)
        until(lambda: made.gang.readings()[1].state == "T", 5, "stopped")
        asked_at = boottime()
        made.gang.take_stacks(Stacks(1, (1, 4), 0), within_s=GRACE_S)
        first, second = made.next_fact(StacksTaken, NO_GRACE_S).stacks
        assert boottime() - asked_at < NO_GRACE_S, "a stopped rank is not waited for"
        assert first.frame.endswith("in wait_here")
        assert first.frame.startswith("script.py:")
        assert "is stopped" in second.frame
        assert "in wait_here" in Path(first.path).read_text()


def test_a_command_that_is_not_python_runs_as_it_is(tmp_path: Path) -> None:
    command = ("sh", "-c", 'echo "$RANK of $WORLD_SIZE $0 $1"; echo "it\'s; $(odd)\n" >&2; sleep 600', "a b", "$(c)")
    with harness(Harness(tmp_path, command, through_boot=False)) as made:
        (rank,) = made.gang.launch(order(1))
        until(lambda: "[n0:rank0] 0 of 1 a b $(c)" in made.log(), 10, lambda: made.log())
        until(lambda: made.gang.readings()[0].state == "S", 5, "its state")
        made.gang.take_stacks(Stacks(1, (1, 4), 0), within_s=1)
        assert "no Python stack" in made.next_fact(StacksTaken).stacks[0].frame
        asked_at = boottime()
        made.gang.stop(stop_order(GRACE_S))
        assert made.next_fact(facts.RanksStopped, NO_GRACE_S).ok
        assert boottime() - asked_at < NO_GRACE_S
        assert not lives(rank.pid)


@pytest.mark.parametrize("lives_for", [0, 1, 2])
def test_a_lease_that_ends_between_two_forks_leaves_nothing(tmp_path: Path, lives_for: int) -> None:
    """A fork takes as long as the working directory's file system stands still: before each, and after the last."""
    leases = iter([True] * lives_for + [False])
    with gang(tmp_path, SLEEP) as made:
        with pytest.raises(LaunchError, match="the lease ended while ranks were being started"):
            made.gang.launch(order(2), lambda: next(leases))
        assert made.gang.live() == ()
        assert not made.gang._family.find(())


def test_a_launch_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    with gang(tmp_path, SLEEP, working_directory=str(tmp_path / "not there")) as made:
        with pytest.raises(LaunchError, match="rank 0 could not be started"):
            made.gang.launch(order(2))
        assert made.gang.live() == ()
    with harness(Harness(tmp_path, ("no-such-command",), through_boot=False)) as made:
        made.gang.launch(order(1, attempt=1))
        assert made.next_fact(facts.RankEnded).exit.code == 127
        until(lambda: "cannot run no-such-command: No such file or directory" in made.log(1), 5, "the reason")


COLLECTIVES = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("ready", flush=True)
while True:
    time.sleep(0.2)
    if sys.argv[1] == "all":
        dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_the_kernel_kills_for_memory_is_told_with_the_limit_and_who_held_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup" / "job"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/job\n")
    group.mkdir(parents=True)
    (group / "memory.max").write_text("2000000000\n")
    (group / "memory.events").write_text("oom_kill 0\n")
    monkeypatch.setattr(gang_part, "NodeRoom", partial(NodeRoom, proc, group.parent))
    monkeypatch.setattr(gang_part, "OomCounter", partial(OomCounter, proc / "self" / "cgroup", group.parent))
    with gang(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n") as made:
        made.gang.launch(order(2))
        made.ready(2)
        made.gang.readings()
        (group / "memory.events").write_text("oom_kill 1\n")
        running = made.gang._gang
        assert running is not None
        os.kill(running.ranks[1].proc.pid, signal.SIGKILL)
        how = made.next_fact(facts.RankEnded).exit
    assert how.oom_kill and re.fullmatch(
        r"\d+ s before, of 2 GB allowed, rank \d held \S+ GB, rank \d held \S+ GB", how.memory
    ), how.memory


@pytest.mark.parametrize("who", ["all", "nobody"])
def test_a_rank_moves_only_if_it_issues_collectives(tmp_path: Path, who: str) -> None:
    """Which keeps a silent gang from being called hung. A loop that waits for something may wait for ever."""
    with gang(tmp_path, COLLECTIVES, who) as made:
        made.gang.launch(order(2, master_port=free_port((), random.Random(7))))
        made.ready(2)
        moved, seen_since = set[int](), set[int]()

        def seen_often() -> bool:
            samples = made.gang.readings()
            moved.update(one.rank for one in samples if one.moves)
            running = made.gang._gang
            assert running is not None
            looks = [look_at(running.ranks[one.rank], one, CpuDemand(), now_ns()) for one in samples]
            if all(look is not None and look.counts for look in looks):  # the samplers know of the process group
                seen_since.add(sum(look.looks[0] for look in looks if look is not None))
            return len(seen_since) > 10

        until(seen_often, 60, "samplers that see a process group, again and again")
        assert moved == ({0, 1} if who == "all" else set())
