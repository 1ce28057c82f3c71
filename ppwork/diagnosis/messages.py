"""Rules of a job's diagnosis: a message without its other half, and who waits for the rank that has it."""

from __future__ import annotations

from collections.abc import Sequence

from ppwork.diagnosis.absent_ranks import how_they_left
from ppwork.diagnosis.evidence_weights import PLACES
from ppwork.diagnosis.findings import Finding
from ppwork.diagnosis.job_evidence import MORE_RANKS, OTHER_HALF, JobEvidence, capital, were
from ppwork.diagnosis.stacks import HALVES
from ppwork.errors import named_ranks, ranks_by_value

_OTHER = {"send": "recv", "recv": "send"}
_FROM = {"send": "from", "recv": "to"}
"""How those who wait for the other half of this one name its rank."""
_LOST = "an earlier `isend` or `irecv` of theirs, whose handle was not kept until its `wait()`"


def passed_by(evidence: JobEvidence) -> Finding | None:
    """A collective that all ranks have to make, and a rank that waits for one of its ranks in a message.

    They wait for each other, whatever the others do: the one took a way without the call, or the others one
    without the message.
    """
    if evidence.silent or evidence.outside or not (evidence.late or evidence.lost):
        return None
    spots = {
        rank: f"{call} at {users.at}"
        for rank, call in evidence.in_call(but=evidence.following).items()
        if evidence.is_of_all(rank) and (users := evidence.place[rank].users) is not None
    }
    outside = {rank: peer for rank, peer in evidence.following.items() if peer is None or peer in spots}
    if len({*spots.values()}) != 1 or not outside:
        return None
    ranks = tuple(spots)
    rank, peer = min(outside.items())
    half, others = evidence.half(rank), evidence.doing(but=(*spots, rank))
    whose = f" {'to' if half == 'send' else 'of'} rank {peer}" if peer is not None else ""
    users = evidence.place[rank].users
    at = f" at {users.at}" if users is not None else ""
    inside = peer if peer is not None else ranks[0]
    check_first = (
        f"which branch led rank {rank} past that call, or {named_ranks(ranks)} past the message; "
        "a call for some ranks takes their `group`"
    )
    if lost := _let_go(evidence, rank, peer):
        check_first = f"{lost}; else {check_first}"
    elif crossed := [each for each in evidence.in_call() if _crosses(evidence, each, rank)]:
        who = f"{named_ranks(tuple(crossed))} {'wait' if crossed[1:] else 'waits'}"
        check_first = (
            f"the peer in rank {rank}'s line: {who} for a message {_FROM[half]} it; else {check_first}"
        )
    return Finding(
        (rank, inside) if peer is not None else (),
        "Unmatched",
        f"{capital(ranks)} {were(ranks)} in {next(iter(spots.values()))}, which all ranks have to make; rank "
        f"{rank} stood in {evidence.call(rank)}{at} for {_other(half, whose)}: they wait for each other"
        f"{f'; {others}' if others else ''}.",
        check_first,
        evidence.place[inside],
        seen=evidence.own_lines() if peer is None else (),
        weight=PLACES + 1,
    )


def _let_go(evidence: JobEvidence, rank: int, peer: int | None) -> str:
    """Say where the program begins the other half of a rank's message and keeps no handle; or nothing."""
    half = _OTHER.get(evidence.half(rank))
    lost = evidence.let_go(peer, rank, half) if half is not None and peer is not None else ""
    done = "sent" if half == "send" else "taken"
    asked = f"did rank {peer} come to the i{half} at {lost}? Nobody keeps its handle, and without its "
    return f"{asked}`wait()` a message may not be {done}" if lost else ""


def _crosses(evidence: JobEvidence, rank: int, other: int) -> bool:
    """Say whether a rank waits for the half of a message that another one makes with somebody else."""
    return evidence.peer(rank) == other and _OTHER.get(evidence.half(rank)) == evidence.half(other)


