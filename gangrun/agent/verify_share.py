"""This node's share of a checkpoint that is to be resumed from, read and compared.

No ranks train meanwhile, but an agent beats: its threads have a lower priority. One share is read at a time: the next
question ends the one before, as does a start of ranks, since nobody waits for it any more. Next:
``supervisor/verify_call.py`` asks, ``checkpoint/verification.py`` reads.
"""

from __future__ import annotations

import os
import threading

from gangrun.agent.brain.facts import DiskUsed
from gangrun.checkpoint.formats.dcp import BadFile, UnreadableFile
from gangrun.checkpoint.formats.dcp_metadata import MetadataRefused
from gangrun.checkpoint.formats.own import proof_of
from gangrun.checkpoint.formats.torch_zip import Damaged
from gangrun.checkpoint.verification import prove_share
from gangrun.wire.manifest import ManifestError
from gangrun.wire.messages import Prove

THREADS_COUNT = 4
NICENESS = 10


class GivenUp(Exception):
    """Nobody waits for it any more."""


class Proving:
    """All shares that one node is asked for, in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = threading.Event()  # by whoever reads now

    def give_up(self) -> None:
        """Whatever is being read, nobody waits for it."""
        with self._lock:
            self._given_up.set()

    def answer(self, command: Prove) -> DiskUsed:
        """One command; what goes wrong is the answer's ``why``."""
        with self._lock:
            self._given_up.set()
            given_up = self._given_up = threading.Event()
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # of this thread and those it starts

        def tick(_: int) -> None:
            if given_up.is_set():
                raise GivenUp("it was given up for what was asked next")

        try:
            proof = proof_of(command.directory, command.nonce)
            unproven = prove_share(proof, tick, THREADS_COUNT, command.share, command.readers_count)
        except (ManifestError, MetadataRefused, BadFile, Damaged, UnreadableFile, GivenUp) as found:
            return DiskUsed(command, False, str(found))
        why = f"{len(unproven)} pieces of its share cannot be checked" if unproven else ""
        return DiskUsed(command, not why, why)
