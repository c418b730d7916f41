"""Puts a device to work and says what came out: ``python device_child.py '{...}'``.

It is run by the python that trains, which need not have gangrun: standard library and torch only, and torch nowhere
else in this room. One JSON object a line, as soon as a test is done, so that what a killed child knew is not lost.
Whoever starts it sets the deadline; when that one dies, so does this.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from datetime import timedelta
from time import perf_counter
from typing import Any

PR_SET_PDEATHSIG = 1
ROWS_PERIOD, COLUMNS_PERIOD = 13, 16  # of the two factors' contents: small whole numbers, exact in every float type
PATTERNS = (0, -1, 0x5555555555555555, -0x5555555555555556)
CHUNK_WORDS = 1 << 22  # 32 MiB
WALKING_BITS = (0, 7, 15, 31, 32, 47, 62)
WARM_UPS, ROUNDS = 3, 8
Said = dict[str, Any]


def say(**values: Any) -> None:
    """One line, at once."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


class Bench:
    """One device and the time that each of its tests may take."""

    def __init__(self, torch: Any, device: str, seconds: float, share: float, most_bytes: int) -> None:
        self.torch, self.device, self.seconds, self.share, self.most_bytes = torch, device, seconds, share, most_bytes
        self.on_gpu = device.startswith("cuda")

    def settle(self) -> None:
        """Until the device has done what it was told."""
        if self.on_gpu:
            self.torch.cuda.synchronize(self.device)

    def timed(self, work: Any) -> float:
        """Seconds that it took."""
        self.settle()
        began = perf_counter()
        work()
        self.settle()
        return max(perf_counter() - began, 1e-9)

    def best_s(self, work: Any) -> float:
        """The fastest of as many as fit into the time: what else works here only makes some of them slower."""
        work()
        best, until = self.timed(work), perf_counter() + self.seconds
        while perf_counter() < until:
            best = min(best, self.timed(work))
        return best

    def free_bytes(self) -> int:
        """Memory to test: a share of what nobody uses."""
        if self.on_gpu:
            return min(self.most_bytes, int(self.torch.cuda.mem_get_info(self.device)[0] * self.share))
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(self.most_bytes, int(pages * self.share))

    # ---- arithmetic ----

    def product(self) -> Said:
        """Factors of whole numbers, so that every sum is exact whatever the order: the result is known bit for bit."""
        torch, size = self.torch, 4096 if self.on_gpu else 512
        kinds = (torch.float32, torch.bfloat16, torch.float16) if self.on_gpu else (torch.float32, torch.bfloat16)
        if self.on_gpu:
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        exact = torch.tensor(known_sums(size), dtype=torch.float32)
        rows, columns = torch.arange(size) % ROWS_PERIOD, torch.arange(size) % COLUMNS_PERIOD
        wanted32 = exact[rows][:, columns]
        wrong, done, rates = 0, 0, {}
        for kind in kinds:
            left, right = (one.to(self.device, kind) for one in factors(torch, size))
            wanted = wanted32.to(kind).to(self.device)
            until, fastest = perf_counter() + self.seconds, float("inf")
            while True:
                took = self.timed(lambda a=left, b=right: torch.matmul(a, b))
                got = torch.matmul(left, right)
                wrong += int((got != wanted).sum().item())
                fastest, done = min(fastest, took), done + 1
                if perf_counter() >= until:
                    break
            rates[str(kind).removeprefix("torch.")] = 2.0 * size**3 / fastest / 1e12
        fast = "bfloat16" if self.on_gpu else "float32"
        return {"gemm_mismatches": wrong, "gemm_products": done, "gemm_tflops": rates[fast]}

    # ---- memory ----

    def memory(self) -> Said:
        """Fill, then read back: constants, each word's own address, chance, one walking bit as long as time allows."""
        torch, words = self.torch, self.free_bytes() // 8
        sizes = [CHUNK_WORDS] * (words // CHUNK_WORDS) or [max(words, 1 << 16)]
        chunks = [torch.empty(size, dtype=torch.int64, device=self.device) for size in sizes]
        wrong, passes = 0, 0
        until = perf_counter() + self.seconds * 4
        patterns: list[int | str] = [*PATTERNS, "address", "chance", *(1 << bit for bit in WALKING_BITS)]
        for pattern in patterns:
            wrong += self._filled_wrong(chunks, pattern)
            passes += 1
            if perf_counter() > until and passes >= len(PATTERNS) + 2:
                break
        return {"memory_mismatches": wrong, "memory_bytes_tested": 8 * sum(sizes), "memory_passes": passes}

    def _filled_wrong(self, chunks: list[Any], pattern: int | str) -> int:
        wanted = self.torch.empty_like(chunks[0])
        for number, chunk in enumerate(chunks):
            self._write(wanted, pattern, number)
            chunk.copy_(wanted)
        self.settle()
        wrong = 0
        for number, chunk in enumerate(chunks):
            self._write(wanted, pattern, number)
            wrong += int((chunk != wanted).sum().item())
        return wrong

    def _write(self, target: Any, pattern: int | str, number: int) -> None:
        """The content of one chunk, which is known again when it is read back."""
        torch, count = self.torch, target.numel()
        if pattern == "address":
            start = number * CHUNK_WORDS
            torch.arange(start, start + count, out=target)
            target.mul_(0x0101010101010101)
        elif pattern == "chance":
            target.random_(generator=torch.Generator(device=self.device).manual_seed(number))
        else:
            target.fill_(pattern)

    def bandwidth(self) -> Said:
        """Copies within the device's memory; each byte is read and written."""
        size = 1 << 30 if self.on_gpu else 1 << 25
        source = self.torch.ones(size // 4, dtype=self.torch.float32, device=self.device)
        target = self.torch.empty_like(source)
        return {"memory_gbps": 2 * size / self.best_s(lambda: target.copy_(source)) / 1e9}

    def copies(self) -> Said:
        """To the device and back, from memory that the bus can reach by itself."""
        size = 1 << 28
        host = self.torch.ones(size // 4, dtype=self.torch.float32).pin_memory()
        there = self.torch.empty_like(host, device=self.device)
        to = self.best_s(lambda: there.copy_(host, non_blocking=True))
        back = self.best_s(lambda: host.copy_(there, non_blocking=True))
        return {"h2d_gbps": size / to / 1e9, "d2h_gbps": size / back / 1e9}


def factors(torch: Any, size: int) -> tuple[Any, Any]:
    """Whole numbers from -6 to 6 and from -8 to 7: a sum of 4096 products stays below 2**24, so it is exact."""
    at = torch.arange(size)
    left = (at[:, None] * 5 + at[None, :] * 3) % ROWS_PERIOD - 6
    right = (at[:, None] * 7 + at[None, :] * 11) % COLUMNS_PERIOD - 8
    return left.float(), right.float()


def known_sums(size: int) -> list[list[float]]:
    """What the product of ``factors`` must be, by python's own whole numbers; it repeats with the factors."""
    return [
        [
            float(
                sum(((i * 5 + k * 3) % ROWS_PERIOD - 6) * ((k * 7 + j * 11) % COLUMNS_PERIOD - 8) for k in range(size))
            )
            for j in range(COLUMNS_PERIOD)
        ]
        for i in range(ROWS_PERIOD)
    ]


def sum_together(torch: Any, asked: Said) -> Said:
    """All devices of the node add up; the sum is known, and the time tells the links' speed."""
    from torch import distributed

    rank, world, device = asked["rank"], asked["world"], asked["device"]
    backend = "nccl" if device.startswith("cuda") else "gloo"
    within = timedelta(seconds=asked["meet_s"])
    store = distributed.FileStore(asked["store"], world)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=within)
    size = asked["sum_bytes"]
    bench = Bench(torch, device, asked["seconds"], 0.0, 0)
    data = torch.empty(size // 4, dtype=torch.float32, device=device)
    wrong, best = 0, float("inf")
    for number in range(WARM_UPS + ROUNDS):
        data.fill_(rank + 1)
        took = bench.timed(lambda: distributed.all_reduce(data))
        if number >= WARM_UPS:
            best = min(best, took)
    wrong = int((data != world * (world + 1) // 2).sum().item())
    speed = 2 * (world - 1) / world * size / best / 1e9
    distributed.destroy_process_group()
    return {"allreduce_mismatches": wrong, "allreduce_gbps": speed, "allreduce_ranks": world}


def work(asked: Said) -> None:
    """Every test that was asked for, one after the other."""
    try:
        import torch
    except ImportError as error:
        say(absent=f"torch cannot be imported by {sys.executable}: {error}")
        return
    device = asked["device"]
    if device.startswith("cuda"):
        if torch.version.cuda is None and not getattr(torch.version, "hip", None):
            say(absent=f"the torch of {sys.executable} is made for CPUs only")
            return
        try:
            torch.cuda.set_device(device)
            torch.ones(1, device=device).sum().item()
        except (RuntimeError, AssertionError) as error:
            say(unusable=" ".join(str(error).split())[:200])
            return
        say(usable=1, device=torch.cuda.get_device_name(device), torch=torch.__version__)
    else:
        say(usable=1, device=asked.get("cpu", "cpu"), torch=torch.__version__)
    bench = Bench(torch, device, asked["seconds"], asked["share"], asked["most_bytes"])
    for name in asked["tests"]:
        try:
            say(**(sum_together(torch, asked) if name == "allreduce" else getattr(bench, name)()))
        except Exception as error:  # noqa: BLE001 - one test that cannot run must not take the others along
            say(failed=name, why=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        if bench.on_gpu:
            torch.cuda.empty_cache()


def main() -> None:
    """Work, and end at once: a library that is hard to leave must not keep us."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        work(json.loads(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
