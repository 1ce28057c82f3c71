"""Mesh ranks that made different collectives, as the files of a run show it: nobody knows which one is right.

A rank that is in a collective which others do not make is the one that has an error, or is aborted; it did
nothing wrong for that. So no rank is named as the one that failed, and both are in the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from ppwork.diagnosis.branches import own_loop
from ppwork.diagnosis.findings import NOBODY
from ppwork.diagnosis.flights import differences
from ppwork.diagnosis.logs import LONGER
from ppwork.diagnosis.run_evidence import QUIET_NS, RunEvidence
from ppwork.diagnosis.stacks import Stack, frames_of, own_call, thread_stacks
from ppwork.diagnosis.waits import uncomputed
from ppwork.errors import listed, named_ranks
from ppwork.records.difference import beside_stage0, first_difference
from ppwork.records.failure import FailureRecord
from ppwork.records.flight import Collective
from ppwork.records.ledger import CollectiveCall, read_ledger
from ppwork.timeline.chunks import spans_by_call

MISMATCH = "CollectiveMismatch"
BY_ALL = "do all ranks of that group make the call there? rank 0 is in the default group, too"
COMPARE_ALWAYS = (
    "run again with `--compare-collectives -1` (`Plan(compare_collectives=-1)`): it names the call, its "
    "chunk and both ranks"
)
IN_LOOP = (
    "does a rank alone make a functional collective, one by a method of a group, one in a thread of its own, "
    "or any between `reply` and its next chunk, before the first or behind the last? Only torch's functions "
    "in a chunk are compared, in the thread of the loop"
)
NOT_COMPARED = (
    "run again without `compare_collectives=0`: calls of a chunk are then compared, and named with both ranks"
)
_A_LOOP = re.compile(r"does a loop around (\S+:\d+)(?: or (\S+:\d+))?(?= make )")
_WAIT = "/ppwork/worker/backend_wait.py"
_ABORTED = "Fatal Python error: Aborted"


def _advice(evidence: RunEvidence) -> str:
    """Return what finds the call: a loop has no exchange."""
    if not evidence.of_loop:
        return COMPARE_ALWAYS
    return IN_LOOP if evidence.plan.compare_collectives else NOT_COMPARED


def ledger_difference(evidence: RunEvidence) -> FailureRecord | None:
    """Return the first call that the mesh ranks made otherwise, by what they wrote down before each."""
    written = {rank: calls for rank, calls in _ledgers(evidence).items() if calls}
    if (difference := first_difference(written)) is None:
        return None
    record = _record(difference.what, difference.check_first, {"group": "tp_pg"})
    return replace(record, between=difference.ranks)


def with_loop(record: FailureRecord) -> FailureRecord:
    """Return a record that asks for a loop around a line with the loop's own line, where its source reads.

    Ranks tell each other file names without folders; the record's traceback has those of its own rank.
    """
    asked = _A_LOOP.match(record.check_first)
    if asked is None:
        return record
    frames = {Path(frame.at).name: frame for frame in frames_of(record.traceback)}
    for frame in (frames[place] for place in asked.groups() if place in frames):
        if loop := own_loop(frame, None, for_ever=False):
            file = Path(frame.file).name
            named = f"does the loop at {file}:{loop}, around {file}:{frame.line},"
            return replace(record, check_first=f"{named}{record.check_first[asked.end() :]}")
    return record


def widened(record: FailureRecord, found: FailureRecord) -> FailureRecord:
    """Return a rank's record of a difference with what the ledgers tell, if that is of more ranks."""
    if len(found.between) <= len(record.between):
        return record
    return replace(record, what=found.what, check_first=found.check_first, between=found.between)


def beside(evidence: RunEvidence) -> FailureRecord | None:
    """Return what it means that all mesh ranks waited for rank 0, in a group of the job's, and it for them.

    Somebody's bound passed then. A rank that hangs in code of its own is ended before that, and says so.
    """
    if not evidence.bound_passed or (found := beside_stage0(_ledgers(evidence))) is None:
        return None
    what, check_first, chunk = found
    return _record(what, check_first, {"chunk_index": chunk})


