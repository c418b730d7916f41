"""What one core does with a checkpoint's bytes: verifying, choosing among a hundred, parity; beside bare reads.
A file of torch.save is verified beside ``zipfile.testzip`` and ``torch.load``.

Speeds are bytes per second of processor time, medians of interleaved rounds, so that neighbours on the machine count
for little. Run:  python benchmarks/checkpoint_bytes.py [--megabytes 2048] [--rounds 9] [--folder DIR] [--json FILE]
"""

import argparse
import json
import mmap
import os
import resource
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gangrun.checkpoint import mapped_crc
from gangrun.checkpoint.formats import manifest
from gangrun.checkpoint.formats.one_file import judge_file
from gangrun.checkpoint.formats.torch_zip import BUFFER_BYTES, crc32
from gangrun.checkpoint.parity import field
from gangrun.checkpoint.parity.code import Span, rebuild
from gangrun.checkpoint.parity.field import Slow, parity_rows, sums_for
from gangrun.checkpoint.store import CheckpointRoom, Depth
from gangrun.wire.code_layout import CodeLayout, ShardSum
from gangrun.wire.manifest import CHUNK_BYTES, MANIFEST_NAME, FileRow, Manifest, crcs_text
from gangrun.wire.manifest import encode as encode_manifest

NONCE = "0123456789abcdef"


def write_checkpoint(directory: Path, step: int, files: dict[str, bytes]) -> None:
    """A checkpoint of gangrun's own whose shards are just bytes, which is all that is asked here."""
    directory.mkdir()
    rows = []
    for name, content in files.items():
        (directory / name).write_bytes(content)
        chunks = range(0, len(content), CHUNK_BYTES)
        rows.append(FileRow(name, len(content), crcs_text([crc32(content[at : at + CHUNK_BYTES]) for at in chunks])))
    (directory / MANIFEST_NAME).write_bytes(encode_manifest(Manifest(step=step, nonce=NONCE, files=tuple(rows))))


