"""What a user's runs know of broken nodes: told by supervisors, heeded by submit (room: cli). Shown by ``nodes``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import click

from gangrun.adapters.fs.known_bad import KnownBadFile
from gangrun.cli import environment
from gangrun.cli.terminal import clean
from gangrun.cli.times import wall_now
from gangrun.core.known_bad import counting
from gangrun.core.nodeset import NodesetError, fold, unfold
from gangrun.core.wording import one_line


def noting(run: str, wall: Callable[[], float], say: Callable[[str], None]) -> Callable[[Mapping[str, str]], None]:
    """What ``supervisor.facts.Facts.note_broken`` is: writes in a thread, since a home directory may stand still."""
    file = KnownBadFile(environment.state_home())

    def note(reasons: Mapping[str, str]) -> None:
        def write() -> None:
            try:
                file.add({node: one_line(reason) for node, reason in reasons.items()}, run, wall())
            except OSError as error:
                say(f"other runs are not told of broken nodes: {error}")

        threading.Thread(target=write, name="known-bad", daemon=True).start()

    return note


def heeded(exclude: str, nodelist: str) -> str:
    """``--exclude`` with the nodes that earlier runs found broken, but for those that the user asks for by name."""
    known = counting(KnownBadFile(environment.state_home()).read(), wall_now())
    try:
        named = {*unfold(exclude), *unfold(nodelist)}
    except NodesetError:
        return exclude  # Slurm says what is wrong with it
    out = [one for one in known if one.node not in named]
    if not out:
        return exclude
    names = fold(one.node for one in out)
    why = f"{out[0].node}: {clean(out[0].reason)}"
    words = f"without {clean(names)}, found broken by earlier runs ({why}); gangrun nodes shows and clears that"
    click.echo(f"gangrun: {words}", err=True)
    return ",".join(filter(None, (exclude, names)))