def _ledgers(evidence: RunEvidence) -> dict[int, dict[int, CollectiveCall]]:
    return {rank: read_ledger(evidence.home(rank), rank) for rank in evidence.topology.mesh_ranks}


def last_collective(evidence: RunEvidence, rank: int) -> str:
    """Return what a mesh rank wrote down last of its calls; nothing of one that wrote nothing."""
    calls = read_ledger(evidence.home(rank), rank) if rank in evidence.topology.mesh_ranks else {}
    if not calls:
        return ""
    last = calls[max(calls)]
    place = last.places[0] if last.places else ""
    if last.operation:
        at = f" at {place}" if place else ""
        which = f"collective {last.count} of chunk {last.chunk_index}{at}"
        return f"rank {rank} was in or behind {last.operation}, {which}"
    behind = f", the last at {place}" if place and last.count else ""
    return (
        f"rank {rank} had ended chunk {last.chunk_index} after {last.collectives}{behind}, and began no other"
    )


def wrong_size(evidence: RunEvidence, rank: int) -> FailureRecord | None:
    """Return what it means that gloo aborted a mesh rank in a chunk; ``None``: it computed none."""
    longer = LONGER.search(evidence.text_of(rank))
    call = computing(evidence, rank) if rank in evidence.topology.mesh_ranks else None
    if longer is None or call is None or evidence.topology.mesh_size < 2:
        return None
    chunk = _chunk_of(evidence, rank, call)
    sizes = f"gloo brought {longer[1]} bytes to rank {rank}, which expected {longer[2]}, and aborted it."
    what = f"The mesh ranks passed different sizes to one collective of chunk {chunk}: {sizes}"
    for record in evidence.records:
        their_call = record.where.get("call_id", call)
        if record.rank in evidence.topology.mesh_ranks and their_call != call:
            fewer, at = their_call > call, f"chunk {record.where.get('chunk_index', their_call)}"
            what = (
                f"In chunk {chunk} {sizes} Rank {record.rank} was {'already' if fewer else 'still'} in {at}: "
            )
            what += f"it made {'fewer' if fewer else 'more'} collectives before, or sizes differ."
            break
    what += " Which rank is wrong is not known."
    places = {record.rank: record.source for record in evidence.records if record.source}
    if (stacks := _aborted_stacks(evidence, rank)) and (users := stacks[-1].users) is not None:
        places[rank] = users.at  # its own thread's: it may wait there for one that is in the call
    mesh = [other for other in evidence.topology.mesh_ranks if other in places]
    if mesh:
        at = listed(f"rank {other} was at {Path(places[other]).name}" for other in mesh)
        what += f" {at[0].upper()}{at[1:]}."
    found = _record(what, _advice(evidence), {"group": "tp_pg", "call_id": call, "chunk_index": chunk})
    return replace(found, source=places.get(rank, ""))


def _aborted_stacks(evidence: RunEvidence, rank: int) -> list[Stack]:
    """Return the stacks of a rank that was aborted, its main thread's last."""
    return [stack for stack in thread_stacks(evidence.text_of(rank)) if stack.error == _ABORTED]


def aborted_in_collective(evidence: RunEvidence, rank: int) -> FailureRecord | None:
    """Return what it means that a rank was aborted while its main thread stood in a collective of its loop.

    gloo does that with who is sent more than it expects; its thread has no Python, so nobody's is current.
    """
    stacks = _aborted_stacks(evidence, rank)
    call = stacks[-1].own_call(caller=True) or _own_wait(stacks[-1]) if stacks else ""
    if not call or not evidence.of_loop or any(stack.current for stack in stacks):
        return None
    longer = LONGER.search(evidence.text_of(rank))
    sizes = (
        f"{longer[1]} bytes came where it expected {longer[2]}"
        if longer is not None
        else ("it does that with a rank that is sent more bytes than it expects")
    )
    what = f"gloo aborted rank {rank} in {call}: {sizes}. "
    others = {
        record.rank: other
        for record in evidence.records
        if (other := own_call(record.traceback, caller=True))
    }
    what += "".join(f"Rank {other} was in {theirs}. " for other, theirs in sorted(others.items()))
    what += "The ranks of that group made different collectives, or passed different sizes to one; which "
    what += "rank is wrong is not known."
    return _record(what, _advice(evidence), evidence.ids_of(rank))


