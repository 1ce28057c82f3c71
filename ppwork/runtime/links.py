"""The two ends of each link: p2p sender and receiver, root and receivers of the mesh broadcast.

Every ``Work`` is kept and waited for exactly once: a dropped gloo isend loses its message, and a second wait
blocks for ever. A wait blocks, so it runs on the lane of the group; posting a send does not block.

Receives are posted ahead: a gloo send that finds a posted receive saves a round trip, a third of the time of
1 MB. The frame's size never changes, so its receive is always posted. Payload receives are posted ahead once
a schema has repeated, and stay safe if the next message has another schema:

- p2p: gloo's tag of a payload is its schema's id, so a posted receive takes the payload of its own schema and
  ignores all others;
- broadcast: collectives have no tags, so leader and followers follow one rule for the posted size
  (``_ahead``); if a message does not fit, they let one broadcast of that size pass unread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ppwork.protocol.backend_errors import raise_named
from ppwork.protocol.envelope import PPAction
from ppwork.protocol.header import NO_SCHEMA, Header
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import LEADER_GROUP_RANK, other_end
from ppwork.protocol.wire import Decoder, Layout
from ppwork.runtime.groups import Groups
from ppwork.runtime.messages import (
    FREE_BUFFERS,
    BufferPool,
    Incoming,
    MessageReader,
    Outgoing,
    RecvBuffer,
    limits_of,
)

HEAD_TAG = 0
"""gloo's tag of frame and overflow; a payload's tag is its schema's id."""
BEGIN = b"ppwork: begin"
"""Start of a frame that is no message: on CUDA, by this frame the leader says "begin the next chunk"."""


class Link:
    """One end of a group's link; its errors name rank, group and peer."""

    def __init__(self, groups: Groups, name: str, peer: int | None) -> None:
        self._handle: Any = groups[name]
        self._where = {"rank": groups.rank, "role": str(groups.role), "group": name, "peer": peer}

    def close(self) -> None:
        """Drop the group: else its threads and connections stay until the garbage is collected."""
        self._handle = None

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
        self._peer = other_end(groups.rank)
        super().__init__(groups, name, self._peer)

    def issue(self, raw: torch.Tensor) -> None:
        """Put the transfer of a CUDA buffer on the current stream; main thread only, never blocks."""
        self._wait([self.start(raw, HEAD_TAG)])

    def start(self, part: torch.Tensor, tag: int) -> Any:  # noqa: ANN401  a Work
        """Start the transfer of one part; the caller waits for the ``Work``, once."""
        raise NotImplementedError


class P2PSender(_P2PLink):
    """The sending end of ``down_pg`` or ``up_pg``."""

    def __init__(self, groups: Groups, name: str) -> None:
        super().__init__(groups, name)
        self._turn = threading.Lock()

    def send(self, outgoing: Outgoing) -> None:
        """Start all transfers of a message, then wait for each once; raises and blocks as ``wait``."""
        self.wait(self.post(outgoing))

    def post(self, outgoing: Outgoing) -> list[Any]:
        """Start all transfers of a message, and return the works for ``wait``.

        Raises:
            PeerLostError: The peer is gone (this rank).

        Blocks:
            Never for the peer. If the peer has posted receives, this thread copies the data for them, as far
            as the connection accepts it.
        """
        with self._turn:  # any thread that has a message may post it, one at a time (rule R7)
            works = [self.start(part, HEAD_TAG) for part in outgoing.head]
            works += [self.start(part, outgoing.tag) for part in outgoing.payload]
        return works

    def wait(self, works: list[Any]) -> None:
        """Wait for the works of ``post``, once.

        Raises:
            PeerLostError, PeerTimeoutError: The peer is gone or silent (this rank).

        Blocks:
            Until the peer has taken the whole message; at most the group's timeout for each part.
        """
        self._wait(works)

    def start(self, part: torch.Tensor, tag: int) -> Any:  # noqa: ANN401  a Work
        """Start to send one part."""
        return self._call("send", dist.isend, part, group=self._handle, group_dst=self._peer, tag=tag)


