"""Rules of a job's diagnosis: the backend compared the ranks, or named one that was missing."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ppwork.diagnosis.call_texts import is_of_all_ranks
from ppwork.diagnosis.evidence_weights import COMPARED, DIED, DIED_FIRST, SYMPTOMS, WATCHED
from ppwork.diagnosis.findings import RANK_DIED, Finding
from ppwork.diagnosis.job_evidence import DETAIL, ITS_LINE, JobEvidence, capital
from ppwork.diagnosis.logs import LONGER
from ppwork.diagnosis.nccl import lagging, terminated
from ppwork.diagnosis.stacks import Frame, half_of
from ppwork.errors import named_ranks

SIZES = "shape and dtype on both sides of that message: of send and recv nobody compares them"
TWICE = ", twice as many, as of float64 for float32"
_FROM = re.compile(r"\bsrc ?= ?(\d+)\b|\brecv\(\w+, (\d+)\b")
WHY_ODD = "what makes this rank's branch, count or shape differ just before this call"
Fingerprint = tuple[str | None, ...]
"""Number, operation, shape and type of a call, as ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` shows it."""
_PRINT = re.compile(
    r"Rank (\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(\d+))?(?:, )?OpType=(\w+)"
    r"(?:, TensorShape=\[([^\]]*)\], TensorDtypes=(\w+))?"
)
_INCONSISTENT = re.compile(
    r"Rank (\d+) is running inconsistent collective: CollectiveFingerPrint\(OpType=(\w+)"
)
"""The same of torch before 1.13, which does not show what the others called."""
_PREFIX = re.compile(r"\[rank(\d+)\]:[\w. ]*: $")
"""Torch's prefix of an exception that ends a program, at the end of what stands before its text."""
MOST_OF_A_PREFIX = 80
"""Characters before that text in which the prefix is looked for: a pattern over whole logs would be slow."""
_OTHER = re.compile(r"CollectiveFingerPrint\(.{0,800}?but Rank (\d+) is running collective")


def mismatch(evidence: JobEvidence) -> Finding | None:
    """DETAIL: each rank tells its own call; what it says of others may be a call of DETAIL itself.

    It counts ranks in their group. Whose log a text is tells which rank of the job that is.
    """
    prints: dict[int, Fingerprint] = {}
    blamed: dict[int, int] = {}
    told: dict[int, Fingerprint] = {}
    texts: list[tuple[int | None, str]] = [(rank, log.text) for rank, log in evidence.job.ranks.items()]
    for before, text in pairwise(evidence.job.console.split("Detected mismatch between collectives")):
        prefix = _PREFIX.search(before[-MOST_OF_A_PREFIX:])
        texts.append((int(prefix[1]) if prefix is not None else None, text))
    with_prints = [(rank, text) for rank, text in texts if "CollectiveFingerPrint" in text]
    heard = [(rank, text, own) for rank, text in with_prints if (own := _PRINT.search(text)) is not None]
    in_job = {(int(own[1]), rank) for rank, _, own in heard if rank is not None}
    of_group = dict(in_job) if len(dict(in_job)) == len(in_job) else {}  # else of several groups
    is_whole = all(number == rank for number, rank in in_job)

    def job_rank(number: int) -> int | None:
        return of_group.get(number, number if is_whole else None)

    for rank, text, own in heard:
        teller = job_rank(int(own[1])) if rank is None else rank
        if teller is None:
            continue
        prints.setdefault(teller, own.groups()[1:])
        if (other := _OTHER.search(text)) is None:
            continue
        if (named := job_rank(int(other[1]))) is None:
            continue
        blamed[teller] = named
        theirs = _PRINT.search(text, own.end())
        if theirs is not None and theirs[1] == other[1]:
            told[named] = theirs.groups()[1:]
    if len(set(prints.values())) < 2:
        return _half_told(evidence, prints, blamed, told)
    (usual, most), *_ = Counter(prints.values()).most_common()
    odd = evidence.first_of(rank for rank, call in prints.items() if call != usual or most == 1)
    others = tuple(rank for rank in prints if rank not in odd) or odd[1:]
    what = f"{capital(odd[:1])} called {_call(prints[odd[0]])} where {named_ranks(others)} called "
    what += f"{_call(prints[others[0]])}."
    unknown = (f"which of {named_ranks(tuple(prints))} is the wrong one",) if most == 1 else ()
    stack = evidence.place.get(odd[0])
    return Finding(odd, "CollectiveMismatch", what, WHY_ODD, stack, unknown, weight=COMPARED)


def _half_told(
    evidence: JobEvidence,
    prints: dict[int, Fingerprint],
    blamed: dict[int, int],
    told: dict[int, Fingerprint],
) -> Finding | None:
    """DETAIL, and the rank that differed was ended before it could tell its call: the others name it."""
    spoke = tuple(sorted(rank for rank, other in blamed.items() if other not in prints))
    if not spoke:
        return _told_alone(evidence, prints)
    odd = blamed[spoke[0]]
    ranks = (odd, *spoke) if spoke[1:] else tuple(sorted((odd, *spoke)))
    theirs = told.get(odd)
    is_sure = theirs is not None and theirs[1] == prints[spoke[0]][1] and bool(theirs[2])
    # Another operation may be one of DETAIL itself.
    instead = _call(theirs) if theirs is not None and is_sure else "something else"
    what = f"{capital(spoke)} called {_call(prints[spoke[0]])} where rank {odd} called {instead}."
    unknown = []
    if not is_sure:
        heard = f"; torch heard {_call(theirs)}, which may be DETAIL's own" if theirs is not None else ""
        unknown = [f"which call rank {odd} made instead: its log does not tell{heard}"]
    if not spoke[1:]:
        unknown.append(f"which of {named_ranks(ranks)} is the wrong one")
    stack = evidence.place.get(spoke[0])
    return Finding(ranks, "CollectiveMismatch", what, WHY_ODD, stack, tuple(unknown), weight=COMPARED)


def _told_alone(evidence: JobEvidence, prints: dict[int, Fingerprint]) -> Finding | None:
    """DETAIL, and what the other rank called is cut off, or not said by an older torch."""
    texts = [*(log.text for log in evidence.job.ranks.values()), evidence.job.console]
    old = next((told for text in texts if (told := _INCONSISTENT.search(text)) is not None), None)
    if old is not None:
        rank, called = int(old[1]), old[2]
    elif len(prints) == 1:
        ((rank, fingerprint),) = prints.items()
        called = _call(fingerprint)
    else:
        return None
    what = f"Rank {rank} called {called} where another rank called something else."
    unknown = ("which other rank it was, what it called, and which of the two is the wrong one",)
    stack = evidence.place.get(rank)
    return Finding((rank,), "CollectiveMismatch", what, WHY_ODD, stack, unknown, weight=COMPARED - 1)


def _call(fingerprint: Fingerprint) -> str:
    number, op, shape, dtype = fingerprint
    counted = f" number {number}" if number is not None else ""
    return f"{op}{counted}" + (f" on [{shape}] {dtype}" if shape is not None else "")


def aborted(evidence: JobEvidence) -> Finding | None:
    """Gloo aborts a process that is sent more than the buffer it posted; that cannot be caught."""
    sizes = {r: text for r, log in evidence.job.ranks.items() if (text := LONGER.search(log.text))}
    if not sizes and (text := LONGER.search(evidence.job.console)):
        sizes = {r: text for r, code in evidence.codes.items() if code == -signal.SIGABRT}
    if len(sizes) != 1:
        return _aborted_together(evidence, sizes)
    ((rank, text),) = sizes.items()
    sent = f"a message of {text[1]} bytes where it expected {text[2]}"
    stack = evidence.place.get(rank)
    # The others' line is its own only if all were at one, and bytes are sent there.
    spots = {
        place.users.at: place for r in evidence.in_call() if (place := evidence.place[r]).users is not None
    }
    is_own = stack is not None and stack.users is not None
    is_theirs = len(spots) == 1 and not any("barrier" in call for call in evidence.in_call().values())
    # Who waits there for a message of the aborted rank shows that this one stood elsewhere.
    awaiting = [r for r in evidence.in_call() if evidence.half(r) == "recv" and evidence.peer(r) == rank]
    is_theirs = is_theirs and not awaiting
    if not is_own and is_theirs:
        stack = next(iter(spots.values()))
    call = evidence.call(rank) or (stack.call if stack is not None else "")
    line = stack.users if stack is not None else None
    sender = _sender(evidence, rank, line)
    ranks: tuple[int, ...] = (rank,)
    unknown: tuple[str, ...] = ()
    if (other := _summed_with(evidence, rank, line)) is not None:
        ranks = (rank, other)
        what = f"{capital(ranks)} called all_reduce with different sizes: rank {rank} was sent {sent}"
        unknown = (f"which of {named_ranks(ranks)} has the wrong size",)
    elif sender is not None:
        ranks = (rank, sender)
        what = f"Rank {rank} was sent {sent}, by rank {sender}"
    else:
        what = f"Rank {rank} was sent {sent}{TWICE if int(text[1]) == 2 * int(text[2]) else ''}"
        senders = [r for r in evidence.in_call() if evidence.half(r) == "send" and evidence.peer(r) == rank]
        in_send = f"; {named_ranks(senders)} stood in a send to it" if senders else _one_send(evidence, rank)
        unknown = (f"which rank sent it{in_send}",)
    if not is_own and spots and not is_theirs:
        unknown = (*unknown, f"in which call it was: {evidence.doing()}{_if_in_collective(evidence, rank)}")
    what = f"{what}, and gloo aborted it."
    of_any = f"{ITS_LINE}; {SIZES}; of collectives, {DETAIL}"
    check_first = SIZES if half_of(call, line) else DETAIL if call else of_any
    if not is_own and is_theirs and not ranks[1:] and not half_of(call, line):
        what += (
            f" The line above is that of {named_ranks([*evidence.in_call()])}, in {call}; where rank {rank} "
        )
        what += "was, its log does not show."
        check_first = f"did rank {rank} make that call? {ITS_LINE}; {DETAIL}"
    weight = _weight(evidence, [rank])
    return Finding(ranks, "SizeMismatch", what, check_first, stack, unknown, weight=weight)


def _if_in_collective(evidence: JobEvidence, rank: int) -> str:
    """Say who sent what a rank did not expect if it stood in a collective, in which one other rank stood."""
    calls = evidence.in_call(but=evidence.following)
    there = [r for r in calls if r != rank and not evidence.half(r) and "barrier" not in calls[r]]
    users = evidence.place[there[0]].users if len(there) == 1 else None
    if users is None or {*evidence.silent} - {rank}:
        return ""
    return f"; if in that {calls[there[0]]}, rank {there[0]} sent it, at {users.at}"


def _one_send(evidence: JobEvidence, rank: int) -> str:
    """Say where the program sends to a rank, if that is one line; nothing where a rank is in a collective.

    A barrier brings no bytes of the program's; any other may have brought those that were too many.
    """
    if any("barrier" not in call and not evidence.half(r) for r, call in evidence.in_call().items()):
        return ""
    lines = {half.at for half in evidence.halves_to(rank) if half.call in ("send", "isend")}
    return f"; the program has one send to it, at {lines.pop()}" if len(lines) == 1 else ""


def _aborted_together(evidence: JobEvidence, sizes: dict[int, re.Match[str]]) -> Finding | None:
    """Several ranks were sent the same that none of them expected: by one, which gives to all of them."""
    if len({text.groups() for text in sizes.values()}) != 1:
        return None
    ranks = evidence.first_of(sizes)
    sent, expected = next(iter(sizes.values())).groups()
    who = capital(tuple(sorted(ranks)))
    what = f"{who} were sent a message of {sent} bytes where they expected {expected}, and gloo aborted them."
    # Their own lines, or that of all who came through without going on.
    calls = [rank for rank in evidence.in_call() if not evidence.half(rank)]
    places = [evidence.place[rank] for rank in (*ranks, *calls) if rank in evidence.place]
    stack = next((place for place in places if place.users is not None), None)
    check_first = f"a broadcast: has its root a tensor, or a list of objects, like theirs? {DETAIL}"
    return Finding(
        (),
        "SizeMismatch",
        what,
        check_first if stack is not None else f"{check_first}; {ITS_LINE}",
        stack,
        ("which rank sent it, and in which call",) if stack is None else ("which rank sent it",),
        weight=_weight(evidence, ranks),
    )


def _weight(evidence: JobEvidence, aborted_ranks: Sequence[int]) -> int:
    """Return how much it weighs that gloo aborted ranks: more, if torchrun saw one of them fail first.

    What C++ says of an abort is no exception of the rank's, which would weigh more.
    """
    errors = [evidence.error[rank].error for rank in aborted_ranks if rank in evidence.error]
    is_first = evidence.job.report.first in aborted_ranks or any(each.startswith("gloo::") for each in errors)
    return (DIED_FIRST if is_first else DIED) + 1


def _summed_with(evidence: JobEvidence, rank: int, line: Frame | None) -> int | None:
    """Return the rank of which a sum's share did not fit, where that is certain.

    In gloo's ring each rank takes its shares from the next one. Who is next in a group of some ranks is not
    known, but for the only other rank that may stand in the sum; nor is who comes behind the last rank of a
    log that may not show all.
    """
    if line is None or set(evidence.in_call().values()) != {"all_reduce"}:
        return None
    if is_of_all_ranks(line.text, "all_reduce"):
        ranks = evidence.job.ranks
        shows_all = evidence.job.complete or (
            not evidence.job.report.local and set(evidence.codes) >= set(ranks)
        )
        is_last = shows_all and sorted(ranks) == [*range(rank + 1)]
        return rank + 1 if rank + 1 in ranks else 0 if is_last else None
    others = {*evidence.in_call(), *evidence.silent} - {rank}
    return others.pop() if len(others) == 1 else None


def _sender(evidence: JobEvidence, rank: int, line: Frame | None) -> int | None:
    """Return the rank that the line names as where a message comes from; of two ranks it is the other one."""
    others = [other for other in evidence.job.ranks if other != rank]
    named = _FROM.search(line.text) if line is not None else None
    if named is not None and (sender := int(named[1] or named[2])) in others:
        return sender
    return others[0] if evidence.job.complete and len(others) == 1 else None


def watchdog(evidence: JobEvidence) -> Finding | None:
    """NCCL's watchdog names the operation that did not end, by number; or it says why it ends the process."""
    texts = {rank: log.text for rank, log in evidence.job.ranks.items()}
    found = lagging(texts, evidence.job.console)
    if found is None:
        return _ended_by_nccl(terminated(texts, evidence.job.console))
    # Whoever waits is not to blame: where none is behind, nobody is named, and an exception says more.
    if "which rank failed to take part" in found.unknown:
        return replace(found, ranks=(), weight=WATCHED)
    return replace(found, weight=WATCHED + 2)


def _ended_by_nccl(ends: dict[int, tuple[str, bool]]) -> Finding | None:
    """Return the ranks that the watchdog ended for an error of their own, or else for one about a peer."""
    if not ends:
        return None
    own = tuple(sorted(rank for rank, (_, is_about_peer) in ends.items() if not is_about_peer))
    if not own:
        what = f"NCCL ended {named_ranks(tuple(sorted(ends)))} because of a peer, and no log shows a cause: "
        what += f"{next(iter(ends.values()))[0]}."
        unknown = ("which peer it was, and what it did",)
        return Finding((), "OnlySymptoms", what, "the logs of all ranks", unknown=unknown, weight=SYMPTOMS)
    what = f"NCCL ended {named_ranks(own)}: {ends[own[0]][0]}."
    check_first = "CUDA_LAUNCH_BLOCKING=1: the traceback is then that of the call"
    return Finding(own[:1], RANK_DIED, what, check_first, weight=WATCHED)
