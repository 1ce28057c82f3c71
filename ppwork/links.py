"""The moving ends of each link: p2p sender and receiver, leader and follower of the mesh broadcast.

Every ``Work`` is kept and waited for exactly once: a dropped gloo isend loses its message, and a second wait
blocks for ever. All of it blocks, so it runs on the lane of its group.

Receives are posted ahead: a gloo send that finds its receive there saves a round trip, a third of the time of
1 MB. The frame's size never changes, so its receive is always there. Payload receives are posted ahead once
a schema has repeated, and stay safe when the next message is another one:

- p2p: payloads bear their schema's id as gloo's tag, so a posted receive takes the payload of its own schema
  and waits through everything else;
- broadcast: collectives have no tags, so leader and followers know by one rule which size is posted
  (``_ahead``), and a message that has no use for it lets a broadcast of that size pass unread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ppwork.buffers import BufferPool
from ppwork.header import NO_SCHEMA
from ppwork.peers import raise_named
from ppwork.transport import Arrival, Incoming, Landing, Outgoing, limits_of
from ppwork.wire import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.groups import Groups
    from ppwork.header import Header
    from ppwork.layout import Layout
    from ppwork.plan import Plan

CONTROL_TAG = 0
FREE_BUFFERS = 2
"""Landings kept for the next message besides those in use."""


class Link:
    """A group, and errors that name rank, group and peer."""

    def __init__(self, groups: Groups, name: str, peer: int | None) -> None:
        self._handle = groups[name]
        self._where = {"rank": groups.rank, "role": str(groups.role), "group": name, "peer": peer}

    def _call(self, what: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        try:
            return call(*args, **kwargs)
        except RuntimeError as error:
            raise_named(error, what, **self._where)

    def _wait(self, works: list[Any]) -> None:
        for work in works:
            self._call("transfer", work.wait)


class _P2PLink(Link):
    """One end of ``down_pg`` or ``up_pg``."""

    def __init__(self, groups: Groups, name: str) -> None:
        self._peer = 1 - groups.rank
        super().__init__(groups, name, self._peer)

    def issue(self, raw: torch.Tensor) -> None:
        """Put the transfer of a CUDA buffer on the current stream; main thread only, never blocks."""
        self._wait([self._start(raw, CONTROL_TAG)])

    def _start(self, part: torch.Tensor, tag: int) -> Any:  # noqa: ANN401  a Work
        raise NotImplementedError


class Sender(_P2PLink):
    """The sending end of ``down_pg`` or ``up_pg``."""

    def send(self, outgoing: Outgoing) -> None:
        """Start all transfers of a message, then wait for each once.

        Raises:
            PeerLostError, PeerTimeoutError: The peer is gone or silent (this rank).

        Blocks:
            Until the peer has taken all of it; at most the group's timeout for each part.
        """
        works = [self._start(part, CONTROL_TAG) for part in outgoing.control]
        works += [self._start(part, outgoing.tag) for part in outgoing.payload]
        self._wait(works)

    def _start(self, part: torch.Tensor, tag: int) -> Any:  # noqa: ANN401  a Work
        return self._call("send", dist.isend, part, group=self._handle, group_dst=self._peer, tag=tag)


@dataclass(slots=True)
class _Posted:
    """A landing, and the works that fill it."""

    landing: Landing | None
    works: list[Any]


class Receiver(_P2PLink):
    """The receiving end of ``down_pg`` or ``up_pg``."""

    def __init__(self, groups: Groups, name: str, plan: Plan) -> None:
        super().__init__(groups, name)
        self._decoder = Decoder(limits_of(plan))
        self._pool = BufferPool(FREE_BUFFERS)
        self._ahead: dict[int, _Posted] = {}
        self._repeating = NO_SCHEMA

    def receive(self) -> Incoming:
        """Take one message: the frame first, then what it announced.

        Raises:
            RemoteProtocolError: The frame or body is not a message of ours (this rank). Its tensors are then
                not received: the sender is left to the terminal notice.
            PeerLostError, PeerTimeoutError: The peer is gone or silent (this rank).

        Blocks:
            Until the peer sends; at most the group's timeout for the frame and again for each part.
        """
        expected = self._decoder.layout(self._repeating)
        if expected is not None and self._repeating not in self._ahead:
            self._ahead[self._repeating] = self._post(self._repeating, expected)
        arrival = Arrival(self._decoder, expected)
        self._wait([self._start(arrival.control[0], CONTROL_TAG)])
        header = arrival.begin()
        self._wait([self._start(part, CONTROL_TAG) for part in arrival.control[1:]])
        layout = arrival.open()
        posted = self._ahead.pop(header.schema_id, None) or self._post(header.schema_id, layout)
        self._look_ahead(header)
        incoming = arrival.message(posted.landing)  # made while its payload is still on the way
        self._wait(posted.works)
        return incoming

    def _look_ahead(self, header: Header) -> None:
        """Choose what is posted before the next frame."""
        # Only a schema that has repeated: where each chunk has its own, nothing would ever match.
        if header.new_schema:
            self._repeating = NO_SCHEMA
            # Ids are never used again, so what is posted for one that was forgotten can never be matched.
            self._ahead = {k: v for k, v in self._ahead.items() if self._decoder.layout(k) is not None}
        elif header.schema_id != NO_SCHEMA:
            self._repeating = header.schema_id

    def _post(self, schema_id: int, layout: Layout) -> _Posted:
        if not layout.landing_bytes:
            return _Posted(None, [])
        landing = Landing(layout, self._pool.take(layout.landing_bytes))
        return _Posted(landing, [self._start(part, schema_id) for part in landing.parts])

    def _start(self, part: torch.Tensor, tag: int) -> Any:  # noqa: ANN401  a Work
        return self._call("receive", dist.irecv, part, group=self._handle, group_src=self._peer, tag=tag)
