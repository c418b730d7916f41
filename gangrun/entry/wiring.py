"""What every process of gangrun is wired with: clock, disk, address, log lines, and the command of the next process.

This is the composition root: ``entry`` alone knows which adapter stands behind which port.
"""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from pathlib import Path

from gangrun.adapters.clock import SystemClock
from gangrun.adapters.fs.disk import Disk
from gangrun.adapters.fs.run_dir import RunPaths
from gangrun.adapters.local import validator
from gangrun.adapters.local.played_network import ADDRESSES
from gangrun.adapters.local.validator import CommandValidator
from gangrun.adapters.net.interface import LOOPBACK, towards
from gangrun.config import environment
from gangrun.node.speech import LOSS, OUTPUT, URGENT, Voice
from gangrun.wire import job_variables
from gangrun.wire.spec import RunSpec

OUTPUT_PIECE_BYTES, OUTPUT_WITHIN_S = 800, 1.0  # srun breaks lines of a kibibyte
STORAGE = "the run directory "  # how every sentence about storage that fails begins
ROOT = str(Path(__file__).resolve().parents[2])
_VOICE = Voice()


def clock_of() -> SystemClock:
    """The clock of this process."""
    return SystemClock()


def disk_of(paths: RunPaths) -> Disk:
    """The disk on which this process reaches a run's directory."""
    del paths  # real disks are all alike
    return Disk()


def validator_of(argv: Sequence[str], within_s: float, directory: str | None) -> CommandValidator | None:
    """The user's validator with the environment of this process; None without a command."""
    return validator.validator_of(argv, within_s, environment.all_variables(), directory)


def own_address(spec: RunSpec, node: str, variables: Mapping[str, str]) -> str:
    """Where this node's processes listen: to this box alone, or on the interface by which its job reached it."""
    if spec.world == "local":
        return local_addresses(spec, variables)[node]
    return towards(job_variables.launch_address(variables))


def local_addresses(spec: RunSpec, variables: Mapping[str, str]) -> dict[str, str]:
    """Where each host of this box listens: on loopback, unless a drill has given them a network of their own."""
    played = variables.get(ADDRESSES, "").split(",")
    if len(played) != len(spec.nodes) or not all(played):
        return dict.fromkeys(spec.nodes, LOOPBACK)
    return dict(zip(spec.nodes, played, strict=True))


def own_command(entry: str, arguments: Sequence[str], python: str) -> list[str]:
    """The command that starts one of gangrun's own processes (``entry`` is a module with ``main``).

    Isolated (-I): neither the user's current folder nor PYTHONPATH, which are made for the training script, may put
    their modules in place of ours.
    """
    code = f"import sys; sys.path.append({ROOT!r}); from {entry} import main; sys.exit(main(sys.argv[1:]))"
    return [python, "-I", "-c", code, *arguments]


def tell(who: str, sentence: str, *, urgent: bool = False) -> None:
    """One whole line on stderr, which is a pipe that cannot block (``node.speech``); lost and counted if it is full.

    An urgent line is shown at once by the launcher, ``gangrun run`` or the batch script: the journal, by which all else
    is told, may be what fails.
    """
    _VOICE.say(f"[{who}{URGENT if urgent else '] '}{sentence}")


def tell_output(line: bytes) -> None:
    """A rank's line that the disk refused, for whoever sees what the launcher shows; waits a little if need be."""
    text = line.decode("utf-8", "backslashreplace")
    who, _, words = text.partition("] ")
    while True:
        piece = words.encode()[:OUTPUT_PIECE_BYTES].decode("utf-8", "ignore")
        words = words[len(piece) :]
        select.select((), (2,), (), OUTPUT_WITHIN_S)
        _VOICE.say(f"{OUTPUT}{who}] {piece}")
        if not words:
            return


def tell_loss(attempt: int, node: str, words: str) -> None:
    """How much of what ranks printed is missing in a log, for the launcher: it notes that where status looks."""
    _VOICE.say(f"{LOSS}{attempt} {node} {words}")


def loss_part(line: str) -> tuple[int, str, str] | None:
    """What ``tell_loss`` was told; None for any other line."""
    attempt, _, rest = line.removeprefix(LOSS).partition(" ")
    node, _, words = rest.partition(" ")
    return (int(attempt), node, words) if line.startswith(LOSS) and attempt.isdecimal() else None


def output_part(line: str) -> str:
    """The rank's line that ``tell_output`` handed on; "" for any other."""
    return line.removeprefix(OUTPUT) if line.startswith(OUTPUT) else ""


def tell_dropped(who: str, dropped: Mapping[str, int]) -> None:
    """At the end: how many messages from the wire were not believed, if any."""
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(dropped.items()) if count)
    if counted:
        tell(who, f"dropped on the wire: {counted}")


def urgent_part(line: str) -> str:
    """The sentence of an urgent line; "" for any other."""
    who, mark, sentence = line.partition(URGENT)
    return sentence if mark and who.startswith("[") and " " not in who else ""
