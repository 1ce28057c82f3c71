"""One host of a run as the launcher knows it, and the table of messages that its node may send."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from ppwork.errors import named_ranks
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.channel import Channel
from ppwork.launcher.nodes.gather import Home
from ppwork.records.clocks import SAME, Clock, Offset
from ppwork.records.hosts import HostRecord


class HostState(StrEnum):
    """State of one host."""

    CALLED = "called"
    """Its node was started and has not answered."""
    GREETED = "greeted"
    LOOKED = "looked"
    """The host has what the run needs."""
    MET = "met"
    """The host knows where the ranks meet."""
    RUNNING = "running"
    DONE = "done"
    """No rank is left on the host, and all its files are here."""
    LOST = "lost"


TRANSITIONS: dict[tuple[HostState, type[wire.OfNode]], HostState] = {
    (HostState.CALLED, wire.Hello): HostState.GREETED,
    (HostState.GREETED, wire.Looked): HostState.LOOKED,
    (HostState.LOOKED, wire.Listening): HostState.MET,
    (HostState.LOOKED, wire.Reached): HostState.MET,
    (HostState.RUNNING, wire.Piece): HostState.RUNNING,
    (HostState.RUNNING, wire.Stays): HostState.RUNNING,
    (HostState.RUNNING, wire.Quiet): HostState.RUNNING,
    (HostState.RUNNING, wire.NodeDone): HostState.DONE,
    (HostState.DONE, wire.Quiet): HostState.DONE,
    **{
        (state, wire.Refused): HostState.LOST
        for state in HostState
        if state not in (HostState.DONE, HostState.LOST)
    },
}
"""All messages that a node may send, and the host's next state; answers to beats come at any time."""


@dataclass
class Host:
    """One host, as far as the launcher knows it.

    Attributes:
        number: Number of its node.
        name: First as it was given, then as the host calls itself.
        ranks: The host's ranks.
        ways: Working connections to the first host; for the first host: the addresses where it listens.
        way: The chosen connection.
        lost: Why the host is lost, as the second part of a sentence.
        check_first: What to check first if it is lost.
    """

    number: int
    name: str
    ranks: range
    channel: Channel
    state: HostState = HostState.CALLED
    hello: wire.Hello | None = None
    looked: wire.Looked | None = None
    ways: tuple[wire.Way, ...] = ()
    public: tuple[wire.Address, ...] = ()
    way: wire.Way | None = None
    home: Home | None = None
    code: int | None = None
    free_mb: float | None = None
    stayed: dict[str, int] = field(default_factory=dict)
    lost: str = ""
    check_first: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({named_ranks(self.ranks)})"

    @property
    def offset(self) -> Offset | None:
        """How far the host's clock is ahead of ours."""
        if self.hello is not None and self.hello.clock == Clock.of_this_host().name:
            return SAME
        return self.channel.offsets.get(self.number)

    @property
    def own(self) -> wire.Address:
        """Its address in the ranks' network; empty until that was found."""
        return self.way.own if self.way is not None else wire.Address("", "")

    @property
    def is_over(self) -> bool:
        """Whether nothing more is expected of the host."""
        return self.state in (HostState.DONE, HostState.LOST)

    @property
    def quiet_s(self) -> float:
        """Seconds since the host was heard."""
        return time.monotonic() - self.channel.heard_s[self.number]

    def record(self) -> HostRecord:
        """Return the host's entry for ``hosts.json``."""
        offset = self.offset
        return HostRecord(
            name=self.name,
            ranks=tuple(self.ranks),
            address=self.own.address,
            interface=self.own.interface,
            folder="" if self.looked is None or self.looked.shared else self.looked.folder,
            offset_ns=None if offset is None else offset.offset_ns,
            error_ns=0 if offset is None else offset.error_ns,
            code=self.code,
            free_mb=self.free_mb,
            stayed=self.stayed,
        )
