"""Diagnosis of a torchrun job from its logs alone: any program's.

``job_evidence`` says of each rank what ended it, how sure that is, and where the rank was. Each rule looks at
all ranks and, if it has something to say, says it with a weight (``evidence_weights``); the heaviest finding
is the answer, of all attempts of a job. ``docs/diagnosis-rules.md`` has each rule with its weights. In short,
and with exceptions, from the heaviest:

1. ``ended_ranks``: a rank's own exception, signal or exit code. What died after it did so because of it.
2. ``mismatches``, ``torch_messages``: the backend compared the ranks, or named one.
3. ``absent_ranks``, ``messages``: gloo's errors name no rank, so the one that was missing is read from where
   the others were. Who stood in a message with a rank that stood elsewhere follows from that one.
4. Symptoms alone, exceptions that bear no rank, a signal from outside: no log shows a cause.

Two ranks with causes of their own are both named: torchrun says which it saw first, and that is not which was
first. What the logs cannot tell is said, with what would tell it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ppwork.diagnosis.absent_ranks import (
    absent,
    different_calls,
    left_early,
    missing,
    outside_calls,
    symptoms_only,
    two_roots,
)
from ppwork.diagnosis.ended_ranks import (
    agent_failed,
    all_aborted,
    as_interrupted,
    died,
    died_somewhere,
    ended,
    interrupted,
    nobodys_words,
    raised,
)
from ppwork.diagnosis.findings import Diagnosis, Finding, source_lines
from ppwork.diagnosis.job_evidence import STACKS, JobEvidence
from ppwork.diagnosis.logs import JobLogs
from ppwork.diagnosis.messages import one_sided, passed_by, unmatched
from ppwork.diagnosis.mismatches import aborted, mismatch, watchdog
from ppwork.diagnosis.torch_messages import (
    ends_in_a_call,
    joined,
    last_resort,
    lines_of_error,
    no_gradient,
    store_lost,
    stuck,
    unreachable,
    worker_died,
)
from ppwork.errors import PlanError
from ppwork.records.failure import FailureRecord

RULES: tuple[Callable[[JobEvidence], Finding | None], ...] = (
    raised, died, died_somewhere, interrupted, aborted, mismatch, absent, watchdog, joined, outside_calls,
    left_early, missing, passed_by, unmatched, one_sided, two_roots, different_calls, unreachable,
    worker_died, symptoms_only, nobodys_words, agent_failed,
)  # fmt: skip
LAST_RULES: tuple[Callable[[JobEvidence], Finding | None], ...] = (
    stuck, no_gradient, store_lost, last_resort, ends_in_a_call, all_aborted, ended,
)  # fmt: skip
"""Rules about words that may stand anywhere: asked only where no other has anything, as none weighs more."""

IF_IT_HUNG = f"did it hang? {STACKS}"


def diagnose_job(job: JobLogs) -> Diagnosis:
    """Say what went wrong first in a job, as far as its logs tell.

    Raises:
        PlanError: They tell of no rank and of no failure: this is no job's log.
    """
    attempts = (*job.earlier, job)
    known = [JobEvidence(attempt) for attempt in attempts]
    found = [(finding, number) for number, evidence in enumerate(known) if (finding := heaviest(evidence))]
    if not found and (finding := lines_of_error(known[-1])) is not None:
        found = [(finding, len(known) - 1)]
    if not found and not any(attempt.ranks for attempt in attempts):
        raise PlanError(
            f"No rank of a torchrun job and no exception was found in {job.source}.",
            check_first="a run of ours, torchrun's --log-dir (with --redirects 3), or its console's log; "
            "of a folder that was not empty before the run: `join` refuses it, and the console says so",
        )
    if not found:
        return _nothing_found(job)
    finding, number = max(found, key=lambda one: (one[0].weight, one[1]))
    if job.earlier:
        seen = (*finding.seen, f"torchrun began the job {len(attempts)} times")
        finding = replace(finding, what=f"Attempt {number}: {finding.what}", seen=seen)
    return _told(known[number], finding, job.source)


def heaviest(evidence: JobEvidence) -> Finding | None:
    """Return the finding with the largest weight; of two, that of the rule that stands first."""
    found = [finding for rule in RULES if (finding := rule(evidence)) is not None]
    found = found or [finding for rule in LAST_RULES if (finding := rule(evidence)) is not None]
    return as_interrupted(evidence, max(found, key=lambda finding: finding.weight, default=None))


def _nothing_found(job: JobLogs) -> Diagnosis:
    if job.standing:
        lines = map(JobEvidence(job).line, job.ranks)
        headline = "\n".join(
            ["No rank waits in a call of torch.distributed.", *(f"  {line}" for line in lines)]
        )
        return Diagnosis(
            job.source, headline=headline, advice="what each does there: long work, a loop, its start"
        )
    if job.report.first is None and job.complete and not job.has_console:
        known = (
            f"No log in {job.source} shows a failure, and none has exit codes: torchrun's words are not here."
        )
    else:
        known = f"Nothing in {job.source} says that anything failed."
    last = [f"rank {rank}: {line}" for rank, log in job.ranks.items() for line in log.last_lines(1)]
    return Diagnosis(
        job.source, headline="\n".join([known, *(f"  {line}" for line in last)]), advice=IF_IT_HUNG
    )


def _told(evidence: JobEvidence, finding: Finding, source: Path) -> Diagnosis:
    job = evidence.job
    rank = finding.ranks[0] if finding.ranks else -1
    users = finding.stack.users if finding.stack is not None else None
    waits = evidence.waits(finding.ranks)
    shown = {*finding.ranks, *(wait.rank for wait in waits)}
    record = FailureRecord(
        rank=rank,
        error_type=finding.error_type,
        what=finding.what,
        where=dict(zip(("rank", "peer"), finding.ranks, strict=False)),
        check_first=finding.check_first,
        symptom=False,
        at_ns=0,
        traceback="",
        source=users.at if users is not None else "",
    )
    log = job.ranks.get(rank)
    return Diagnosis(
        source,
        record,
        lines=source_lines(users, finding.stack.callers if finding.stack is not None else ()),
        log=log.where if log is not None else "",
        seen=finding.seen,
        places={rank: evidence.line(rank) for rank in job.ranks if rank not in shown},
        waits=waits,
        unknown=finding.unknown,
        headline=finding.what,
    )
