"""``gangrun nodes``: nodes that your runs found broken, and that new ones do without.

GPUs whose driver reported a fault within the last day stand there too, as the same once more says more.

``clear`` is the only thing that it writes.
"""

from __future__ import annotations

import click

from gangrun.adapters.fs.known_bad import KnownBadFile
from gangrun.cli.options import json_option
from gangrun.config import environment
from gangrun.core.nodes import history
from gangrun.core.nodes.history import nodes_to_avoid, remembered_nodes
from gangrun.core.nodeset import fold, unfold
from gangrun.display.status_page import look_now
from gangrun.display.text import clean, echo_json, table
from gangrun.errors import UserError
from gangrun.runs.status import SCHEMA
from gangrun.runs.times import wall_now

HOUR_S = 3600.0


@click.command("nodes")
@click.argument("words", nargs=-1, metavar="[clear NODES|all]")
@json_option
def nodes(words: tuple[str, ...], as_json: bool) -> int:
    """Nodes whose hardware failed under your runs: why, and until when new runs do without them.

    `gangrun nodes clear n[3-4]` forgets these, `gangrun nodes clear all` every one.
    """
    file, now = KnownBadFile(environment.state_home()), wall_now()
    if words:
        return _clear(file, words, as_json)
    known, watched = remembered_nodes(file.read(), now), history.remembered(history.keyed(file.reports()), now)
    out = {one.node for one in nodes_to_avoid(known, now)}
    ranked = sorted(known.values(), key=lambda one: -one.at)
    if as_json:
        rows = [
            {"node": one.node, "reason": one.reason, "run": one.run, "at": one.at, "times": one.times,
             "until": one.until, "left_out": one.node in out}
            for one in ranked
        ]  # fmt: skip
        seen = [
            {"node": one.node, "gpu": one.gpu, "xid": one.number, "at": one.seen[-1][0], "times": len(one.seen)}
            for one in watched.values()
        ]
        echo_json({"schema": SCHEMA, "nodes": rows, "reports": seen})
        return 0
    if not ranked and not watched:
        click.echo("no node is known to be bad")
        return 0
    lines = [
        (
            clean(one.node),
            f"left out for {max(0.0, one.until - now) / HOUR_S:.0f} h more" if one.node in out else "used again",
            f"{one.times}",
            f"{(now - one.at) / HOUR_S:.0f} h ago",
            clean(one.reason),
        )
        for one in ranked
    ]
    lines += [
        (
            clean(one.node), "used", f"{len(one.seen)}", f"{max(0.0, now - one.seen[-1][0]) / HOUR_S:.0f} h ago",
            f"XID {one.number} on {clean(one.gpu)}: the same within a day weighs more",
        )
        for one in sorted(watched.values(), key=lambda one: -one.seen[-1][0])
    ]  # fmt: skip
    click.echo("\n".join(table(("node", "now", "times", "last", "why"), lines, look_now().columns, "")))
    return 0


def _clear(file: KnownBadFile, words: tuple[str, ...], as_json: bool) -> int:
    verb, *rest = words
    if verb != "clear" or not rest:
        raise UserError("usage", f"gangrun nodes {clean(' '.join(words))}: not understood", "gangrun nodes clear n3")
    known = {**file.read(), **{one.node: one for one in file.reports()}}
    try:
        named = tuple(known) if rest == ["all"] else tuple(name for word in rest for name in unfold(word))
    except ValueError as error:
        raise UserError("usage", f"{clean(' '.join(rest))} names no nodes: {error}") from error
    strange = [name for name in named if name not in known]
    if strange:
        raise UserError("usage", f"nothing is known against {clean(fold(strange))}", "gangrun nodes lists who is")
    try:
        file.clear(named)
    except OSError as error:
        raise UserError("state", f"cannot write {file.path}: {error.strerror}") from error
    if as_json:
        echo_json({"schema": SCHEMA, "cleared": list(named)})
    else:
        click.echo(f"forgotten: {clean(fold(named))}" if named else "nothing was known")
    return 0
