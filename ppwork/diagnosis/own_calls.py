"""Rank 0 in a collective of its own loop, to which no mesh rank came: by its record, or else by its pulse.

Where a loop's collective cannot be refused, because the mesh may be about to come to it, somebody's bound
passes. Spans know only that rank 0 was in code of its own then.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from ppwork.diagnosis.findings import NOBODY, Wait
from ppwork.diagnosis.inferred import record_of
from ppwork.diagnosis.run_evidence import RunEvidence
from ppwork.diagnosis.stacks import tracebacks
from ppwork.diagnosis.uneven import MISMATCH
from ppwork.diagnosis.waits import roots
from ppwork.errors import PeerTimeoutError, named_ranks
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.failure import FailureRecord


def with_own_call(evidence: RunEvidence, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
    """Return the waits, rank 0's by its own collective, if it stood in one and not in a call of the plane."""
    if not (call := _call_of_stage0(evidence)):
        return waits
    leader, *followers = mesh = tuple(evidence.topology.mesh_ranks)
    # Before the first chunk there is nothing to read them from: all that joined wait for it.
    known = {each.rank: each for each in waits}
    first = {leader: Wait(leader, "first envelope on down_pg", (STAGE0_RANK,))}
    first |= {rank: Wait(rank, "first envelope on mesh_pg", (leader,)) for rank in followers}
    begun = {rank: wait for rank, wait in first.items() if rank in evidence.pulses}
    stage0 = {STAGE0_RANK: Wait(STAGE0_RANK, call, mesh)}
    return tuple({**stage0, **begun, **known, **stage0}.values())


def alone(evidence: RunEvidence, waits: tuple[Wait, ...]) -> FailureRecord | None:
    """Return what it means that rank 0 waited in its own collective for the mesh, and the mesh for rank 0.

    ``waits`` are those of ``with_own_call``.
    """
    first = min(evidence.records, key=lambda record: record.at_ns, default=None)
    call = _call_of_stage0(evidence)
    if first is None or first.error_type != PeerTimeoutError.__name__:
        return None
    others = [each for each in evidence.records if each.rank != STAGE0_RANK]
    if not call or roots(waits) or any(own_call(other) for other in others):
        return None
    mesh = named_ranks(evidence.topology.mesh_ranks)
    what = f"Rank 0 waited in {call} for {mesh}, and not one of them was in a collective of its loop: they "
    what += "waited for rank 0."
    check = (
        "a collective of all ranks: before the loop, after it, or on every rank when no chunk is on its way"
    )
    record = _record_of_stage0(evidence)
    if record is None:  # torchrun ended it in that call, when the mesh had left
        stack = evidence.stack_of(STAGE0_RANK)
        record = record_of(evidence, STAGE0_RANK, MISMATCH, what, check, stack)
    where = {key: fact for key, fact in record.where.items() if key != "role"}
    return replace(
        record, rank=NOBODY, error_type=MISMATCH, what=what, check_first=check, where=where, symptom=False
    )


def own_call(record: FailureRecord) -> str:
    """Return the call of ``torch.distributed`` in which a loop's own line had the error, with that line."""
    stacks = tracebacks(record.traceback)
    stack = stacks[-1].chain[0] if stacks else None
    if stack is None or stack.users is None or not stack.call:
        return ""
    users = stack.users
    inside = stack.frames[stack.frames.index(users) + 1]
    # A call of the plane on the main thread has ppwork's frames first.
    return f"{stack.call} ({Path(users.file).name}:{users.line})" if "/torch/" in inside.file else ""


def _call_of_stage0(evidence: RunEvidence) -> str:
    if (record := _record_of_stage0(evidence)) is not None:
        return own_call(record) if record.symptom else ""
    pulse = evidence.pulses.get(STAGE0_RANK)
    return "" if pulse is None else pulse.own_call


def _record_of_stage0(evidence: RunEvidence) -> FailureRecord | None:
    return next((record for record in evidence.records if record.rank == STAGE0_RANK), None)
