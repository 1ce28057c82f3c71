"""Waits: which rank waited for whom when a run ended, from the commitment points and spans of all ranks.

A commitment point is written before its transfer begins and a span when it has ended, so a point without its
span is a transfer that never ended. Nothing here needs two clocks to agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ppwork.diagnosis.findings import Wait
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK, Role, Topology
from ppwork.records.spans import LOAD, Entry
from ppwork.timeline.chunks import moments_by_call, spans_by_call


def waits_of(topology: Topology, entries_by_rank: Mapping[int, Sequence[Entry]]) -> tuple[Wait, ...]:
    """Return the call that each rank was in, and for whom it waited: nobody, if it was in code of its stage.

    Args:
        topology: Of the run.
        entries_by_rank: Entries of each rank; a rank that wrote nothing had not begun and is left out.
    """
    waits = [
        _wait(topology, rank, entries)
        for rank, entries in sorted(entries_by_rank.items())
        if any(entry.name == LOAD or entry.call_id >= 0 for entry in entries)
    ]
    computing = {wait.rank: wait.call for wait in waits if wait.call.startswith("generate")}
    return tuple(_in_mesh(wait, waits, computing) for wait in waits)


def _in_mesh(wait: Wait, waits: list[Wait], computing: dict[int, str]) -> Wait:
    """Let a rank that computes wait for those mesh ranks that do not compute the same chunk."""
    if wait.rank not in computing:
        return wait
    mesh = [other.rank for other in waits if other.rank >= LEADER_RANK]
    absent = tuple(r for r in mesh if computing.get(r, "") != wait.call and r != wait.rank)
    # Two that compute different chunks wait for each other; the one that is behind is in the flight record.
    return wait._replace(waits_for=absent)


def _wait(topology: Topology, rank: int, entries: Sequence[Entry]) -> Wait:
    role = topology.role(rank)
    if role is Role.STAGE0:
        return _stage0(entries)
    received, pending = spans_by_call(entries, "receive"), uncomputed(entries)
    if role is Role.LEADER:
        followers = topology.mesh_ranks[1:]
        broadcast = _unended(entries, "mesh.broadcast", "broadcast")
        if broadcast and followers:
            return Wait(rank, f"broadcast of call {broadcast[0]} on mesh_pg", followers)
        if results := _unended(entries, "result.send", "send_result"):
            return Wait(rank, f"send of the result of call {results[0]} on up_pg", (STAGE0_RANK,))
    if pending:
        return Wait(rank, f"generate of call {pending[0]}", ())
    after = max(received, default=-1)
    link, sender = ("down_pg", STAGE0_RANK) if role is Role.LEADER else ("mesh_pg", LEADER_RANK)
    return Wait(rank, f"envelope after call {after} on {link}", (sender,))


def uncomputed(entries: Sequence[Entry]) -> list[int]:
    """Return the calls of the chunks that a mesh rank had received and not computed, the oldest first.

    A heartbeat is received, too: it repeats the index of the chunk before it.
    """
    received = spans_by_call(entries, "receive")
    chunks = {received[call].chunk_index: call for call in sorted(received, reverse=True)}
    return sorted(
        {call for index, call in chunks.items() if index >= 0} - set(spans_by_call(entries, "generate"))
    )


def _stage0(entries: Sequence[Entry]) -> Wait:
    if unsent := _unended(entries, "envelope.send", "send"):
        return Wait(STAGE0_RANK, f"send of call {unsent[0]} on down_pg", (LEADER_RANK,))
    # A heartbeat is committed, too, and has no answer; a chunk has been encoded.
    chunks = set(spans_by_call(entries, "encode")) & set(moments_by_call(entries, "envelope.send"))
    if unanswered := sorted(chunks - set(moments_by_call(entries, "arrive"))):
        return Wait(STAGE0_RANK, f"result of call {unanswered[0]} on up_pg", (LEADER_RANK,))
    return Wait(STAGE0_RANK, "encode or decode", ())


def _unended(entries: Sequence[Entry], point: str, transfer: str) -> list[int]:
    """Return the calls that passed a commitment point and whose transfer did not end."""
    return sorted(set(moments_by_call(entries, point)) - set(spans_by_call(entries, transfer)))


def roots(waits: Sequence[Wait]) -> tuple[int, ...]:
    """Return the ranks that others waited for and that waited for nobody, or that wrote nothing.

    Empty if all of them wait for each other, or none waits.
    """
    waiting = {wait.rank for wait in waits if wait.waits_for}
    awaited = {rank for wait in waits for rank in wait.waits_for}
    return tuple(sorted(awaited - waiting))
