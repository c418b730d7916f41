"""Standbys: a rank that waited as one is like a rank that was started cold, and a node with standbys is empty."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gangrun.agent.brain import facts
from gangrun.agent.ranks import gang_part, standby
from gangrun.agent.ranks.environment import is_set_at_launch
from gangrun.agent.ranks.standby import Child, SharedImports, Standbys, WarmRank, free_memory_share
from gangrun.agent.ranks.stop import free_port, listens
from gangrun.node import boot
from gangrun.node.processes import process_table
from gangrun.wire.messages import Prepare
from tests.local_parts.gang import Harness, boottime, gang, harness, lives, order, stop_order
from tests.local_parts.test_boot import ENDINGS, POOLS, environ, place, run
from tests.waiting import until

__all__ = ["place"]
MODULE = "import time\nAT = time.monotonic()\n"  # what a rank imports; AT tells whether a standby did it before


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "QUIET_S", 0.0)
    monkeypatch.setattr(standby, "AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(standby, "FETCH_EVERY_S", 0.0)
    monkeypatch.setattr(gang_part, "SPARE_AFTER_S", 0.0)


class Node:
    """Standbys of one rank, with installed packages of its own."""

    def __init__(self, place: Path, argv: tuple[str, ...], **variables: str) -> None:
        self.place, self.site = place, place / "lib" / "site-packages"
        self.site.mkdir(parents=True, exist_ok=True)
        self.argv = [sys.executable, boot.__file__, *argv]
        self.imports = imports = place / "imports"
        path = os.pathsep.join(filter(None, [str(self.site), os.environ.get("PYTHONPATH", "")]))
        self.environment = environ(place, PYTHONPATH=path, GANGRUN_IMPORTS_FILE=str(imports), **variables)
        self.wanted = {0: WarmRank(self.argv, self.environment, imports, "run:n0:standby:0")}
        self.said: list[str] = []
        self.pool = Standbys("n0", self.spawn, boottime, self.said.append)

    def install(self, name: str, text: str) -> None:
        (self.site / f"{name}.py").write_text(textwrap.dedent(text))

    def spawn(self, argv: list[str], environment: Mapping[str, str], fds: tuple[int, ...] = ()) -> Child:
        return subprocess.Popen(
            argv, env=environment, cwd=self.place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, pass_fds=fds,
        )  # fmt: skip

    def cold(self, **variables: str) -> tuple[int, str, str]:
        """Run it as it is; it learns."""
        return _end_of(self.spawn(self.argv, {**self.environment, **variables}))

    def get_ready(self) -> bool:
        """Tend until the standby is ready; False if nothing may be imported."""
        until(self._is_settled, 60, "a standby")
        return bool(self.pool._standbys)

    def _is_settled(self) -> bool:
        self.pool.tend(self.wanted)
        ready = any(one.ready for one in self.pool._standbys.values())
        return ready or not self.pool._learnt[0].usable()

    def warm(self, *more: str, **variables: str) -> tuple[int, str, str] | None:
        """Let the standby become the rank of the next attempt; None if the node would start it cold."""
        child = self.pool.take(0, [*self.argv, *more], {**self.environment, **variables}, str(self.place))
        return None if child is None else _end_of(child)


def _end_of(child: Child) -> tuple[int, str, str]:
    assert isinstance(child, subprocess.Popen)
    out, err = child.communicate(timeout=300)
    return child.returncode, out.decode(), err.decode().replace("Exception in thread Thread-", "Exception in thread ")


@contextmanager
def node(place: Path, *argv: str, **variables: str) -> Iterator[Node]:
    made = Node(place, argv, **variables)
    try:
        yield made
    finally:
        made.pool.close()


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_cannot_tell_that_it_was_awaited(place: Path, ending: str) -> None:
    with node(place, "script.py", ending) as made:
        made.install("tool", MODULE)
        made.imports.write_text(_line("tool", made))
        assert made.get_ready()
        assert made.warm() == run(place, "script.py", ending, booted=False)
        if ending.startswith("raise ValueError"):
            assert json.loads((place / "error.json").read_text())["type"] == "ValueError"


@pytest.mark.parametrize(
    "argv", [("-m", "script", POOLS), ("-m", "package"), ("package", "sys.exit(3)"), ("broken.py",), ("-m", "missing")]
)
def test_nor_can_modules_packages_and_broken_files(place: Path, argv: tuple[str, ...]) -> None:
    with node(place, *argv) as made:
        made.install("tool", MODULE)
        made.imports.write_text(_line("tool", made))
        assert made.get_ready()
        warm, plain = made.warm(), run(place, *argv, booted=False)
        assert warm is not None
        assert (warm[0], warm[1]) == (plain[0], plain[1])
        assert warm[2].splitlines()[-1:] == plain[2].splitlines()[-1:]


def _line(name: str, made: Node) -> str:
    return json.dumps([name, str((made.site / f"{name}.py").resolve()), {}]) + "\n"


@pytest.mark.parametrize("more", ["", "\nimport gc\ngc.disable()\ngc.set_threshold(5, 6, 7)"])
def test_all_variables_words_and_open_files_are_those_of_a_cold_start(place: Path, more: str) -> None:
    seen = """
        import gc, json, os, signal, sys, tool, tail
        links = sorted(os.path.basename(os.readlink(f"/proc/self/fd/{n}")).split(":")[0] for n in range(256)
                       if os.path.exists(f"/proc/self/fd/{n}"))
        masks = [line for line in open("/proc/self/status") if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]
        names = sorted(name for name in sys.modules if name.startswith(("tool", "tail", "_gangrun")))
        print(json.dumps([dict(os.environ), sys.argv, getattr(sys, "orig_argv", 0), sys.path, os.getcwd(), links,
                          masks, names, sys.flags.optimize, gc.isenabled(), gc.get_threshold(),
                          os.getsid(0) == os.getsid(os.getppid())]))
        print(sys.argv[1:], tool.AT > float(os.environ["GANGRUN_LAUNCHED"]), file=sys.stderr)
    """
    (place / "seen.py").write_text(textwrap.dedent(seen))
    with node(place, "seen.py", "--first", GANGRUN_LAUNCHED="0") as made:
        made.install("tool", MODULE + more)
        made.install("tail", "")
        made.cold()
        assert made.get_ready()
        made.pool._standbys[0].environment = made.environment
        later = {
            "GANGRUN_LAUNCHED": str(time.monotonic()), "MASTER_PORT": "41", "GANGRUN_RESUME": "/ckpt/step-4",
            "GANGRUN_SIGNALS_FILE": str(place / "signals-of-1"), "GANGRUN_STACK_FILE": str(place / "stack-of-1"),
        }  # fmt: skip
        warm = made.warm("--resume", **later)
        made.argv.append("--resume")
        cold = made.cold(**later)
    assert warm is not None
    assert (warm[0], json.loads(warm[1])) == (0, json.loads(cold[1]))
    assert [warm[2], cold[2]] == ["['--first', '--resume'] False\n", "['--first', '--resume'] True\n"]


HAZARDS = {
    "a plain module": ("import tool", MODULE, True),
    "a variable is read that no launch sets": ("import tool", MODULE + "import os\nos.getenv('HOME')", True),
    "the attempt is read at import": ("import tool", MODULE + "import os\nos.environ.get('MASTER_PORT')", False),
    "all variables are read at import": ("import tool", MODULE + "import os\ndict(os.environ)", False),
    "the script sets a variable first": ("import os; os.environ['OMP_NUM_THREADS'] = '3'; import tool", MODULE, False),
    "a module sets a variable itself": ("import tool, tail", MODULE + "import os\nos.environ['LATER'] = '1'", True),
    "the module starts a thread": (
        "import tool", MODULE + "import threading\nthreading.Timer(9, print).start()",
        False,
    ),
    "the module starts a process": (
        "import tool", MODULE + "import subprocess\nCHILD = subprocess.Popen(['sleep', '1'])", False,
    ),
    "the module imports the user's own code": ("import tool", MODULE + "import own", False),
    "the module ends the process": ("import tool", MODULE + "import os\nif 'ports' not in os.environ: exit(0)", False),
}  # fmt: skip


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_module_is_imported_beforehand_only_if_nobody_can_tell(place: Path, hazard: str) -> None:
    first, module, is_early = HAZARDS[hazard]
    (place / "script.py").write_text(f"{first}\nimport os\nprint(tool.AT < float(os.environ['GANGRUN_LAUNCHED']))\n")
    (place / "own.py").write_text("")
    with node(place, "script.py", ports="1") as made:
        made.install("tool", module)
        made.install("tail", "")
        made.install("last", "")
        (place / "script.py").write_text((place / "script.py").read_text() + "import tail, last\n")
        made.cold(GANGRUN_LAUNCHED="0")
        if "ends the process" in hazard:
            del made.environment["ports"]
        made.get_ready()
        ended = made.warm(GANGRUN_LAUNCHED=str(time.monotonic()), MASTER_PORT="42")
        assert ended is None or ended[:2] == (0, f"{is_early}\n"), ended
        assert not (is_early and ended is None)


def test_a_module_that_is_only_asked_for_is_not_imported(place: Path) -> None:
    (place / "script.py").write_text(
        "import importlib.util, sys, tool\nimportlib.util.find_spec('other')\nimport tail\n"
    )
    with node(place, "script.py") as made:
        for name in ("tool", "other", "tail"):
            made.install(name, "import sys\n")
        made.cold()
        assert made.get_ready()
        assert list(made.pool._learnt[0].modules) == ["tool"]


def test_a_standby_is_stale_once_packages_or_variables_have_changed(place: Path) -> None:
    (place / "script.py").write_text(
        "import tool, tail\nimport os\nprint(tool.AT < float(os.environ['GANGRUN_LAUNCHED']))\n"
    )
    with node(place, "script.py", OMP_NUM_THREADS="1") as made:
        made.install("tool", MODULE)
        made.install("tail", "")
        made.cold(GANGRUN_LAUNCHED="0")
        assert made.get_ready()
        made.install("newer", "")
        assert made.warm(GANGRUN_LAUNCHED=str(time.monotonic())) == (0, "False\n", ""), "it begins anew by exec"
        assert made.get_ready()
        assert made.warm(GANGRUN_LAUNCHED="0", OMP_NUM_THREADS="2") is None
        assert not made.pool._standbys, "no launch will want it"
    assert not is_set_at_launch("CUDA_VISIBLE_DEVICES")
    assert is_set_at_launch("RANK") and is_set_at_launch("GANGRUN_RESUME")


def _is_held_up(pid: int) -> bool:
    return process_table()[pid].state in "ZT"


def _has_ended(pid: int) -> bool:
    return not lives(pid)


def test_a_standby_that_was_killed_or_stopped_is_not_used_and_is_replaced(place: Path) -> None:
    with node(place, "script.py") as made:
        made.install("tool", MODULE)
        made.imports.write_text(_line("tool", made))
        for number in (signal.SIGKILL, signal.SIGSTOP):
            assert made.get_ready()
            (pid,) = made.pool.pids
            os.kill(pid, number)
            until(partial(_is_held_up, pid), 10, "the signal")
            assert made.warm() is None
            until(partial(_has_ended, pid), 10, "its end")
        assert made.get_ready()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            os.kill(made.pool.pids[0], number)  # a scheduler sprays them: no rank may die of it later
        assert made.warm() is not None
        signals = Path(made.environment["GANGRUN_SIGNALS_FILE"])
        assert not signals.stat().st_size, "what came to the standby was not meant for the rank"


def test_memory_that_is_short_ends_standbys_until_enough_is_free(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)

    def free(kilobytes: int) -> None:
        (root / "proc/meminfo").write_text(f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {kilobytes} kB\n")
        made.pool._memory_at = float("-inf")

    with node(place, "script.py") as made:
        made.pool._root = root
        made.install("tool", MODULE)
        made.imports.write_text(_line("tool", made))
        free(500)
        assert made.get_ready()
        (pid,) = made.pool.pids
        free(99)
        made.pool.tend(made.wanted)
        until(lambda: not lives(pid), 10, "its end")
        free(150)  # no standby comes and goes with each megabyte
        made.pool.tend(made.wanted)
        assert not made.pool._standbys
        (said,) = made.said
        assert said.startswith("10% of the memory on n0 is free: no standby is kept")
        free(201)
        assert made.get_ready()


def test_the_limit_of_a_cgroup_counts_too(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/job/step"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    assert free_memory_share(tmp_path) == 1.0
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n")
    assert free_memory_share(tmp_path) == 0.9
    (group.parent / "memory.max").write_text("1000\n")
    (group.parent / "memory.current").write_text("950\n")
    (group.parent / "memory.stat").write_text("anon 650\ninactive_file 200\n")
    (group / "memory.max").write_text("max\n")
    assert free_memory_share(tmp_path) == 0.25


# ---- with the ranks of a node ---------------------------------------------------------------------------------------

WAITS = "import time, msgspec, click\nprint('ready', flush=True)\ntime.sleep(600)\n"


def _warm_up(made: Harness, ranks_count: int) -> tuple[int, ...]:
    def ready() -> bool:
        made.gang.tend_standbys(True)
        return [one.ready for one in made.gang._standbys._standbys.values()] == [True] * ranks_count

    until(ready, 60, "standbys")
    return made.gang._standbys.pids


def test_a_node_with_standbys_is_empty_and_the_next_attempt_uses_them(tmp_path: Path) -> None:
    with gang(tmp_path, WAITS, warm=True) as made:
        made.gang.launch(order(2))
        made.ready(2)
        waiting = _warm_up(made, 2)
        made.gang.stop(stop_order(0))
        assert made.next_fact(facts.RanksStopped).ok
        made.gang.prepare(Prepare(1, (1, 2), 1, True))
        assert made.next_fact(facts.NodePrepared).ok
        assert all(map(lives, waiting))
        ranks = made.gang.launch(order(2, attempt=1))
        assert {rank.pid for rank in ranks} == set(waiting) and made.gang._standbys.pids == ()
        until(lambda: made.log(1).count("ready\n") == 2, 20, lambda: made.log(1))
        assert {proc.pid for proc in made.gang._family.find(())} >= set(waiting), "they are ranks now"
        os.kill(ranks[0].pid, signal.SIGSEGV)
        assert made.next_fact(facts.RankEnded, which=lambda fact: not fact.exit.by_us).exit.signal == signal.SIGSEGV
        waiting = made.gang._standbys.pids
        made.gang.kill_now()
        until(lambda: not any(map(lives, waiting)), 10, "the end of the standbys")


MEETS = """
import os, socket, time, msgspec
port = int(os.environ["MASTER_PORT"])
print("ready", flush=True)
if os.environ["RANK"] == "0":
    time.sleep(0.5)  # what a script does before it opens the store
    store = socket.socket()
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind(("127.0.0.1", port))
    store.listen()
    print("listens", flush=True)
