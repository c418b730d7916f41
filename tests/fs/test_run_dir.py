"""The run directory: private, whole, and safe from hostile names and places."""

from __future__ import annotations

import errno
import os
import resource
import stat
from itertools import count
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import (
    CancelMark,
    ResumeOrder,
    RunDirError,
    RunPaths,
    check_private,
    clear_cancelled,
    create_run,
    file_name,
    leave_resume_order,
    make_run_id,
    mark_cancelled,
    read_cancelled,
    read_resume_order,
    read_spec,
    read_submission,
    write_spec,
)
from gangrun.wire.spec import RunSpec
from tests.faults.disk import PausableDisk
from tests.fs.bench import NOBODY, as_uid, ground, new_run

DISK = Disk()
HOSTILE = [
    "with space",
    "quo'te\"s",
    "$(touch pwned)",
    "new\nline",
    "ünïcødé-漢字",
    "-rf",
    "a;b&c|d",
    "%s%n",
    "tab\there",
]


def spec_of(run: str, name: str = "my run") -> RunSpec:
    return RunSpec(
        run=run,
        name=name,
        world="local",
        command=("python", "train $(x).py"),
        python=True,
        working_directory="/",
        nodes=("n1",),
        nodes_min_count=1,
        slots_per_node=1,
        ranks_per_slot=1,
    )


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_places_work_like_any_other(tmp_path: Path, name: str) -> None:
    paths = create_run(DISK, tmp_path / name / name, 1.7e9, os.urandom)
    write_spec(DISK, paths, spec_of(paths.run, name))
    assert read_spec(DISK, paths).name == name
    check_private(DISK, paths)


def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        paths = new_run(tmp_path)
        write_spec(DISK, paths, spec_of(paths.run))
        mark_cancelled(DISK, paths, "me", 1.0)
    finally:
        os.umask(before)
    for folder, names, files in os.walk(paths.root):
        for name in names:
            assert mode_of(Path(folder, name)) == 0o700
        for name in files:
            assert mode_of(Path(folder, name)) == 0o600
    assert mode_of(paths.root) == 0o700


