"""What went wrong in a torchrun job, from its logs alone: any program's.

A list of rules, from the surest evidence to the weakest; the first that applies is the answer. What the
logs cannot tell is said, with what would tell it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork import job_rules, job_symptoms
from ppwork.failure import FailureRecord
from ppwork.findings import Diagnosis, source_lines
from ppwork.job_evidence import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.job_evidence import Found
    from ppwork.torchrun_logs import JobLogs

RULES: tuple[Callable[[Evidence], Found | None], ...] = (
    job_rules.mismatch,
    job_rules.barrier,
    job_rules.raised,
    job_rules.aborted,
    job_rules.killed,
    job_rules.watchdog,
    job_symptoms.elsewhere,
    job_symptoms.left,
    job_symptoms.missing,
    job_symptoms.one_sided,
    job_symptoms.differ,
    job_symptoms.symptoms_only,
    job_symptoms.ended,
)


def diagnose_job(job: JobLogs) -> Diagnosis:
    """Say what went wrong first in a job, as far as its logs tell."""
    evidence = Evidence(job)
    found = next((found for rule in RULES if (found := rule(evidence)) is not None), None)
    if found is None:
        return Diagnosis(job.source, headline=f"Nothing failed, as far as {job.source} tells.")
    rank = found.ranks[0] if found.ranks else -1
    stack = found.stack
    users = stack.users if stack is not None else None
    waits = evidence.waits(found.ranks)
    record = FailureRecord(
        rank=rank,
        error_type=found.error_type,
        what=found.what,
        where=dict(zip(("rank", "peer"), found.ranks, strict=False)),
        check_first=found.check_first,
        symptom=False,
        at_ns=0,
        traceback="",
        source=users.at if users is not None else "",
    )
    log = job.ranks.get(rank)
    return Diagnosis(
        job.source,
        record,
        lines=source_lines(users),
        log=log.where if log is not None else "",
        places={r: evidence.line(r) for r in job.ranks if r not in (*found.ranks, *(w.rank for w in waits))},
        waits=waits,
        unknown=found.unknown,
        headline=found.what,
    )
