"""The end of a failing rank: after its record and its notices it stays a moment for its peers.

torchrun ends all other ranks within 0.1 s after it sees a dead one: a peer that has not read the notice by
then leaves no record, which is common on a busy machine. So a failing rank stays until each peer that a
notice can reach has said in its pulse that it leaves. Then the rank closes its connections, for peers that
notice only this, and stays for those as well. The rank with the cause leaves first: torchrun's report names
that one. Only peers of this host count: torchrun on another host does not end its ranks for ours.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil

from ppwork.errors import PeerTimeoutError, TerminalNotice
from ppwork.process import SECONDARY
from ppwork.protocol.topology import STAGE0_RANK, Role, Topology
from ppwork.records.pulse import PulseState, PulseView

STAY_S = 1.0
"""Seconds that a failing rank stays after its record: torchrun then ends a peer that still computes."""
FOR_DEAF_S = 0.3
"""Seconds of ``STAY_S`` reserved for peers that hear nothing before this rank hangs up."""
LOOK_S = 0.005
"""Seconds between two looks at the pulses; a run pays this once at its end, if all peers speak at once."""


@dataclass(frozen=True)
class ExitBarrier:
    """The peers for which a rank stays.

    Attributes:
        told: Ranks that hear of the error while this rank's connections are open.
        deaf: Ranks that may be in a collective with this rank, and hear only its closed connections.
        follows: Whether this rank leaves because of another rank, which has to leave first.
    """

    told: tuple[int, ...] = ()
    deaf: tuple[int, ...] = ()
    follows: bool = False


def exit_barrier_of(
    rank: int, topology: Topology, error: BaseException, *, symptom: bool, computing: bool
) -> ExitBarrier:
    """Return the peers for which a rank stays after an error.

    ``symptom``: its record says that a peer is gone; ``computing``: chunks are in flight on this rank.

    >>> exit_barrier_of(0, Topology(2), ValueError(), symptom=False, computing=True).told
    (1, 2)
    """
    others = tuple(peer for peer in range(topology.world_size) if peer != rank)
    role = topology.role(rank)
    if isinstance(error, PeerTimeoutError):
        return ExitBarrier()  # that peer has had its time
    if symptom or isinstance(error, TerminalNotice):
        return ExitBarrier(others, follows=True)
    if role is Role.FOLLOWER:
        return ExitBarrier(deaf=others)
    if role is Role.LEADER and computing:
        return ExitBarrier((STAGE0_RANK,), deaf=tuple(peer for peer in others if peer != STAGE0_RANK))
    return ExitBarrier(others)


def stay(
    exit_barrier: ExitBarrier, read: Callable[[int], PulseView | None], until_s: float
) -> tuple[int, ...]:
    """Stay until the peers have spoken, and return the ranks that had not spoken by ``until_s``.

    ``until_s`` is on ``time.monotonic``; ``read`` returns a rank's pulse, or ``None``.

    Blocks:
        Until ``until_s`` at most; not for peers that are gone, stopped, or on another host.
    """
    told_until_s = until_s - FOR_DEAF_S if exit_barrier.deaf else until_s
    silent = _await(exit_barrier.told, read, told_until_s, follows=exit_barrier.follows)
    if exit_barrier.deaf:
        hang_up()
        silent += _await(exit_barrier.deaf, read, until_s, follows=False)
    return silent


def hang_up() -> None:
    """Shut down this process's TCP connections, so that the peers see them close as if it had died."""
    with contextlib.suppress(psutil.Error, OSError):  # the end of the process closes them a moment later
        for connection in psutil.Process().net_connections("tcp"):
            if connection.status == psutil.CONN_ESTABLISHED and connection.fd >= 0:
                # A duplicate, because the socket object closes its descriptor; the peer may be gone already.
                with socket.socket(fileno=os.dup(connection.fd)) as end, contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def _await(
    peers: Iterable[int], read: Callable[[int], PulseView | None], until_s: float, *, follows: bool
) -> tuple[int, ...]:
    awaited = set(peers)
    while awaited := {peer for peer in awaited if _is_due(read(peer), follows=follows)}:
        if time.monotonic() >= until_s:
            break
        time.sleep(LOOK_S)
    return tuple(sorted(awaited))


def _is_due(view: PulseView | None, *, follows: bool) -> bool:
    """Say whether a peer's process runs and still has to speak or, if this rank follows it, to leave."""
    if view is None:
        return False
    has_spoken = view.state is PulseState.LEFT
    if has_spoken and not (follows and view.exit_code not in (0, SECONDARY)):
        return False
    return view.is_stopped is False
