"""The network of the ranks: tries to find an address of the first host that all others reach; then beats.

The first node listens on each of its addresses and the others try them all, so no user has to name an
interface or to resolve a name. Both sides prove that they know the run's secret (an HMAC over random numbers
of both), so a stranger at the same address is not taken for a node of this run. The connections stay open: a
byte goes each way four times a second. So a cut in this network is noticed even if the pipes to the launcher
use another network.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import psutil

from ppwork.launcher.nodes.wire import ADDRESSES, Address, Way
from ppwork.launcher.torchrun_watch import PAUSED_S

LOOPBACK = "127.0.0.1"
TRY_S = 5.0
"""Seconds for a connection and its proof."""
BEAT_S = 0.25
MOST_STRANGERS = 64
"""Most connections that may be proving themselves at once."""
_NONCE = 16
_GREETING = struct.Struct(f"<4sH{_NONCE}s")
_MAGIC = b"ppN1"


def own_addresses(*, loopback: bool, others: bool, public: bool) -> tuple[list[Address], list[Address]]:
    """Return the IPv4 addresses on which others may reach this host, and those refused as the Internet's.

    There are at most ``ADDRESSES``; the first address of each interface comes before any second one.

    Args:
        loopback: Include the loopback, as the first address.
        others: Include addresses of the networks that the host is in.
        public: Include addresses of the Internet, which are else refused.
    """
    by_interface = [[Address(name, each) for each in mine] for name, mine in _addresses().items()]
    found = [each for nth in zip_longest(*by_interface) for each in nth if each is not None]
    mine = [each for each in found if each.address == LOOPBACK and loopback]
    mine += [each for each in found if others and not ipaddress.ip_address(each.address).is_loopback]
    refused = [each for each in mine if ipaddress.ip_address(each.address).is_global and not public]
    return [each for each in mine if each not in refused][:ADDRESSES], refused


def _addresses() -> dict[str, list[str]]:
    """Return the IPv4 addresses of this host, by interface, for interfaces that are up."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    by_interface = psutil.net_if_addrs().items()
    return {
        name: [each.address for each in mine if each.family == socket.AF_INET]
        for name, mine in by_interface
        if name in up
    }


class Listener:
    """The sockets of the first node, each bound to one address; accepts peers that prove themselves.

    Args:
        addresses: Where to listen.
        secret: The run's secret.
    """

    def __init__(self, addresses: Iterable[Address], secret: bytes) -> None:
        self._secret = secret
        self._sockets: dict[Address, socket.socket] = {}
        self._came: dict[tuple[int, str], socket.socket] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        for each in addresses:
            with contextlib.suppress(OSError):  # the address has gone meanwhile
                server = socket.create_server((each.address, 0), backlog=MOST_STRANGERS)
                self._sockets[Address(each.interface, each.address, server.getsockname()[1])] = server
        self._thread = threading.Thread(target=self._accept, name="meeting", daemon=True)
        self._thread.start()

    @property
    def at(self) -> tuple[Address, ...]:
        """Addresses at which it listens."""
        return tuple(self._sockets)

    def choose(self, address: str, port: int) -> tuple[socket.socket, dict[int, socket.socket]]:
        """Close all sockets but one; return that one, and the connections made to it, by node."""
        self._over.set()
        self._thread.join(TRY_S + 1.0)
        chosen = None
        for at, server in self._sockets.items():
            if (at.address, at.port) == (address, port):
                chosen = server
            else:
                server.close()
        if chosen is None:
            raise OSError(f"nobody listens at {address}:{port}")
        peers = {}
        for (node, by), connection in self._came.items():
            if by == address:
                peers[node] = connection
            else:
                connection.close()
        chosen.setblocking(True)  # torch expects that
        return chosen, peers

    def _accept(self) -> None:
        proving: list[threading.Thread] = []
        with selectors.DefaultSelector() as ready:
            for server in self._sockets.values():
                server.setblocking(False)
                ready.register(server, selectors.EVENT_READ)
            while not self._over.is_set():
                for key, _ in ready.select(0.05):
                    proving = [thread for thread in proving if thread.is_alive()]
                    with contextlib.suppress(OSError):
                        connection, _ = key.fileobj.accept()  # type: ignore[union-attr]  # a socket
                        if len(proving) >= MOST_STRANGERS:
                            connection.close()
                            continue
                        proving.append(threading.Thread(target=self._prove, args=(connection,), daemon=True))
                        proving[-1].start()

    def _prove(self, connection: socket.socket) -> None:
        try:
            line = _Line(connection)
            magic, node, theirs = _GREETING.unpack(line.read(_GREETING.size))
            ours = secrets.token_bytes(_NONCE)
            connection.sendall(ours + _proof(self._secret, b"first", node, theirs, ours))
            line.expect(_proof(self._secret, b"other", node, theirs, ours))
        except (OSError, struct.error):
            connection.close()
            return
        with self._lock:
            is_ours = magic == _MAGIC and not self._over.is_set()
            if is_ours:
                self._came[node, connection.getsockname()[0]] = connection
        with contextlib.suppress(OSError):
            connection.sendall(b"!") if is_ours else connection.close()


