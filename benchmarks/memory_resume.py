"""What a resume from a step in memory pays for, part by part, beside loading the same bytes from the memory itself.

One rank's state in one keeper. *Write*: its files to the disk, with fsync. *Verify*: every byte by the manifest.
*Load*: from the disk, whose cache has the file, and with the cache dropped. *Memory*: the same reader, from the
keeper's descriptors: a resume if nodes have all files (decision 0006). Medians, all in one run: read the ratios.
Run:  python benchmarks/memory_resume.py [--mb 512] [--rounds 5] [--folder DIR] [--json FILE]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import gangrun  # noqa: E402
from gangrun.checkpoint.formats.manifest import verify  # noqa: E402
from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, StepName  # noqa: E402
from gangrun.checkpoint.memory_tier.recover_from_memory import bring, discard  # noqa: E402
from gangrun.training.load import CheckpointReader  # noqa: E402
from tests.training.nodes import started_keeper  # noqa: E402

WIDTH = 1024


def saved_in(name: str, folder: Path, megabytes: int) -> torch.nn.Module:
    """A model whose state is in the memory of that keeper, as step 0 of attempt 0."""
    os.environ |= {
        "GANGRUN_MEMORY": name, "GANGRUN_RUN": "bench", "GANGRUN_CHECKPOINT_DIR": str(folder / "ckpt"),
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    }  # fmt: skip
    layers = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(megabytes * 2**20 // (4 * WIDTH**2)))
    model = torch.nn.Sequential(*layers)
    with gangrun.Checkpointer(folder / "ckpt", model=model, every_steps=10**6, memory_every_steps=1) as ckpt:
        ckpt.step(0)
        while ckpt.saving:
            os.sched_yield()
        ckpt.finish(60.0)
    return model


def timed(work) -> float:
    began = monotonic()
    work()
    return monotonic() - began


def loaded(model: torch.nn.Module, directory: Path) -> None:
    CheckpointReader(str(directory)).fill({"model": model.state_dict()})


def drop_cache(directory: Path) -> None:
    """The next read is a read of the disk, if its file system takes the advice."""
    for path in directory.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def one(kept: KeeperClient, name: StepName, files: list[str], model: torch.nn.Module, folder: Path) -> dict[str, float]:
    into = folder / "brought" / "step-0"
    into.parent.mkdir()
    found = {"write": timed(lambda: bring(kept, name, files, str(into)))}

    def judge() -> None:
        judged = verify(str(into), 0)
        assert judged.level is not None, judged.why

    found["verify"] = timed(judge)
    found["load"] = timed(lambda: loaded(model, into))
    drop_cache(into)
    found["load_cold"] = timed(lambda: loaded(model, into))
    seen = folder / "seen"
    seen.mkdir()
    with ExitStack() as stack:
        for file in files:
            (seen / file).symlink_to(f"/proc/self/fd/{stack.enter_context(kept.opened(name, file))}")
        found["memory"] = timed(lambda: loaded(model, seen))
    discard(str(seen), more=True)
    discard(str(into))
    return found


def measure(megabytes: int, rounds: int, folder: str | None = None) -> dict[str, float]:
    limit_bytes = 4 * megabytes * 2**20 + 2**20
    with tempfile.TemporaryDirectory(dir=folder) as place:
        name, keeper = started_keeper(limit_bytes)
        try:
            model = saved_in(name, Path(place), megabytes)
            kept = KeeperClient(name)
            (held,) = kept.held(0)
            step = StepName(0, held["step"], held["nonce"])
            rows = [one(kept, step, sorted(held["files"]), model, Path(place)) for _ in range(rounds)]
            kept.close()
        finally:
            keeper.kill()
            keeper.wait()
    gib = megabytes / 1024
    return {part: statistics.median(row[part] for row in rows) / gib for part in rows[0]}


def table(found: dict[str, float]) -> str:
    words = {
        "write": "write to the disk, fsync", "verify": "verify every byte", "load": "load from the disk's cache",
        "load_cold": "load from the disk", "memory": "load from the keeper's memory",
    }  # fmt: skip
    lines = [f"{words[part]:<30} {seconds:>8.2f} s per GiB" for part, seconds in found.items()]
    today = found["write"] + found["verify"] + found["load"]
    return "\n".join([*lines, f"{'today / from memory':<30} {today / found['memory']:>8.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measure(args.mb, args.rounds, args.folder)
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
