"""What of a gang's state is in this node's memory, and bringing it to the disk.

It asks the keeper that the warden started, which outlives ranks and agents: so an agent that was just born knows as
much as the one that died.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from gangrun.agent.brain.facts import DiskUsed
from gangrun.checkpoint.memory_tier.keeper_client import Kept, NotKept, StepName
from gangrun.checkpoint.memory_tier.rebuild import make_again
from gangrun.checkpoint.memory_tier.recover_from_memory import bring
from gangrun.checkpoint.parity.code import CannotRebuild, GivenUp
from gangrun.core.checkpoints.memory import Code, Holding, Stripe
from gangrun.wire import protection as wire_protection
from gangrun.wire.code_layout import LayoutRefused
from gangrun.wire.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, ManifestError, decode
from gangrun.wire.messages import Rescue
from gangrun.wire.protection import PIECES_PREFIX, RECORD_NAME, Protection, ProtectionRefused


def rescue(keeper: str, command: Rescue, ended: Callable[[], bool] = lambda: False) -> DiskUsed:
    """Answer one command; what goes wrong is the answer's ``why``. ``ended``: nobody waits for it any more."""
    try:
        kept = Kept(keeper)
    except NotKept as error:
        return DiskUsed(command, not command.into, str(error), {"steps": []})
    try:
        if not command.into:
            steps = [msgspec.to_builtins(one) for one in holdings(kept, command.attempt)]
            return DiskUsed(command, True, data={"steps": steps})
        name = StepName(command.attempt, command.step, command.nonce)
        if command.rebuild:
            written = make_again(_record(kept, name), command.rebuild, command.into, ended)
        else:
            written = bring(kept, name, command.files, command.into, ended)
        return DiskUsed(command, True, data={"bytes": written})
    except OSError as error:
        return DiskUsed(command, False, error.strerror or str(error), {"steps": []})
    except (CannotRebuild, GivenUp, LayoutRefused, ProtectionRefused) as error:
        return DiskUsed(command, False, str(error), {"steps": []})
    finally:
        kept.close()


def holdings(kept: Kept, attempt: int) -> list[Holding]:
    """What this node holds of this attempt. A manifest is put there last, so where one is, every shard is somewhere."""
    return [_holding(kept, attempt, step) for step in kept.held(attempt)]


def _holding(kept: Kept, attempt: int, found: Any) -> Holding:
    step, nonce, sizes = int(found["step"]), str(found["nonce"]), dict(found["files"])
    name = StepName(attempt, step, nonce)
    wanted = 0
    if 0 < sizes.get(MANIFEST_NAME, 0) <= MANIFEST_MAX_BYTES:
        try:
            wanted = len(decode(_read(kept, name, MANIFEST_NAME)).files) + 1
        except ManifestError:
            wanted = 0
    codes: tuple[Code, ...] = ()
    if RECORD_NAME in sizes:
        try:
            codes = tuple(map(_named, _record(kept, name).codes))
        except ProtectionRefused:
            codes = ()
    pieces = {file for file in sizes if file.startswith(PIECES_PREFIX)}
    return Holding(step, nonce, tuple(sorted({*sizes} - pieces)), wanted, tuple(sorted(pieces - {RECORD_NAME})), codes)


def _record(kept: Kept, name: StepName) -> Protection:
    return wire_protection.decode(_read(kept, name, RECORD_NAME))


def _named(code: wire_protection.Code) -> Code:
    return Code(
        tuple(tuple(file.name for file in files) for files in code.members),
        tuple(Stripe(stripe.members, stripe.parity) for stripe in code.stripes),
    )


def _read(kept: Kept, name: StepName, file: str) -> bytes:
    with kept.opened(name, file) as fd:
        return os.pread(fd, os.fstat(fd).st_size, 0)
