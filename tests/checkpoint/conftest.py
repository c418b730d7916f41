"""Checkpoints written by torch itself, once per session; each test damages its own copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")


def state(step: int) -> dict[str, object]:
    """Several shapes and types, views, scalars, objects."""
    g = torch.Generator().manual_seed(step)
    big = torch.randn(300, 500, generator=g)
    return {
        "model": {
            "weight": big,
            "bias": torch.randn(7, generator=g).bfloat16(),
            "half": torch.randn(64, generator=g).half(),
            "empty": torch.zeros(0, 3),
            "scalar": torch.tensor(float(step)),
            "mask": torch.randint(0, 2, (33,), generator=g).bool(),
            "double": torch.randn(4, 4, 4, generator=g, dtype=torch.float64),
            "complex": torch.randn(8, generator=g, dtype=torch.complex64),
            "view": big[10:20, ::3],
        },
        "optimizer": {"exp_avg": torch.randn(40000, generator=g), "groups": [{"lr": 0.1, "names": ("a", "b")}]},
        "step": step,
        "a name with spaces, 'quotes' and ünïcode\n": torch.ones(3),
        "rng": torch.get_rng_state(),
    }


def save(path: Path, step: int, **options: object) -> None:
    with quiet():
        dcp.save(state(step), storage_writer=dcp.FileSystemWriter(path, sync_files=False, **options))


@contextmanager
def quiet() -> Iterator[None]:
    """torch warns that it saves and loads without ranks, which is what we want of it here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """step-10, 20, 30 alike; step-40 by two ranks; ``two_threads``, ``no_checksums`` with those options."""
    root = tmp_path_factory.mktemp("written")
    for step in (10, 20, 30):
        save(root / f"step-{step}", step)
    save(root / "two_threads", 10, thread_count=2)
    save(root / "many_files", 10, single_file_per_rank=False)
    torch.serialization.set_crc32_options(False)
    try:
        save(root / "no_checksums", 10)
    finally:
        torch.serialization.set_crc32_options(True)
    script = Path(__file__).with_name("two_ranks.py")
    ranks = [subprocess.Popen([sys.executable, str(script), str(root), str(rank)]) for rank in (0, 1)]
    assert [rank.wait(timeout=500) for rank in ranks] == [0, 0]
    (root / "rendezvous").unlink(missing_ok=True)
    return root


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Callable[..., Path]:
    """Copy some of the written checkpoints into a fresh directory; one name gives that checkpoint's own path."""

    def take(*names: str) -> Path:
        root = tmp_path / "checkpoints"
        root.mkdir(exist_ok=True)
        for name in names:
            shutil.copytree(written / name, root / name)
        return root / names[0] if len(names) == 1 else root

    return take
