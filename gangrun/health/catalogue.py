"""Every check, in the order in which people read them. A new family is a file and one line here.

``docs/health.md`` has a row for each; a test keeps the two equal.
"""

from __future__ import annotations

from gangrun.health.active import devices
from gangrun.health.framework.check import Check
from gangrun.health.framework.rounds import Family
from gangrun.health.gpu import dcgm, running
from gangrun.health.host import bus, checks, mounts, storage
from gangrun.health.network import infiniband, port_peers

FAMILIES: tuple[Family, ...] = (
    running.FAMILY,
    infiniband.FAMILY,
    port_peers.FAMILY,
    checks.FAMILY,
    bus.FAMILY,
    checks.NAMES_FAMILY,
    storage.FAMILY,
    mounts.FAMILY,
    dcgm.FAMILY,
)
ACTIVE_FAMILIES: tuple[Family, ...] = (
    devices.FAMILY,
    dcgm.TEST_FAMILY,
)  # put devices to work: never beside ranks, only when asked for
CHECKS: tuple[Check, ...] = tuple(check for family in FAMILIES for check in family.checks)
ACTIVE_CHECKS: tuple[Check, ...] = tuple(check for family in ACTIVE_FAMILIES for check in family.checks)
