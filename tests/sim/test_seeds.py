"""Two thousand seeds, each of its own size: no promise is broken. A seed that breaks one says how to see it again.

Warm worlds are made once and each seed is run in a fork of one, which ends before garbage could matter. Most worlds
end once all ranks step undisturbed again after the last fault; every sixteenth begins with the first job and ends with
the last.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from gangrun.sim import World
from gangrun.sim.sweep import WorldKind, WorldSize, begin, finish, kind_of, seeded, size_of

SEEDS = range(2000)
SEED_BYTES = 4
WORKERS_COUNT = max(2, min(8, os.cpu_count() or 2))
KINDS = sorted({(kind_of(seed), size_of(seed)) for seed in SEEDS}, key=repr)


def one_seed(world: World, seed: int, notes: Path) -> int:
    """In a fork: run it, write down what broke."""
    gc.disable()
    try:
        finish(world, seed, size_of(seed))
    except BaseException as error:  # noqa: BLE001 - whatever it was is this seed's failure
        kind = "" if isinstance(error, AssertionError) else traceback.format_exc()
        notes.joinpath(f"{seed}.txt").write_text(
            f"{error}\n{kind}\nsee it again: python -m gangrun.sim --seed {seed} {world.setup.label}\n"
        )
        return 1
    return 0


def worker(seeds: int, worlds: dict[tuple[WorldKind, WorldSize], World], notes: Path) -> None:
    """The next seed while there is one, each in a fork of its own: what one world did is gone with its process."""
    while word := os.read(seeds, SEED_BYTES):
        seed = int.from_bytes(word, "little")
        child = os.fork()
        if child == 0:
            os._exit(one_seed(worlds[kind_of(seed), size_of(seed)], seed, notes))
        os.waitpid(child, 0)


def all_seeds() -> int:
    """A pipe to take from: dealt out in turns, one worker would get all worlds that go the whole way."""
    reading, writing = os.pipe()
    os.write(writing, b"".join(seed.to_bytes(SEED_BYTES, "little") for seed in SEEDS))  # a pipe holds 64 KiB
    os.close(writing)
    return reading


@pytest.mark.slow
@pytest.mark.sweep  # among the quick tests it would be traced for coverage, and take four times as long
@pytest.mark.timeout(900)
def test_two_thousand_seeds(tmp_path):
    worlds = {(kind, size): begin(kind, size) for kind, size in KINDS}
    seeds = all_seeds()
    workers = []
    for _ in range(WORKERS_COUNT):
        child = os.fork()
        if child == 0:
            worker(seeds, worlds, tmp_path)
            os._exit(0)
        workers.append(child)
    assert [os.waitpid(child, 0)[1] for child in workers] == [0] * WORKERS_COUNT
    assert os.read(seeds, SEED_BYTES) == b""
    os.close(seeds)
    broken = sorted(tmp_path.glob("*.txt"), key=lambda path: int(path.stem))
    told = "\n".join(path.read_text() for path in broken[:3])
    assert not broken, f"{len(broken)} of {len(SEEDS)} seeds: {[path.stem for path in broken[:20]]}\n{told}"


def test_the_same_seed_is_the_same_story_whatever_python_hashes():
    def told(hash_seed):
        command = [sys.executable, "-m", "gangrun.sim", "--seed", "3", "--nodes", "6"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert told("1") == told("2")


def test_small_worlds_of_every_kind():
    for seed in range(120):
        finish(seeded(seed, WorldSize(4)), seed, WorldSize(4))
