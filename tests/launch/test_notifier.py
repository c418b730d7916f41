"""Where a run is told: what is refused before anything starts, and that nobody sees an address."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunDirError, RunPaths, check_private, read_notify_addresses
from gangrun.adapters.local.children import HeldChild
from gangrun.adapters.notify.services import Services
from gangrun.config import parsers
from gangrun.config.secrets import is_secret
from gangrun.config.settings import NOTIFY_ON
from gangrun.launch.create import make_run
from gangrun.launch.sidecars import Notifier
from gangrun.wire.spec import NEWS, NotifySpec
from tests.command_line import Call
from tests.runs.builder import BEGAN, Builder

ROOT = Path(__file__).parents[2]
TOKEN = "t0ken-that-nobody-may-see"
URL = f"json://user:{TOKEN}@127.0.0.1:9/{TOKEN}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--notify", f"nonsense://{TOKEN}"], "apprise does not understand the address of service 1 (nonsense)"),
        (["--notify", URL, "--notify", f"slack://{TOKEN}"], "the address of service 2 (slack)"),
        (["--notify", f"{URL} {TOKEN}"], "--notify: address 2 is not of the form SERVICE://..."),
        (["--notify-on", "started,sometimes"], "--notify-on: 'sometimes' is not one of started, recovered,"),
        (["--notify-every", "-1s"], "--notify-every: "),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(
    runs: Path, gangrun: Call, words: list[str], told: str
) -> None:
    said = gangrun("run", *words, "true")
    assert said.code == 2 and told in said.err
    assert TOKEN not in said.err + said.out and not list(runs.iterdir())


def test_without_apprise_it_is_said_what_to_install(runs: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    said = gangrun("run", "--notify", URL, "true")
    assert said.code == 2 and "pip install 'gangrun[notify]'" in said.err and not list(runs.iterdir())


@pytest.mark.parametrize("source", ["variable", "file", "profile"])
def test_config_shows_the_service_and_hides_the_rest(
    home: Path, gangrun: Call, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "variable":
        monkeypatch.setenv("GANGRUN_NOTIFY", f"{URL}  slack://{TOKEN}")
    else:
        table, chosen = ("[profiles.night]\n", 'profile = "night"\n') if source == "profile" else ("", "")
        (home / "gangrun.toml").write_text(f'{chosen}{table}notify = ["{URL}", "slack://{TOKEN}"]\n')
    found = gangrun("config", "--json")
    assert found.json["settings"]["notify"]["value"] == ["json://***", "slack://***"]
    assert "json://***; slack://***" in gangrun("config").out.replace("\n", "")
    assert TOKEN not in found.out + gangrun("config").out
    assert is_secret("GANGRUN_NOTIFY", "slack://x")


def test_addresses_lie_with_the_keys_and_the_spec_names_the_services(runs: Path) -> None:
    draft = Builder(runs).spec
    paths, _ = make_run(Disk(), runs, draft, BEGAN, (URL,))
    assert read_notify_addresses(Disk(), paths) == (URL,)
    assert stat.S_IMODE(paths.notify_addresses.stat().st_mode) == 0o600
    holders = [path for path in paths.root.rglob("*") if path.is_file() and TOKEN in path.read_text()]
    assert holders == [paths.notify_addresses]
    check_private(Disk(), paths)
    paths.notify_addresses.chmod(0o640)
    with pytest.raises(RunDirError, match="others can reach"):
        check_private(Disk(), paths)
    assert not RunPaths(Builder(runs, run="20261119-000000-other").paths.root).notify_addresses.exists()


def test_a_run_that_is_told_nowhere_has_no_notifier(runs: Path) -> None:
    story = Builder(runs)
    notifier = Notifier.of(story.spec, story.paths, os.environ)
    assert notifier.child is None and notifier.pids == ()
    notifier.over(0)


def test_who_does_not_want_to_wait_for_a_service_that_hangs_leaves_it_to_the_notifier() -> None:
    child = HeldChild.start([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ))
    assert child is not None
    asked, told = iter([False] * 10 + [True]), list[str]()
    Notifier(child).over(0, leaves=lambda: next(asked), say=told.append)
    assert told == ["waiting up to 25 s until the last message is sent; Ctrl-C leaves, and it is sent all the same"]
    child._child.kill()
    assert child._child.wait() == -signal.SIGKILL, "it was left alive"


def test_kinds_are_put_in_order_and_all_is_the_default() -> None:
    assert parsers.notify_kinds("finished, attention") == ("attention", "finished")
    assert parsers.notify_kinds(["eta"]) == ("eta",) and parsers.notify_kinds("") == ()
    assert NEWS == NOTIFY_ON == NotifySpec().on


def test_a_service_that_fails_in_any_way_is_named_without_its_address() -> None:
    services = Services([URL, f"nonsense://{TOKEN}"])
    for k, name in enumerate(("service 1 (json)", "service 2 (nonsense)")):
        why = services.send(k, "title", "body", "info")
        assert name in why and TOKEN not in why


def test_an_argument_can_be_taken_out_of_the_list_of_processes() -> None:
    code = (
        "import sys\nfrom gangrun.node.processes import blank_arguments\nblank_arguments([sys.argv[1], ''])\n"
        "sys.stdout.buffer.write(open('/proc/self/cmdline', 'rb').read())\n"
    )
    words = [sys.executable, "-c", code, URL, f"--notify={URL}", "train.py"]
    shown = subprocess.run(words, check=True, capture_output=True, env={"PYTHONPATH": str(ROOT)}).stdout.split(b"\0")
    hidden = b"*" * len(URL)
    assert shown[3:6] == [hidden, b"--notify=" + hidden, b"train.py"]
