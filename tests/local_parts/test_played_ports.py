"""The ports of a drill's own run: the real checks of each host read them, and nobody else sees them."""

from __future__ import annotations

from tests.local_parts.ordinary_user import answer_of


def test_each_host_has_ports_of_its_own_at_the_usual_place() -> None:
    found = answer_of("port_hosts.py")
    assert found["unseen"], "neither mounts nor ports are seen by the process that made them"
    for host in (*found["up"], *found["down"]):
        assert set(host["classes"]) == {*found["classes"], "infiniband"} and host["net"] == found["net"]
        assert not host["gone"], "what a link in a real class leads to is still there"
    looks = [[host["found"] for host in found[name]] for name in ("up", "counts", "down", "healed")]
    struck, other = zip(*looks, strict=True)
    assert [look["ib_state"][0] for look in struck] == ["ok", "ok", "fail", "ok"]
    assert {look["ib_state"][0] for look in other} == {"ok"}, "the ports of the other host stay up"
    down = struck[2]["ib_state"][1]
    assert down.startswith("mlx5_0 port 1 is 1: DOWN, and was last seen ACTIVE ") and "2: Polling" in down
    counts = struck[1]
    assert (counts["ib_flaps"][0], counts["ib_errors"][0]) == ("warn", "warn"), "a link that stays up breaks nothing"
    assert "fail" not in {verdict[0] for look in other for verdict in look.values()}
