"""Who waited for whom when a run ended: from the commitment points and spans of all ranks.

A commitment point is written before its transfer begins and a span when it has ended, so a point without its
span is a transfer that never ended. Nothing here needs two clocks to agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.findings import Wait
from ppwork.observed import instants_of, spans_of
from ppwork.topology import LEADER_RANK, STAGE0_RANK, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ppwork.timeline import Entry
    from ppwork.topology import Topology


def waits_of(topology: Topology, entries_by_rank: Mapping[int, Sequence[Entry]]) -> tuple[Wait, ...]:
    """Return what each rank was in, and for whom it waited: nobody, if it was in code of its stage.

    Args:
        topology: Of the run.
        entries_by_rank: What each rank wrote; a rank that wrote nothing had not begun and is left out.
    """
    found = [
        _wait(topology, rank, entries)
        for rank, entries in sorted(entries_by_rank.items())
        if any(entry.name == "load" or entry.call_id >= 0 for entry in entries)
    ]
    computing = {wait.rank: wait.call for wait in found if wait.call.startswith("generate")}
    return tuple(_in_mesh(wait, found, computing) for wait in found)


def _in_mesh(wait: Wait, waits: list[Wait], computing: dict[int, str]) -> Wait:
    """Let a rank that computes wait for those mesh ranks that do not compute the same chunk."""
    if wait.rank not in computing:
        return wait
    absent = tuple(
        other.rank
        for other in waits
        if other.rank >= LEADER_RANK
        and computing.get(other.rank, "") != wait.call
        and other.rank != wait.rank
    )
    # Two that compute different chunks wait for each other; the one that is behind is in the flight record.
    return wait._replace(waits_for=absent)


def _wait(topology: Topology, rank: int, entries: Sequence[Entry]) -> Wait:
    role = topology.role(rank)
    if role is Role.STAGE0:
        return _stage0(entries)
    received, generated = spans_of(entries, "receive"), spans_of(entries, "generate")
    pending = sorted(set(received) - set(generated))
    if role is Role.LEADER:
        followers = topology.mesh_ranks[1:]
        broadcast = sorted(set(instants_of(entries, "mesh.broadcast")) - set(spans_of(entries, "broadcast")))
        if broadcast and followers:
            return Wait(rank, f"broadcast of call {broadcast[0]} on mesh_pg", followers)
        results = sorted(set(instants_of(entries, "result.send")) - set(spans_of(entries, "send_result")))
        if results:
            return Wait(rank, f"send of the result of call {results[0]} on up_pg", (STAGE0_RANK,))
    if pending:
        return Wait(rank, f"generate of call {pending[0]}", ())
    after = max(received, default=-1)
    link, sender = ("down_pg", STAGE0_RANK) if role is Role.LEADER else ("mesh_pg", LEADER_RANK)
    return Wait(rank, f"envelope after call {after} on {link}", (sender,))


def _stage0(entries: Sequence[Entry]) -> Wait:
    committed, sent = instants_of(entries, "envelope.send"), spans_of(entries, "send")
    if unsent := sorted(set(committed) - set(sent)):
        return Wait(STAGE0_RANK, f"send of call {unsent[0]} on down_pg", (LEADER_RANK,))
    # A heartbeat is committed, too, and has no answer; a chunk has been encoded.
    chunks = set(spans_of(entries, "encode")) & set(committed)
    if unanswered := sorted(chunks - set(instants_of(entries, "arrive"))):
        return Wait(STAGE0_RANK, f"result of call {unanswered[0]} on up_pg", (LEADER_RANK,))
    return Wait(STAGE0_RANK, "encode or decode", ())


def roots(waits: Sequence[Wait]) -> tuple[int, ...]:
    """Return the ranks that others waited for and that waited for nobody, or that wrote nothing.

    Empty if all of them wait for each other, or none waits.
    """
    waiting = {wait.rank for wait in waits if wait.waits_for}
    awaited = {rank for wait in waits for rank in wait.waits_for}
    return tuple(sorted(awaited - waiting))
