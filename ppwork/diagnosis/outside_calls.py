"""Ranks in a call that nothing compares: a collective of their loop outside of any chunk, or a message.

Where a loop's collective cannot be refused, because the others may be about to come to it, somebody's bound
passes, or a rank leaves that has come to its end. Spans know only that a rank was in code of its own then;
its record has the call, and that of rank 0 its pulse, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from ppwork.diagnosis.findings import NOBODY, Wait
from ppwork.diagnosis.inferred import record_of
from ppwork.diagnosis.run_evidence import RunEvidence
from ppwork.diagnosis.stacks import half_of, own_call
from ppwork.diagnosis.uneven_collectives import BY_ALL, MISMATCH, computing
from ppwork.diagnosis.waits import roots
from ppwork.errors import named_ranks
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.failure import FailureRecord
from ppwork.records.ledger import read_ledger
from ppwork.records.spans import Instant


def with_own_call(evidence: RunEvidence, waits: tuple[Wait, ...]) -> tuple[Wait, ...]:
    """Return the waits, those by calls of one's own that nothing compares as such.

    That is rank 0's, if it stood in one and not in a call of the plane, and those of mesh ranks before their
    first chunk or between two; and messages within the mesh.
    """
    known = {each.rank: each for each in _before_any_step(evidence, waits)}
    leader, *followers = mesh = tuple(evidence.topology.mesh_ranks)
    if call := _call_of_stage0(evidence):
        # Before the first chunk there is nothing to read them from: all that joined wait for it.
        first = {leader: Wait(leader, "first envelope on down_pg", (STAGE0_RANK,))}
        first |= {rank: Wait(rank, "first envelope on mesh_pg", (leader,)) for rank in followers}
        begun = {rank: wait for rank, wait in first.items() if rank in evidence.pulses}
        stage0 = {STAGE0_RANK: Wait(STAGE0_RANK, call, mesh)}
        return tuple({**stage0, **begun, **known, **stage0}.values())
    stood = _before_the_first(evidence) | _between_two(evidence) | _in_message(evidence)
    for rank, wait in known.items():
        if rank in mesh and rank not in stood and not wait.waits_for and stood:
            known[rank] = wait._replace(waits_for=tuple(stood))  # it computes, with who has not come so far
    for rank, record in stood.items():
        call = own_call(record.traceback)
        others = tuple(each for each in mesh if each not in stood or own_call(stood[each].traceback) != call)
        if _half(call):
            others = (record.where["peer"],) if "peer" in record.where else _others(evidence, rank)
        known[rank] = Wait(rank, call, others or (STAGE0_RANK,))
    return tuple(wait for _, wait in sorted(known.items()))


def _before_any_step(evidence: RunEvidence, waits: tuple[Wait, ...]) -> list[Wait]:
    """Return the waits, those of mesh ranks whose loops have not asked for the chunk that came as such."""
    pulses = evidence.pulses if evidence.of_loop else {}
    computing = [wait.rank for wait in waits if wait.call.startswith("generate")]
    late = [rank for rank in computing if rank in pulses and not pulses[rank].since_ns]
    return [
        wait._replace(call="its loop, before the first chunk", waits_for=())
        if wait.rank in late
        else wait._replace(waits_for=tuple(late))
        if late and wait.rank in computing
        else wait
        for wait in waits
    ]


def alone(evidence: RunEvidence, waits: tuple[Wait, ...]) -> FailureRecord | None:
    """Return what it means that rank 0 waited in its own collective for the mesh, and the mesh for rank 0.

    ``waits`` are those of ``with_own_call``.
    """
    call = _call_of_stage0(evidence)
    if not evidence.bound_passed:
        return None
    others = [each for each in evidence.records if each.rank != STAGE0_RANK]
    if not call or roots(waits) or any(own_call(other.traceback) for other in others):
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


def before_the_first_chunk(evidence: RunEvidence) -> FailureRecord | None:
    """Return what it means that mesh ranks stood in a call before their first chunk until a bound passed."""
    if not (stood := _before_the_first(evidence)):
        return None
    own = "its" if len(stood) == 1 else "their"
    what = f"{_stood(stood)} before {own} first chunk, and "
    records = {record.rank: record for record in evidence.records}
    others = [rank for rank in evidence.topology.mesh_ranks if rank not in stood]
    calls = {
        rank: call
        for rank in others
        if rank in records and (call := own_call(records[rank].traceback, caller=True))
    }
    chunks = {rank: records[rank].where.get("chunk_index") for rank in calls}
    if others:
        what += "not all ranks of that group came"
        what += "".join(
            f"; rank {rank} was in {call}" + (f" of chunk {chunks[rank]}" if chunks[rank] is not None else "")
            for rank, call in calls.items()
        )
    elif len({own_call(record.traceback) for record in stood.values()}) == 1:
        what += "rank 0 did not come"
    else:
        what += "these are not one call of all ranks"
    return _nobodys(stood, f"{what}.", BY_ALL)


def _before_the_first(evidence: RunEvidence) -> dict[int, FailureRecord]:
    """Return the records of mesh ranks that stood in a call before their first chunk, if that held all up.

    Somebody's bound passed then.
    """
    if not evidence.bound_passed or _call_of_stage0(evidence) or not _nobody_failed(evidence):
        return {}
    return {
        record.rank: record
        for record in _of_mesh(evidence)
        if "call_id" not in record.where
        and not any(entry.name == "generate" for entry in evidence.entries.get(record.rank, []))
        and own_call(record.traceback)
    }


def _between_two(evidence: RunEvidence) -> dict[int, FailureRecord]:
    """Return the records of mesh ranks that stood in a call behind a chunk, when the next had come."""
    stood: dict[int, FailureRecord] = {}
    for record in evidence.records if evidence.of_loop else ():
        came = computing(evidence, record.rank) if record.rank in evidence.topology.mesh_ranks else None
        behind = record.where.get("call_id")
        if record.symptom and came is not None and behind is not None and behind < came:
            stood |= {record.rank: record} if own_call(record.traceback) else {}
    return stood


def unanswered(evidence: RunEvidence) -> FailureRecord | None:
    """Return what it means that mesh ranks waited for messages of each other, when nobody had failed."""
    if not (stood := _in_message(evidence)):
        return None
    parts = [
        f"rank {rank} waited in {own_call(record.traceback, caller=True)} for "
        + (f"rank {record.where['peer']}" if "peer" in record.where else "another mesh rank")
        for rank, record in stood.items()
    ]
    instead = [
        f"rank {record.rank} was at {Path(record.source).name}"
        for record in _of_mesh(evidence)
        if record.rank not in stood and record.source
    ]
    what = "; ".join([*parts, *instead])
    check_first = "does that rank make the other half there, for this rank and tag? Messages are not compared"
    return _nobodys(stood, f"{what[0].upper()}{what[1:]}.", check_first)


def _in_message(evidence: RunEvidence) -> dict[int, FailureRecord]:
    """Return the records of mesh ranks that stood in a message of their own, if no rank had failed."""
    found = {record.rank: record for record in _of_mesh(evidence) if _half(own_call(record.traceback))}
    return found if _nobody_failed(evidence) else {}


def _half(call: str) -> str:
    """Return the half of a message that a call in words, as of ``own_call``, is; else nothing."""
    return half_of(call.partition(" ")[0])


def _of_mesh(evidence: RunEvidence) -> list[FailureRecord]:
    """Return the records of the mesh's ranks, in the order of their ranks."""
    mesh = evidence.topology.mesh_ranks
    return sorted((r for r in evidence.records if r.rank in mesh), key=lambda record: record.rank)


