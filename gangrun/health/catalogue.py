"""Every check, in the order in which people read them (room: health). A new family is a file and one line here.

``docs/health.md`` has a row for each; a test keeps the two equal.
"""

from __future__ import annotations

from gangrun.health import active, dcgm, gpu_running, host_bus, host_checks, ib_peers, infiniband, mounts, storage
from gangrun.health.check import Check
from gangrun.health.rounds import Family

FAMILIES: tuple[Family, ...] = (
    gpu_running.FAMILY,
    infiniband.FAMILY,
    ib_peers.FAMILY,
    host_checks.FAMILY,
    host_bus.FAMILY,
    host_checks.NAMES_FAMILY,
    storage.FAMILY,
    mounts.FAMILY,
    dcgm.FAMILY,
)
ACTIVE_FAMILIES: tuple[Family, ...] = (
    active.FAMILY,
    dcgm.TEST_FAMILY,
)  # put devices to work: never beside ranks, only when asked for
CHECKS: tuple[Check, ...] = tuple(check for family in FAMILIES for check in family.checks)
ACTIVE_CHECKS: tuple[Check, ...] = tuple(check for family in ACTIVE_FAMILIES for check in family.checks)
