"""Facts that are looked up in the folder of a run with a fault, beside its failure: each by its name.

A fact is empty text if it holds, else what was found instead. Files only: no process is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ppwork.faults.catalogue import AT_CHUNK
from ppwork.records.failure import read_records
from ppwork.records.run import Run
from ppwork.records.spans import INJECTED, Entry, Instant, read_entries
from ppwork.timeline.measures import dropped_chunks

REFUSED_CALLER = "fault.refused"
"""The instant of a second caller that got its error."""


def injection(entries: Mapping[int, list[Entry]]) -> tuple[int, Instant] | None:
    """Return the rank and the instant of the first injection, or ``None`` if no rank said so."""
    injections = [
        (rank, entry)
        for rank, of_rank in entries.items()
        for entry in of_rank
        if isinstance(entry, Instant) and entry.name == INJECTED
    ]
    return min(injections, key=lambda pair: pair[1].at_ns, default=None)


def _instants(run: Run, rank: int, name: str) -> list[Instant]:
    entries = read_entries(run.run_dir, rank)
    return [entry for entry in entries if isinstance(entry, Instant) and entry.name == name]


def _chunks_at(run: Run, rank: int, name: str) -> list[int]:
    return [instant.chunk_index for instant in _instants(run, rank, name)]


def _nothing_sent(run: Run) -> str:
    sent = AT_CHUNK in _chunks_at(run, 0, "envelope.send")
    return f"chunk {AT_CHUNK} passed its commitment point" if sent else ""


def _mesh_unseen(run: Run) -> str:
    if AT_CHUNK in _chunks_at(run, 1, "mesh.broadcast"):
        return f"the leader broadcast chunk {AT_CHUNK}"
    for rank in range(2, run.plan.world_size):
        if any(entry.chunk_index == AT_CHUNK for entry in read_entries(run.run_dir, rank)):
            return f"rank {rank} saw chunk {AT_CHUNK}"
    return ""


def _no_inference(run: Run) -> str:
    for rank in range(run.plan.world_size):
        if any(entry.chunk_index >= 0 for entry in read_entries(run.run_dir, rank)):
            return f"rank {rank} had a chunk"
    return ""


def _as_if_begun_there(run: Run) -> str:
    """The generator's count after the cut must go as it went from the first chunk on."""
    ages = {instant.chunk_index: instant.figures.get("age") for instant in _instants(run, 0, "emit")}
    begins = (*run.plan.flushes, *run.plan.hard_cuts)[0]
    after = {index - begins: age for index, age in ages.items() if index >= begins}
    wrong = {begins + index: age for index, age in after.items() if age != float(index + 1)}
    if set(after) != set(range((run.plan.chunks or 0) - begins)):
        return f"after chunk {begins} only {sorted(after)} were emitted"
    return f"the cache had another age at {wrong}" if wrong else ""


def _in_flight_dropped(run: Run) -> str:
    entries = read_entries(run.run_dir, 0)
    injected = injection({0: entries})
    in_flight = int(injected[1].figures["in_flight"]) if injected else 0
    begins = run.plan.flushes[0]
    wanted = list(range(begins - in_flight, begins))
    dropped = dropped_chunks(entries)
    if not in_flight:
        return "nothing was in flight"
    return "" if dropped == wanted else f"dropped {dropped}, in flight were {wanted}"


def _nothing_dropped(run: Run) -> str:
    emitted = _chunks_at(run, 0, "emit")
    return "" if emitted == list(range(run.plan.chunks or 0)) else f"emitted were {emitted}"


def _queues_within_bounds(run: Run) -> str:
    queues = run.summary.get("queues", [])
    over = [f"{q['name']} of rank {q['rank']}" for q in queues if q["most"] > q["bound"]]
    if not queues:
        return "no rank said how full its queues were"
    return f"{', '.join(over)} passed the bound" if over else ""


def _caller_refused(run: Run) -> str:
    return "" if _instants(run, 0, REFUSED_CALLER) else "the second caller was let through"


def _source_of_the_stage(run: Run) -> str:
    module = run.plan.stage1.partition(":")[0].rpartition(".")[2]
    is_shown = run.failure is not None and f"{module}.py:" in run.failure.what
    return "" if is_shown else "no file and line of the stage is shown"


def _peers_told(run: Run) -> str:
    """Every other rank that spoke must have the cause from a notice, not only a closed connection."""
    records = {record.rank: record for record in read_records(run.run_dir, run.plan.world_size)}
    cause = records.pop(run.failure.where.get("rank", -1), None) if run.failure else None
    if cause is None:
        return "no rank named the cause"
    if not records:
        return "no other rank spoke"
    untold = [
        f"rank {rank}: {record.error_type}"
        for rank, record in records.items()
        if record.error_type != "TerminalNotice" or cause.what not in record.what
    ]
    return f"not told were {', '.join(untold)}" if untold else ""


def _records_whole(run: Run) -> str:
    """Every file that a reader takes for whole must read."""
    for path in sorted(run.run_dir.glob("*.json")):
        try:
            msgspec.json.decode(path.read_bytes())
        except msgspec.MsgspecError as error:
            return f"{path.name} does not read: {error}"
    for rank in range(run.plan.world_size):
        read_entries(run.run_dir, rank)
    return ""


FACTS: dict[str, Callable[[Run], str]] = {
    "nothing sent": _nothing_sent,
    "mesh unseen": _mesh_unseen,
    "no inference": _no_inference,
    "peers told": _peers_told,
    "in flight dropped": _in_flight_dropped,
    "as if begun there": _as_if_begun_there,
    "nothing dropped": _nothing_dropped,
    "queues within bounds": _queues_within_bounds,
    "second caller refused": _caller_refused,
    "source of the stage": _source_of_the_stage,
    "records whole": _records_whole,
}
