"""Rules for a job whose logs show symptoms only: who was missing is read from where the others were.

gloo's errors name a host and port, never a rank; so these compare the ranks with each other, and say what
the logs cannot tell.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

from ppwork.errors import named_ranks
from ppwork.job_evidence import DETAIL, ENDED_BY_AGENT, STACKS, Found, capital

if TYPE_CHECKING:
    from ppwork.job_evidence import Evidence

MORE_RANKS = "whether there were more ranks: one that printed nothing is not in this file"


def elsewhere(evidence: Evidence) -> Found | None:
    """A rank whose stack shows it outside of any call while others were in one."""
    calls = evidence.in_call()
    outside = [r for r, stack in evidence.place.items() if not stack.call and stack.users is not None]
    if not calls or not outside:
        return None
    ranks = tuple(outside)
    return Found(
        ranks,
        "NeverCame",
        f"{capital(ranks)} was not in any call of torch.distributed; {evidence.doing()}.",
        "why it stays at the line above, or took the branch that leads there",
        evidence.place[ranks[0]],
    )


def left(evidence: Evidence) -> Found | None:
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
    return Found(
        ranks, "LeftEarly", what, "which path of this rank ends the program early; its number of steps",
        None, unknown,
    )  # fmt: skip


def missing(evidence: Evidence) -> Found | None:
    """The others waited until their timeout, and one rank said nothing: it was elsewhere."""
    if not evidence.silent or not (evidence.late or evidence.lost):
        return None
    ranks = tuple(evidence.silent)
    there = all(evidence.codes.get(rank) in ENDED_BY_AGENT for rank in ranks)
    ended = "; it was still running when torchrun ended it" if there else ""
    return Found(
        ranks,
        "NeverCame",
        f"{capital(ranks)} never came while {evidence.doing()}{ended}.",
        f"which branch this rank took instead; {STACKS}",
        None,
        (f"where {named_ranks(ranks)} was: it showed no stack",),
    )


def one_sided(evidence: Evidence) -> Found | None:
    """Every rank waited in the same half of a message: all sent and nobody received, or the reverse."""
    calls = evidence.in_call()
    halves = set(calls.values())
    if len(calls) < 2 or len(calls) < len(evidence.job.ranks) or not (evidence.late or evidence.lost):
        return None
    if halves not in ({"send"}, {"recv"}):
        return None
    other = "received" if halves == {"send"} else "sent"
    ranks = evidence.first_of(calls)
    return Found(
        ranks,
        "NobodyReceived" if halves == {"send"} else "NobodySent",
        f"All ranks were in {halves.pop()}, and nobody {other}: each waited for one that waited, too.",
        "let one rank begin with the other half, or start both halves with isend and irecv and then wait",
        evidence.place[ranks[0]],
        () if evidence.job.complete else (MORE_RANKS,),
    )


def differ(evidence: Evidence) -> Found | None:
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
    return Found(
        odd if most > 1 else odd[:1],
        "CollectiveMismatch",
        f"The ranks were in different calls: {lines}.",
        f"why {named_ranks(odd)} made another number of calls before; {DETAIL}",
        evidence.place[odd[0]],
        unknown,
    )


def symptoms_only(evidence: Evidence) -> Found | None:
    """All that the logs have is errors about peers, at the same line."""
    ranks = evidence.first_of((*evidence.lost, *evidence.late))
    if not ranks:
        return None
    return Found(
        (),
        "OnlySymptoms",
        f"{capital(ranks)} had errors about their peers, and no log shows a cause: {evidence.doing()}.",
        f"the network between the hosts; else {DETAIL}",
        None,
        ("which rank was the first",) if evidence.job.complete else ("which rank was the first", MORE_RANKS),
    )


def ended(evidence: Evidence) -> Found | None:
    """Somebody ended torchrun, and no rank said where it was."""
    number = evidence.job.report.signal
    if not number:
        return None
    return Found(
        (),
        "Stopped",
        f"torchrun was ended from outside by {signal.Signals(number).name}; no rank failed before.",
        STACKS,
        None,
        ("where the ranks were: SIGTERM leaves no stack",),
    )
