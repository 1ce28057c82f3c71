"""What a run noted of itself and no rank failed over, such as odd results or cuts that reset nothing."""

from __future__ import annotations

from ppwork.diagnosis.run_evidence import RunEvidence
from ppwork.diagnosis.stacks import IN_THREAD, tracebacks
from ppwork.errors import named_chunks, named_ranks
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.failure import FailureRecord
from ppwork.records.notes import (
    came_with_a_cut,
    told_of_metadata,
    told_of_options,
    told_of_results,
    told_of_writes,
    why_not_reset,
)
from ppwork.records.run import NOTHING_RESET, UNRELEASED, chunks_noted, stream_ended
from ppwork.records.spans import HANDLE_LET_GO, Instant


def noted(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about each thing that ends no run by itself."""
    ended = filter(None, [stream_ended(evidence.entries.get(STAGE0_RANK, []))])
    own = (*_odd_results(evidence), *useless_cuts(evidence), *_let_go(evidence), *_dead_threads(evidence))
    # Last, as mostly meant, that it ended: a question, behind what is known.
    return (*own, *_unasked_options(evidence), *ended)


def is_told(line: str, cause: FailureRecord, evidence: RunEvidence) -> bool:
    """Say whether a line is in the cause, or of a thread that died, and the cause says so."""
    died = map(str, evidence.dead_threads(STAGE0_RANK))
    return line in cause.what or any(thread in line and thread in cause.what for thread in died)


def too_few(evidence: RunEvidence, cause: FailureRecord) -> tuple[str, ...]:
    """Return what ``finish`` may not have reckoned with: that fewer chunks came than the plan has."""
    entries, planned = evidence.entries.get(STAGE0_RANK, []), evidence.plan.chunks
    came = len({entry.chunk_index for entry in entries if entry.name in ("emit", "drop")})
    if "stage's finish raised" not in cause.what or not 0 < came < (planned or 0):
        return ()
    return (f"Only {came} of the plan's {planned} chunks had come when `finish` was called",)


def _odd_results(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about results of mesh ranks that were not the same, which end no run."""
    if not (odd := evidence.odd_results):
        return ()
    what = f"Mesh ranks returned different results in {named_chunks(odd)}: the leader's were sent"
    what += f"; {told}" if (told := told_of_results(evidence.entries)) else ""
    where = "All that differs: the logs of the mesh ranks, or a run with `--digests`"
    if evidence.of_loop:
        where = "Which rank is wrong is not known: print what each of them passes to `reply` there"
    if came_with_a_cut(evidence.entries.get(STAGE0_RANK, []), first := odd[0]):
        where = f"Chunk {first} came with a cut: did each of them reset its cache there? {where}"
    return (f"{what}. {where}",)


def _unasked_options(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about the options that no stage asked for: the run is not the one that was meant."""
    idle = told_of_options(evidence.plan.options, evidence.entries)
    return (f"{idle[0].upper()}{idle[1:]}",) if idle else ()


def useless_cuts(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about cuts at which a generator or a loop reset nothing: results may be wrong."""
    if not (cuts := chunks_noted(evidence.entries, NOTHING_RESET)):
        return ()
    return (f"At the cut of {named_chunks(cuts)} {why_not_reset(of_loop=evidence.of_loop)}",)


def _let_go(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about each place whose collectives nobody waited for: results may be wrong."""
    ranks: dict[str, list[int]] = {}
    for rank in evidence.topology.mesh_ranks:
        for entry in evidence.entries.get(rank, []):
            if isinstance(entry, Instant) and entry.name == HANDLE_LET_GO:
                ranks.setdefault(entry.text.partition(": ")[0], []).append(rank)
    what = "let go of a handle that nobody had waited for, at"
    early = "its tensor may have been used too early"
    return tuple(f"{named_ranks(of).capitalize()} {what} {line}: {early}" for line, of in ranks.items())


def _dead_threads(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about each rank of which a thread ended in an exception: Python goes on without it."""
    lines, went_on = [], "and the rank went on without it"
    for rank in range(evidence.topology.world_size):
        written = evidence.dead_threads(rank)
        lines += [f"On rank {rank} {thread}, {went_on}" for thread in written]
        shown = [stack for stack in tracebacks(evidence.text_of(rank)) if stack.above.startswith(IN_THREAD)]
        if shown and not written:  # before the rank could write it down
            at = f" at {frame.at}" if (frame := shown[-1].users) is not None else ""
            error = f"{shown[-1].error}: {shown[-1].message.partition(chr(10))[0]}"
            lines.append(f"A thread of rank {rank} died{at} of {error}, {went_on}")
    return tuple(lines)


def ranks_apart(evidence: RunEvidence) -> tuple[str, ...]:
    """Return a line about tensors that only some mesh ranks wrote into, and one about other metadata."""
    wrote, said = told_of_writes(evidence.entries), told_of_metadata(evidence.entries)
    lines = [f"{wrote}. A wrong share, if it was not meant: `.clone()` before the write"] if wrote else []
    asked = "the leader's was sent. Does a rank hold another state? For its own, let followers give none"
    return (*lines, f"{said}; {asked}") if said else tuple(lines)


def unreleased(evidence: RunEvidence) -> tuple[str, ...]:
    """Return what is not known of a loop that does not say when it has decoded a result."""
    if not (chunks := chunks_noted(evidence.entries, UNRELEASED)):
        return ()
    why = f"from chunk {chunks[0]} on its loop called no `release_result` after a result"
    return (f"how long its decodes took: {why}",)


def unread(evidence: RunEvidence) -> tuple[str, ...]:
    """Return what is not known because a file does not read."""
    return tuple(f"what {name} says: it does not read" for name in evidence.unreadable)
