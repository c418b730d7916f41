"""Every check, in the order in which people read them: what one look at a node consists of.

``docs/health.md`` has a row for each; a test keeps the two equal. A new check is a row of its module's
``CHECKS``, a new family a line of ``FAMILIES``.
"""

from __future__ import annotations

from gangrun.health.active import devices as active
from gangrun.health.framework.check import Check, Reading
from gangrun.health.framework.readings import UUID, by_uuid
from gangrun.health.framework.rounds import CheckFamily
from gangrun.health.gpu import dcgm, devices, nvlink, running
from gangrun.health.host import node, storage
from gangrun.health.network import ports

GPU_COUNTERS = ("ecc_uncorrected_ever", "ecc_corrected", "ecc_corrected then", "ecc_corrected since", "pcie_replays")
LINK_COUNTERS = tuple(bound.reading for bound in (*nvlink.NVLINK_ERRORS, *nvlink.NVLINK5))


def remember_gpus(now: Reading, before: Reading | None) -> Reading:
    """What is judged over minutes: corrected errors, whether they grow worse, heat, and what holds clocks down."""
    return devices.remember(running.with_heat(running.with_slowing(now, before), before), before)


GPUS = CheckFamily(
    "gpu",
    devices.CHILD_WITHIN_S + 2.0,
    devices.read,
    (
        *devices.CHECKS,
        *devices.MEMORY_CHECKS,
        *running.RUNNING,
        *nvlink.CHECKS,
        devices.SPARE_ROWS,
        *running.BESIDE_OTHERS,
    ),
    remember_gpus,
    frozenset({UUID, *GPU_COUNTERS, *LINK_COUNTERS}),
    by_uuid,
)
FAMILIES: tuple[CheckFamily, ...] = (
    GPUS,
    ports.FAMILY,
    ports.PEERS_FAMILY,
    node.FAMILY,
    node.BUS_FAMILY,
    node.NAMES_FAMILY,
    storage.FAMILY,
    storage.MOUNTS_FAMILY,
    dcgm.FAMILY,
)
# put devices to work: never beside ranks, only when asked for
ACTIVE_FAMILIES: tuple[CheckFamily, ...] = (active.FAMILY, dcgm.TEST_FAMILY)
CHECKS: tuple[Check, ...] = tuple(check for family in FAMILIES for check in family.checks)
ACTIVE_CHECKS: tuple[Check, ...] = tuple(check for family in ACTIVE_FAMILIES for check in family.checks)
