"""InfiniBand ports of their own for the pretended hosts of a drilled run. They can go down, and nobody else sees them.

Each host has a folder of files as the kernel shows them in ``/sys/class/infiniband``. Each host also has a mount table
of its own, in which a folder with the real classes of devices and the played one is mounted over ``/sys/class``. So all
processes of the host read the played ports at the usual place, and need not be told that. The mounts go with the last
process of the host, however that dies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gangrun.adapters.local.played_world import CLONE_NEWNS, NotPossibleHere, also_at, in_thread, unshare

T = TypeVar("T")
CLASSES, INFINIBAND = Path("/sys/class"), "infiniband"
DEVICES = ("mlx5_0", "mlx5_1")
DEVICE_FILES = {
    "board_id": "MT_0000000838", "fw_ver": "28.39.1002", "hca_type": "MT4129", "node_type": "1: CA", "hw_rev": "0x0",
}  # fmt: skip
PORT_UP = {
    "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
    "lid": "0x11", "sm_lid": "0x1",
}  # fmt: skip
COUNTERS = {
    "counters/link_downed": 3, "counters/symbol_error": 70, "counters/link_error_recovery": 0,
    "counters/port_rcv_errors": 5, "counters/local_link_integrity_errors": 0,
    "counters/excessive_buffer_overrun_errors": 0, "counters/VL15_dropped": 0, "counters/port_xmit_discards": 9,
    "counters/port_xmit_wait": 120_000, "counters/port_rcv_remote_physical_errors": 0,
    "counters/port_rcv_switch_relay_errors": 0, "counters/port_rcv_constraint_errors": 0,
    "counters/port_xmit_constraint_errors": 0, "counters/port_xmit_data": 70_000_000,
    "counters/port_rcv_data": 70_000_000, "hw_counters/rnr_nak_retry_err": 2, "hw_counters/local_ack_timeout_err": 1,
    "hw_counters/packet_seq_err": 0, "hw_counters/out_of_sequence": 0, "hw_counters/implied_nak_seq_err": 0,
    "hw_counters/out_of_buffer": 0, "hw_counters/req_rnr_retries_exceeded": 0,
    "hw_counters/req_transport_retries_exceeded": 0,
}  # fmt: skip
# What the kernel shows once the cable is pulled out: the link is looked for, at the lowest speed.
PORT_DOWN = {
    "state": "1: DOWN", "phys_state": "2: Polling", "rate": "10 Gb/sec (4X SDR)", "lid": "0xffff", "sm_lid": "0x0",
    "counters/link_downed": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlayedPorts:
    """Two devices of one port for each host; a folder for each host is made in ``folder``."""

    folder: Path
    nodes: tuple[str, ...]

    def build(self) -> None:
        """Make the files of all hosts, all ports up; ``NotPossibleHere`` if a process cannot be made to read them."""
        try:
            names = {one.name for one in CLASSES.iterdir() if one.is_dir()}
            for node in self.nodes:
                for name in names | {INFINIBAND}:
                    (self.folder / node / name).mkdir(parents=True)
                for device in DEVICES:
                    self._write(node, device, DEVICE_FILES)
                    self._write(node, f"{device}/ports/1", {**PORT_UP, **COUNTERS})
                self.on_host(node, lambda: None)
        except OSError as error:
            words = f"this machine lets nobody play ports in {CLASSES} ({error.strerror})"
            raise NotPossibleHere(error.errno, words) from error

    def environment(self) -> dict[str, str]:
        """What processes on the hosts need. NCCL must not look for devices that are only played."""
        return {"NCCL_IB_DISABLE": "1"}

    def on_host(self, node: str, start: Callable[[], T]) -> T:
        """``start`` a process that has this host's ports."""
        classes = self.folder / node

        def there() -> T:
            unshare(CLONE_NEWNS)
            for one in classes.iterdir():
                if one.name != INFINIBAND:
                    also_at(CLASSES / one.name, one)
            also_at(classes, CLASSES)
            return start()

        return in_thread(there)

    def say(self, node: str, changes: Mapping[str, object]) -> None:
        """From now on the first port of this host shows this, and else a healthy port."""
        self._write(node, f"{DEVICES[0]}/ports/1", {**PORT_UP, **COUNTERS, **changes})

    def _write(self, node: str, place: str, files: Mapping[str, object]) -> None:
        """Whoever reads meanwhile gets each file as it was or as it will be."""
        for name, value in files.items():
            file = self.folder / node / INFINIBAND / place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f".{file.name}")
            part.write_text(f"{value}\n")
            part.replace(file)
