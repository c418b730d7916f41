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


_TABLE: tuple[tuple[XidClass, Needs, dict[str, tuple[int, ...]]], ...] = (
    (XidClass.APP, Needs.RESTART, {
        "GPU stopped processing: idle timeout": (8,),
        "invalid or corrupted push buffer stream": (11, 32),
        "graphics engine exception (an illegal address or instruction)": (13,),
        "invalid or illegal push buffer stream": (25,),
        "GPU memory page fault (an illegal address)": (31,),
        "copy engine exception": (39, 40, 41, 85, 126),
        "the program's channel was reset": (43,),
        "video processor exception": (60, 68),
        "graphics engine class error": (69,),
        "corrupted data sent to the GPU": (80,),
        "video encoder exception": (82, 83),
        "video decoder exception": (84,),
        "optical flow or JPEG engine exception": (86,),
        "video engine exception": (88, 89),
    }),
    (XidClass.INFO, Needs.NONE, {
        "driver firmware channel error": (37, 38),
        "work of a program that ended was cleaned up": (45,),
        "illegal access by the driver": (66, 67),
        "writing of the info ROM failed, not fatally": (93,),
        "NVLink privilege error (often a bad address, or a peer that died)": (137,),
        "CUDA fast-path error": (141,),
        "NVLink software event": (147, 148),
        "more about an uncorrectable error: it was in the memory (XID 48 counts)": (171,),
        "more about an uncorrectable error: it was in the SRAM (XID 48 counts)": (172,),
        "power smoothing event": (162, 163, 164, 165),
    }),
    (XidClass.SOFT, Needs.RESET, {
        "fault while switching contexts": (44,),
        "display engine error": (56,),
        "a memory row was remapped or a page retired; it takes effect at the next reset": (63,),
        "video processor exception": (65,),
        "video encoder exception": (73,),
        "VGA subsystem error": (81,),
        "uncorrectable memory error, contained: only the program that was hit died": (94,),
        "timeout while switching contexts": (109,),
        "a resource could not be retired": (157,),
        "chip-to-chip interface error": (159,),
        "a memory channel was retired": (160,),
        "a memory channel could not be retired": (161,),
    }),
    (XidClass.HARD, Needs.RESET, {
        "GPU stopped processing": (46,),
        "double-bit memory error, uncorrectable": (48,),
        "error programming the memory": (57,),
        "unstable video memory interface": (58,),
        "internal microcontroller stopped at a breakpoint": (61,),
        "internal microcontroller halted": (62,),
        "uncorrectable memory error, not contained": (95,),
        "security fault": (110,),
        "GPU system processor did not answer": (119,),
        "GPU system processor error": (120,),
        "power unit SPI read failed": (122,),
        "power unit SPI write failed": (123,),
        "info ROM file system error": (124, 125),
        "NVLink training failed": (136,),
        "uncorrectable memory error, not recovered": (140,),
        "GPU could not be initialised": (143,),
        "NVLink firmware watchdog": (150,),
        "NVLink error that its software defines as fatal": (155,),
        "a resource was retired": (156,),
        "fatal GPU timeout": (158,),
    }),
    (XidClass.HARD, Needs.REBOOT, {
        "GPU fell off the bus": (79,),
        "key rotation failed": (151,),
        "fatal PCIe timeout": (167,),
        "the GPU has less memory than it should": (168,),
        "security controller halted": (169,),
    }),
    (XidClass.HARD, Needs.RMA, {
        "a memory row could not be remapped, or a page not retired": (64,),
    }),
    (XidClass.HARD, Needs.ADMIN, {
        "auxiliary power is not connected": (54,),
        "virtual GPU software and driver do not fit": (78,),
    }),
    (XidClass.ASK, Needs.RESET, {
        "NVLink error": (74,),
        "NVLink event (SAW unit)": (144,),
        "NVLink event (RLW unit)": (145,),
        "NVLink event (TLW unit)": (146,),
        "NVLink event (link firmware)": (149,),
        "the GPU asks for a recovery action": (154,),
    }),
)  # fmt: skip
WATCHED = {92: "high rate of corrected memory errors", 121: "chip-to-chip link error"}  # INFO that is worth a warning
XIDS: dict[int, XidRow] = {
    **{
        xid: XidRow(xid, kind, means, needs)
        for kind, needs, rows in _TABLE
        for means, xids in rows.items()
        for xid in xids
    },
    **{xid: XidRow(xid, XidClass.INFO, means, watch=True) for xid, means in WATCHED.items()},
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