def reach(addresses: Sequence[Address], secret: bytes, node: int) -> list[tuple[Way, socket.socket]]:
    """Try addresses of the first node, all at once.

    Returns:
        The addresses at which the first node itself answered, each with its connection.

    Blocks:
        At most ``TRY_S`` and a second.
    """
    reached: list[tuple[Way, socket.socket] | None] = [None] * len(addresses)

    def attempt(number: int) -> None:
        reached[number] = _reach(addresses[number], secret, node)

    threads = [threading.Thread(target=attempt, args=(n,), daemon=True) for n in range(len(addresses))]
    for thread in threads:
        thread.start()
    until = time.monotonic() + TRY_S + 1.0
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [each for each in reached if each is not None]


def _reach(at: Address, secret: bytes, node: int) -> tuple[Way, socket.socket] | None:
    try:
        connection = socket.create_connection((at.address, at.port), TRY_S)
    except OSError:
        return None
    try:
        line = _Line(connection)
        ours = secrets.token_bytes(_NONCE)
        connection.sendall(_GREETING.pack(_MAGIC, node, ours))
        theirs = line.read(_NONCE)
        line.expect(_proof(secret, b"first", node, ours, theirs))
        connection.sendall(_proof(secret, b"other", node, ours, theirs))
        line.expect(b"!")
    except OSError:
        connection.close()
        return None
    mine = connection.getsockname()[0]
    interface = next((name for name, addresses in _addresses().items() if mine in addresses), "")
    return Way(at, Address(interface, mine)), connection


class _Line:
    """A connection that is read for at most ``TRY_S`` in all."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._until = connection, time.monotonic() + TRY_S
        connection.settimeout(TRY_S)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            self._connection.settimeout(max(0.001, self._until - time.monotonic()))
            if not (more := self._connection.recv(size - len(data))):
                raise OSError("it closed")
            data += more
        return data

    def expect(self, proof: bytes) -> None:
        if not hmac.compare_digest(self.read(len(proof)), proof):
            raise OSError("it is not of this run")


def _proof(secret: bytes, side: bytes, node: int, theirs: bytes, ours: bytes) -> bytes:
    return hmac.digest(secret, b"ppwork %b %d " % (side, node) + theirs + ours, "sha256")


class Edges:
    """Beats over the connections between the first node and the others, in its own thread.

    Args:
        peers: Connections by node.
        freeze_s: Longest silence, in seconds.
    """

    def __init__(self, peers: dict[int, socket.socket], freeze_s: float) -> None:
        self._peers, self._freeze_s = dict(peers), freeze_s
        self._heard = dict.fromkeys(peers, time.monotonic())
        self._closed: set[int] = set()
        self._said: set[int] = set()
        self._beat = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edges", daemon=True)
        for connection in peers.values():
            connection.setblocking(False)
        self._thread.start()

    def silent(self) -> list[tuple[int, float, bool]]:
        """Return newly silent nodes: number, seconds of silence, and whether the connection was closed."""
        now = time.monotonic()
        if now - self._beat > PAUSED_S:  # our own thread did not run: no node can be judged
            return []
        quiet = [(node, now - heard, node in self._closed) for node, heard in list(self._heard.items())]
        new = [each for each in quiet if each[0] not in self._said and (each[2] or each[1] > self._freeze_s)]
        self._said.update(node for node, _, _ in new)
        return new

    def close(self) -> None:
        """End the beats and close the connections."""
        self._over.set()
        self._thread.join(1.0)
        for connection in self._peers.values():
            connection.close()

    def _run(self) -> None:
        while not self._over.wait(BEAT_S):
            now = time.monotonic()
            if self._beat and now - self._beat > PAUSED_S:
                self._heard = dict.fromkeys(self._heard, now)
            self._beat = now
            for node, connection in self._peers.items():
                if node in self._closed:
                    continue
                try:
                    with contextlib.suppress(BlockingIOError):
                        connection.send(b".")
                    if not connection.recv(4096):
                        self._closed.add(node)
                    self._heard[node] = time.monotonic()
                except BlockingIOError:
                    pass
                except OSError:  # reset, or the kernel gave up
                    self._closed.add(node)
