"""The index: finds every run by whatever the user calls it, and survives whatever happened to the runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.index import Ambiguous, Found, Index, IndexEntry, Missing, remove_run
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, create_run, write_spec
from gangrun.adapters.fs.terms import FsTerms
from tests.fs.bench import HandClock, new_run
from tests.fs.test_run_dir import spec_of

DISK = Disk()


def add(index: Index | None, base: Path, name: str, wall: float, jobs: tuple[str, ...] = ()) -> IndexEntry:
    paths = create_run(DISK, base / "runs", wall, os.urandom)
    write_spec(DISK, paths, spec_of(paths.run, name))
    entry = IndexEntry(paths.run, name, str(paths.root), wall, jobs)
    if index is not None:
        index.put(entry)
    return entry


def test_found_by_id_name_prefix_job_path_or_as_the_newest(tmp_path: Path) -> None:
    index = Index(tmp_path / "state" / "gangrun")
    assert index.entries() == ()
    old = add(index, tmp_path, "llama's $(run)", 1.70e9, ("4711", "4712"))
    new = add(index, tmp_path, "vit", 1.79e9)
    assert index.entries()[0] == new
    assert index.find(old.run) == Found(old)
    assert index.find(old.run[:8]) == Found(old)
    assert index.find("4712") == Found(old)
    assert index.find("llama's $(run)") == Found(old)
    assert index.find("llama") == Found(old)
    found = index.find(old.path)
    assert isinstance(found, Found)
    assert found.entry.run == old.run
    assert index.find("20") == Ambiguous((new, old))
    assert index.find("vitt") == Missing(("vit",))
    assert index.find("") == Missing(())
    assert index.find("/nowhere/at/all") == Missing(())
    twin = add(index, tmp_path, "vit", 1.80e9)
    assert index.find("vit") == Ambiguous((twin, new))
    assert (index.folder.stat().st_mode & 0o077) == 0


def test_stale_and_broken_entries_are_tolerated_and_forgotten(tmp_path: Path) -> None:
    index = Index(tmp_path / "state")
    kept, gone = add(index, tmp_path, "kept", 1.0), add(index, tmp_path, "gone", 2.0)
    shutil.rmtree(gone.path)
    (index.folder / "broken.json").write_bytes(b"{")
    (index.folder / "folder.json").mkdir()
    assert index.entries() == (kept,)
    assert index.find("gone") == Missing(())
    assert index.forget_stale() == (gone,)
    assert index.forget_stale() == ()
    index.remove(kept.run)
    assert index.entries() == ()
    assert Path(kept.path).is_dir()


def test_runs_that_the_index_never_heard_of_are_found_in_the_runs_directory(tmp_path: Path) -> None:
    unlisted = add(None, tmp_path, "copied here", 5.0)
    (tmp_path / "runs" / "not a run").mkdir()
    index = Index(tmp_path / "state", also=(tmp_path / "runs", tmp_path / "none"))
    found = index.find("copied")
    assert isinstance(found, Found)
    assert found.entry.path == unlisted.path


def test_a_run_is_removed_with_its_seals_and_nothing_else_ever(tmp_path: Path) -> None:
    index = Index(tmp_path / "state")
    entry = add(index, tmp_path, "x", 1.0)
    paths = RunPaths(Path(entry.path))
    assert FsTerms(paths, HandClock()).open_acts(1)
    FsTerms(paths, HandClock()).seal_before(3)
    checkpoint = tmp_path / "step-1"
    checkpoint.mkdir()
    paths.resume.symlink_to(checkpoint)
    remove_run(DISK, paths.root)
    assert not paths.root.exists()
    assert checkpoint.is_dir()
    for other in (tmp_path, checkpoint, tmp_path / "none", Path("relative")):
        with pytest.raises(RunDirError, match="is not a gangrun run directory"):
            remove_run(DISK, other)
    with pytest.raises(RunDirError, match=r"no spec\.json"):
        remove_run(DISK, new_run(tmp_path).root)
