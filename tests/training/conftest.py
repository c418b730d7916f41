"""Fixtures of the training side."""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.training.nodes import Nodes


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher's variables; torch warns that it saves without ranks, which is what is wanted here."""
    for name in [name for name in os.environ if name.startswith(("GANGRUN_", "TORCHELASTIC_", "SLURM_"))]:
        monkeypatch.delenv(name)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")


@pytest.fixture
def disk_full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Within the context that it makes no file of a save can be written."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def within() -> Iterator[None]:
        with monkeypatch.context() as broken:
            broken.setattr(os, "writev", full)
            yield

    return within


@pytest.fixture
def nodes_of(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """Makes nodes of so many bytes each; they are gone after the test."""
    made: list[Nodes] = []

    def make(*limits: int) -> Nodes:
        made.append(Nodes(tmp_path / f"nodes-{len(made)}", list(limits)))
        return made[-1]

    yield make
    for nodes in made:
        nodes.end()


@pytest.fixture
def hold_fsync(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event, until which no file becomes durable."""
    may_go, real = threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        assert may_go.wait(60)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    return may_go
