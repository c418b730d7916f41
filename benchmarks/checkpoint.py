"""Saving and loading a sharded state: gangrun.Checkpointer, dcp.save, dcp.async_save and raw write+fsync, in turn.

Two gloo ranks on this machine, FSDP2 with AdamW, same bytes for all. Read the ratios: disks and neighbours vary, and
the processor time of both ranks varies least.
Run:  python benchmarks/checkpoint.py [--megabytes 1000] [--rounds 5] [--folder DIR] [--json FILE]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

WIDTH = 1024


def sharded(megabytes: int):
    """A model and its optimizer whose state has this size, over two ranks."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    layers = max(1, megabytes * 1_000_000 // (12 * WIDTH * WIDTH))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, WIDTH)).sum().backward()
    optimizer.step()
    return model, optimizer


def write_raw(path: Path, tensors: list) -> None:
    """What any saver has to do at least."""
    with open(path, "wb", buffering=0) as file:
        file.writelines(memoryview(tensor.contiguous().numpy()).cast("B") for tensor in tensors)
        os.fsync(file.fileno())


def train_all(model, optimizer) -> None:
    """Every weight and moment changes, as in dense training: what stays as it is would not be written again."""
    import torch

    moments = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    with torch.no_grad():
        for one in (*model.parameters(), *moments):
            one.mul_(1.0001)


def proven_and_loaded(rank: int, directory: Path, step: int, state: dict) -> None:
    """As at the start of an attempt: one process proves it, then all load."""
    import torch.distributed as dist

    from gangrun.checkpoint.formats import manifest as manifest_verify
    from gangrun.training.load import CheckpointReader

    if rank == 0:
        assert manifest_verify.verify(str(directory), step).valid
    dist.barrier()
    CheckpointReader(str(directory)).fill(state)


def partly_frozen(rank: int, megabytes: int, rounds: int, folder: Path, timed) -> dict[str, float]:
    """Nine tenths of the bytes want no gradient: saved whole and saved as what changed, in turn."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import gangrun
    from gangrun.checkpoint.formats.manifest import read_manifest

    learnt = max(1, megabytes * 100_000 // (12 * WIDTH * WIDTH))
    frozen = megabytes * 900_000 // (4 * WIDTH * WIDTH)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(frozen + learnt)))
    mesh = init_device_mesh("cpu", (2,))
    for number, layer in enumerate(model):
        fully_shard(layer.requires_grad_(number >= frozen), mesh=mesh)
    model = fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    given = {"model": model, "optimizer": optimizer, "interval": 10**9, "keep": 3}
    whole = gangrun.Checkpointer(folder / "whole", full_every=1, **given)
    delta = gangrun.Checkpointer(folder / "delta", full_every=10**6, **given)
    for number in range(rounds + 2):
        for one in optimizer.param_groups[0]["params"]:  # through so many layers none would be left of a real gradient
            one.grad = torch.rand_like(one)
        optimizer.step()
        timed("9/10 frozen, whole save", lambda n=number: whole.save(n, wait=True))
        timed("9/10 frozen, gangrun save", lambda n=number: delta.save(n, wait=True))
    whole.close()
    delta.close()
    if rank:
        return {}
    manifest = read_manifest(str(folder / "delta" / f"step-{rounds + 1}"))
    written = manifest.data_bytes - manifest.linked_bytes
    return {
        "9/10 frozen, MB held": manifest.data_bytes / 1e6,
        "9/10 frozen, MB written": written / 1e6,
        "9/10 frozen, written / changed": written / (12 * WIDTH * WIDTH * learnt),
    }


def used_by_both(processor: dict[str, list[float]]) -> dict[str, float]:
    """Median processor seconds, of both ranks together."""
    import torch.distributed as dist

    both: list = [None, None]
    dist.all_gather_object(both, processor)
    names = ("dcp.save", "gangrun save", "dcp.load", "gangrun verify+load")
    sums = {name: [sum(pair) for pair in zip(*(one[name] for one in both), strict=True)] for name in names}
    return {f"{name}, processor": statistics.median(found[2:]) for name, found in sums.items()}


def rank_main(rank: int, megabytes: int, rounds: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    import gangrun

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    model, optimizer = sharded(megabytes)
    own = dist.new_group(backend="gloo")

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    mine = [t.to_local().detach() if hasattr(t, "to_local") else t.detach() for t in model.parameters()] * 3
    times: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}

    def timed(name: str, work) -> None:
        dist.barrier()
        began, used = time.perf_counter(), time.process_time()
        work()
        processor.setdefault(name, []).append(time.process_time() - used)
        if not name.endswith("stall"):
            dist.barrier()
        times.setdefault(name, []).append(time.perf_counter() - began)

    ckpt = gangrun.Checkpointer(folder / "own", model=model, optimizer=optimizer, every_steps=10**9)
    for number in range(rounds + 2):  # two to warm up: buffers, templates, the page cache
        timed("raw write+fsync", lambda: write_raw(folder / f"raw-{rank}", mine))
        timed("dcp.save", lambda n=number: dcp.save(state(), checkpoint_id=folder / f"dcp-{n}"))
        handle = []
        timed(
            "dcp.async_save stall",
            lambda n=number, h=handle: h.append(
                dcp.async_save(state(), checkpoint_id=folder / f"async-{n}", process_group=own)
            ),
        )
        handle[0].result()
        train_all(model, optimizer)
        timed("gangrun save", lambda n=number: ckpt.save(2 * n, wait=True))
        train_all(model, optimizer)
        timed("gangrun stall", lambda n=number: ckpt.save(2 * n + 1))
        ckpt.save(2 * number + 1, wait=True)
        timed("dcp.load", lambda n=number: dcp.load(state(), checkpoint_id=folder / f"dcp-{n}"))
        at = folder / "own" / f"step-{2 * number}"
        timed("gangrun verify+load", lambda a=at, n=number: proven_and_loaded(rank, a, 2 * n, state()))
        if rank == 0:
            for name in (f"dcp-{number}", f"async-{number}", f"own/step-{2 * number}", f"own/step-{2 * number + 1}"):
                shutil.rmtree(folder / name)
        dist.barrier()
    ckpt.close()
    counted = partly_frozen(rank, megabytes, rounds, folder, timed)
    used = used_by_both(processor)
    if rank == 0:
        medians = {name: statistics.median(found[2:]) for name, found in times.items()} | counted | used
        (folder / "medians.json").write_text(json.dumps(medians))
    dist.destroy_process_group()


def measure(megabytes: int, rounds: int, folder: str | None = None) -> dict:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, __file__, "--megabytes", str(megabytes), "--rounds", str(rounds), "--folder", place]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in (0, 1)]
        assert [rank.wait() for rank in ranks] == [0, 0]
        found = json.loads((Path(place) / "medians.json").read_text())
    return {
        "megabytes": megabytes,
        **found,
        "save / dcp.save": found["gangrun save"] / found["dcp.save"],
        "stall / async_save": found["gangrun stall"] / found["dcp.async_save stall"],
        "verify+load / dcp.load": found["gangrun verify+load"] / found["dcp.load"],
        "save / dcp.save, processor": found["gangrun save, processor"] / found["dcp.save, processor"],
        "verify+load / dcp.load, processor": found["gangrun verify+load, processor"] / found["dcp.load, processor"],
    }


def table(found: dict) -> str:
    return "\n".join(f"{name:34} {value:8.3f}" for name, value in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank >= 0:
        rank_main(args.rank, args.megabytes, args.rounds, Path(args.folder))
        return
    found = measure(args.megabytes, args.rounds, args.folder)
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
