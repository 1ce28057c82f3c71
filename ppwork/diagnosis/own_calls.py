"""Rank 0 in a collective of its own loop, to which no mesh rank came: by the traceback in its record.

Where a loop's collective cannot be refused, because the mesh may be about to come to it, somebody's bound
passes. Spans know only that rank 0 was in code of its own then.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from ppwork.diagnosis.findings import NOBODY, Wait
from ppwork.diagnosis.run_evidence import RunEvidence
from ppwork.diagnosis.stacks import tracebacks
from ppwork.diagnosis.uneven import MISMATCH
from ppwork.diagnosis.waits import roots
from ppwork.errors import PeerTimeoutError, named_ranks
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.failure import FailureRecord


def with_own_call(evidence: RunEvidence, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
    """Return the waits, rank 0's by its own collective, if it stood in one and not in a call of the plane."""
    record = _record_of_stage0(evidence)
    call = own_call(record) if record is not None and record.symptom else ""
    if not call:
        return waits
    wait = Wait(STAGE0_RANK, call, tuple(evidence.topology.mesh_ranks))
    return tuple(wait if each.rank == STAGE0_RANK else each for each in waits)


def alone(evidence: RunEvidence, waits: tuple[Wait, ...]) -> FailureRecord | None:
    """Return what it means that rank 0 waited in its own collective for the mesh, and the mesh for rank 0.

    ``waits`` are those of ``with_own_call``.
    """
    first = min(evidence.records, key=lambda record: record.at_ns, default=None)
    record = _record_of_stage0(evidence)
    if first is None or record is None or first.error_type != PeerTimeoutError.__name__ or not record.symptom:
        return None
    call = own_call(record)
    others = [each for each in evidence.records if each.rank != STAGE0_RANK]
    if not call or roots(waits) or any(own_call(other) for other in others):
        return None
    mesh = named_ranks(evidence.topology.mesh_ranks)
    what = f"Rank 0 waited in {call} for {mesh}, and not one of them was in a collective of its loop: they "
    what += "waited for rank 0."
    check = (
        "a collective of all ranks: before the loop, after it, or on every rank when no chunk is on its way"
    )
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


def _record_of_stage0(evidence: RunEvidence) -> FailureRecord | None:
    return next((record for record in evidence.records if record.rank == STAGE0_RANK), None)
