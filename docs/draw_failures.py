"""Draws docs/failures.md from gangrun/core/recovery/failure_texts.py:  python docs/draw_failures.py [--check]."""

import sys
from pathlib import Path

from gangrun.core.model import Cure
from gangrun.core.policy import Policy
from gangrun.core.recovery import budget
from gangrun.core.recovery.failure_texts import RULES, Rule

PAGE = Path(__file__).parent / "failures.md"
HEAD = """# What gangrun concludes from an error text

Drawn by `docs/draw_failures.py` from the table in `gangrun/core/recovery/failure_texts.py`; a test keeps the two equal.

When a rank fails, gangrun reads its exception, the causes of that exception, and the last lines of its stderr. If the
exception only says that another process failed (`ChildFailedError`, ...), the last lines decide. The first row that
matches counts. A row that also fits a victim counts only if no other text tells more.

The exception that ends a Python rank is reported by the rank itself, or the one that its script handled when it left
with `sys.exit`. A traceback on stderr counts only if the rank left by itself and wrote nothing of its own after it: a
script may have logged an error and gone on, and helper processes write there too. Which of two errors judges:

- `raise B from A`, or `raise B` as the last act of the handler of A: B, and A explains it.
- B from code that the handler of A calls: B alone, since A was handled.
- B from clean-up after A (`finally`, the end of a `with`, a handler that raises again or exits): A.
- An exception group: its members, those first that did not only lose a peer.

If no row knows an exception, gangrun asks who spoke and what befell it. Who: the library that the text or the
exception's class names, the address in the text (`s3://...`, `/job:worker/task:1`), or the innermost frame of the
traceback that is not Python's own. What: damaged, refused, lost, could not be opened, or an error that tells no more.
An `OSError`, or an exception of a class of the library itself, counts as that library's trouble even if its text is
not known. An exception of a class of Python (`KeyError`, `ValueError`) does not: a wrong call raises those. Errors of
tools that build and load packages are the environment's. Errors of what reads arguments and configurations are wrong
usage. A line of stderr such as `module.Error: text` is read as an exception.
The same "connection reset" is a lost peer's in MPI, a service's in an S3 client, and the code's in the script itself.
A row may name who does not write its words.

A line of stderr proves nothing if healthy ranks wrote it too. Nor does it if ranks on other nodes end with the same
exception, fault signal or exit code (other than 1) without that line, in this attempt or in an earlier one.

A row has two cures: one for a failure on one node or on at most 20 % of the nodes, one for the same failure on more
nodes. What only a machine can cause is the node's on one node, and the environment's on many.

| cure | what gangrun does |
|---|---|
| restart | It restarts the ranks. If ranks fall first on the same node twice, it moves the rank to another node. |
| once | It restarts once. The same failure again ends the run. On one node before the first step: as *restart*. |
| end | It ends the run at once if the attempt made no step; else as *once*. |
| wait | It waits and tries again, with pauses that double, until the budget is spent. See below for one node. |
| exclude | It excludes the node if another node can take its place, and restarts. |
| test | It restarts and has the devices of the node tested, if tests are on. |
| move | It moves the rank to another node at once; after the first step, only if all ranks of the node fell. |
| victim | It looks for the rank that others lost: one whose rank, node or address they name, or the only silent node. |

A moved rank is an experiment:

- If it falls on the other node too, its code or data is at fault. The run ends and no node is excluded. If storage is
  full or a service does not answer on either node, the node is innocent too.
- If another rank falls first on the first node, gangrun excludes that node.
- If the rank went to a spare and the run comes past the step of the failure, gangrun excludes the first node, unless a
  test of its devices came out clean. If the rank falls like this later, on the other node, the first node is taken
  back and the run ends.

The pattern over nodes and attempts decides where no text is known:

- One rank fails in the same way again on the same node, at the same step or not: the rank moves to another node.
- All ranks of one node fail in the same way, and no other rank does: the environment of the node or the code is at
  fault, and the rank moves at once.
- A program that is not Python's wrote the last line (`file.cc:12`, `Space::function`, `program: `) on many nodes before
  the first step: what is installed, or how the ranks are started, is at fault.
- A service, a port or storage does not answer on one node only: it often passes. If it comes again, the rank moves.
  Where no node is free, nodes change places at once. If all ranks of the node find twice that storage does not answer,
  the node is excluded.
- Only ranks of one of three or more nodes say that they lost a peer, and name none: the network of that node may be at
  fault, and the rank moves.
- All ranks of one node are killed, and no others, twice: a rank of it moves.
- All ranks say that a system call failed in NCCL before the first step: no rank was lost, the environment is at fault.
- The same failure on many nodes: the code or the environment. After one restart, it ends the run.

If only the ranks of one node miss a module or find their disk full, it is that node's environment or its local disk.

A rank with an exception for a bug is not moved, unless all ranks of one node raise it: those that Python itself raises
(`ValueError`, `KeyError`, ...), and what torch says of shapes and types. A rank that somebody killed is not moved
either. A verdict that ends the run excludes nobody, except for what a check measured.

*Budget*: how many restarts this cause gets without progress, by default. A service, a port, storage and the network get
half as many before the run's first progress.

| text that tells of | cause | on one node | on many nodes | budget | source |
|---|---|---|---|---|---|
"""


def row(rule: Rule) -> str:
    """One row of the table."""
    count = {Cure.END: 0, Cure.ONCE: 1}.get(rule.few, budget.limit_count(rule.cause, Policy()))
    cells = (rule.says, rule.cause.value, rule.few.name.lower(), rule.many.name.lower(), str(count), rule.source)
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(row(rule) for rule in RULES) + "\n"


if __name__ == "__main__":
    drawn = page()
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != drawn)
    PAGE.write_text(drawn)
