"""What a step in memory was coded into, and by whom, so that lost files of it can be made again.

It lies beside the manifest on every node of a group, and a rebuild goes by it, whatever nodes take part by then. Shards
of a stripe: a piece of the files of each of its members, and parity, each in a file of its own in somebody's memory. A
member's files count as one row of bytes, one after the other; its pieces follow each other in the order of stripes.
"""

from __future__ import annotations

import msgspec

from gangrun.wire.code_layout import CodeLayout, LayoutRefused, check
from gangrun.wire.manifest import is_inside

SCHEMA = 1
PIECES_PREFIX = "parity."  # no file of a checkpoint begins like this
RECORD_NAME = PIECES_PREFIX + "json"
RECORD_MAX_BYTES = 64 * 1024 * 1024


class ProtectionRefused(ValueError):
    """Not a record that anything may be rebuilt by; the message says why."""


class CodedFile(msgspec.Struct, frozen=True):
    """A file of the step."""

    name: str
    size: int


class Stripe(msgspec.Struct, frozen=True):
    """Shards that were coded together. ``members``: whose pieces the data shards are, by place in the code."""

    members: tuple[int, ...]
    parity: tuple[str, ...]
    layout: CodeLayout


class Code(msgspec.Struct, frozen=True):
    """Ranks that code together, one of each node of a group: their files, and the stripes over them."""

    members: tuple[tuple[CodedFile, ...], ...]
    stripes: tuple[Stripe, ...]

    def piece(self, stripe: int, member: int) -> tuple[int, int]:
        """Where in the row of the member's bytes the piece begins that belongs to this stripe, and its length."""
        begins = 0
        for one in self.stripes[:stripe]:
            begins += self._length(one, member)
        return begins, self._length(self.stripes[stripe], member)

    @staticmethod
    def _length(stripe: Stripe, member: int) -> int:
        return stripe.layout.data[stripe.members.index(member)].size if member in stripe.members else 0


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """One group of nodes. ``losses_count``: how many of them may be lost."""

    schema: int = SCHEMA
    step: int
    nonce: str
    losses_count: int
    codes: tuple[Code, ...]


def piece_name(code: int, stripe: int, shard: int) -> str:
    """The file of one parity shard; ``code`` is different for all codes of a step."""
    return f"{PIECES_PREFIX}{code}.{stripe}.{shard}"


def encode(record: Protection) -> bytes:
    """The record as JSON."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> Protection:
    """Read and check a record; ``ProtectionRefused`` and nothing else where it cannot be relied on."""
    if len(data) > RECORD_MAX_BYTES:
        raise ProtectionRefused(f"the record of parity is longer than {RECORD_MAX_BYTES} bytes")
    try:
        record = msgspec.json.decode(data, type=Protection)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtectionRefused(f"the record of parity cannot be understood: {error}") from None
    if record.schema > SCHEMA:
        raise ProtectionRefused(f"the record of parity has schema {record.schema}, newer than this gangrun's {SCHEMA}")
    for code in record.codes:
        _check(code)
    return record


def _check(code: Code) -> None:
    for file in (file for files in code.members for file in files):
        if not is_inside(file.name) or "/" in file.name or file.name.startswith(PIECES_PREFIX) or file.size < 0:
            raise ProtectionRefused(f"the record of parity names no file of a checkpoint: {file.name[:200]!a}")
    for stripe in code.stripes:
        try:
            check(stripe.layout)
        except LayoutRefused as error:
            raise ProtectionRefused(str(error)) from None
        if len(stripe.members) != len(stripe.layout.data) or len(stripe.parity) != len(stripe.layout.parity):
            raise ProtectionRefused("the record of parity names other shards than were coded")
        if len(set(stripe.members)) != len(stripe.members) or not set(stripe.members) <= set(range(len(code.members))):
            raise ProtectionRefused("the record of parity has a stripe over members that are none")
        if any(not name.startswith(PIECES_PREFIX) or not is_inside(name) or "/" in name for name in stripe.parity):
            raise ProtectionRefused("the record of parity names files that are no parity")
    for member, files in enumerate(code.members):
        coded = sum(code.piece(stripe, member)[1] for stripe in range(len(code.stripes)))
        if coded != sum(file.size for file in files):
            raise ProtectionRefused(f"{coded} bytes of member {member} were coded, and its files have others")
