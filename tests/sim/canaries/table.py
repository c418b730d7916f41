"""The table of docs/canaries.md, from the mutants: ``python -m tests.sim.canaries.table > docs/canaries.md``."""

from __future__ import annotations

import sys

from tests.sim.canaries.canary import MUTANTS
from tests.sim.canaries.mutation import Mutant

OPENING = """# Canaries: with any one rule taken out, some simulated world breaks

Each rule of the [protocol](protocol.md) closes a hole that was seen. Each line here takes one rule out of the real code
(a *mutant*, `tests/sim/canaries/`), and a test shows small worlds in which an invariant of protocol section 9 then
breaks, and does not break with the rule in. A rule whose mutant nothing catches would be one that nothing tests.

This page is written by `python -m tests.sim.canaries.table > docs/canaries.md`; a test keeps it equal to the mutants.

| § | rule | the mutant | caught by |
| --- | --- | --- | --- |
"""

NOTES = """
## Rules that cover each other

- *Claim by link* and *ambiguous claims count as lost* are both backed by *an existing folder of tickets means deposed*:
  whoever overwrites a claim, or believes one it did not get, finds `terms/N.acts` made. Their mutants take that folder
  over as well.
- Where no rank is confirmed dead the other conditions of the *fragment rule* mostly say no too, so that mutant takes
  out three. The fourth, sealed staging, is the supervisor's own doing before every choice: its mutant is
  `staging_stays_open`.
- *An agent launches only what it prepared* is covered by *the warden starts the next agent only once no rank is left*:
  an agent that prepared nothing still starts on a clean slate.
- *A supervisor that hears of a newer term leaves* is covered by the seal: what it would do it can get no ticket for.
- *While its promise is held an agent neither beats to nor believes the old term* is covered twice: the wait after a
  takeover counts from when half of the roster has said hello to the new term (which is later than their promises), and
  a supervisor that has lost its majority does not act (law 3).
- *D < T* is covered in part by *no promise while any candidate was acked lately*: `promises_too_early` takes out both.
- *StoreStalled* only gives the reason. Another rule protects the run: nothing starts without its record and ticket.

## Rules that are about time, not safety

No invariant can break without these, they only make a run wait less, or lose less; they are tested where they live:
the candidate's back-off; commands that are said again until answered (without it the deadlines ask anew); progress
outranks heartbeats; indirect probes; the grace of a warden that was paused; hang verdicts that wait for a stalled disk;
jitter; the shared-service rule (the cap on exclusions keeps it from doing harm).

## Not in the simulated world

Sockets (CURVE, ZAP, identities, watermarks), processes (subreaper, pidfd, file descriptors) and the bytes of journals
are tested on real ones. Prune, parity of steps in memory and a supervisor's own scancel are not built yet.
"""


def row(mutant: Mutant) -> str:
    """One line."""
    covered = f" (with `{mutant.given}`, which covers it, out in both runs)" if mutant.given else ""
    caught = ", ".join(sorted(mutant.breaks, key=lambda name: (len(name), name)))
    return f"| {mutant.section} | {mutant.rule} | `{mutant.name}`: {mutant.what}{covered} | {caught} |"


def page() -> str:
    """The whole page."""
    ordered = sorted(MUTANTS.values(), key=lambda mutant: int(mutant.section))
    return OPENING + "\n".join(row(mutant) for mutant in ordered) + "\n" + NOTES


if __name__ == "__main__":
    sys.stdout.write(page())