else:
    print("refused" if socket.socket().connect_ex(("127.0.0.1", port)) else "met", flush=True)
time.sleep(600)
"""


def test_rank_0_listens_before_the_others_wake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a client of torch's store that is refused waits for most of a second before it asks again."""
    monkeypatch.setattr(gang_part, "LISTENS_WITHIN_S", 20.0)  # however busy the machine is
    port = free_port((), random.Random(os.getpid()))
    with gang(tmp_path, MEETS, warm=True) as made:
        made.gang.launch(order(3, master_port=port))
        made.ready(3)
        _warm_up(made, 3)
        made.gang.stop(stop_order(0))
        assert made.next_fact(facts.RanksStopped).ok
        made.gang.prepare(Prepare(1, (1, 2), 1, True))
        assert made.next_fact(facts.NodePrepared).ok
        made.gang.launch(order(3, attempt=1, master_port=port))
        until(lambda: made.log(1).count("met\n") + made.log(1).count("refused\n") == 2, 20, lambda: made.log(1))
        assert "refused" not in made.log(1)


def test_rank_0_listens_before_its_node_says_that_it_has_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks are on other nodes, and wake once this one has answered."""
    monkeypatch.setattr(gang_part, "LISTENS_WITHIN_S", 20.0)
    port = free_port((), random.Random(os.getpid()))
    with gang(tmp_path, MEETS, warm=True) as made:
        made.gang.launch(order(1, world_size=2, nodes_count=2, master_port=port))
        made.ready()
        _warm_up(made, 1)
        made.gang.stop(stop_order(0))
        assert made.next_fact(facts.RanksStopped).ok
        made.gang.launch(order(1, world_size=2, nodes_count=2, attempt=1, master_port=port))
        assert listens(port)


@pytest.mark.parametrize("changes", [{"warm": False}, {"warm": True, "per_node": True}, {"warm": True, "may": False}])
def test_no_standby_is_kept_where_none_is_wanted(tmp_path: Path, changes: dict[str, bool]) -> None:
    may = changes.get("may", True)
    with gang(tmp_path, WAITS, **{name: value for name, value in changes.items() if name != "may"}) as made:
        (rank,) = made.gang.launch(order(1))
        made.ready()
        for _ in range(3):
            made.gang.tend_standbys(may)
            assert made.gang._standbys.pids == ()
        os.kill(rank.pid, signal.SIGKILL)
        made.next_fact(facts.RankEnded)


# ---- on a spare ------------------------------------------------------------------------------------------------------


@contextmanager
def spare(directory: Path, **changes: Any) -> Iterator[Harness]:
    """Another node of the run, without ranks."""
    directory.mkdir()
    command = (str(directory.parent / "n0" / "script.py"),)
    with harness(Harness(directory, command, node="n1", warm=True, **changes)) as made:
        yield made


def test_a_spare_learns_from_a_node_with_ranks_and_starts_them_warm(tmp_path: Path) -> None:
    imports = tmp_path / "imports.json"
    shared: dict[str, Any] = {"shared_imports": imports, "working_directory": str(tmp_path)}
    (tmp_path / "n0").mkdir()
    with gang(tmp_path / "n0", WAITS, warm=True, **shared) as holder, spare(tmp_path / "n1", **shared) as made:
        made.gang.tend_standbys(True)
        assert made.gang._standbys.pids == (), "nobody has told it yet what to import"
        holder.gang.launch(order(2, nodes_count=1))
        holder.ready(2)

        def told() -> bool:
            holder.gang.tend_standbys(True)
            return imports.exists()

        until(told, 60, "the list of imports")
        waiting = _warm_up(made, 2)
        made.gang.prepare(Prepare(1, (1, 2), 1, True))
        assert made.next_fact(facts.NodePrepared).ok, "a spare with standbys is empty"
        ranks = made.gang.launch(order(2, attempt=1, world_size=4, ranks=(2, 3), node_rank=1, nodes_count=2))
        assert {rank.pid for rank in ranks} == set(waiting)
        log = tmp_path / "n1/run/logs/1/n1.log"
        until(lambda: log.exists() and log.read_text().count("ready\n") == 2, 20, "ranks on the spare")


def test_only_a_node_that_does_not_hold_rank_0_tells_what_ranks_import(tmp_path: Path) -> None:
    shared = tmp_path / "imports.json"
    (tmp_path / "n0").mkdir()
    with gang(tmp_path / "n0", WAITS, warm=True, shared_imports=shared) as made:
        made.gang.launch(order(1, world_size=2, nodes_count=2))
        made.ready()
        _warm_up(made, 1)
        assert made.gang._standbys.news() and not shared.exists()


def test_a_node_whose_ranks_have_just_ended_is_no_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_part, "SPARE_AFTER_S", 3600.0)
    shared = tmp_path / "imports.json"
    shared.write_text(json.dumps([[["click", "/nowhere/click.py", {}]]]))
    with spare(tmp_path / "n1", shared_imports=shared, working_directory=str(tmp_path)) as made:
        for _ in range(3):
            made.gang.tend_standbys(True)
        assert made.gang._standbys.pids == () and made.gang._shared is not None and made.gang._shared.lists == []


@pytest.mark.parametrize("text", ["", "[[[1]]]", "{}", "[[", "[[]]"])
def test_a_damaged_list_of_imports_leaves_a_spare_cold(tmp_path: Path, text: str) -> None:
    shared = tmp_path / "imports.json"
    shared.write_text(text)
    with spare(tmp_path / "n1", shared_imports=shared, working_directory=str(tmp_path)) as made:
        made.gang.tend_standbys(True)
        shared_list = made.gang._shared
        assert shared_list is not None
        until(lambda: not shared_list._busy, 20, "the list to be read")
        made.gang.tend_standbys(True)
        assert made.gang._standbys.pids == ()


def test_a_list_is_read_anew_only_if_it_is_another_one(tmp_path: Path) -> None:
    one, other = SharedImports(tmp_path / "imports.json"), SharedImports(tmp_path / "imports.json")
    one.publish([[("torch", "/site/torch/__init__.py", {"A": "b"})]])
    until(lambda: not one._busy, 20, "the list to be written")
    other.fetch(0.0)
    until(lambda: not other._busy, 20, "the list to be read")
    first = other.lists
    assert first == [[("torch", "/site/torch/__init__.py", {"A": "b"})]]
    other.fetch(20.0)
    until(lambda: not other._busy, 20, "the list to be looked at")
    assert other.lists is first
    assert os.listdir(tmp_path) == ["imports.json"]


def test_a_list_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "imports.json").mkdir()  # cannot be replaced by a file
    told = SharedImports(tmp_path / "imports.json")
    told.publish([[("torch", "/site/torch/__init__.py", {})]])
    until(lambda: not told._busy, 20, "the list to be given up")
    assert os.listdir(tmp_path) == ["imports.json"]