def _own_wait(stack: Stack) -> str:
    """Return the line of a program that waited for a handle, as of a group's method; or nothing."""
    users = stack.users
    inside = stack.frames[stack.frames.index(users) + 1 :] if users is not None else ()
    is_one = inside[:1] and inside[0].file.endswith(_WAIT)
    return f"the wait for a handle ({Path(users.file).name}:{users.line})" if users and is_one else ""


def on_the_carrier(evidence: RunEvidence) -> FailureRecord | None:
    """Return what it means that a mesh rank's own collective went over the group that carries the envelopes.

    Those are broadcast. A functional collective that is given ranks takes the first group that has them.
    """
    strays = {
        rank: each
        for rank, flight in sorted(evidence.flights.items())
        for each in flight.collectives
        if each.group.startswith("mesh_pg") and each.kind != "broadcast"
    }
    if not strays or len(strays) == evidence.topology.mesh_size:  # what all of them make there meets
        return None
    records = {record.rank: record for record in evidence.records}
    stood = {rank: records[rank] for rank in strays if rank in records and _in_collective(records[rank])}
    ranks = [
        f"rank {rank} made {each.kind}"
        + (f" at {Path(stood[rank].source).name}" if rank in stood and stood[rank].source else "")
        for rank, each in strays.items()
    ]
    what = f"{listed(ranks)} on mesh_pg, the group that carries the envelopes, and not the mesh's own."
    check = "which group does that line name? One that is given ranks takes the first group of these ranks: "
    check += "give it `plane.tp.group`, in a stage `context.tp.group`"
    first = next(iter(stood.values()), None)
    where = {} if first is None else {key: fact for key, fact in first.where.items() if key != "role"}
    record = _record(f"{what[0].upper()}{what[1:]}", check, {**where, "group": "mesh_pg"})
    return record if first is None else replace(record, source=first.source, traceback=first.traceback)


def stood_apart(evidence: RunEvidence) -> FailureRecord | None:
    """Return what it means that mesh ranks waited in vain in one chunk, each in a collective of another kind.

    Their flight records have the kinds. Nothing compares a collective past torch's own functions.
    """
    apart = next((each for each in differences(evidence.flights) if each.group.startswith("tp_pg")), None)
    if apart is None or apart.behind or not evidence.bound_passed:
        return None
    stood = {record.rank: record for record in evidence.records if record.rank in apart.at}
    calls = {record.where.get("call_id") for record in stood.values()}
    call = calls.pop() if len(calls) == 1 else None
    if call is None or sorted(stood) != [*evidence.topology.mesh_ranks]:
        return None
    if not all(record.symptom and _in_collective(record) for record in stood.values()):
        return None
    chunk = _chunk_of(evidence, min(stood), call)
    ranks = [
        f"rank {rank} in {apart.at[rank].kind}" + (f" at {Path(record.source).name}" if record.source else "")
        for rank, record in sorted(stood.items())
    ]
    what = f"The mesh ranks waited for each other in different collectives of chunk {chunk}: "
    what += (
        f"{listed(ranks)}. Each was its collective {apart.at[min(stood)].number} of {apart.group}: one rank "
    )
    what += "left one out, or made one more."
    return _record(what, _advice(evidence), {"group": "tp_pg", "call_id": call, "chunk_index": chunk})


