"""One labelled failure as a text file: a header, what the world does, what a senior engineer would conclude, the text.

    name: uncorrectable ECC error on one GPU
    source: https://github.com/...
    class: device                 what it is; ``a | b`` if the evidence does not decide between them
    sticks: node 1                node N | rank R | step | everywhere | passes K (the first K attempts)
    falls: one                    one | node | all | others (not on the node it sticks to) | rank R [S ...]
    step: 120 130 | none          the last step of each attempt, the last one repeated; none: before the first
    exit: 1 | SIGABRT | 0         none: the rank does not end by itself
    ---
    the error text of the ranks that fall
    === others
    the error text of the ranks that fall with them

Keys with a default: ``apart`` (ms between ranks that fall), ``others`` (ms after the first fall at which all other
ranks fall with the second text; below 0: before it; none: they wait until they are stopped), ``others exit``,
``slow end`` (ms from the error's writing to the process's end, of the first that falls), ``oom`` (the cgroup killed
it), ``stall`` (s without progress until the watch speaks), ``stacks`` (``frame / frame of the others``), ``behind``
(steps by which the ranks that hang are behind), ``script ended`` (``yes``: each rank had
run the script to its end and reported that; then the processes of those that fall crashed, and the others end with 0).

What is expected: ``restarts`` (``1`` or ``0-2``), ``outcome`` (``succeeds``, ``fails`` or ``fails script``), ``leave
out`` (``sick``: that node is excluded; ``aside``: it is, or holds no rank in the end; ``none``). By default ``sick``
for what sticks to a node, and ``aside`` if the evidence does not decide what it is.

In a text ``{rank}``, ``{node}``, ``{sick}`` (the node), ``{sick rank}`` and ``{ip}`` (that node's address) are filled.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

KEYS = frozenset(
    {"name", "source", "class", "sticks", "falls", "step", "exit", "apart", "others", "others exit", "slow end", "oom"}
    | {"stall", "stacks", "behind", "script ended", "restarts", "outcome", "leave out"}
)
CLASSES = (
    "usage", "code", "gpu memory", "foreign process", "host memory", "device", "cpu", "local disk", "storage",
    "network", "service", "port", "environment", "hang", "left early", "killed", "teardown",
)  # fmt: skip
INNOCENT = tuple((Path(__file__).parent / "innocent.txt").read_text().splitlines())  # what stacks write at their start
STICKS = ("node", "rank", "step", "everywhere", "passes")


@dataclass(frozen=True, slots=True)
class Case:
    """One labelled failure."""

    file: str
    header: dict[str, str]
    text: str
    others_text: str

    def number(self, key: str, default: int = 0) -> int:
        """A number in the header."""
        return int(self.header.get(key, default))

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes that are right."""
        return tuple(label.strip() for label in self.header["class"].split("|"))

    @property
    def sticks(self) -> tuple[str, int]:
        """What the failure sticks to, and to which."""
        word, _, number = self.header["sticks"].partition(" ")
        return word, int(number or (1 if word in {"node", "passes"} else 0))

    @property
    def sick(self) -> str:
        """The node that cannot be used; "" if there is none."""
        word, number = self.sticks
        return f"n{number}" if word == "node" else ""

    @property
    def leave_out(self) -> str:
        """Whether the sick node is to be excluded."""
        sure = "sick" if len(self.labels) == 1 else "aside"
        return self.header.get("leave out", sure if self.sick else "none")

    @property
    def restarts(self) -> range:
        """How many restarts are right."""
        least, _, most = self.header["restarts"].partition("-")
        return range(int(least), int(most or least) + 1)

    def step(self, attempt: int) -> int:
        """The last step of an attempt that fails, -1: none."""
        steps = self.header.get("step", "none").split()
        word = steps[min(attempt, len(steps) - 1)]
        return -1 if word == "none" else int(word)


def exit_of(word: str) -> tuple[int | None, int | None]:
    """(code, signal) of ``1`` or ``SIGABRT``."""
    return (None, int(signal.Signals[word])) if word.startswith("SIG") else (int(word), None)


def read(path: Path) -> Case:
    """The case in a file; a header that cannot be understood is an error."""
    head, _, body = path.read_text().partition("\n---\n")
    header = {}
    for line in head.splitlines():
        key, colon, value = line.partition(": ")
        assert colon and key in KEYS and value.strip(), f"{path.name}: {line!r}"
        header[key] = value.strip()
    text, _, others = body.partition("=== others\n")
    case = Case(path.stem, header, text.rstrip(), others.rstrip())
    assert set(case.labels) <= set(CLASSES) and case.sticks[0] in STICKS, f"{path.name}: {header}"
    assert header.get("falls") != "node" or case.sick, f"{path.name}: the ranks of which node?"
    assert header["source"].startswith("https://") and case.restarts, path.name
    assert header["outcome"].split()[0] in {"succeeds", "fails"}, path.name
    return case


def read_all(folder: str) -> list[Case]:
    """All cases of one folder beside this file, by name."""
    return [read(path) for path in sorted((Path(__file__).parent / folder).glob("*.txt"))]