@dataclass(slots=True)
class _PostedRecv:
    """A receive buffer, and the works that fill it."""

    recv_buffer: RecvBuffer | None
    works: list[Any]


class P2PReceiver(_P2PLink):
    """The receiving end of ``down_pg`` or ``up_pg``."""

    def __init__(self, groups: Groups, name: str, plan: PipelinePlan) -> None:
        super().__init__(groups, name)
        self._decoder = Decoder(limits_of(plan))
        self._pool = BufferPool(FREE_BUFFERS)
        self._ahead: dict[int, _PostedRecv] = {}
        self._repeating = NO_SCHEMA

    def receive(self) -> Incoming:
        """Take one message: the frame first, then what it announced.

        Raises:
            RemoteProtocolError: The frame or body is not a message of ours (this rank). Its tensors are then
                not received: the sender has to rely on the terminal notice.
            PeerLostError, PeerTimeoutError: The peer is gone or silent (this rank).

        Blocks:
            Until the peer sends; at most the group's timeout for the frame and again for each part.
        """
        expected = self._decoder.layout(self._repeating)
        if expected is not None and self._repeating not in self._ahead:
            self._ahead[self._repeating] = self._post(self._repeating, expected)
        reader = MessageReader(self._decoder, expected)
        self._wait([self.start(reader.head[0], HEAD_TAG)])
        header = reader.begin()
        self._wait([self.start(part, HEAD_TAG) for part in reader.head[1:]])
        layout = reader.open()
        posted = self._ahead.pop(header.schema_id, None) or self._post(header.schema_id, layout)
        self._look_ahead(header)
        incoming = reader.message(posted.recv_buffer)  # while the payload is still on the way
        self._wait(posted.works)
        return incoming

    def close(self) -> None:
        """Drop the group, and the receives posted for messages that will not come."""
        self._ahead.clear()
        super().close()

    def _look_ahead(self, header: Header) -> None:
        """Choose which receive is posted before the next frame."""
        # Only for a schema that has repeated: if each chunk has its own schema, no posted receive would
        # match.
        if header.new_schema:
            self._repeating = NO_SCHEMA
            # Ids are never used again, so a receive posted for a forgotten id can never match.
            self._ahead = {k: v for k, v in self._ahead.items() if self._decoder.layout(k) is not None}
        elif header.schema_id != NO_SCHEMA:
            self._repeating = header.schema_id

    def _post(self, schema_id: int, layout: Layout) -> _PostedRecv:
        if not layout.recv_bytes:
            return _PostedRecv(None, [])
        recv_buffer = RecvBuffer(layout, self._pool.take(layout.recv_bytes))
        return _PostedRecv(recv_buffer, [self.start(part, schema_id) for part in recv_buffer.parts])

    def start(self, part: torch.Tensor, tag: int) -> Any:  # noqa: ANN401  a Work
        """Post the receive of one part."""
        return self._call("receive", dist.irecv, part, group=self._handle, group_src=self._peer, tag=tag)


