"""Records that are inferred, of ranks of a run of ours that wrote none, or only a symptom."""

from __future__ import annotations

import signal

from msgspec.structs import replace

from ppwork.diagnosis.findings import NOBODY, RANK_DIED
from ppwork.diagnosis.logs import LONGER
from ppwork.diagnosis.nccl import WatchdogReport
from ppwork.diagnosis.report import ENDED_BY_AGENT, death, killed_by_us, stopped_and_killed
from ppwork.diagnosis.run_evidence import MEANINGS, RunEvidence
from ppwork.diagnosis.stacks import Stack, thread_stacks, tracebacks
from ppwork.diagnosis.uneven_collectives import aborted_in_collective, wrong_size
from ppwork.errors import PeerFrozenError, StuckError, named_ranks
from ppwork.process import FAILED, ORPHANED, SECONDARY, UNWRITABLE
from ppwork.protocol.bounds import Bounds
from ppwork.records.failure import FailureRecord

_SENDERS = {
    -signal.SIGTERM: "a batch system, an out-of-memory daemon, a `kill` by hand",
    -signal.SIGINT: "Ctrl-C or `kill -INT` to this process alone",
}
"""Who may have sent what ended a rank; ``ENDED_BY_AGENT`` has no other signal."""


def inferred_records(evidence: RunEvidence) -> list[FailureRecord]:
    """Make records for ranks that left none of a cause, as far as something shows what happened to them.

    A rank that the launcher saw stopped only after the first death is a cause only where nothing else is:
    that death came first, and when the stop began is not known.
    """
    written = {record.rank: record for record in evidence.records}
    if evidence.plan.one_process and written:
        return []  # log and exit code are of both ranks, so they say nothing of the one that wrote no record
    records: dict[int, FailureRecord] = {}
    for rank in range(evidence.topology.world_size):
        if rank not in written:
            record = _inferred_record(evidence, rank)
        else:  # one with a symptom went on, and saw that its peers had left
            record = _freeze_record(evidence, rank) if written[rank].symptom else None
        if record is not None:
            records[rank] = record
    late = {rank for rank, is_late in stopped_and_killed(evidence.torchrun_text).items() if is_late}
    late -= {record.where.get("peer", -1) for record in evidence.records if tells_of_a_freeze(record)}
    causes = [record for record in (*evidence.records, *records.values()) if not record.symptom]
    if any(record.rank not in late for record in causes):
        return [record for rank, record in records.items() if rank not in late]
    return list(records.values())


def _inferred_record(evidence: RunEvidence, rank: int) -> FailureRecord | None:
    text, code = evidence.text_of(rank), evidence.code_of(rank)
    freeze = _freeze_record(evidence, rank)
    if freeze is not None and "SIGSTOP" in freeze.what:
        return freeze  # the backstop of its watchdog is a clock on the wall, and may fire when it goes on
    if (sizes := aborted_in_collective(evidence, rank) or wrong_size(evidence, rank)) is not None:
        return replace(sizes, at_ns=evidence.last_sign_ns(rank))
    if (longer := LONGER.search(text)) is not None:
        what = f"Rank {rank} was aborted by gloo: {longer[1]} bytes came into a buffer of {longer[2]}."
        return record_of(evidence, rank, RANK_DIED, what, "does anybody else use this group?")
    if (end := evidence.nccl_ends.get(rank)) is not None:
        return _nccl_record(evidence, rank, end)
    stacks = thread_stacks(text)
    stack = next((stack for stack in reversed(stacks) if stack.users is not None), None)
    blind = next((stack.error for stack in stacks if stack.error), "")
    if blind.startswith("Timeout") and evidence.paused_s > Bounds.of(evidence.plan).stall_s:
        what = f"The job was paused for {evidence.paused_s:g} s; bounds are clocks and ran out meanwhile."
        check = "who pauses it? docker pause, a suspended machine, a batch system; or a longer stall_s"
        return record_of(evidence, NOBODY, "Paused", what, check)
    if blind.startswith("Timeout") and code in (FAILED, None):
        what = f"Rank {rank} made no progress and held the interpreter, so that no watchdog could run."
        check = f"the stack in {evidence.stacks_of(rank)}: a call that never gives back Python's lock (GIL)"
        return record_of(evidence, rank, StuckError.__name__, what, check, stack)
    if freeze is not None:
        return freeze
    if blind.startswith("Fatal Python error") and code is not None and code < 0:
        # All threads are shown; not the main one but the one that crashed has the line.
        stack = next((stack for stack in reversed(stacks) if stack.current), stack)
        what = f"Rank {rank} {death(code)} and left no record: {blind}."
        return record_of(evidence, rank, RANK_DIED, what, f"the stack in {evidence.stacks_of(rank)}", stack)
    # torchrun passes SIGINT on only when it got one itself; a SIGTERM may be its own, unless it saw it first.
    interrupted = code == -signal.SIGINT and not evidence.report.signal
    first = evidence.report.first == rank and not evidence.past_limit  # then the launcher began it
    if code in ENDED_BY_AGENT and (interrupted or first):
        what = f"Rank {rank} was ended by {death(code).removeprefix('was killed by ')}."
        check = f"who sends it? {_SENDERS[code]}, or the program itself"
        return record_of(evidence, rank, RANK_DIED, what, check)
    if code is None or code in (0, *ENDED_BY_AGENT) or rank in killed_by_us(evidence.torchrun_text):
        return None
    errors = tracebacks(text)
    if code == FAILED and errors:
        error = errors[-1]
        what = f"Rank {rank} failed before it could write a record: {error.error}: {error.message}"
        return record_of(evidence, rank, error.error, what, "the traceback in its log", error)
    # A rank that follows a peer writes that down: without such a peer the code is the program's own.
    is_own = code == SECONDARY and all(record.symptom for record in evidence.records)
    said = death(code) if is_own else MEANINGS.get(code) or death(code)
    what = f"Rank {rank} {said} and left no record."
    check = "the end of its log"
    if code == -signal.SIGKILL:
        check += "; the kernel's log if it was the out-of-memory killer"
    check = "free space in the run folder" if code == UNWRITABLE else check
    record = record_of(evidence, rank, RANK_DIED, what, check, stack)
    return replace(record, symptom=code in (SECONDARY, ORPHANED) and not is_own)