def _nobody_failed(evidence: RunEvidence) -> bool:
    """Say whether each rank left a symptom, or well.

    A rank without a record may have held up the others in code of its own, or be gone.
    """
    silent = {*range(evidence.topology.world_size)} - {record.rank for record in evidence.records}
    return all(record.symptom for record in evidence.records) and not any(
        evidence.code_of(rank) != 0 for rank in silent
    )


def _others(evidence: RunEvidence, rank: int) -> tuple[int, ...]:
    return tuple(each for each in evidence.topology.mesh_ranks if each != rank)


def after_the_end(evidence: RunEvidence) -> FailureRecord | None:
    """Return what it means that mesh ranks waited in a call behind their last chunk, and others had left.

    A rank that left after the acknowledged end of the stream has not failed: who waits for it then lost it.
    """
    last = _last_chunk(evidence)
    if evidence.summary is None or not evidence.of_loop or last is None:
        return None
    stood = {
        record.rank: record
        for record in evidence.records
        if record.symptom and _has_ended(evidence, record.rank, last) and own_call(record.traceback)
    }
    left = [rank for rank in range(evidence.topology.world_size) if rank not in stood]
    if not stood or not left or any(evidence.code_of(rank) != 0 for rank in left):
        return None
    what = f"{_stood(stood)} after the last chunk ({last}), and {named_ranks(left)} did not come: "
    what += f"{'it' if len(left) == 1 else 'they'} had left with code 0."
    return _nobodys(stood, what, BY_ALL)


def _last_chunk(evidence: RunEvidence) -> int | None:
    entries = evidence.entries.get(STAGE0_RANK, [])
    shown = (e for e in entries if isinstance(e, Instant) and e.name in ("emit", "drop"))
    return max((entry.chunk_index for entry in shown), default=None)


def _has_ended(evidence: RunEvidence, rank: int, chunk: int) -> bool:
    """Say whether a mesh rank wrote down that it had answered a chunk: its span ends by an error, too."""
    if rank not in evidence.topology.mesh_ranks:
        return False
    calls = read_ledger(evidence.home(rank), rank)
    if calls:
        newest = calls[max(calls)]
        return not newest.operation and newest.chunk_index == chunk
    sent = (e for e in evidence.entries.get(rank, []) if e.name == "result.send")
    return any(entry.chunk_index == chunk for entry in sent)


def _stood(stood: Mapping[int, FailureRecord]) -> str:
    """Return who waited in which call, as the beginning of a sentence."""
    calls: dict[str, list[int]] = {}
    for rank, record in sorted(stood.items()):
        calls.setdefault(own_call(record.traceback, caller=True), []).append(rank)
    said = " and ".join(f"{named_ranks(ranks)} waited in {call}" for call, ranks in calls.items())
    return said[0].upper() + said[1:]


def _nobodys(stood: Mapping[int, FailureRecord], what: str, check_first: str) -> FailureRecord:
    """Return the record of calls that no rank is to blame for, with the line of the first rank in one."""
    record = stood[min(stood)]
    where = {key: fact for key, fact in record.where.items() if key not in ("role", "rank", "peer")}
    return replace(
        record,
        rank=NOBODY,
        error_type=MISMATCH,
        what=what,
        check_first=check_first,
        where=where,
        symptom=False,
    )


def _call_of_stage0(evidence: RunEvidence) -> str:
    if (record := _record_of_stage0(evidence)) is not None:
        return own_call(record.traceback) if record.symptom else ""
    pulse = evidence.pulses.get(STAGE0_RANK)
    return "" if pulse is None else pulse.own_call


def _record_of_stage0(evidence: RunEvidence) -> FailureRecord | None:
    return next((record for record in evidence.records if record.rank == STAGE0_RANK), None)
