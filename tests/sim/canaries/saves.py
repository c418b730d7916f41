"""Mutants of protocol section 3: staging, commits, the choice of a resume point. Next: ``events``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gangrun.core.checkpoints import resume
from gangrun.core.model import Level
from gangrun.sim.body import checkpoints
from tests.sim.canaries.mutation import Swaps, mutant


@mutant("staging of older attempts is sealed before a resume point is chosen", "3", "I4")
def staging_stays_open() -> Swaps:
    """Nothing is sealed."""
    return ((checkpoints.CheckpointFs, "seal", lambda self, name: None),)


@mutant("only sealed commits are chosen (what counts where chmod does nothing)", "3", "I4", "I5")
def chooses_unsealed() -> Swaps:
    """Whatever stands in the directory may be chosen."""
    original = resume.choose

    def choose(candidates: Any, wanted: Any, **kwargs: Any) -> Any:
        return original(candidates, wanted, **{**kwargs, "sealed": None})

    return ((checkpoints, "choose", choose),)


@mutant("what an attempt commits after its own list was made is in no list", "3", "I4")
def lists_all_that_stands() -> Swaps:
    """Each list names whatever is in the directory."""
    return ((checkpoints.CheckpointFs, "list_commits", lambda self, attempt: list(self.saved.values())),)


@mutant("a commit is a rename onto a name that must not exist", "3", "I6")
def commit_overwrites() -> Swaps:
    """A commit replaces what is there."""
    original = checkpoints.CheckpointFs.commit

    def commit(self: checkpoints.CheckpointFs, name: Any, step: int) -> bool:
        self.overwrites = True
        return original(self, name, step)

    return ((checkpoints.CheckpointFs, "commit", commit),)


@mutant("what is not valid, or was never committed, is not chosen", "3", "I5")
def chooses_damaged() -> Swaps:
    """Every directory passes for verified."""
    original = checkpoints.SimCheckpoints.candidates

    def candidates(self: Any) -> Any:
        return [replace(c, valid=True, level=Level.VERIFIED, committed=True) for c in original(self)]

    return ((checkpoints.SimCheckpoints, "candidates", candidates),)


@mutant("never from zero once something was committed", "3", "I6")
def from_zero_when_in_doubt() -> Swaps:
    """Where none is valid the run starts anew."""
    original = resume.choose

    def choose(candidates: Any, wanted: Any, **kwargs: Any) -> Any:
        choice = original(candidates, wanted, **kwargs)
        return resume.FromZero("why not") if isinstance(choice, resume.NothingValid) else choice

    return ((checkpoints, "choose", choose),)


@mutant("unfinished saves above the resume step are set aside before the next attempt starts", "3", "I4", "I5", "I6")
def late_saves_stay() -> Swaps:
    """They stay where a late writer finishes them."""
    return ((checkpoints.SimCheckpoints, "_make_way", lambda self, attempt, judged: ""),)


@mutant("what is set aside is what was judged, and nothing that has taken its name since", "3", "I4")
def moves_what_bears_the_name() -> Swaps:
    """Whatever bears the name is moved."""
    return ((checkpoints.SimCheckpoints, "is_as_judged", lambda self, found, judged: True),)


@mutant("the seal of staging is tried, and staging that modes do not seal is renamed away", "3", "I4")
def believes_the_seal() -> Swaps:
    """After the chmod staging counts as sealed."""
    return ((checkpoints.CheckpointFs, "keeps_out", lambda self, staging: True),)