def processor_s() -> float:
    """Of this process and of all its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def rounds_of(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each, its children included, all in turn, a round to warm up first."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            began = processor_s()
            work()
            if number:
                found[name].append(processor_s() - began)
    return {name: statistics.median(times) for name, times in found.items()}


def verifying(folder: Path, megabytes: int, rounds: int) -> dict[str, float]:
    total = megabytes * 1024 * 1024
    content = os.urandom(total // 2)
    write_checkpoint(folder / "step-1", 1, {".metadata": b"m", "__0_0.distcp": content, "__1_0.distcp": content})
    paths = sorted((folder / "step-1").glob("*.distcp"))

    def bare(path: Path) -> None:
        buffer = memoryview(bytearray(BUFFER_BYTES))
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def proven(*, by_reading: bool = False) -> None:
        worth = mapped_crc.WORTH_BYTES
        mapped_crc.WORTH_BYTES = total + 2 if by_reading else worth
        assert manifest.verify(str(folder / "step-1"), 1, threads_count=1).valid
        mapped_crc.WORTH_BYTES = worth

    def mapped_here(path: Path) -> None:
        """Without the copy that reading makes, and without a child: it kills the process if the file shrinks."""
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as whole:
            crc32(whole, 0)

    hot = memoryview(bytearray(content[:BUFFER_BYTES]))

    works = {
        "read": lambda: [bare(path) for path in paths],
        "verify": proven,
        "verify by reading": lambda: proven(by_reading=True),
        "checksum": lambda: [crc32(hot, 0) for _ in range(total // BUFFER_BYTES)],
        "mapped": lambda: [mapped_here(path) for path in paths],
    }
    speeds = {name: total / seconds / 1e9 for name, seconds in rounds_of(works, rounds).items()}
    return {
        "bare read, GB/s": speeds["read"],
        "checksum of what is in the cache, GB/s": speeds["checksum"],
        "checksum over a mapping, GB/s": speeds["mapped"],
        "verify, GB/s": speeds["verify"],
        "verify by reading, GB/s": speeds["verify by reading"],
        "verify / bare read": speeds["verify"] / speeds["read"],
    }


def one_file(path: Path, megabytes: int, rounds: int) -> dict[str, float]:
    """The same file of 24 tensors, judged by gangrun, by the standard library, and loaded by torch, in turn."""
    import torch

    torch.save({str(number): torch.randn(megabytes * 1024 * 1024 // 96) for number in range(24)}, path)
    size = path.stat().st_size

    def testzip() -> None:
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None

    def judged() -> None:
        assert judge_file(str(path)).valid

    works = {
        "one file judged, GB/s": judged,
        "one file, zipfile.testzip, GB/s": testzip,
        "one file, torch.load, GB/s": lambda: torch.load(path),
    }
    speeds = {name: size / seconds / 1e9 for name, seconds in rounds_of(works, rounds).items()}
    path.unlink()
    return speeds


def choosing(folder: Path, count: int, files_count: int) -> dict[str, float]:
    """Seconds by the clock: screening a hundred, nothing being remembered of them; then choosing the newest valid."""
    files = {".metadata": b"m", **{f"__{rank}_0.distcp": os.urandom(4096) for rank in range(files_count)}}
    for step in range(1, count + 1):
        write_checkpoint(folder / f"step-{step}", step, files)
    times: dict[str, float] = {}
    for name, depth in (("screened", Depth.STRUCTURE), ("newest valid", Depth.NEWEST)):
        began, used = time.perf_counter(), time.process_time()
        candidates = CheckpointRoom(str(folder)).survey(depth)
        times[f"{count} of {files_count} files {name}, s"] = time.perf_counter() - began
        times[f"{count} of {files_count} files {name}, processor s"] = time.process_time() - used
        assert len(candidates) == count
    return times


def parity(megabytes: int, rounds: int) -> dict[str, float]:
    """8+2 summed in memory, and two shards rebuilt from files in memory with all hashes, per byte of data; and without
    ISA-L.
    """
    size = megabytes * 1024 * 1024 // 8
    data = [memoryview(bytearray(os.urandom(size))) for _ in range(8)]
    sums = [memoryview(bytearray(size)) for _ in range(2)]
    rows = parity_rows(8, 2)
    slow = rounds_of({"slow": lambda: Slow(rows).fill(sums, data)}, 1)["slow"]
    sums_for(rows).fill(sums, data)
    spans = []
    for content in (*data, *sums):
        spans.append(Span(((os.memfd_create("shard"), 0, size),)))
        spans[-1].write(content, 0)
    shards = [ShardSum(size, crc32(one)) for one in (*data, *sums)]
    layout = CodeLayout(data=tuple(shards[:8]), parity=tuple(shards[8:]))
    back = {number: spans[number] for number in (1, 6)}
    held = {number: one for number, one in enumerate(spans) if number not in back}
    works = {
        "parity 8+2 summed, memory, GB/s": lambda: sums_for(rows).fill(sums, data),
        "parity 8+2, two rebuilt, files, GB/s": lambda: rebuild(layout, held, back),
    }
    speeds = {name: 8 * size / seconds / 1e9 for name, seconds in rounds_of(works, rounds).items()}
    for span in spans:
        os.close(span.parts[0][0])
    return {**speeds, "parity 8+2 summed without ISA-L, GB/s": 8 * size / slow / 1e9}


def measure(megabytes: int = 2048, rounds: int = 9, folder: str | None = None) -> dict[str, float]:
    assert field.found() is not None, "pip install 'gangrun[parity]'"
    with tempfile.TemporaryDirectory(dir=folder) as place:
        one, hundred = Path(place) / "one", Path(place) / "hundred"
        one.mkdir()
        hundred.mkdir()
        return {
            **verifying(one, megabytes, rounds),
            **one_file(Path(place) / "latest.pt", megabytes, rounds),
            **choosing(hundred, 100, 64),
            **parity(megabytes // 4, rounds),
        }


def table(found: dict[str, float]) -> str:
    return "\n".join(f"{name:46} {value:8.3f}" for name, value in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = measure(args.megabytes, args.rounds, args.folder)
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
