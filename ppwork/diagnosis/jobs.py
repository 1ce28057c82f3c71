"""Diagnosis of a torchrun job from its logs alone: any program's.

``RULES`` go from the surest evidence to the weakest; the first that applies is the answer. What the logs
cannot tell is said, with what would tell it. Five rules have evidence at first hand:

1. ``mismatch``, ``barrier``: the backend compared the ranks, and names them. Each of them raises, too.
2. ``raised``: an exception that is not about a peer. Others that died after it did so because of it.
3. ``aborted``, then ``killed``: a process that ended without an exception. gloo's abort goes first: its words
   say why, and to ``killed`` it is any SIGABRT.
4. ``watchdog``: NCCL's, by the numbers of the works. Ranks time out also because a peer died: so only here.

The others have symptoms only: gloo's errors name a host and port, never a rank, so the rank that was missing
is read from where the others were.

5. ``outside_calls``: a stack shows a rank in its own code while others were in a call.
6. ``left_early``, then ``missing``: a rank said nothing. A broken connection tells that it had ended; without
   one it never came.
7. ``one_sided``, then ``different_calls``: every rank said where it was. That all were in the same half of a
   message is tested first, because they may have been there at different lines.
8. ``symptoms_only``, ``ended``: no log shows a cause.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable

from ppwork.diagnosis.findings import Diagnosis, Finding, source_lines
from ppwork.diagnosis.job_evidence import DETAIL, STACKS, JobEvidence, capital, said_of
from ppwork.diagnosis.logs import ENDED_BY_AGENT, LONGER, JobLogs, death
from ppwork.diagnosis.nccl import lagging
from ppwork.errors import named_ranks
from ppwork.records.failure import FailureRecord

MORE_RANKS = "whether there were more ranks: one that printed nothing is not in this file"
WHY_ODD = "what makes this rank's branch, count or shape differ just before this call"
Fingerprint = tuple[str | None, ...]
"""Number, operation, shape and type of a call, as ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` shows it."""
_PRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+)(?:, )?OpType=(\w+)"
    r"(?:, TensorShape=\[([^\]]*)\], TensorDtypes=(\w+))?"
)
_OTHER = re.compile(r"CollectiveFingerPrint\(.*but Rank (\d+) is running collective")
_LEFT_GROUP = "terminate called without an active exception"
_MISSED = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier in \d+ ms")


def diagnose_job(job: JobLogs) -> Diagnosis:
    """Say what went wrong first in a job, as far as its logs tell."""
    evidence = JobEvidence(job)
    finding = next((finding for rule in RULES if (finding := rule(evidence)) is not None), None)
    if finding is None:
        return Diagnosis(job.source, headline=f"Nothing failed, as far as {job.source} tells.")
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
        job.source,
        record,
        lines=source_lines(users),
        log=log.where if log is not None else "",
        places={rank: evidence.line(rank) for rank in job.ranks if rank not in shown},
        waits=waits,
        unknown=finding.unknown,
        headline=finding.what,
    )


def mismatch(evidence: JobEvidence) -> Finding | None:
    """DETAIL: each rank tells its own call; what it says of others may be a call of DETAIL itself."""
    prints: dict[int, Fingerprint] = {}
    blamed: dict[int, int] = {}
    for log in evidence.job.ranks.values():
        own = _PRINT.search(log.text)
        if own is not None:
            prints.setdefault(int(own[1]), own.groups()[1:])
        other = _OTHER.search(log.text)
        if own is not None and other is not None:
            blamed[int(own[1])] = int(other[1])
    if len(set(prints.values())) < 2:
        return _half_told(evidence, prints, blamed)
    (usual, most), *_ = Counter(prints.values()).most_common()
    odd = evidence.first_of(rank for rank, call in prints.items() if call != usual or most == 1)
    others = tuple(rank for rank in prints if rank not in odd) or odd[1:]
    what = f"{capital(odd[:1])} called {_call(prints[odd[0]])} where {named_ranks(others)} called "
    what += f"{_call(prints[others[0]])}."
    unknown = (f"which of {named_ranks(tuple(prints))} is the wrong one",) if most == 1 else ()
    return Finding(odd, "CollectiveMismatch", what, WHY_ODD, evidence.place.get(odd[0]), unknown)


def _half_told(
    evidence: JobEvidence, prints: dict[int, Fingerprint], blamed: dict[int, int]
) -> Finding | None:
    """DETAIL, and the rank that differed was ended before it could tell its call: the others name it."""
    spoke = tuple(sorted(rank for rank, other in blamed.items() if other not in prints))
    if not spoke:
        return None
    odd = blamed[spoke[0]]
    ranks = (odd, *spoke) if spoke[1:] else tuple(sorted((odd, *spoke)))
    what = f"{capital(spoke)} called {_call(prints[spoke[0]])} where rank {odd} called something else."
    unknown = [f"which call rank {odd} made instead: its log does not tell"]
    if not spoke[1:]:
        unknown.append(f"which of {named_ranks(ranks)} is the wrong one")
    stack = evidence.place.get(spoke[0])
    return Finding(ranks, "CollectiveMismatch", what, WHY_ODD, stack, tuple(unknown))


def _call(fingerprint: Fingerprint) -> str:
    number, op, shape, dtype = fingerprint
    return f"{op} number {number}" + (f" on [{shape}] {dtype}" if shape is not None else "")


def barrier(evidence: JobEvidence) -> Finding | None:
    """``monitored_barrier`` names who is missing."""
    for rank, log in evidence.job.ranks.items():
        if (missed := _MISSED.search(log.text)) is not None:
            ranks = tuple(map(int, re.findall(r"\d+", missed[1])))
            what = f"{capital(ranks)} never came to the monitored_barrier of rank {rank}."
            check_first = f"where {named_ranks(ranks)} went instead; {STACKS}"
            return Finding(ranks, "NeverCame", what, check_first, evidence.place.get(ranks[0]))
    return None


def raised(evidence: JobEvidence) -> Finding | None:
    """A rank whose own exception is not about a peer."""
    if not evidence.raised:
        return None
    ranks = evidence.first_of(evidence.raised)
    error = evidence.error[ranks[0]]
    also = f" So did {named_ranks(ranks[1:])}." if ranks[1:] else ""
    what = f"Rank {ranks[0]} raised {said_of(error)}{also}"
    stack = evidence.place[ranks[0]]
    return Finding(ranks[:1], error.error, what, "the line above and the traceback in its log", stack)


def aborted(evidence: JobEvidence) -> Finding | None:
    """Gloo aborts a process that is sent more than the buffer it posted; that cannot be caught."""
    sizes = {r: text for r, log in evidence.job.ranks.items() if (text := LONGER.search(log.text))}
    if not sizes and (text := LONGER.search(evidence.job.console)):
        sizes = {r: text for r, code in evidence.codes.items() if code == -signal.SIGABRT}
    if len(sizes) != 1:
        return None
    ((rank, text),) = sizes.items()
    world = len(evidence.job.ranks)
    sent = f"a message of {text[1]} bytes where it expected {text[2]}"
    if set(evidence.in_call().values()) == {"all_reduce"}:
        # gloo's ring: each rank takes its shares from the next one, so these two are certain to differ.
        ranks: tuple[int, ...] = (rank, (rank + 1) % world)
        what = f"{capital(ranks)} called all_reduce with different sizes: rank {rank} was sent {sent}"
        unknown = (f"which of {named_ranks(ranks)} has the wrong size",)
    else:
        ranks = (rank,)
        what = f"Rank {rank} was sent {sent}"
        unknown = ("which rank sent it",)
    stack = evidence.place.get(rank) or next((evidence.place[r] for r in evidence.in_call()), None)
    return Finding(ranks, "SizeMismatch", f"{what}, and gloo aborted it.", DETAIL, stack, unknown)


def killed(evidence: JobEvidence) -> Finding | None:
    """A rank that a signal or an exit code of its own ended without an exception."""
    died = [
        rank
        for rank in evidence.first_of(evidence.codes)
        if evidence.codes[rank] not in (0, *ENDED_BY_AGENT) and rank not in evidence.error
    ]
    everybody = [rank for rank in died if evidence.codes[rank] == -signal.SIGABRT]
    if not died or len(everybody) == len(evidence.job.ranks) or evidence.asked:
        return None  # somebody ended the whole job to see its stacks
    rank = died[0]
    if rank != evidence.job.report.first and not evidence.lost:
        return None  # torchrun kills those that do not follow its SIGTERM
    stack = evidence.place.get(rank)
    crash = f" ({stack.error})" if stack is not None and stack.blind else ""
    hint = "; the kernel's log, if it was the out-of-memory killer" if evidence.codes[rank] == -9 else ""
    if _LEFT_GROUP in evidence.job.ranks[rank].text:
        hint = "; did it exit without destroy_process_group? torch aborts such an exit at times"
    what = f"Rank {rank} {death(evidence.codes[rank])}{crash} and showed no exception."
    return Finding((rank,), "RankDied", what, f"the end of its log{hint}", stack)


def watchdog(evidence: JobEvidence) -> Finding | None:
    """NCCL's watchdog names the operation that did not end, by number."""
    return lagging({rank: log.text for rank, log in evidence.job.ranks.items()}, evidence.job.console)


def outside_calls(evidence: JobEvidence) -> Finding | None:
    """A rank whose stack shows it outside of any call while others were in one."""
    calls = evidence.in_call()
    outside = [r for r, stack in evidence.place.items() if not stack.call and stack.users is not None]
    if not calls or not outside:
        return None
    what = f"{capital(tuple(outside))} was not in any call of torch.distributed; {evidence.doing()}."
    check_first = "why it stays at the line above, or took the branch that leads there"
    return Finding(tuple(outside), "NeverCame", what, check_first, evidence.place[outside[0]])


def left_early(evidence: JobEvidence) -> Finding | None:
    """Connections broke, and one rank said nothing: it left before the others."""
    # A rank that torchrun still had to end was there when the connections broke.
    ranks = tuple(r for r in evidence.silent if evidence.codes.get(r) is None)
    if not evidence.lost or not ranks:
        return None
    calls = evidence.doing()
    if evidence.codes:
        what = f"{capital(ranks)} ended with code 0 while {calls}: torchrun's report lists the others only."
        unknown: tuple[str, ...] = ()
    else:
        what = f"{capital(ranks)} left without a word while {calls}."
        unknown = ("whether it ended well, was killed, or by which signal: torchrun's closing report has it",)
    check_first = "which path of this rank ends the program early; its number of steps"
    return Finding(ranks, "LeftEarly", what, check_first, unknown=unknown)


def missing(evidence: JobEvidence) -> Finding | None:
    """One rank said nothing while the others waited until their timeout or were asked for stacks."""
    if not evidence.silent or not (evidence.late or evidence.lost or evidence.asked):
        return None
    ranks = tuple(evidence.silent)
    was_running = all(evidence.codes.get(rank) in ENDED_BY_AGENT for rank in ranks)
    ending = "; it was still running when torchrun ended it" if was_running else ""
    what = f"{capital(ranks)} never came while {evidence.doing()}{ending}."
    unknown = (f"where {named_ranks(ranks)} was: it showed no stack",)
    return Finding(
        ranks, "NeverCame", what, f"which branch this rank took instead; {STACKS}", unknown=unknown
    )


def one_sided(evidence: JobEvidence) -> Finding | None:
    """Every rank waited in the same half of a message: all sent and nobody received, or the reverse."""
    calls = evidence.in_call()
    halves = set(calls.values())
    if len(calls) < 2 or len(calls) < len(evidence.job.ranks) or not (evidence.late or evidence.lost):
        return None
    if halves not in ({"send"}, {"recv"}):
        return None
    half, other = ("send", "Received") if halves == {"send"} else ("recv", "Sent")
    ranks = evidence.first_of(calls)
    return Finding(
        ranks,
        f"Nobody{other}",
        f"All ranks were in {half}, and nobody {other.lower()}: each waited for one that waited, too.",
        "let one rank begin with the other half, or start both halves with isend and irecv and then wait",
        evidence.place[ranks[0]],
        () if evidence.job.complete else (MORE_RANKS,),
    )


def different_calls(evidence: JobEvidence) -> Finding | None:
    """Every rank timed out, but not all in the same call: one made fewer or more calls than the others."""
    if not (evidence.late or evidence.lost):
        return None
    spots = {r: (evidence.place[r].call, users.at) for r in evidence.in_call()
             if (users := evidence.place[r].users) is not None}  # fmt: skip
    if len(set(spots.values())) < 2:
        return None
    (usual, most), *_ = Counter(spots.values()).most_common()
    odd = evidence.first_of(r for r, spot in spots.items() if spot != usual or most == 1)
    lines = "; ".join(f"rank {r} in {call} at {at}" for r, (call, at) in sorted(spots.items()))
    unknown = (f"which of {named_ranks(odd)} is the wrong one",) if most == 1 else ()
    return Finding(
        odd if most > 1 else odd[:1],
        "CollectiveMismatch",
        f"The ranks were in different calls: {lines}.",
        f"why {named_ranks(odd)} made another number of calls before; {DETAIL}",
        evidence.place[odd[0]],
        unknown,
    )


def symptoms_only(evidence: JobEvidence) -> Finding | None:
    """All that the logs have is errors about peers, at the same line."""
    ranks = evidence.first_of((*evidence.lost, *evidence.late))
    if not ranks:
        return None
    what = f"{capital(ranks)} had errors about their peers, and no log shows a cause: {evidence.doing()}."
    unknown = ("which rank was the first", *(() if evidence.job.complete else (MORE_RANKS,)))
    return Finding((), "OnlySymptoms", what, f"the network between the hosts; else {DETAIL}", unknown=unknown)


def ended(evidence: JobEvidence) -> Finding | None:
    """Somebody ended torchrun, and no rank said where it was."""
    number = evidence.job.report.signal
    if not number:
        return None
    what = f"torchrun was ended from outside by {signal.Signals(number).name}; no rank failed before."
    return Finding((), "Stopped", what, STACKS, unknown=("where the ranks were: SIGTERM leaves no stack",))


RULES: tuple[Callable[[JobEvidence], Finding | None], ...] = (
    mismatch, barrier, raised, aborted, killed, watchdog,
    outside_calls, left_early, missing, one_sided, different_calls, symptoms_only, ended,
)  # fmt: skip
