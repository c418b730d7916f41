"""The line between an agent and a supervisor, over real sockets."""

from __future__ import annotations

import contextlib
import resource
import socket as plain_socket
from collections import Counter
from time import monotonic

import pytest
import zmq

from gangrun.adapters.net.agent_net import AgentNet
from gangrun.adapters.net.curve import new_key_pair
from gangrun.adapters.net.router import Bundle
from gangrun.adapters.net.sockets import client
from gangrun.wire.messages import SIZE_MAX_BYTES, Ack, Hello, PeerAddress, Ping, Pong, Stop, Welcome, encode
from tests.net.ends import HOST, KEYS, NOWHERE, RUN, agent, beat, dealer, hello, supervisor
from tests.waiting import until


def test_nothing_listens_on_all_interfaces():
    with supervisor() as top, agent() as net:
        for endpoint in (top.radio.endpoint, net.address.endpoint):
            assert endpoint.startswith(f"tcp://{HOST}:")


def test_a_stranger_with_a_key_of_its_own_is_refused():
    with supervisor() as top, dealer(top, new_key_pair()) as stranger:
        stranger.send(encode(RUN, hello()))
        until(lambda: top.radio.refused_count, 5, "the gate's refusal")
        assert top.hears_nothing()


def test_the_right_client_key_with_the_wrong_server_key_is_refused():
    with supervisor() as top, agent() as net:
        net.dial(top.radio.endpoint, new_key_pair().public)
        net.say(hello())
        assert top.hears_nothing(0.5)


def test_a_client_without_curve_is_refused():
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with supervisor() as top, context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        plain.connect(top.radio.endpoint)
        plain.send(encode(RUN, hello()))
        assert top.hears_nothing(0.5)


def test_bytes_that_are_no_protocol_at_all_do_no_harm():
    with supervisor() as top, agent() as net:
        host, port = top.radio.endpoint.removeprefix("tcp://").split(":")
        with plain_socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 50)
            net.dial(top.radio.endpoint, top.radio.server_key)
            net.say(hello())
            assert top.next().message == hello()


def test_garbage_and_aliens_are_counted_and_dropped():
    bad = [b"", b"\xc1", encode("another run", hello()), encode(RUN, hello())[:-3], b"x" * (SIZE_MAX_BYTES + 1)]
    with supervisor() as top, dealer(top) as line:
        for data in bad:
            line.send(data)
        line.send(encode(RUN, Ack(1, 1, 1.0, 0)))
        line.send_multipart([b"two", b"frames"])
        line.send(encode(RUN, hello()))
        assert isinstance(top.next().message, Hello)
        assert top.radio.stats == {
            "not a message for us": len(bad),
            "not an agent's message": 1,
            "wrong number of frames": 1,
        }


def test_a_bundle_is_decoded_by_who_reads_it_and_counts_what_it_drops_once():
    stats: Counter[str] = Counter()
    bundle = Bundle(RUN, [(b"a", encode(RUN, hello())), (b"b", b"x"), (b"c", encode(RUN, Ack(1, 1, 1.0, 0)))], stats)
    assert not stats, "nobody has read it"
    for _ in range(2):
        assert list(bundle) == [(b"a", hello())]
        assert stats == {"not a message for us": 1, "not an agent's message": 1}


def test_a_monstrous_message_costs_its_sender_the_line():
    with supervisor() as top, agent() as net, dealer(top) as line:
        line.send(b"x" * (2 * SIZE_MAX_BYTES + 1))
        net.dial(top.radio.endpoint, top.radio.server_key)
        net.say(hello())
        assert isinstance(top.next().message, Hello)
        assert not top.radio.stats


