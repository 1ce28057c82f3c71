"""The two ends of the mesh broadcast, leader and follower; ``links`` has the rules of both kinds of link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ppwork.buffers import BufferPool
from ppwork.envelope import PPAction
from ppwork.links import FREE_BUFFERS, Link
from ppwork.topology import LEADER_GROUP_RANK
from ppwork.transport import Arrival, Incoming, Landing, limits_of
from ppwork.wire import Decoder

if TYPE_CHECKING:
    import torch

    from ppwork.groups import Groups
    from ppwork.header import Header
    from ppwork.layout import Layout
    from ppwork.plan import Plan


class _MeshLink(Link):
    """``mesh_pg``; in a mesh of one nothing is called."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(groups, "mesh_pg", None)
        self._alone = groups.topology.mesh_size == 1
        self._pool = BufferPool(FREE_BUFFERS)
        self._ahead = 0
        """Bytes of the landing that every follower has posted before the next frame; 0 is none."""

    def _start(self, part: torch.Tensor) -> Any:  # noqa: ANN401  a Work
        return self._call(
            "broadcast",
            dist.broadcast,
            part,
            group=self._handle,
            group_src=LEADER_GROUP_RANK,
            async_op=True,
        )

    def issue(self, raw: torch.Tensor) -> None:
        """Put the broadcast of a CUDA buffer on the current stream; main thread only, never blocks.

        Collective:
            ``mesh_pg``, all mesh ranks.
        """
        if not self._alone:
            self._wait([self._start(raw)])

    def _look_ahead(self, header: Header, landing_bytes: int) -> None:
        """Choose what is posted before the next frame; all mesh ranks see the same message (rule R5)."""
        self._ahead = 0 if header.new_schema else landing_bytes


class MeshLeader(_MeshLink):
    """The leader's end: it passes on what it received, as it came."""

    def pass_on(self, incoming: Incoming) -> None:
        """Broadcast a message to the mesh.

        Collective:
            ``mesh_pg``, all mesh ranks: the frame; what was posted ahead; the overflow; the landing, all CPU
            tensors in one, unless it was posted.

        Raises:
            PeerLostError, PeerTimeoutError: A follower is gone or silent (leader).

        Blocks:
            Until every follower has it; at most the group's timeout for each part.
        """
        if self._alone:
            return
        if incoming.message.action is PPAction.ERROR:
            self.notify(incoming.control)
            return
        landing, expected = incoming.landing, self._ahead
        fits = landing is not None and landing.numel() == expected
        works = [self._start(incoming.control[0])]
        if expected:
            works.append(self._start(landing if fits and landing is not None else self._pool.take(expected)))
        works += [self._start(part) for part in incoming.control[1:]]
        if landing is not None and not fits:
            works.append(self._start(landing))
        self._wait(works)
        self._look_ahead(incoming.header, 0 if landing is None else landing.numel())

    def notify(self, control: list[torch.Tensor]) -> None:
        """Broadcast a terminal notice: its control parts only, because no follower reads on after it.

        Collective, Raises, Blocks: As ``pass_on``.
        """
        if not self._alone:
            self._wait([self._start(part) for part in control])


class MeshFollower(_MeshLink):
    """A follower's end."""

    def __init__(self, groups: Groups, plan: Plan) -> None:
        super().__init__(groups)
        self._decoder = Decoder(limits_of(plan))
        self._expected: Layout | None = None

    def receive(self) -> Incoming:
        """Take one message that the leader passes on; see ``MeshLeader.pass_on``.

        Raises:
            RemoteProtocolError: The leader passed on what is not a message of ours (this follower).
            PeerLostError, PeerTimeoutError: The leader is gone or silent (this follower).

        Blocks:
            Until the leader broadcasts; at most the group's timeout for each part.
        """
        arrival = Arrival(self._decoder, self._expected)
        first = self._start(arrival.control[0])
        posted, works = None, []
        if self._expected is not None and self._ahead:
            posted = Landing(self._expected, self._pool.take(self._ahead))
            works.append(self._start(posted.raw))
        self._wait([first])
        header = arrival.begin()
        self._wait([self._start(part) for part in arrival.control[1:]])
        layout, landing = arrival.open(), None
        if layout is self._expected:
            landing = posted
        elif layout.landing_bytes:
            fits = posted is not None and layout.landing_bytes == self._ahead
            raw = posted.raw if posted is not None and fits else self._pool.take(layout.landing_bytes)
            landing = Landing(layout, raw)
            works += [] if fits else [self._start(raw)]
        self._look_ahead(header, layout.landing_bytes)
        self._expected = None if header.new_schema else self._decoder.layout(header.schema_id)
        incoming = arrival.message(landing)  # made while its payload is still on the way
        # After a terminal notice nothing fills what was posted, and this rank leaves.
        self._wait(works if header.action is not PPAction.ERROR else [])
        return incoming
