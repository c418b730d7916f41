"""What protecting steps in memory costs: none, a copy, parity 3+1 and 2+2, on four nodes played by this box.

Saves of some bytes a rank into four keepers, one rank each, over loopback. Each row: memory that a step takes on a
node, processor time of a save for each GB of all ranks' state, and its wall time, which four ranks on two cores make
long. Medians over the saves after the first.
Run:  python benchmarks/memory_protection.py [--mb 128] [--saves 5] [--json FILE]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gangrun.checkpoint.memory_tier.keeper_client import KeeperClient, KeeperRefused  # noqa: E402
from gangrun.node import memory_keeper  # noqa: E402
from tests.waiting import until  # noqa: E402

NODES = 4
WAYS = {"none": "", "copy": "", "3+1": "3+1", "2+2": "2+2"}
RANKS = """
import json, os, resource, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import gangrun
from gangrun.training.memory import saving

folder, mb, saves, protected = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] != "none"
if not protected:
    saving.distance = lambda world, local: 0

def spent():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), usage.ru_utime + usage.ru_stime

def train(rank):
    count = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", count), rank=rank, world_size=count)
    model = torch.nn.Linear(4096, mb * 64 * count, bias=False)  # so many MB for each rank
    fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    found = []
    with gangrun.Checkpointer(folder + "/ckpt", model=model, every_steps=10**6, memory_every_steps=1) as ckpt:
        for step in range(saves + 1):
            began = spent()
            ckpt.step(step)
            while ckpt.saving:
                time.sleep(0.005)
            found.append([b - a for a, b in zip(began, spent())])
            dist.barrier()
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found[1:], file)
    dist.destroy_process_group()

children = []
for rank, variables in enumerate(json.loads(sys.argv[5])):
    if not (pid := os.fork()):
        os.environ.update(variables)
        train(rank)
        os._exit(0)
    children.append(pid)
sys.exit(max(os.waitpid(pid, 0)[1] for pid in children))
"""


def there(name: str) -> bool:
    try:
        KeeperClient(name).close()
    except KeeperRefused:
        return False
    return True


def one(way: str, mb: int, saves: int) -> dict[str, float]:
    names = [f"gangrun-bench-{os.getpid()}-{way}-{node}" for node in range(NODES)]
    island = memory_keeper.__file__
    keepers = [subprocess.Popen([sys.executable, "-E", "-s", "-S", island, name, str(2**40)]) for name in names]
    try:
        for name in names:
            until(lambda name=name: there(name), 60, "a keeper")
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                {"RANK": str(n), "WORLD_SIZE": str(NODES), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                 "GANGRUN_MEMORY": name}
                for n, name in enumerate(names)
            ]  # fmt: skip
            environment = {
                **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GANGRUN_RUN": "bench",
                "GANGRUN_CHECKPOINT_DIR": f"{folder}/ckpt", "GANGRUN_MEMORY_PARITY": WAYS[way],
            }  # fmt: skip
            command = [sys.executable, "-c", RANKS, folder, str(mb), str(saves), way, json.dumps(ranks)]
            subprocess.run(command, env=environment, check=True)
            told = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(NODES)]
        kept = KeeperClient(names[0])
        held = sum(sum(step["files"].values()) for step in kept.held(0))
        kept.close()
    finally:
        for keeper in keepers:
            keeper.kill()
            keeper.wait()
    gb = NODES * mb * 2**20 / 1e9
    rounds = list(zip(*told, strict=True))
    return {
        "node_bytes_per_own": held / (mb * 2**20),
        "cpu_s_per_gb": statistics.median(sum(cpu for _, cpu in ranks) for ranks in rounds) / gb,
        "wall_s_per_gb": statistics.median(max(wall for wall, _ in ranks) for ranks in rounds) / gb,
    }


def measure(mb: int, saves: int) -> dict[str, dict[str, float]]:
    return {way: one(way, mb, saves) for way in WAYS}


def table(found: dict[str, dict[str, float]]) -> str:
    lines = ["protection   a step on a node, of its own part   processor s per GB   wall s per GB"]
    lines += [
        f"{way:<12} {one['node_bytes_per_own']:>34.2f} {one['cpu_s_per_gb']:>20.2f} {one['wall_s_per_gb']:>15.2f}"
        for way, one in found.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=128)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measure(args.mb, args.saves)
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