class _MeshLink(Link):
    """A mesh rank's end of ``mesh_pg``; in a mesh of one it calls nothing."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, "mesh_pg", None)
        self._alone = groups.topology.mesh_size == 1
        self._pool = BufferPool(FREE_BUFFERS)
        self._ahead = 0
        """Size of the receive that every follower has posted before the next frame; 0 means none."""

    def start(self, part: torch.Tensor) -> Any:  # noqa: ANN401  a Work
        """Start the broadcast of one part; the caller waits for the ``Work``, once."""
        return self._call(
            "broadcast", dist.broadcast, part, group=self._handle, group_src=LEADER_GROUP_RANK, async_op=True
        )

    def issue(self, raw: torch.Tensor) -> None:
        """Put the broadcast of a CUDA buffer on the current stream; main thread only, never blocks.

        Collective:
            ``mesh_pg``, all mesh ranks.
        """
        if not self._alone:
            self._wait([self.start(raw)])

    def _look_ahead(self, header: Header, recv_bytes: int) -> None:
        """Choose the size posted before the next frame; all mesh ranks see the same message (rule R5)."""
        self._ahead = 0 if header.new_schema else recv_bytes


class BroadcastRoot(_MeshLink):
    """The leader's end: it broadcasts each message as it received it."""

    def begin(self, frame_bytes: int) -> None:
        """Tell the mesh that all messages up to here, and no later ones, come before the next chunk.

        Collective, Raises, Blocks: As ``pass_on``; the frame, and the broadcast that was posted ahead.
        """
        if self._alone:
            return
        frame = bytearray(frame_bytes)
        frame[: len(BEGIN)] = BEGIN
        works = [self.start(torch.frombuffer(frame, dtype=torch.uint8))]
        if self._ahead:
            works.append(self.start(self._pool.take(self._ahead)))
        self._wait(works)

    def pass_on(self, incoming: Incoming) -> None:
        """Broadcast a message to the mesh.

        Collective:
            ``mesh_pg``, all mesh ranks: the frame; the broadcast posted ahead; the overflow; all CPU tensors
            behind the frame in one buffer, unless that was the one posted ahead.

        Raises:
            PeerLostError, PeerTimeoutError: A follower is gone or silent (leader).

        Blocks:
            Until every follower has the message; at most the group's timeout for each part.
        """
        if self._alone:
            return
        if incoming.message.action is PPAction.ERROR:
            self.notify(incoming.head)
            return
        payload, expected = incoming.recv_buffer, self._ahead
        fits = payload is not None and payload.numel() == expected
        works = [self.start(incoming.head[0])]
        if expected:
            works.append(self.start(payload if fits and payload is not None else self._pool.take(expected)))
        works += [self.start(part) for part in incoming.head[1:]]
        if payload is not None and not fits:
            works.append(self.start(payload))
        self._wait(works)
        self._look_ahead(incoming.header, 0 if payload is None else payload.numel())

    def notify(self, head: list[torch.Tensor]) -> None:
        """Broadcast a terminal notice: only its head, because no follower reads on after the head.

        Collective, Raises, Blocks: As ``pass_on``.
        """
        if not self._alone:
            self._wait([self.start(part) for part in head])


class BroadcastReceiver(_MeshLink):
    """A follower's end."""

    def __init__(self, groups: Groups, plan: PipelinePlan) -> None:
        super().__init__(groups)
        self._decoder = Decoder(limits_of(plan))
        self._expected: Layout | None = None

    def receive(self) -> Incoming | None:
        """Take one message from the leader, or ``None`` for the leader's ``begin``; see ``BroadcastRoot``.

        Raises:
            RemoteProtocolError: The leader broadcast something that is not our message (this follower).
            PeerLostError, PeerTimeoutError: The leader is gone or silent (this follower).

        Blocks:
            Until the leader broadcasts; at most the group's timeout for each part.
        """
        reader = MessageReader(self._decoder, self._expected)
        first = self.start(reader.head[0])
        posted, works = None, []
        if self._expected is not None and self._ahead:
            posted = RecvBuffer(self._expected, self._pool.take(self._ahead))
            works.append(self.start(posted.raw))
        self._wait([first])
        if reader.starts_with(BEGIN):
            self._wait(works)
            return None
        header = reader.begin()
        self._wait([self.start(part) for part in reader.head[1:]])
        layout, recv_buffer = reader.open(), None
        if layout is self._expected:
            recv_buffer = posted
        elif layout.recv_bytes:
            fits = posted is not None and layout.recv_bytes == self._ahead
            raw = posted.raw if posted is not None and fits else self._pool.take(layout.recv_bytes)
            recv_buffer = RecvBuffer(layout, raw)
            works += [] if fits else [self.start(raw)]
        self._look_ahead(header, layout.recv_bytes)
        self._expected = None if header.new_schema else self._decoder.layout(header.schema_id)
        incoming = reader.message(recv_buffer)  # while the payload is still on the way
        # After a terminal notice nothing fills the posted receives, and this rank leaves.
        self._wait(works if header.action is not PPAction.ERROR else [])
        return incoming
