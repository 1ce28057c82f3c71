"""Moves one message: frame, overflow, large tensors; by p2p or by the mesh broadcast.

Both ways move the same list of byte tensors, the *parts*, so the leader can pass on what it received without
encoding it again. Every ``Work`` is kept and waited for exactly once: a dropped gloo isend loses its message,
and a second wait blocks for ever. Functions here block and run on a lane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ppwork.header import Limits
from ppwork.peers import naming_peers
from ppwork.tensors import as_bytes, from_bytes, specs_of
from ppwork.topology import LEADER_GROUP_RANK
from ppwork.wire import Decoded, Decoder, Encoded, Encoder, to_message

if TYPE_CHECKING:
    from ppwork.envelope import PPEnvelope, PPResult
    from ppwork.groups import Groups
    from ppwork.plan import Plan

Move = Callable[[torch.Tensor], Any]
"""Starts one transfer of a uint8 tensor and returns its ``Work`` (``None`` when there is nobody)."""


def limits_of(plan: Plan) -> Limits:
    """Return the wire limits that the plan agreed on."""
    return Limits(frame_bytes=plan.frame_bytes, max_message_bytes=plan.max_message_bytes)


@dataclass(frozen=True)
class Outgoing:
    """A message past its whole preflight (rule R1): only the link can fail now."""

    message: PPEnvelope | PPResult
    parts: Sequence[torch.Tensor]


@dataclass(frozen=True)
class Incoming:
    """A received message and the parts it came in, for passing on."""

    message: PPEnvelope | PPResult
    parts: Sequence[torch.Tensor]


def preflight(message: PPEnvelope | PPResult, encoder: Encoder, device: torch.device) -> Outgoing:
    """Do everything about sending that can raise, except sending.

    Raises:
        LocalProtocolError: A tensor, the metadata or the chunk plan cannot travel; names it
            (the sending rank; no byte has left).

    Collective:
        None.
    """
    encoded = encoder.encode(message, specs_of(message.tensors, device))
    return Outgoing(message, parts_of(encoded, message.tensors))


def parts_of(encoded: Encoded, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the byte tensors of an encoded message in the order in which they travel.

    The frame gets its inline tensors here; large tensors are views of the caller's, not copies.
    """
    frame = torch.frombuffer(encoded.frame, dtype=torch.uint8)
    parts = [frame]
    if encoded.overflow:
        parts.append(torch.frombuffer(bytearray(encoded.overflow), dtype=torch.uint8))
    for spec, offset in zip(encoded.specs, encoded.offsets, strict=True):
        if spec.nbytes == 0:
            continue
        raw = as_bytes(tensors[spec.name])
        if offset is None:
            parts.append(raw)
        else:
            frame[offset : offset + spec.nbytes] = raw
    return parts


def move_all(parts: Sequence[torch.Tensor], move: Move) -> None:
    """Start all transfers, then wait for each once.

    Blocks:
        Until the peers have posted the matching transfers; at most the group's timeout.
    """
    works = [move(part) for part in parts]
    for work in works:
        if work is not None:
            work.wait()


def receive(decoder: Decoder, device: torch.device, move: Move) -> Incoming:
    """Take one message: the frame first, then what it announced.

    Raises:
        RemoteProtocolError: The frame or body is not a message of ours (this rank). Its tensors are then
            not received: the sender is left to the terminal notice.
        PeerLostError, PeerTimeoutError: From ``move``.

    Blocks:
        Until the peer sends; at most the group's timeout for the frame and again for the rest.
    """
    frame = torch.empty(decoder.limits.frame_bytes, dtype=torch.uint8)
    move_all([frame], move)
    raw_frame = bytes(frame.numpy())
    header = decoder.header(raw_frame)
    parts = [frame]
    overflow = b""
    if size := header.overflow_bytes(decoder.limits):
        parts.append(torch.empty(size, dtype=torch.uint8))
        move_all(parts[1:], move)
        overflow = bytes(parts[1].numpy())
    decoded = decoder.body(header, raw_frame, overflow)
    tensors, large = allocate(decoded, frame, device)
    move_all(large, move)
    return Incoming(to_message(decoded, tensors), [*parts, *large])


def allocate(
    decoded: Decoded, frame: torch.Tensor, device: torch.device
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Make the tensors of a message; return them by name, and the byte views still to be received.

    Sizes were checked against the limits before. Inline tensors are copied out of the frame, because the
    frame belongs to the transport (rule R8).
    """
    tensors: dict[str, torch.Tensor] = {}
    large: list[torch.Tensor] = []
    for spec, offset in zip(decoded.specs, decoded.offsets, strict=True):
        if offset is None:
            where = device if spec.device == "cuda" else torch.device("cpu")
            raw = torch.empty(spec.nbytes, dtype=torch.uint8, device=where)
            if spec.nbytes:
                large.append(raw)
        else:
            raw = frame[offset : offset + spec.nbytes].clone()
        tensors[spec.name] = from_bytes(raw, spec)
    return tensors, large


def sender(groups: Groups, group: str) -> Move:
    """Return how to start a send to the other rank of a 2-rank group."""
    return _link(groups, group, "send", lambda part, to, peer: dist.isend(part, group=to, group_dst=peer))


def receiver(groups: Groups, group: str) -> Move:
    """Return how to start a receive from the other rank of a 2-rank group."""
    return _link(groups, group, "receive", lambda part, of, peer: dist.irecv(part, group=of, group_src=peer))


def _link(groups: Groups, group: str, what: str, start: Callable[[torch.Tensor, Any, int], Any]) -> Move:
    handle, peer = groups[group], 1 - groups.rank

    def move(part: torch.Tensor) -> Any:  # noqa: ANN401  a Work
        with naming_peers(what, rank=groups.rank, role=str(groups.role), group=group, peer=peer):
            return _Named(start(part, handle, peer), groups, group, peer)

    return move


def broadcaster(groups: Groups) -> Move:
    """Return how to start the mesh broadcast of one part, the same call at leader and followers.

    Collective:
        ``mesh_pg``, all mesh ranks, once per part in the parts' order. In a mesh of one nothing is called.
    """
    handle, alone = groups["mesh_pg"], groups.topology.mesh_size == 1

    def move(part: torch.Tensor) -> Any:  # noqa: ANN401  a Work
        if alone:
            return None
        with naming_peers("broadcast", rank=groups.rank, role=str(groups.role), group="mesh_pg"):
            work = dist.broadcast(part, group=handle, group_src=LEADER_GROUP_RANK, async_op=True)
            return _Named(work, groups, "mesh_pg", None)

    return move


@dataclass
class _Named:
    """A ``Work`` whose failure names rank, group and peer."""

    work: Any
    groups: Groups
    group: str
    peer: int | None

    def wait(self) -> None:
        rank, role = self.groups.rank, str(self.groups.role)
        with naming_peers("transfer", rank=rank, role=role, group=self.group, peer=self.peer):
            self.work.wait()