def uneven(evidence: RunEvidence) -> FailureRecord | None:
    """Return what it means that a mesh rank stood in a collective of a chunk that another one had ended."""
    for record in sorted(evidence.records, key=lambda record: record.at_ns):
        rank = record.rank
        if rank not in evidence.topology.mesh_ranks or not record.symptom or not _in_collective(record):
            continue
        call = record.where.get("call_id", computing(evidence, rank))
        if call is None:
            continue
        if _ended(evidence, rank, call):  # so it is no collective of that chunk
            if record.source:
                return _between(record, _chunk_of(evidence, rank, call))
            continue
        others = [other for other in evidence.topology.mesh_ranks if other != rank]
        found = (_apart(evidence, rank, other, call) for other in others if _ended(evidence, other, call))
        if (apart := next(filter(None, found), None)) is not None:
            return apart
    return None


def _between(record: FailureRecord, chunk: int) -> FailureRecord:
    call = own_call(record.traceback) or "a collective"
    what = (
        f"Rank {record.rank} waited in {call} between its answer to chunk {chunk} and the next one, at "
        f"{record.source}, and not all ranks of its group came."
    )
    return replace(_record(what, BY_ALL, {**record.where, "chunk_index": chunk}), source=record.source)


def _apart(evidence: RunEvidence, rank: int, other: int, call: int) -> FailureRecord | None:
    chunk = _chunk_of(evidence, rank, call)
    mine, theirs = _at(evidence, rank), _at(evidence, other)
    if theirs is None:
        if any(record.rank == other for record in evidence.records):
            return None  # it failed, too, and where it was is not known
        what = (
            f"Rank {rank} was in a collective of chunk {chunk}, which rank {other} had ended before it left: "
            f"{named_ranks(sorted((rank, other)))} made different collectives in that chunk or before."
        )
    elif mine is None or mine.number == theirs.number:
        return None  # as many on both: something between them, and not in the stages
    else:
        what = (
            f"Rank {other} ended chunk {chunk} with collective {theirs.number} of tp_pg, and rank {rank} was "
            f"in collective {mine.number} ({mine.kind}) of the same chunk: in it or before, rank "
            f"{other if theirs.number < mine.number else rank} left one out, or the other made one more."
        )
    return _record(what, _advice(evidence), {"group": "tp_pg", "call_id": call, "chunk_index": chunk})


def _at(evidence: RunEvidence, rank: int) -> Collective | None:
    flight = evidence.flights.get(rank)
    return flight.at().get("tp_pg") if flight is not None else None


def computing(evidence: RunEvidence, rank: int) -> int | None:
    """Return the oldest call that a mesh rank had received and not computed, or ``None``."""
    has_failed = any(record.rank == rank for record in evidence.records)
    by_rank = evidence.before_the_first_record() if has_failed else evidence.entries
    return next(iter(uncomputed(by_rank.get(rank, []))), None)


def _in_collective(record: FailureRecord) -> bool:
    return record.where.get("group") == "tp_pg" or "/torch/distributed/" in record.traceback


def _ended(evidence: RunEvidence, rank: int, call: int) -> bool:
    """Say whether a rank came to the end of a chunk, and not out of it by its own error."""
    span = spans_by_call(evidence.entries.get(rank, []), "generate").get(call)
    failed_ns = [record.at_ns for record in evidence.records if record.rank == rank]
    return span is not None and all(span.end_ns < at_ns - QUIET_NS for at_ns in failed_ns)


def _chunk_of(evidence: RunEvidence, rank: int, call: int) -> int:
    indexes = [e.chunk_index for e in evidence.entries.get(rank, []) if e.call_id == call]
    return max(indexes, default=call)


def _record(what: str, check_first: str, where: Mapping[str, int | str]) -> FailureRecord:
    return FailureRecord(
        rank=NOBODY,
        error_type=MISMATCH,
        what=what,
        where=dict(where),
        check_first=check_first,
        symptom=False,
        at_ns=0,
        traceback="",
    )