def _nccl_record(evidence: RunEvidence, rank: int, end: WatchdogReport) -> FailureRecord:
    """Return what NCCL's watchdog said before it ended a rank, which then could not write a record."""
    check = "CUDA_LAUNCH_BLOCKING=1 and --depth 1: the traceback is then that of the call"
    if end.error_type:
        check = f"the log of {named_ranks(end.behind)}" if end.behind else "the ranks that said nothing"
    what = f"NCCL ended rank {rank}: {end.what}"
    record = record_of(evidence, rank, end.error_type or RANK_DIED, what, check)
    peer = {"peer": end.behind[0]} if len(end.behind) == 1 else {}
    return replace(
        record, where={"rank": rank, "group": end.group, **peer, **record.where}, symptom=bool(end.error_type)
    )


def _freeze_record(evidence: RunEvidence, rank: int) -> FailureRecord | None:
    """Return what peers, or the launcher, saw of a rank that was there and did not run."""
    about = [record for record in evidence.records if record.where.get("peer") == rank]
    reports = [record for record in about if tells_of_a_freeze(record)]
    if reports:
        first = min(reports, key=lambda record: record.at_ns)
        what = f"{first.what.rstrip('.')}; rank {first.rank} noticed ({first.error_type})."
        record = record_of(evidence, rank, first.error_type, what, first.check_first)
        return replace(record, where={**record.where, "peer": first.rank})
    if rank in stopped_and_killed(evidence.torchrun_text):
        what = f"Rank {rank}'s process was stopped (SIGSTOP) and had to be killed."
        return record_of(
            evidence, rank, PeerFrozenError.__name__, what, "a debugger, Ctrl-Z, a batch system?"
        )
    return None


def tells_of_a_freeze(record: FailureRecord) -> bool:
    """Say whether a record is of a rank that saw another one stand still."""
    return record.error_type == PeerFrozenError.__name__


def record_of(
    evidence: RunEvidence, rank: int, error_type: str, what: str, check_first: str, stack: Stack | None = None
) -> FailureRecord:
    """Make the record of a rank, or of ``NOBODY``, that wrote none, at the rank's last sign of life."""
    users = stack.users if stack is not None else None
    shown = f'  File "{users.file}", line {users.line}, in {users.function}' if users is not None else ""
    return FailureRecord(
        rank=rank,
        error_type=error_type,
        what=what,
        where={"rank": rank, **evidence.ids_of(rank)} if rank != NOBODY else {},
        check_first=check_first,
        symptom=False,
        at_ns=evidence.last_sign_ns(rank),
        traceback=f"{shown}\n    {users.text}" if users is not None and users.text else shown,
        source=users.at if users is not None else "",
    )
