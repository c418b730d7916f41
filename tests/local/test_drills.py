"""``gangrun chaos`` on real processes: faults that are noticed and scored, and nothing that stays, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gangrun.adapters.local.played_world import PlayedClock
from gangrun.checkpoint.formats.manifest import verify
from gangrun.core.model import Level
from gangrun.launch.chaos.own_run import SAMPLE
from gangrun.launch.chaos.strike import SIGNAL_THERE
from gangrun.node.processes import host_name
from tests.faults.inject import gangrun
from tests.local.evidence import alive
from tests.local.harness import Box
from tests.waiting import until

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STAYS = """
import time
time.sleep(600)
"""
# A gang on gloo that saves nothing: all its steps are lost when it starts again.
GLOO = """
import time
import torch
import torch.distributed as dist
import gangrun
dist.init_process_group("gloo")
step = 0
while True:
    seen = torch.ones(1000)
    dist.all_reduce(seen)
    assert int(seen[0]) == dist.get_world_size()
    gangrun.step(step)
    step += 1
    time.sleep(0.05)
"""
# Root without rights, who may read what root may read: with user namespaces an ordinary user.
ORDINARY = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []


# Prints how long each kind of wait for a fifth of a second took, by CLOCK_MONOTONIC.
WAITS = r"""
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <time.h>
#define WAIT(clock, call) { struct timespec at, a, b; clock_gettime(clock, &at); at.tv_nsec += 200000000; \
    if (at.tv_nsec >= 1000000000) { at.tv_sec++; at.tv_nsec -= 1000000000; } clock_gettime(CLOCK_MONOTONIC, &a); \
    call; clock_gettime(CLOCK_MONOTONIC, &b); \
    printf("%s %.3f\n", #call, b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) / 1e9); }
int main(void) {
    sem_t sem;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER, steady;
    pthread_condattr_t kind;
    sem_init(&sem, 0, 0);
    pthread_condattr_init(&kind);
    pthread_condattr_setclock(&kind, CLOCK_MONOTONIC);
    pthread_cond_init(&steady, &kind);
    pthread_mutex_lock(&mutex);
    WAIT(CLOCK_REALTIME, sem_timedwait(&sem, &at))
    WAIT(CLOCK_REALTIME, sem_clockwait(&sem, CLOCK_REALTIME, &at))
    WAIT(CLOCK_MONOTONIC, sem_clockwait(&sem, CLOCK_MONOTONIC, &at))
    WAIT(CLOCK_REALTIME, pthread_cond_timedwait(&cond, &mutex, &at))
    WAIT(CLOCK_MONOTONIC, pthread_cond_timedwait(&steady, &mutex, &at))
    WAIT(CLOCK_REALTIME, pthread_cond_clockwait(&cond, &mutex, CLOCK_REALTIME, &at))
    WAIT(CLOCK_MONOTONIC, pthread_cond_clockwait(&cond, &mutex, CLOCK_MONOTONIC, &at))
    WAIT(CLOCK_REALTIME, pthread_mutex_timedlock(&mutex, &at))
    WAIT(CLOCK_REALTIME, clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &at, NULL))
    WAIT(CLOCK_MONOTONIC, clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL))
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("clock_gettime %ld\ntime %ld\n", (long)now.tv_sec, (long)time(NULL));
    return 0;
}
"""


@pytest.fixture
def place(box: Box, tmp_path: Path) -> Box:
    """A box whose drills keep their folders where nobody else has any."""
    (tmp_path / "t").mkdir()
    box.environment["TMPDIR"] = str(tmp_path / "t")
    (tmp_path / "memory").mkdir()
    box.environment["GANGRUN_LOCAL_DIR"] = str(tmp_path / "memory")
    return box


def drilled(box: Box, *words: str, code: int = 0) -> list[dict]:
    """The drills of ``gangrun chaos --local --json``."""
    done = box.gangrun("chaos", "--local", "--json", *words, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["holds"] == (code == 0)
    drills: list[dict] = answer["drills"]
    return drills


def as_ordinary_user(box: Box, *words: str) -> list[dict]:
    """The drills of this command, which hold, by a user without rights."""
    done = subprocess.run(
        [*ORDINARY, *gangrun(box.environment), *words], cwd=box.work, env=box.environment, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    drills: list[dict] = json.loads(done.stdout)["drills"]
    return drills


def nothing_left(box: Box) -> None:
    until(lambda: not box.left(), 20, lambda: f"no process is left: {box.left()}")
    assert not list(Path(box.environment["TMPDIR"]).glob("gangrun-drill-*"))
    assert "gangrun-drill" not in Path("/proc/self/mounts").read_text()
    assert not list((box.folder / "state").rglob("*-*-*.json")), "no run is left in the index"
    assert not list(Path(box.environment["GANGRUN_LOCAL_DIR"]).glob("*/*")), "no small files of its ranks are left"


def test_ranks_that_die_are_noticed_judged_and_started_again_and_nothing_stays(place: Box) -> None:
    kill, segfault = drilled(place, "--kind", "kill-rank", "--kind", "segfault-rank", "--seed", "3")
    assert (kill["concluded"], segfault["concluded"]) == ("killed", "signal")
    for one in (kill, segfault):
        assert one["nodes"] == [one["node"]] and one["node"].startswith(f"{host_name()}-")
        assert 0 <= one["noticed_s"] <= one["recovery_s"] <= 60
        assert (one["orphans"], one["leaked_allocations"]) == (0, 0)
    nothing_left(place)


def test_an_sla_that_is_missed_is_exit_code_1_and_a_page(place: Box) -> None:
    """A script of one's own that reports no step: it has recovered when all ranks run."""
    plan, page = place.folder / "plan.toml", place.folder / "drill.html"
    plan.write_text('[[drill]]\nkind = "kill-rank"\nrank = 2\nsla = { recovery = "0.001s", steps_lost = 0 }\n')
    script = str(place.script(STAYS))
    words = ["--plan", str(plan), "--html", str(page), "--", script]
    done = place.gangrun("chaos", "--local", *words, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the SLA was missed by 1 of seed 0, 1 drill" in done.stdout
    assert "! drill 1, kill-rank: recovery is " in done.stdout
    assert "SLA MISSED" in page.read_text() and "was killed by SIGKILL (9)" in page.read_text()
    nothing_left(place)


@pytest.mark.parametrize("kind", ["full-disk", "stalled-disk"])
def test_a_disk_of_ones_own_fails_in_a_mount_that_nobody_else_sees_and_is_whole_again(place: Box, kind: str) -> None:
    (one,) = drilled(place, "--kind", kind)
    assert one["concluded"] == "storage stalled" and one["recovery_s"] > 10
    nothing_left(place)


@pytest.mark.parametrize("kind", ["cut", "cut-one-way", "latency", "power-off"])
def test_an_ordinary_user_cuts_and_slows_a_network_that_real_collectives_use(place: Box, kind: str) -> None:
    plan = place.folder / "plan.toml"
    limits = 'noticed = "5s", recovery = "10s"' if kind == "latency" else "steps_lost = 100000"
    plan.write_text(f'[[drill]]\nkind = "{kind}"\nsla = {{ {limits} }}\n')
    words = ("chaos", "--local", "--json", "--plan", str(plan), "--", str(place.script(GLOO)))
    (one,) = as_ordinary_user(place, *words)
    if kind == "latency":
        assert one["concluded"] in ("nothing", "node suspected") and one["done"].endswith("delayed by 0.5 s")
    else:
        assert (one["concluded"], one["nodes"]) == ("node silent", [one["node"]])
        assert one["noticed_s"] < one["recovery_s"] < 60
    assert (one["orphans"], one["leaked_allocations"]) == (0, 0)
    nothing_left(place)


def test_the_check_of_ports_finds_the_one_that_goes_down_and_its_host_alone_is_left_out(place: Box) -> None:
    """The script has ranks that use torch. Gloo takes no InfiniBand, so it is the check that ends the attempt."""
    plan = place.folder / "plan.toml"
    plan.write_text('[[drill]]\nkind = "ib-down"\nsla = { steps_lost = 100000 }\n')
    words = ("chaos", "--local", "--json", "--plan", str(plan), "--", str(place.script(GLOO)))
    (one,) = as_ordinary_user(place, *words)
    assert one["done"] == f"InfiniBand port 1 of mlx5_0 on {one['node']} taken down"
    assert (one["concluded"], one["nodes"]) == ("hardware", [one["node"]])
    assert "mlx5_0 port 1 is 1: DOWN, and was last seen ACTIVE" in one["sentence"]
    assert one["noticed_s"] < 25 < one["recovery_s"] < 60, "it is told of at once, and has 30 s to come back"
    assert (one["orphans"], one["leaked_allocations"]) == (0, 0)
    nothing_left(place)


def test_a_port_that_counts_errors_and_stays_up_is_told_of_and_no_host_is_left_out(place: Box) -> None:
    program = [sys.executable, str(Path(__file__).with_name("counting_port.py"))]
    done = subprocess.run(
        [*ORDINARY, *program], cwd=place.work, env={**place.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["told"] == {"ib_flaps": [found["node"]], "ib_errors": [found["node"]]}
    assert (found["phase"], found["attempt"], found["excluded"]) == ("RUNNING", 0, []), "it was not started again"
    assert found["steps"] >= 40, "it trains on"
    nothing_left(place)


def test_a_supervisor_that_is_cut_off_is_replaced_and_takes_no_other_host_for_lost(place: Box) -> None:
    plan, host = place.folder / "plan.toml", f"{host_name()}-0"  # the first supervisor is there
    plan.write_text(f'[[drill]]\nkind = "cut"\nnode = "{host}"\n')
    (one,) = drilled(place, "--plan", str(plan))
    assert (one["concluded"], one["nodes"]) == ("node silent", [host])
    nothing_left(place)


def test_the_host_of_the_supervisor_is_not_stopped(place: Box) -> None:
    plan, host = place.folder / "plan.toml", f"{host_name()}-0"
    plan.write_text(f'[[drill]]\nkind = "stop-node"\nnode = "{host}"\n')
    done = place.gangrun("chaos", "--local", "--plan", str(plan), check=False)
    assert done.returncode == 2 and f"{host}: the supervisor is there; name another host" in done.stderr, done.stderr
    nothing_left(place)


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("mount -t tmpfs none /dev/net", "/dev/net/tun: No such file or directory"),
        ("echo 0 > /proc/sys/user/max_net_namespaces", "unshare: No space left on device"),
    ],
)
def test_where_users_get_no_network_a_cut_is_refused_before_anything_starts(place: Box, missing: str, why: str) -> None:
    command = [*gangrun(place.environment), "chaos", "--local", "--kind", "kill-rank", "--kind", "cut"]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-ec", f'{missing}\nexec "$@"', "sh", *command], cwd=place.work,
        env=place.environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and not done.stdout, done.stdout + done.stderr
    assert f"cut cannot be done here: this machine gives no networks of their own to its users ({why})" in done.stderr
    assert "ask its administrator to allow user namespaces and to let users open /dev/net/tun" in done.stderr
    assert "Traceback" not in done.stderr and "drill 1, " not in done.stderr
    nothing_left(place)


def test_where_users_get_no_mounts_a_port_is_not_played_and_nothing_starts(place: Box) -> None:
    words = [*gangrun(place.environment), "chaos", "--local", "--kind", "kill-rank", "--kind", "ib-down"]
    command = ["unshare", "-Ur", "sh", "-ec", 'echo 0 > /proc/sys/user/max_mnt_namespaces\nexec "$@"', "sh", *words]
    done = subprocess.run(
        command, cwd=place.work, env=place.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and not done.stdout, done.stdout + done.stderr
    told = (
        "ib-down cannot be done here: this machine gives no mounts of their own to its users (No space left on device)"
    )
    assert told in done.stderr and "drill 1, " not in done.stderr
    nothing_left(place)


@pytest.mark.compiler
def test_a_wall_clock_that_jumps_ahead_and_back_is_no_failure(place: Box) -> None:
    """The ranks step on in both directions, which shows that every wait ends when it should."""
    plan = place.folder / "plan.toml"
    plan.write_text('[[drill]]\nkind = "clock-jump"\nafter = 2\nsla = { noticed = "5s", recovery = "10s" }\n')
    (one,) = drilled(place, "--plan", str(plan))
    assert one["concluded"] == "nothing" and one["done"] == "wall clock of 10 processes 6 hours ahead"
    assert (one["nodes"], one["noticed_s"], one["orphans"], one["leaked_allocations"]) == ([], None, 0, 0)
    nothing_left(place)


@pytest.mark.compiler
@pytest.mark.parametrize("hours", [6, -6])
def test_waits_until_a_moment_of_the_played_clock_are_as_long_as_of_the_real_one(tmp_path: Path, hours: int) -> None:
    clock, program = PlayedClock(tmp_path), tmp_path / "waits"
    clock.build()
    (tmp_path / "waits.c").write_text(WAITS)
    flags = ["-D_GNU_SOURCE", "-o", str(program), str(tmp_path / "waits.c"), "-lpthread"]
    subprocess.run(["cc", *flags], check=True, timeout=120)
    clock.set_ahead(3600.0 * hours)
    done = subprocess.run([program], env=clock.environment({}), capture_output=True, text=True, timeout=300, check=True)
    took = {words: float(number) for words, _, number in (line.rpartition(" ") for line in done.stdout.splitlines())}
    for name in ("clock_gettime", "time"):
        assert took.pop(name) == pytest.approx(time.time() + 3600 * hours, abs=600)
    assert len(took) == 10 and min(took.values()) >= 0.199, took


@pytest.mark.compiler
def test_a_command_whose_processes_cannot_have_the_played_clock_is_refused(place: Box) -> None:
    source, program = place.folder / "still.c", place.folder / "still"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    subprocess.run(["cc", "-static", "-o", str(program), str(source)], check=True, timeout=120)
    done = place.gangrun("chaos", "--local", "--kind", "clock-jump", "--", str(program), check=False)
    assert done.returncode == 2 and "it has not loaded the played clock; is it linked statically?" in done.stderr
    nothing_left(place)


@pytest.mark.parametrize("kind", ["clock-jump", "xid"])
def test_without_a_compiler_what_is_played_is_refused(place: Box, kind: str) -> None:
    place.environment["PATH"] = str(Path(sys.executable).parent)
    done = place.gangrun("chaos", "--local", "--kind", kind, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{kind} cannot be done here: the played " in done.stderr and "there is no C compiler (cc)" in done.stderr
    assert "install a C compiler, or leave this kind out" in done.stderr
    nothing_left(place)


@pytest.mark.parametrize(
    ("kind", "sign"), [("stop-node", signal.SIGKILL), ("slow-rank", signal.SIGINT), ("cut", signal.SIGKILL)]
)
def test_whoever_ends_the_drill_in_the_middle_nothing_stays(place: Box, kind: str, sign: signal.Signals) -> None:
    """What is stopped does not hear that it is to end: somebody has to wake it first."""
    command = [*gangrun(place.environment), "chaos", "--local", "--kind", kind]
    said = place.folder / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=place.work, env=place.environment, stdout=file, stderr=file, start_new_session=True
        )
    place.process = process
    until(lambda: "drill 1, " in said.read_text(), 90, lambda: f"the strike: {said.read_text()}")
    os.kill(process.pid, sign)
    process.wait(120)
    nothing_left(place)


def test_a_live_run_is_struck_and_trains_on(place: Box) -> None:
    place.step(2, steps=100_000)
    ranks = place.stepping()
    run = place.status()["run"]
    runs = ("--runs-dir", str(place.runs))
    asked = place.gangrun("chaos", run, "--kind", "kill-rank", *runs, check=False)
    assert asked.returncode == 2 and "nobody can be asked whether to strike it" in asked.stderr
    assert [place.pid_of(rank) for rank in (0, 1)] == ranks
    plan = place.folder / "plan.toml"  # without checkpoints every step is lost
    plan.write_text('[sla]\nsteps_lost = 100000\n[[drill]]\nkind = "kill-rank"\n[[drill]]\nkind = "kill-agent"\n')
    done = place.gangrun("chaos", run, "--plan", str(plan), "--yes", "--json", *runs, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kill, agent = json.loads(done.stdout)["drills"]
    assert (kill["concluded"], agent["concluded"], kill["run"]) == ("killed", "agent died", run)
    place.wait_for_step(3, attempt=2)
    assert not any(map(alive, ranks))
    refused = place.gangrun("chaos", run, "--kind", "full-disk", "--yes", *runs, check=False)
    assert refused.returncode == 2 and "full-disk cannot be done to this run: " in refused.stderr
    place.interrupt()
    ended = place.gangrun("chaos", run, "--kind", "kill-rank", "--yes", *runs, check=False)
    assert ended.returncode == 2 and "has ended: CANCELLED" in ended.stderr


@pytest.mark.root
def test_a_run_that_may_not_be_struck_is_not(place: Box) -> None:
    place.step(1, "--max-restarts", "0", steps=100_000)
    place.wait_for_step(3, deadline_s=60)
    words = ("chaos", "--kind", "kill-rank", "--yes", "--runs-dir", str(place.runs), place.status()["run"])
    done = place.gangrun(*words, check=False)
    assert done.returncode == 2 and "allows no restart (--max-restarts 0)" in done.stderr
    os.chown(place.run_dir() / ".gangrun", 65534, 65534)
    done = place.gangrun(*words, check=False)
    assert done.returncode == 2 and "only the owner of a run may drill it" in done.stderr
    os.chown(place.run_dir() / ".gangrun", 0, 0)
    assert len(place.status()["attempts"]) == 1
    place.interrupt()


def test_a_checkpoint_that_was_damaged_is_put_right_afterwards(place: Box) -> None:
    """The sample script's checkpoints, in a run of ``gangrun run``: what was damaged is set aside, and whole again."""
    saves, drill = place.work / "saves", place.work / "drill"
    drill.mkdir()
    place.start(
        "--nproc-per-node", "2", "--checkpoint-dir", saves, SAMPLE, saves,
        environment={"GANGRUN_DRILL_DIR": str(drill)},
    )  # fmt: skip
    until(lambda: len(list(saves.glob("step-*"))) > 2, 60, place.told)
    words = ("--kind", "flipped-checkpoint", "--kind", "torn-checkpoint", "--kind", "mixed-checkpoint")
    done = place.gangrun("chaos", *words, "--yes", "--json", "--runs-dir", str(place.runs), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one["concluded"] for one in json.loads(done.stdout)["drills"]} == {"checkpoint passed over"}
    place.interrupt()
    aside = list((saves / ".gangrun" / "set-aside").rglob("step-*"))
    assert len(aside) >= 3
    for one in aside:
        judged = verify(str(one), int(one.name.removeprefix("step-")))
        assert judged.level is Level.VERIFIED, judged.why
    assert not list(saves.rglob(".drill-*"))


def test_on_another_node_only_processes_of_the_run_are_signalled() -> None:
    """The number of a rank that has ended may be somebody else's process by the time that srun gets there."""
    for environment, told, code in (
        ({"GANGRUN_RUN": "r1"}, "done", -signal.SIGKILL),
        ({"GANGRUN_RUN": "r10"}, "is not of this run", None),
    ):
        victim = subprocess.Popen([sys.executable, "-c", STAYS], env={**os.environ, **environment})
        try:
            command = [sys.executable, "-I", "-c", SIGNAL_THERE, str(victim.pid), "0", str(int(signal.SIGKILL)), "r1"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert told in done.stdout + done.stderr
            assert (victim.wait(20) if code is not None else victim.poll()) == code
        finally:
            victim.kill()
            victim.wait()
