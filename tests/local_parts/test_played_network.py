"""The network of a drill's own run: packets travel between its hosts, and are lost or late when they are to be."""

from __future__ import annotations

from tests.local_parts.network_hosts import LATE_S
from tests.local_parts.ordinary_user import answer_of


def test_hosts_reach_each_other_unless_they_are_cut_off_or_slowed() -> None:
    found = answer_of("network_hosts.py")
    assert found["apart"] == 3, "each host and this process have networks of their own"
    assert found["whole"] == ["whole", "whole"]
    assert found["cut"] == ["", ""]
    assert found["one way"] == ["", "one way"], "it hears what others send, and nobody hears it"
    assert found["other"] == ["other", "other"], "another host is cut off"
    assert found["late"] == ["late", "late"] and found["took"] >= LATE_S
    assert (found["held"], found["healed"]) == ("", "held"), "what was held travels when the network is whole again"
    assert found["left"], "neither files nor threads stay"
