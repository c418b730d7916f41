"""The script that ``gangrun chaos --local`` trains if it is given none: a gang without torch, started by path.

Each step waits for all ranks over the network, as a collective would make it. A rank whose peer has gone waits for
ever. It reports steps and a loss, and saves a checkpoint in gangrun's own format every twenty steps. A file
``nan-ATTEMPT-RANK`` in ``GANGRUN_DRILL_DIR`` makes the loss of that rank NaN.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import sys
from pathlib import Path
from time import sleep
from zlib import crc32

import gangrun
from gangrun.checkpoint.commit import CommitRefused, Staging
from gangrun.wire.manifest import FileRow, Manifest, crcs_text

PACE_S, SAVE_EVERY, STATE_BYTES = 0.05, 20, 64 * 1024
# Asked for in each step and never touched, as bytes() does and bytearray() does not: a limit on memory is felt at once.
WORK_BYTES = 48 * 1024 * 1024
# The sampler of a rank knows a wait for other ranks by the file of the code that waits. This one stands in for it.
_TORCH_WAITS = "/torch/distributed/distributed_c10d"
_WAIT = """
def all_ranks(peers, first, sleep):
    try:
        if not first:
            peers[0].sendall(b".")
        heard = all([peer.recv(1) for peer in peers])
        for peer in peers if first and heard else ():
            peer.sendall(b".")
    except OSError:
        heard = False
    while not heard:
        sleep(0.5)
"""


def main(folder: Path, checkpoints: str) -> None:
    """Train until somebody stops it."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt, term = int(os.environ["GANGRUN_ATTEMPT"]), int(os.environ["GANGRUN_TERM"])
    names: dict[str, object] = {}
    exec(compile(_WAIT, f"sample{_TORCH_WAITS}.py", "exec"), names)  # noqa: S102
    all_ranks = names["all_ranks"]
    peers = peers_of(rank, world_size)
    staging = Staging(checkpoints, os.environ["GANGRUN_RUN"], term, attempt, secrets.token_hex(8))
    if rank == 0:
        os.makedirs(checkpoints, exist_ok=True)
        staging.open()
    point = gangrun.resume_info()
    step = 0 if point is None else point.step
    while True:
        all_ranks(peers, rank == 0, sleep)  # type: ignore[operator]
        work = bytes(WORK_BYTES)
        is_bad = (folder / f"nan-{attempt}-{rank}").exists()
        gangrun.step(step, math.nan if is_bad else 2.0 + math.exp(-step / 500) + 0.01 * math.sin(step))
        sleep(PACE_S)
        del work
        step += 1
        if rank == 0 and step % SAVE_EVERY == 0:
            save(staging, checkpoints, step, world_size)


def peers_of(rank: int, world_size: int) -> list[socket.socket]:
    """A connection from rank 0 to each other rank, and back."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(address) as server:
            return [server.accept()[0] for _ in range(world_size - 1)]
    while True:
        try:
            return [socket.create_connection(address)]
        except OSError:  # rank 0 is not there yet
            sleep(PACE_S)


def save(staging: Staging, checkpoints: str, step: int, world_size: int) -> None:
    """One small checkpoint."""
    nonce = secrets.token_hex(8)
    path = staging.begin(step, nonce)
    rows = []
    for name in (".metadata", "__0_0.distcp"):
        data = (f"{name} {step} {nonce} ".encode() * STATE_BYTES)[:STATE_BYTES]
        Path(path, name).write_bytes(data)
        rows.append(FileRow(name, len(data), crcs_text([crc32(data)])))
    manifest = Manifest(
        step=step, nonce=nonce, run=staging.run, term=staging.term, attempt=staging.attempt, world_size=world_size,
        files=tuple(rows),
    )  # fmt: skip
    try:
        staging.commit(path, str(Path(checkpoints, f"step-{step}")), manifest)
    except CommitRefused:
        return  # a later attempt has begun


if __name__ == "__main__":
    main(Path(os.environ["GANGRUN_DRILL_DIR"]), sys.argv[1])
