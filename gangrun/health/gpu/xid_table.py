"""What each XID means and asks for: one row each.

The driver reports a fault of a GPU, or of the program that ran on it, by number. Classes: ``APP`` is no sign against a
node by itself; ``SOFT`` lets ranks restart here, a spare being better; ``HARD`` means leave the node out now; ``INFO``
is only told. ``ASK`` carries no answer in itself: the GPU's recovery action and links say. Sources
disagree on some (63, 64, 68, 69, 92, 94, 109): ``docs/health.md`` says which way we went, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gangrun.health.framework.check import CauseClass, Needs


class XidClass(Enum):
    """What one event of this number is worth."""

    APP = "app"
    SOFT = "soft"
    HARD = "hard"
    ASK = "ask"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class XidRow:
    """One number: what it means in words, its class, what cures it."""

    xid: int
    kind: XidClass
    means: str
    needs: Needs = Needs.NONE
    watch: bool = False  # INFO that is worth a warning


def _rows(kind: XidClass, needs: Needs, named: dict[int, str], *, watch: bool = False) -> dict[int, XidRow]:
    return {xid: XidRow(xid, kind, means, needs, watch) for xid, means in named.items()}


XIDS: dict[int, XidRow] = {
    **_rows(
        XidClass.APP,
        Needs.RESTART,
        {
            8: "GPU stopped processing: idle timeout",
            11: "invalid or corrupted push buffer stream",
            13: "graphics engine exception (an illegal address or instruction)",
            25: "invalid or illegal push buffer stream",
            31: "GPU memory page fault (an illegal address)",
            32: "invalid or corrupted push buffer stream",
            39: "copy engine exception",
            40: "copy engine exception",
            41: "copy engine exception",
            43: "the program's channel was reset",
            60: "video processor exception",
            68: "video processor exception",
            69: "graphics engine class error",
            80: "corrupted data sent to the GPU",
            82: "video encoder exception",
            83: "video encoder exception",
            84: "video decoder exception",
            85: "copy engine exception",
            86: "optical flow or JPEG engine exception",
            88: "video engine exception",
            89: "video engine exception",
            126: "copy engine exception",
        },
    ),
    **_rows(
        XidClass.INFO,
        Needs.NONE,
        {
            37: "driver firmware channel error",
            38: "driver firmware channel error",
            45: "work of a program that ended was cleaned up",
            66: "illegal access by the driver",
            67: "illegal access by the driver",
            93: "writing of the info ROM failed, not fatally",
            137: "NVLink privilege error (often a bad address, or a peer that died)",
            141: "CUDA fast-path error",
            147: "NVLink software event",
            148: "NVLink software event",
            171: "more about an uncorrectable error: it was in the memory (XID 48 counts)",
            172: "more about an uncorrectable error: it was in the SRAM (XID 48 counts)",
            162: "power smoothing event",
            163: "power smoothing event",
            164: "power smoothing event",
            165: "power smoothing event",
        },
    ),
    **_rows(
        XidClass.INFO,
        Needs.NONE,
        {92: "high rate of corrected memory errors", 121: "chip-to-chip link error"},
        watch=True,
    ),
    **_rows(
        XidClass.SOFT,
        Needs.RESET,
        {
            44: "fault while switching contexts",
            56: "display engine error",
            63: "a memory row was remapped or a page retired; it takes effect at the next reset",
            65: "video processor exception",
            73: "video encoder exception",
            81: "VGA subsystem error",
            94: "uncorrectable memory error, contained: only the program that was hit died",
            109: "timeout while switching contexts",
            157: "a resource could not be retired",
            159: "chip-to-chip interface error",
            160: "a memory channel was retired",
            161: "a memory channel could not be retired",
        },
    ),
    **_rows(
        XidClass.HARD,
        Needs.RESET,
        {
            46: "GPU stopped processing",
            48: "double-bit memory error, uncorrectable",
            57: "error programming the memory",
            58: "unstable video memory interface",
            61: "internal microcontroller stopped at a breakpoint",
            62: "internal microcontroller halted",
            95: "uncorrectable memory error, not contained",
            110: "security fault",
            119: "GPU system processor did not answer",
            120: "GPU system processor error",
            122: "power unit SPI read failed",
            123: "power unit SPI write failed",
            124: "info ROM file system error",
            125: "info ROM file system error",
            136: "NVLink training failed",
            140: "uncorrectable memory error, not recovered",
            143: "GPU could not be initialised",
            150: "NVLink firmware watchdog",
            155: "NVLink error that its software defines as fatal",
            156: "a resource was retired",
            158: "fatal GPU timeout",
        },
    ),
    **_rows(
        XidClass.HARD,
        Needs.REBOOT,
        {
            79: "GPU fell off the bus",
            151: "key rotation failed",
            167: "fatal PCIe timeout",
            168: "the GPU has less memory than it should",
            169: "security controller halted",
        },
    ),
    **_rows(XidClass.HARD, Needs.RMA, {64: "a memory row could not be remapped, or a page not retired"}),
    **_rows(
        XidClass.HARD,
        Needs.ADMIN,
        {54: "auxiliary power is not connected", 78: "virtual GPU software and driver do not fit"},
    ),
    **_rows(XidClass.ASK, Needs.RESET, {74: "NVLink error"}),
    **_rows(
        XidClass.ASK,
        Needs.RESET,
        {
            144: "NVLink event (SAW unit)",
            145: "NVLink event (RLW unit)",
            146: "NVLink event (TLW unit)",
            149: "NVLink event (link firmware)",
            154: "the GPU asks for a recovery action",
        },
    ),
}
ALONE_SOFT = frozenset({74})  # of those to be asked about: worth a restart even where the GPU says nothing
ECHOES = frozenset({43, 45})  # what a killed program leaves behind
CLASS_CAUSES = {
    XidClass.APP: CauseClass.APPLICATION,
    XidClass.SOFT: CauseClass.EITHER,
    XidClass.HARD: CauseClass.HARDWARE,
    XidClass.ASK: CauseClass.EITHER,
    XidClass.INFO: CauseClass.EITHER,
}


def row_of(xid: int) -> XidRow:
    """The row of a number; one that nobody has described is taken seriously, but not as proof."""
    known = XIDS.get(xid)
    return known or XidRow(xid, XidClass.SOFT, "a number that this version of gangrun does not know", Needs.ADMIN)


# field 230 of the GPU: what it asks for. (words, at the start it is fatal, while a gang runs too, what cures it)
RECOVERY_ACTIONS: dict[int, tuple[str, bool, Needs]] = {
    1: ("for a reset of the GPU", True, Needs.RESET),
    2: ("for a reboot of the node", True, Needs.REBOOT),
    3: ("to be drained of peer-to-peer work", False, Needs.ADMIN),
    4: ("to be drained and reset", False, Needs.RESET),
    5: ("for its IMEX domain to be recovered", False, Needs.ADMIN),
    6: ("for a reset of its bus", True, Needs.RESET),
    7: ("for a reboot of the whole system", True, Needs.REBOOT),
}
