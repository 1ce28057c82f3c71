"""Runs that failed, made by hand: 25 ms into chunk 3, in the generator, something breaks."""

from __future__ import annotations

from made_runs import at, made, moved

import ppwork as pp
from ppwork.plan import Plan
from ppwork.records.failure import FailureRecord, write_record
from ppwork.records.run import TORCHRUN_LOG, Run
from ppwork.records.spans import Instant, Recorder, Span, span_file

BREAKS_MS = 325
REPORT = """
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 100)
"""


def failed_run(folder, *, notices, codes, injected_on=None, named=2, offset_ms=0):
    """Write what the ranks of a failed run leave.

    Args:
        notices: Milliseconds after the break and error type, by rank.
        codes: Exit codes by rank, as torchrun reports them.
        injected_on: The rank that says when the fault was injected.
        named: The rank that the launcher names first.
        offset_ms: So far is the leader's clock ahead.
    """
    plan = Plan(mesh_size=2, chunks=8, fault="F13" if injected_on is not None else "")
    (folder / Plan.FILE_NAME).write_bytes(plan.to_json())
    for rank, entries in made().items():
        ahead = offset_ms * 1_000_000 if rank == 1 else 0
        with Recorder(span_file(folder, rank)) as recorder:
            if ahead:
                recorder.instant("clock", figures={"offset_ns": float(ahead)})
            for entry in entries:
                if ended(entry) <= at(BREAKS_MS) or (rank in notices and started(entry) <= at(BREAKS_MS)):
                    recorder.write(moved(entry, ahead))
            if rank == injected_on:
                recorder.write(Instant("fault.injected", "fault", at(BREAKS_MS)))
        if rank in notices:
            ms, error_type = notices[rank]
            write_record(folder, record(rank, error_type, at(BREAKS_MS + ms) + ahead))
    report = "".join(REPORT.format(rank=rank, code=code) for rank, code in codes.items())
    (folder / TORCHRUN_LOG).write_text(report)
    failure = pp.RunFailed("it failed", where={"rank": named} if named is not None else {})
    return Run(folder, 1, failure)


def started(entry):
    return entry.start_ns if isinstance(entry, Span) else entry.at_ns


def ended(entry):
    return entry.end_ns if isinstance(entry, Span) else entry.at_ns


def record(rank, error_type, at_ns):
    return FailureRecord(
        rank=rank,
        error_type=error_type,
        what="a sentence",
        where={"rank": rank},
        check_first="",
        symptom=error_type != "StageError",
        at_ns=at_ns,
        traceback="",
    )


KILLED = {
    "notices": {1: (8.0, "PeerLostError"), 0: (18.5, "TerminalNotice")},
    "codes": {0: 3, 1: 3, 2: -9},
    "injected_on": 2,
}
"""The follower is killed; the leader notices first."""
