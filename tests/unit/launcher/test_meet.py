"""The ranks' network: found by trying, open to who has the secret, and its silence is noticed."""

from __future__ import annotations

import socket

import pytest
from waiting import wait_for

from ppwork.launcher.nodes import meet
from ppwork.launcher.nodes.meet import Edges, Listener, own_addresses, reach
from ppwork.launcher.nodes.wire import ADDRESSES, Address

SECRET = b"s" * 64


def closed_port() -> Address:
    with socket.create_server((meet.LOOPBACK, 0)) as server:
        return Address("lo", meet.LOOPBACK, server.getsockname()[1])


def test_an_address_that_answers_is_found_among_others_and_a_stranger_is_not_let_in():
    """The others: nobody listens, or somebody who does not know the secret does."""
    listener = Listener([Address("lo", meet.LOOPBACK)], SECRET)
    with socket.create_server((meet.LOOPBACK, 0)) as stranger:
        strange = Address("lo", meet.LOOPBACK, stranger.getsockname()[1])
        monkey = pytest.MonkeyPatch()
        monkey.setattr(meet, "TRY_S", 0.5)
        assert reach([closed_port(), strange], SECRET, 1) == []
        assert reach(listener.at, b"another secret", 2) == []
        monkey.undo()
    with socket.create_connection((meet.LOOPBACK, listener.at[0].port)) as guess:
        guess.sendall(b"x" * 200)
        ((way, connection),) = reach(listener.at, SECRET, 1)
    at = way.to
    assert (at, way.own.interface) == (listener.at[0], "lo")
    chosen, peers = listener.choose(at.address, at.port)
    assert sorted(peers) == [1]
    assert chosen.getsockname() == (at.address, at.port)
    for each in (connection, chosen, *peers.values()):
        each.close()


def test_an_end_that_falls_silent_is_said_once_and_one_that_closes_at_once():
    (one, other), (third, fourth) = socket.socketpair(), socket.socketpair()
    edges = Edges({1: one, 2: third}, freeze_s=1.5)
    ends = Edges({0: other}, freeze_s=1.5)
    wait_for(lambda: 2 in {node for node, _, _ in edges.silent()}, 5)  # nobody beats at the fourth
    assert edges.silent() == []
    assert ends.silent() == []
    ends.close()
    said = wait_for(edges.silent, 5)
    assert [(node, closed) for node, _, closed in said] == [(1, True)]
    edges.close()
    fourth.close()


def test_addresses_of_the_internet_are_left_out_unless_they_are_allowed(monkeypatch):
    made = {"lo": ["127.0.0.1"], "eth0": ["10.0.0.1"], "eth1": ["8.8.8.8"], "down0": ["10.9.9.9"]}
    monkeypatch.setattr(
        meet.psutil,
        "net_if_addrs",
        lambda: {name: [fake(family=socket.AF_INET, address=a) for a in each] for name, each in made.items()},
    )
    monkeypatch.setattr(
        meet.psutil, "net_if_stats", lambda: {name: fake(isup=name != "down0") for name in made}
    )
    found, refused = own_addresses(loopback=False, others=True, public=False)
    assert [each.address for each in found] == ["10.0.0.1"]
    assert [each.address for each in refused] == ["8.8.8.8"]
    found, refused = own_addresses(loopback=True, others=True, public=True)
    assert [each.address for each in found] == ["127.0.0.1", "10.0.0.1", "8.8.8.8"]
    assert refused == []


def test_a_host_with_hundreds_of_addresses_offers_the_first_of_each_interface_first(monkeypatch):
    """As many as a message may have; a host that sent more was called lost."""
    made = {f"br{n}": [f"10.{n}.0.{each}" for each in range(1, 200)] for n in (0, 1)} | {"eth0": ["10.9.0.1"]}
    monkeypatch.setattr(
        meet.psutil,
        "net_if_addrs",
        lambda: {name: [fake(family=socket.AF_INET, address=a) for a in each] for name, each in made.items()},
    )
    monkeypatch.setattr(meet.psutil, "net_if_stats", lambda: {name: fake(isup=True) for name in made})
    found, _ = own_addresses(loopback=False, others=True, public=False)
    assert [each.address for each in found[:4]] == ["10.0.0.1", "10.1.0.1", "10.9.0.1", "10.0.0.2"]
    assert len(found) == ADDRESSES


def fake(**facts):
    return type("Fake", (), facts)()