def test_run_ids_sort_by_time_and_never_collide(tmp_path: Path) -> None:
    assert make_run_id(1795243801.0, b"\0" * 5) == "20261121-065001-aaaaa"
    numbers = count()
    made = [
        create_run(DISK, tmp_path, 1.7e9, lambda size: (next(numbers) // 2).to_bytes(2, "big") + b"\0" * (size - 2)).run
        for _ in range(5)
    ]
    assert len(set(made)) == 5
    create_run(DISK, tmp_path / "same", 1.7e9, bytes)
    with pytest.raises(RunDirError, match="no free run id"):
        create_run(DISK, tmp_path / "same", 1.7e9, bytes)


def test_a_world_writable_runs_directory_is_refused_unless_sticky(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    with pytest.raises(RunDirError, match="world-writable") as caught:
        create_run(DISK, runs, 1.7e9, os.urandom)
    assert "chmod o-w" in caught.value.hint
    runs.chmod(0o1777)
    create_run(DISK, runs, 1.7e9, os.urandom)


@pytest.mark.parametrize(
    ("code", "word"), [(errno.EROFS, "read-only"), (errno.ENOSPC, "full"), (errno.EACCES, "may not write")]
)
def test_no_place_for_a_run_is_said_with_what_to_do(tmp_path: Path, code: int, word: str) -> None:
    disk = PausableDisk()
    disk.fail(code)
    with pytest.raises(RunDirError, match="cannot make a run directory in") as caught:
        create_run(disk, tmp_path, 1.7e9, os.urandom)
    assert word in caught.value.hint


def test_a_file_in_the_way_an_endless_name_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(RunDirError) as caught:
            create_run(DISK, place, 1.7e9, os.urandom)
        assert "--runs-dir" in caught.value.hint
    with pytest.raises(RunDirError, match="not valid UTF-8"):
        create_run(DISK, tmp_path / os.fsdecode(b"bad\xff"), 1.7e9, os.urandom)


@pytest.mark.parametrize("what", ["root", "machine", "keys", "client_key", "spec"])
@pytest.mark.parametrize("extra", [0o040, 0o004, 0o020])
def test_what_others_can_reach_is_refused(tmp_path: Path, what: str, extra: int) -> None:
    paths = new_run(tmp_path)
    DISK.write_new(paths.client_key, b"{}")
    write_spec(DISK, paths, spec_of(paths.run))
    check_private(DISK, paths)
    target: Path = getattr(paths, what)
    target.chmod(mode_of(target) | extra)
    with pytest.raises(RunDirError, match="others can reach") as caught:
        check_private(DISK, paths)
    assert "chmod" in caught.value.hint


def test_keys_behind_a_link_are_refused(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    (tmp_path / "elsewhere").write_text("{}")
    paths.client_key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirError, match="symbolic link"):
        check_private(DISK, paths)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make another's directory")
def test_another_users_run_is_refused() -> None:
    def body() -> None:
        with pytest.raises(RunDirError, match=r"cannot look at|belongs to uid|is not a gangrun"):
            check_private(DISK, theirs)

    with ground(NOBODY) as base:
        mine = new_run(base)
        os.chown(mine.root, 4242, 4242)
        with pytest.raises(RunDirError, match="belongs to uid 4242, not to you"):
            check_private(DISK, mine)
        theirs = new_run(base)
        as_uid(NOBODY, body)


def test_what_is_no_run_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="is not a gangrun run directory"):
        check_private(DISK, RunPaths(tmp_path))
    with pytest.raises(RunDirError, match="cannot read"):
        read_spec(DISK, RunPaths(tmp_path))


def test_a_spec_is_written_once(tmp_path: Path) -> None:
    paths = new_run(tmp_path)
    write_spec(DISK, paths, spec_of(paths.run))
    with pytest.raises(RunDirError, match="is there already"):
        write_spec(DISK, paths, spec_of(paths.run))


def test_cancelled_is_marked_once_and_holds_even_on_a_full_disk(tmp_path: Path) -> None:
    class NoBytes(Disk):
        def write(self, fd: int, data: bytes, path: Path) -> int:
            raise OSError(errno.ENOSPC, "full")

    paths = new_run(tmp_path)
    assert read_cancelled(DISK, paths) is None
    assert mark_cancelled(DISK, paths, "ada on n1", 5.0)
    assert not mark_cancelled(DISK, paths, "bob", 6.0)
    assert read_cancelled(DISK, paths) == CancelMark("ada on n1", 5.0)
    clear_cancelled(DISK, paths)
    clear_cancelled(DISK, paths)
    assert read_cancelled(DISK, paths) is None
    assert mark_cancelled(NoBytes(), paths, "ada", 5.0)
    assert read_cancelled(DISK, paths) == CancelMark("unknown", 0.0)


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM, errno.ESHUTDOWN]
)
def test_an_error_is_no_cancel_and_no_word_about_an_order(tmp_path: Path, code: int) -> None:
    paths, disk = new_run(tmp_path), PausableDisk()
    leave_resume_order(disk, paths, ResumeOrder(by="ada", seq=1))
    disk.fail(code, looking_too=True)
    for ask in (read_cancelled, lambda disk, paths: read_resume_order(disk, paths, 1), read_spec, read_submission):
        with pytest.raises(OSError, match=os.strerror(code)):
            ask(disk, paths)


def test_without_a_free_file_descriptor_only_a_mark_that_is_seen_counts(tmp_path: Path) -> None:
    paths = new_run(tmp_path)

    def body() -> None:
        lowest = os.open("/", os.O_RDONLY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, lowest + 1))
        with pytest.raises(OSError, match="Too many open files"):
            read_cancelled(DISK, paths)
        os.close(lowest)
        mark_cancelled(DISK, paths, "ada", 5.0)
        os.open("/", os.O_RDONLY)
        assert read_cancelled(DISK, paths) == CancelMark("unknown", 0.0)

    as_uid(None, body)


def test_node_names_become_one_harmless_component(tmp_path: Path) -> None:
    for name in [*HOSTILE, "..", ".", "", "a/b", "../../etc/passwd", "n" * 400, "\0", "\udcff"]:
        safe = file_name(name)
        assert "/" not in safe
        assert not safe.startswith(".")
        (tmp_path / safe).touch(exist_ok=False)
    assert file_name("n004-ib0.cluster_a") == "n004-ib0.cluster_a"
    assert file_name("n" * 400) != file_name("n" * 401)
    paths = RunPaths(tmp_path)
    assert paths.node_log(3, "../x").parent == paths.logs / "3"


def test_every_path_is_inside_the_run(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    every = [
        *(getattr(paths, name) for name in ("spec", "client_key", "logs", "resume", "cancelled")),
        *(paths.claim(1), paths.acts(1), paths.acts_kept(1), paths.ticket(1, 2), paths.counter(1), paths.journal(1)),
        *(paths.job(1), paths.job(1, 2), paths.stacks(1, 2)),
    ]
    assert len(set(every)) == len(every)
    assert all(path.is_relative_to(paths.root) for path in every)
