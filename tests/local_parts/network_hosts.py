"""Two processes on the played network, one on each host: what arrives at whom is printed as JSON. A program of its own,
since an ordinary user enters a user namespace for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from time import monotonic

from gangrun.adapters.local.played_network import PlayedNetwork, own_networks

NODES = ("n0", "n1", "n2")
HOST = """
import socket, sys
me, *others = sys.argv[1:]
hear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
hear.bind((me, 7000))
hear.settimeout(float(sys.stdin.readline()))
print("ready", flush=True)
for line in sys.stdin:
    to, _, word = line.strip().partition(" ")
    if to:
        hear.sendto(word.encode(), (to, 7000))
    try:
        print(hear.recv(100).decode() if not to else "sent", flush=True)
    except TimeoutError:
        print("", flush=True)
"""
SOON_S, LATE_S = 1.0, 0.4


class Host:
    """A process on one host that sends a word, or says what came within ``SOON_S``."""

    def __init__(self, network: PlayedNetwork, node: str) -> None:
        self.address = dict(zip(NODES, network.environment()["PLAYED_ADDRESSES"].split(","), strict=True))[node]
        command = [sys.executable, "-c", HOST, self.address]
        self.process = network.on_host(
            node, lambda: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        self.ask(str(SOON_S))

    def ask(self, words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=20)


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def main() -> None:
    own_networks()
    before, mine = held(), os.readlink("/proc/self/ns/net")
    network = PlayedNetwork.of(NODES, monotonic)
    a, b = Host(network, "n0"), Host(network, "n1")
    network.carry()
    inside = {os.readlink(f"/proc/{host.process.pid}/ns/net") for host in (a, b)}

    def both(word: str) -> tuple[str, str]:
        """What b gets of a, and a of b."""
        a.ask(f"{b.address} {word}")
        b.ask(f"{a.address} {word}")
        return b.ask(""), a.ask("")

    found: dict[str, object] = {"apart": len({mine, *inside}), "whole": both("whole")}
    network.cut("n0", one_way=False)
    found["cut"] = both("cut")
    network.cut("n0", one_way=True)
    found["one way"] = both("one way")
    network.cut("n2", one_way=False)
    found["other"] = both("other")
    network.heal()
    network.slow_down("n0", LATE_S)
    began = monotonic()
    found["late"], found["took"] = both("late"), monotonic() - began
    network.slow_down("n0", 3600.0)
    a.ask(f"{b.address} held")
    found["held"] = b.ask("")
    network.heal()
    found["healed"] = b.ask("")
    a.end()
    b.end()
    network.close()
    found["left"] = before == held()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