def unmatched(evidence: JobEvidence) -> Finding | None:
    """Some ranks waited for the other half of a message, and the others went on to something else, or left.

    Who left after its own calls is not to blame for that: it may have sent and taken all that it had to.
    """
    if not (evidence.late or evidence.lost):
        return None
    calls = evidence.in_call()
    halves = {rank: evidence.half(rank) for rank in _ends(evidence)}
    ranks = tuple(halves)
    # Two that wait may wait for each other; one alone waits for a rank that should have come.
    gone = evidence.unfailed if ranks[1:] else evidence.gone
    others = [rank for rank in calls if rank not in ranks]
    if not ranks or not (others or gone or (evidence.silent == [] and not set(halves.values()) <= {*HALVES})):
        return None
    spots = {
        rank: f"{calls[rank]} at {users.at} for {_other(half)}"
        for rank, half in sorted(halves.items())
        if (users := evidence.place[rank].users) is not None
    }
    parts = [" and ".join(f"{named_ranks(of)} stood in {spot}" for spot, of in ranks_by_value(spots).items())]
    parts += [evidence.doing(but=ranks)] if others else []
    ending = "had ended with code 0" if evidence.codes else "had left" if evidence.lost else "left no word"
    parts += [f"{named_ranks(gone)} {ending}"] if gone else []
    what = "; ".join(parts)
    check_first, unknown = _of_halves(evidence, halves, others)
    if gone:
        unknown = (*unknown, *how_they_left(evidence, gone))
        if any(half == "recv" and evidence.peer(rank) in (None, *gone) for rank, half in halves.items()):
            check_first += f"; or did {named_ranks(gone)} begin it with isend, and leave before its `wait()`?"
            lost = [_let_go(evidence, rank, peer) for rank in ranks if (peer := evidence.peer(rank)) in gone]
            check_first = "; ".join([*filter(None, lost), check_first])
        elif evidence.following:
            do = "do" if ranks[1:] else "does"
            check_first = f"{do} {named_ranks(ranks)} make more steps than {named_ranks(gone)}? {check_first}"
    are_known = all(evidence.peer(rank) is not None for rank in ranks)
    if evidence.codes and (unheard := evidence.unheard_peer(ranks[0])) is not None:
        unknown = (
            *unknown,
            f"how rank {unheard} ended: with code 0 and no word, or it is not of this console",
        )
        check_first = f"did rank {unheard} end before its half of that message? else {check_first}"
    return Finding(
        ranks if are_known and not (gone or ranks[2:]) else (),
        "Unmatched",
        f"{what[:1].upper()}{what[1:]}.",
        check_first,
        evidence.place[ranks[0]],
        unknown,
        evidence.seen_of(*gone[:1]),
        weight=PLACES + 1,
    )


def _ends(evidence: JobEvidence) -> list[int]:
    """Return the ranks in messages that are not there because of a rank elsewhere, torchrun's first in front.

    If all of them wait for ranks elsewhere, which stood at one place, some of these may wait for them: who is
    alone in a collective does.
    """
    in_messages = [rank for rank in evidence.first_of(evidence.in_call()) if evidence.half(rank)]
    ends = [rank for rank in in_messages if rank not in evidence.following]
    if ends:
        return ends
    elsewhere = evidence.in_call(but=(*in_messages, *evidence.in_planes))
    if evidence.outside:
        return []
    if evidence.silent:  # of most that ended well none was early
        is_last = not elsewhere and len(evidence.gone) >= len(in_messages)
        return in_messages if is_last else []
    places = {evidence.place[rank].users for rank in elsewhere}
    is_open = len(elsewhere) < 2 or None in evidence.following.values()
    return in_messages if len(places) < 2 and is_open else []


def _of_halves(
    evidence: JobEvidence, halves: dict[int, str], others: Sequence[int]
) -> tuple[str, tuple[str, ...]]:
    """Return what is to be checked first of halves of messages, and what is not known of them."""
    ranks = sorted(halves)
    if not ranks[1:]:
        unknown = "for whom it waited, and if it should have come there: `ppwork trace PROGRAM` shows both"
        is_open = evidence.following.get(ranks[0], -1) is None and others[1:]
        return OTHER_HALF, (unknown,) if is_open else ()
    kinds = {*halves.values()}
    if len(kinds) == 1 and kinds <= {*HALVES}:
        half, cure = ("send", "receive") if kinds == {"send"} else ("receive", "send")
        check_first = (
            f"do both {half} first? then let one {cure} first, or start both halves in one "
            f"batch_isend_irecv; or has one left out a {cure} before, and is a step ahead? else {OTHER_HALF}"
        )
        return check_first, ()
    check_first, unknown = OTHER_HALF, f"which of {named_ranks(ranks)} names the wrong peer or tag"
    if [evidence.peer(rank) for rank in ranks] == ranks[::-1]:  # each names the other one
        tags = [evidence.tag(rank) for rank in ranks]
        if None not in tags and tags[0] != tags[1]:
            check_first = f"the tags: {tags[0]} on rank {ranks[0]}, {tags[1]} on rank {ranks[1]}"
            unknown = f"which of {named_ranks(ranks)} has the wrong tag"
        else:
            check_first = f"{_LOST}; tag and group of both lines"
            unknown = "why the two did not meet: each names the other"
    return check_first, (unknown,)


def _other(half: str, whose: str = "") -> str:
    return f"a message{whose} {HALVES.get(half, 'without its other half')}"


def all_in(half: str) -> tuple[str, str]:
    """Return what is said of ranks that are all in the same half of a message, and what to check first."""
    other = "received" if half == "send" else "sent"
    return (
        f"All ranks were in {half}, and nobody {other}: each waited for one that waited, too.",
        f"do all ranks come to a {half} at the same time? Let one take the other half first, or "
        "start both halves in one batch_isend_irecv",
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
    what, check_first = all_in(half)
    ranks = tuple(sorted(calls))  # none is more to blame: whose bound passes first is chance
    return Finding(
        ranks,
        f"Nobody{other}",
        what,
        check_first,
        evidence.place[ranks[0]],
        () if evidence.job.complete else (MORE_RANKS,),
        weight=PLACES - 4,
    )