def test_what_a_supervisor_may_not_say_is_counted_by_the_agent():
    with supervisor() as top, agent() as net:
        net.dial(top.radio.endpoint, top.radio.server_key)
        net.say(hello())
        peer = top.next().peer
        top.radio.bind_peer("n1", peer)
        top.radio.send("n1", hello())
        top.radio.send("n1", Stop(1, (1, 1), 0, 1.0, False, 0.0, "why"))
        net.wait(5.0)
        assert len(until(net.from_supervisor, 5, "the command")) == 1
        assert net.stats == {"not a supervisor's message": 1}


def test_a_dealer_without_a_peer_queues_old_beats_so_they_are_known_by_seq_not_by_arrival():
    """Why beats carry a seq and an echo: what was said to nobody arrives, old, once somebody listens."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with plain_socket.socket() as held, agent() as net, context, context.socket(zmq.ROUTER) as late:
        held.setsockopt(plain_socket.SOL_SOCKET, plain_socket.SO_REUSEADDR, 1)  # nobody listens, nobody else gets it
        held.bind((HOST, 0))
        port = held.getsockname()[1]
        keys = new_key_pair()
        late.linger = 0
        late.curve_server = 1
        late.curve_secretkey = keys.secret.encode()
        net.dial(f"tcp://{HOST}:{port}", keys.public)
        for seq in range(1, 40):
            net.say(beat(seq))
        assert net.stats["queue full"] > 0, "the queue is short on purpose"
        late.bind(f"tcp://{HOST}:{port}")
        assert late.poll(60_000)
        data = late.recv_multipart()[1]
        assert data == encode(RUN, beat(1))


def test_dialling_again_drops_what_was_queued_for_the_last_one():
    with supervisor() as top, agent() as net:
        net.dial(f"tcp://{HOST}:9", KEYS.public)
        net.say(beat(1))
        net.dial(top.radio.endpoint, top.radio.server_key)
        net.say(beat(2))
        assert top.next().message == beat(2)
        assert top.hears_nothing(0.2)


def test_each_dial_has_an_identity_of_its_own():
    """A router that still holds the dead connection would ignore a second one of the same name."""
    with supervisor() as top, agent() as net:
        peers = set()
        for seq in range(1, 4):
            net.dial(top.radio.endpoint, top.radio.server_key)
            net.say(beat(seq))
            peers.add(top.next().peer)
        assert len(peers) == 3


def test_the_newest_peer_of_a_node_is_the_one_that_is_spoken_to():
    with supervisor() as top, agent() as net:
        for term in (1, 2):
            net.dial(top.radio.endpoint, top.radio.server_key)
            net.say(hello())
            top.radio.bind_peer("n1", top.next().peer)
            top.radio.send("n1", Welcome(term, "n1"))
            net.wait(5.0)
            assert until(net.from_supervisor, 5, "the welcome") == [Welcome(term, "n1")]


def test_an_address_that_is_none_is_counted():
    with agent() as net:
        net.dial("not an endpoint", KEYS.public)
        net.dial(f"tcp://{HOST}:9", "not a key")
        net.say(beat(1))
        net.say_peer(NOWHERE, Ping("n1"), 0.0)
        assert net.stats["not an address"] == 3
        assert net.from_supervisor() == []


def test_saying_something_to_a_node_that_never_spoke_is_counted():
    with supervisor() as top:
        top.radio.send("nobody", Welcome(1, "nobody"))
        top.radio.bind_peer("gone", b"gone")
        top.radio.send("gone", Welcome(1, "gone"))
        until(lambda: top.radio.stats["peer gone"], 5, "ROUTER_MANDATORY's word")
        assert top.radio.stats["to nobody"] == 1


def heard(net: AgentNet) -> list:
    """What peers said to it by now."""
    net.wait(0.05)
    return net.from_peers()


def test_peers_ask_and_answer():
    with agent("a") as a, agent("b") as b:
        a.say_peer(b.address, Ping("a", 4), 0.0)
        asked: list = until(lambda: heard(b), 5, "the question")
        message, route = asked[0]
        assert message == Ping("a", 4)
        b.reply_peer(route, Pong("b", "inc", 5, 1.5))
        answered: list = until(lambda: heard(b) or heard(a), 5, "the answer")
        assert answered == [(Pong("b", "inc", 5, 1.5), b"")]
        b.reply_peer(b"nobody", Pong("b", "inc", 5))
        assert b.stats["peer gone"] == 1


def test_a_peer_with_another_key_is_not_heard():
    with agent("a", new_key_pair()) as a, agent("b") as b:
        a.say_peer(b.address, Ping("a"), 0.0)
        assert not any(heard(b) for _ in range(6))


def test_lines_to_peers_are_closed_when_idle():
    with agent("a") as a, agent("b") as b:
        a.say_peer(b.address, Ping("a"), 0.0)
        assert len(a._peer.sockets()) == 2
        a.say_peer(a.address, Ping("a"), 100.0)
        assert len(a._peer.sockets()) == 2
        for port in range(40):
            a.say_peer(type(b.address)("x", f"tcp://{HOST}:{port + 1}", b.address.key), Ping("a"), 101.0)
        assert len(a._peer.sockets()) <= 33


def test_a_file_descriptor_ends_the_wait():
    one, two = plain_socket.socketpair()
    with agent() as net, one, two:
        net.watch(one.fileno())
        two.send(b"x")
        net.wait(5.0)
        assert one.recv(8) == b"x"


def test_more_agents_than_a_low_soft_limit_would_allow_are_all_heard():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 330
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, hard), hard))
    try:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with supervisor() as top:
            lines = [client(context, KEYS, f"n{i}", top.radio.endpoint, top.radio.server_key) for i in range(count)]
            for i, line in enumerate(lines):
                line.send(encode(RUN, beat(1, f"n{i}")))
            heard = {top.next(30).peer for _ in range(count)}
            assert len(heard) == count
            for line in lines:
                line.close(0)
            context.term()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def answers(net: AgentNet, peer: PeerAddress, within_s: float) -> list[str]:
    """The nodes whose hosts answer a knock."""
    began = monotonic()
    net.knock(peer, began)
    while not (found := net.hosts_answered()) and monotonic() < began + within_s:
        net.wait(0.05)
    return found


def test_a_host_answers_a_knock_although_no_process_there_does():
    """The kernel takes a connection for a process that does not run, and refuses one to a port of none."""
    with agent() as net, plain_socket.socket() as stopped, plain_socket.socket() as ended:
        stopped.bind((HOST, 0))
        stopped.listen(1)  # nobody ever accepts
        ended.bind((HOST, 0))
        port, closed_port = stopped.getsockname()[1], ended.getsockname()[1]
        assert answers(net, PeerAddress("n2", f"tcp://{HOST}:{port}", ""), 20.0) == ["n2"]
        assert answers(net, PeerAddress("n3", f"tcp://{HOST}:{closed_port}", ""), 20.0) == ["n3"]
        assert net.hosts_answered() == []


@pytest.mark.parametrize("endpoint", ["tcp://255.255.255.255:9", "tcp://nowhere:9", "tcp://127.0.0.1", "peer", ""])
def test_what_cannot_be_knocked_at_answers_nothing(endpoint: str):
    with agent() as net:
        assert answers(net, PeerAddress("n2", endpoint, ""), 0.3) == []


def test_knocks_that_nobody_answers_are_given_up():
    """A queue of connections that is full takes no more: as if the host were gone."""
    with agent() as net, plain_socket.socket() as full, contextlib.ExitStack() as callers:
        full.bind((HOST, 0))
        full.listen(0)
        peer = PeerAddress("n2", f"tcp://{HOST}:{full.getsockname()[1]}", "")
        for _ in range(2):
            one = callers.enter_context(plain_socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        assert answers(net, peer, 0.3) == []
        assert len(net._knocks.filenos()) == 1
        net.knock(NOWHERE, monotonic() + 60.0)
        assert len(net._knocks.filenos()) == 1, "only the newest is waited for"
