"""Rules of a job's diagnosis: a rank was not where the others waited, by its name or by where they were."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ppwork.diagnosis.branches import always_made, branch_of, helpers_branch, left_loop, own_loop
from ppwork.diagnosis.call_texts import COLLECTIVES, names_one_root
from ppwork.diagnosis.evidence_weights import NAMED, PLACES, SYMPTOMS
from ppwork.diagnosis.findings import Finding
from ppwork.diagnosis.job_errors import peer_in, said_of
from ppwork.diagnosis.job_evidence import (
    DETAIL,
    IN_REPORT,
    MISSED_BARRIER,
    MORE_RANKS,
    NO_REPORT,
    OTHER_HALF,
    STACKS,
    JobEvidence,
    capital,
    sentence,
    were,
)
from ppwork.diagnosis.report import ENDED_BY_AGENT
from ppwork.diagnosis.stacks import Frame, Stack
from ppwork.errors import named_ranks, ranks_by_value
from ppwork.records.failure import is_users

NOBODY = -1
"""The rank of an exception that bears none."""
SUMS = ("all_reduce", "reduce")
"""Where sizes differ, some ranks come through these and others wait; in other collectives gloo aborts one."""
ROOTED = {"broadcast": "src", "scatter": "src", "reduce": "dst", "gather": "dst"}
"""Collectives with one rank that gives or takes, and its parameter: who names another may come through."""
_STUCK = re.compile(r"^(?:\[[^\]]*\]:)? *ppwork\.errors\.StuckError: (.+)$", re.MULTILINE)
"""What a rank of ours wrote when its watchdog ended it."""
_ROOTS = "`ppwork trace PROGRAM` shows each rank's; DETAIL does not compare it"
_UNREACHED = re.compile(
    r"The client socket has (?:failed to connect to any network address of|timed out after \d+ms while "
    r"trying to connect to) \([^()]{1,80}\)"
)
_OTHERS_ONLY = "torchrun's report lists the others only"
_LEFT_EARLY = "which path of this rank ends the program early"
_WENT_ON = "which branch took it past that call: fewer steps, its group destroyed before, or other work"


def absent(evidence: JobEvidence) -> Finding | None:
    """A rank that others name: by the store's key, by ``peer=`` of ppwork, by a monitored barrier."""
    return _missed_barrier(evidence) or absent_of(evidence, evidence.error)


def absent_of(evidence: JobEvidence, errors: dict[int, Stack]) -> Finding | None:
    """Return the rank that errors about peers lead to, from name to name."""
    named = {rank: peer for rank, error in errors.items() if (peer := peer_in(error)) is not None}
    if not named:
        return None
    ends = {rank: _end_of(rank, named) for rank in named}
    # Who waited as well is not the one, unless for its own number: it joined under another one.
    there = {rank for rank in (*evidence.lost, *evidence.late) if named.get(rank) != rank}
    counts = Counter(peer for rank, peer in ends.items() if peer != rank and peer not in there)
    if not counts:
        return None
    peer = counts.most_common(1)[0][0]
    others = tuple(sorted(rank for rank, end in ends.items() if end == peer))
    if peer not in evidence.job.ranks and (in_messages := [r for r in others if evidence.half(r)]):
        return _no_such_rank(evidence, in_messages[0], peer)
    what, check_first = _of_absence(evidence, peer, others, errors)
    hints = evidence.seen_of(peer)
    return Finding((peer,), "NeverCame", what, check_first, evidence.place.get(peer), (), hints, NAMED)


def _no_such_rank(evidence: JobEvidence, rank: int, peer: int) -> Finding:
    """Say that a message names a rank that no log has, of a job whose ranks have all joined."""
    what = f"Rank {rank} was in {evidence.call(rank)}, and no rank {peer} had joined."
    known = f"the logs are of {named_ranks(tuple(evidence.job.ranks))}"
    check_first = (
        "the peer of that line: the ranks of a job of n are 0 to n - 1, also in a group of some of them"
    )
    stack = evidence.place.get(rank)
    return Finding((rank,), "NoSuchRank", what, check_first, stack, (), (known,), NAMED)


def _of_absence(
    evidence: JobEvidence, peer: int, others: tuple[int, ...], errors: dict[int, Stack]
) -> tuple[str, str]:
    """Say where others waited for a rank, and what is to be checked first."""
    key, log = errors[others[0]], evidence.job.ranks.get(peer)
    calls = " and ".join(sorted({evidence.call(rank) for rank in others} - {""})) or "its start"
    who = capital(others) if others != (NOBODY,) else "A rank"
    what = sentence(f"{who} waited for rank {peer} in {calls}: {said_of(key).splitlines()[0]}")
    if log is not None and (unreached := _UNREACHED.search(log.text)) is not None:
        what = f"Rank {peer} did not come to {calls}, where {named_ranks(others)} waited: {unreached[0]}."
        check_first = f"MASTER_ADDR and MASTER_PORT of rank {peer}: the others have met at theirs"
    elif peer in others:
        what = f"Nobody joined as rank {peer}: the process that should have waited for that rank itself."
        check_first = "RANK of that process, and which other one has it: each needs a number of its own"
    elif "new_group" in calls:
        check_first = "does every rank make all groups, members or not, in the same order?"
    elif peer in evidence.silent and evidence.codes and peer not in evidence.codes:
        what = sentence(f"{what.rstrip('.')}; it had ended with code 0: {_OTHERS_ONLY}")
        check_first = f"{_LEFT_EARLY}, before {calls}"
    elif "keys:" in key.message or "ncclUniqueId" in key.message:
        check_first = (
            "was it started, with this MASTER_ADDR, MASTER_PORT and WORLD_SIZE and a RANK of its own? "
            "did it end before it came there?"
        )
    else:
        check_first = f"the log of rank {peer}; {STACKS}"
    return what, check_first


def _end_of(rank: int, named: dict[int, int]) -> int:
    """Follow the names from rank to rank, to one that names nobody."""
    path = [rank]
    while (peer := named.get(path[-1])) is not None and peer not in path:
        path.append(peer)
    return path[-1]


def _missed_barrier(evidence: JobEvidence) -> Finding | None:
    """``monitored_barrier`` names who is missing; DETAIL has one before each collective."""
    texts = [*((rank, log.text) for rank, log in evidence.job.ranks.items()), (NOBODY, evidence.job.console)]
    for of_rank, text in texts:
        missed = MISSED_BARRIER.search(text) if "monitoredBarrier" in text else None
        if missed is None:
            continue
        rank = int(missed[1] or 0) if of_rank == NOBODY else of_rank  # rank 0 of a group asks the others
        # In a smaller group ranks have other numbers, and the log's own rank is not the bracket's.
        if missed[1] is not None and int(missed[1]) != rank:
            continue
        ranks = tuple(sorted(map(int, re.findall(r"\d+", missed[2]))))
        if rank in ranks:
            continue
        call = evidence.call(rank) or "monitored_barrier"
        what = f"{capital(ranks)} never came to the {call} of rank {rank}."
        check_first = f"where {named_ranks(ranks)} went instead; {STACKS}"
        hints = evidence.seen_of(*ranks)
        return Finding(
            ranks, "NeverCame", what, check_first, evidence.place.get(ranks[0]), (), hints, NAMED + 1
        )
    return None


def outside_calls(evidence: JobEvidence) -> Finding | None:
    """A rank whose stack shows it outside of any call, while others were in one or not."""
    calls, outside = evidence.in_call(), evidence.outside
    if not outside:
        return None
    doing = f"{evidence.doing()}." if calls else "nobody was."
    what = f"{capital(outside)} {were(outside)} not in any call of torch.distributed; {doing}"
    check_first = "why it stays at the line above, or took the branch that leads there"
    stuck = {rank: said[1] for rank in outside if (said := _STUCK.search(evidence.job.ranks[rank].text))}
    if stuck and not calls:  # its watchdog said so, and torchrun ended the others before they could write
        what = f"{what} {' '.join(f'Rank {rank} said: {words}' for rank, words in stuck.items())}"
    ranks = outside if calls else tuple(stuck)
    return Finding(ranks, "NeverCame", what, check_first, evidence.place[outside[0]], weight=PLACES)


def left_early(evidence: JobEvidence) -> Finding | None:
    """Connections broke, and one rank said nothing: it left before the others."""
    ranks = evidence.gone
    if not ranks:
        return None
    calls = evidence.doing()
    hints = evidence.seen_of(ranks[0])
    if evidence.codes:
        what = f"{capital(ranks)} ended with code 0 while {calls}: {_OTHERS_ONLY}."
    else:
        what = f"{capital(ranks)} left without a word while {calls}."
    unknown = how_they_left(evidence, ranks)
    check_first = f"{_LEFT_EARLY}; its number of steps"
    stack, in_call = None, ranks_by_value(evidence.in_call(but=evidence.following))
    if {*in_call} == {"wait"}:
        check_first = f"of an isend or irecv: {OTHER_HALF}; of a collective: {check_first}"
        unknown = (*unknown, "which call made the handle that was waited for")
        ranks, stack = (), next(iter(evidence.place.values()))
    elif len(in_call) == 1:
        ((call, waiting),) = in_call.items()
        # Who waits for one of them by name needs no collective to have been left out.
        awaited = any(evidence.peer(rank) in ranks for rank in evidence.following)
        ways = [
            *([] if awaited else [f"only {named_ranks(waiting)} made it"]),
            f"{named_ranks(ranks)} ended early",
        ]
        told, checks = _stories(evidence, call, waiting, ranks, ways)
        hints = (told, *hints)
        if len(ranks) > len(waiting):  # it may be those few that made a call too many
            ranks, stack, check_first = (), evidence.place[waiting[0]], checks
    # torchrun ends the rest a moment after the first death.
    is_one = not ranks[1:] or bool(evidence.codes)
    return Finding(ranks if is_one else (), "LeftEarly", what, check_first, stack, unknown, hints, PLACES - 1)


def how_they_left(evidence: JobEvidence, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """Return what is not known of ranks that left: nothing, if a report lists the others only."""
    if evidence.codes:
        return ()
    source = NO_REPORT if evidence.job.console else IN_REPORT
    if ranks[1:]:
        return (f"which of {named_ranks(ranks)} was the first, and how it ended: {source}",)
    return (f"whether rank {ranks[0]} ended well, was killed, or by which signal: {source}",)


def missing(evidence: JobEvidence) -> Finding | None:
    """One rank said nothing while the others waited until their timeout or were asked for stacks."""
    ranks = tuple(evidence.silent)
    waiting = [*evidence.late, *evidence.lost, *evidence.asked]
    if not ranks or not waiting:
        return None
    ended = [rank for rank in ranks if evidence.codes.get(rank) in ENDED_BY_AGENT]
    hints = evidence.seen_of(*ranks)
    doing = evidence.doing()
    unknown = (f"where {named_ranks(ranks)} {were(ranks)}: {'they' if ranks[1:] else 'it'} showed no stack",)
    spots = _spots(evidence)
    passable = _in_a_sum(evidence, spots)
    if ended and len({*spots.values()}) > 1 and not (passable and _root_of(spots[passable[0]][0])):
        return None  # what differs is known better
    if len(ranks) > len(waiting):
        # Whoever waits as well has a bound that ends a moment later.
        end = f"torchrun ended {named_ranks(ranks)} then" if ended else f"{named_ranks(ranks)} left no word"
        what, stack = (
            f"{doing[:1].upper()}{doing[1:]}, and went first; {end}.",
            evidence.place.get(waiting[0]),
        )
        check_first = f"{STACKS}; is the line above the call that all should be in?"
        if (killed := _not_ended_by_sigterm(evidence, ranks)) != ():
            them = "them" if killed[1:] else "it"
            what = (
                f"{capital(killed)} had to be killed (SIGKILL): no SIGTERM ended {them}, as of one that "
                f"stands stopped. {what}"
            )
            check_first = f"who stopped {named_ranks(killed)} (SIGSTOP)? else {check_first}"
        elif evidence.half(waiting[0]):
            # Its own line would look like the cause's, at the top.
            what = f"The cause is not in these logs: {doing}, and only waited longest for a message; {end}."
            stack = None
            check_first = (
                f"{STACKS}; with a shorter timeout of their own group {named_ranks(ranks)} would speak first"
            )
        words = evidence.error.get(waiting[0])
        said = (f"rank {waiting[0]} said: {said_of(words).splitlines()[0]}",) if words is not None else ()
        return Finding((), "Timeout", what, check_first, stack, unknown, (*said, *hints), PLACES - 2)
    what = f"{capital(ranks)} never came while {doing}{_how_torchrun_ended(evidence, ranks)}."
    check_first = f"{_WENT_ON}; {STACKS}"
    if any(evidence.hints(rank) for rank in ranks):
        check_first = f"the error that its log had: does the rank go on without a call, or wait? {STACKS}"
    return Finding(ranks, "NeverCame", what, check_first, None, unknown, hints, PLACES - 2)


def _not_ended_by_sigterm(evidence: JobEvidence, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of some ranks that torchrun had to kill, if its SIGTERM ended the others."""
    killed = tuple(rank for rank in ranks if evidence.codes.get(rank) == -signal.SIGKILL)
    return killed if len(killed) < len(ranks) else ()


def _how_torchrun_ended(evidence: JobEvidence, ranks: tuple[int, ...]) -> str:
    """Return by which signal torchrun ended ranks, as the end of a sentence, if one was for all of them."""
    codes = {evidence.codes.get(rank) for rank in ranks}
    they, them = ("they were", "them") if ranks[1:] else ("it was", "it")
    if codes == {-signal.SIGKILL}:
        return f"; torchrun had to kill {them} (SIGKILL), as one that stands stopped"
    return f"; {they} still running when torchrun ended {them}" if codes <= {*ENDED_BY_AGENT} else ""


def different_calls(evidence: JobEvidence) -> Finding | None:
    """Every rank timed out, but not all in the same call: one made fewer or more calls than the others."""
    if not (evidence.late or evidence.lost):
        return None
    spots = _spots(evidence)
    if len(set(spots.values())) < 2:
        return None
    (usual, most), *_ = Counter(spots.values()).most_common()
    odd = evidence.first_of(r for r, spot in spots.items() if spot != usual or most == 1)
    lines = "; ".join(f"rank {r} in {call} at {at}" for r, (call, at) in sorted(spots.items()))
    what = f"The ranks were in different calls: {lines}."
    hints = tuple(hint for rank in evidence.silent for hint in evidence.hints(rank))
    seen = (*hints, *evidence.own_lines())
    if any(evidence.half(rank) or call == "wait" for rank, (call, _) in spots.items()):
        return _of_open_waits(evidence, what, [*spots], evidence.place[odd[0]], seen)
    if not evidence.silent and (in_sum := _in_a_sum(evidence, spots)):
        return _sum_of_some(evidence, what, in_sum, spots)
    groups, is_missing = evidence.in_two_groups(spots)
    suspects = tuple(sorted({*odd, *evidence.silent})) if most == 1 or evidence.silent else odd
    unknown = (f"which of {named_ranks(suspects)} is the wrong one",) if suspects[1:] else ()
    if 1 < most <= len(spots) // 2:
        suspects, unknown = (
            tuple(sorted(spots)),
            ("which of these calls is meant: no more were in one than not",),
        )
    return Finding(
        () if evidence.silent else odd if most > 1 else odd[:1],
        "CollectiveMismatch",
        what,
        f"{is_missing}why {named_ranks(suspects)} took another branch or made another number of calls "
        f"before; {DETAIL}",
        evidence.place[odd[0]],
        unknown,
        (*([groups] if groups else []), *seen),
        weight=PLACES - 6,
    )


def _of_open_waits(
    evidence: JobEvidence, what: str, ranks: Sequence[int], stack: Stack, seen: tuple[str, ...]
) -> Finding:
    """Say that ranks wait for messages or handles whose other end no line tells: nobody is to blame."""
    silent = tuple(evidence.silent)
    open_ends = sorted(r for r in ranks if evidence.peer(r) is None and not evidence.is_of_all(r))
    questions = [f"for whom {named_ranks(open_ends)} waited"] if open_ends else []
    questions += [f"where {named_ranks(silent)} {were(silent)}"] if silent else []
    check_first = "which messages these are: `ppwork trace PROGRAM` shows each, and those that did not meet"
    return Finding((), "Unmatched", what, check_first, stack, tuple(questions), seen, weight=PLACES - 6)


def _spots(evidence: JobEvidence) -> dict[int, tuple[str, str]]:
    """Return call and line of each rank that was in one, without those that wait for a rank elsewhere."""
    return {
        rank: (call, users.at)
        for rank, call in evidence.in_call(but=evidence.following).items()
        if (users := evidence.place[rank].users) is not None
    }


def _in_a_sum(evidence: JobEvidence, spots: dict[int, tuple[str, str]]) -> tuple[int, ...]:
    """Return the ranks that waited in a collective, if all others stand behind it and it may let them go."""
    for spot, ranks in ranks_by_value(spots).items():
        one, others = evidence.place[ranks[0]], [rank for rank in spots if rank not in ranks]
        if (spot[0] in SUMS or _root_of(spot[0])) and all(
            _is_behind(evidence.place[rank], one) for rank in others
        ):
            return tuple(ranks)
    return ()


def _is_behind(place: Stack, other: Stack) -> bool:
    """Say whether a stack has the later line in the function in which the two part, or the later call."""
    one, two = _parting(place, other)
    if one is None or two is None:
        return False
    if one.at == two.at:
        return one.text.find(f"{place.call}(") > one.text.find(f"{other.call}(") >= 0
    return (one.file, one.function) == (two.file, two.function) and one.line > two.line


def _parting(place: Stack, other: Stack) -> tuple[Frame | None, Frame | None]:
    """Return the frames in which two stacks part, or their user's lines, if these are one line."""
    for one, two in zip(place.frames, other.frames, strict=False):
        if (one.at, one.function) != (two.at, two.function) or (one == place.users and two == other.users):
            return one, two
    return None, None


def _sum_of_some(
    evidence: JobEvidence, what: str, in_sum: tuple[int, ...], spots: dict[int, tuple[str, str]]
) -> Finding:
    """Say that some ranks wait in a collective, and that the others made none, or another one."""
    behind = tuple(sorted(spots.keys() - {*in_sum}))
    call, at = spots[behind[0]]  # a later line: in a loop it may be of the turn before
    stack = evidence.place[in_sum[0]]
    left_out = f"in a loop {named_ranks(in_sum)} left out the {call} at {at} in the turn before"
    one, two = _parting(evidence.place[behind[0]], stack)
    only, fewer, first, may = f"only {named_ranks(in_sum)} made it", "", "", ""
    shared = True
    if one is not None and two is not None:
        passing, waiting = branch_of(one, two), branch_of(two, one)
        loop, shared = left_loop(two, one)
        at_loop = f"{Path(two.file).name}:{loop}"
        if loop:
            turns = f"made fewer turns of the loop at {at_loop} than {named_ranks(in_sum)}"
            fewer = f"{named_ranks(behind)} {turns}"
        # Of a function that both called, the rank that waits shows what in it may leave the call out.
        below = reversed(_users_below(stack, two))
        inside = next((_if(frame, line) for frame in below if (line := helpers_branch(frame))), "")
        if passing and not waiting:  # an `if` may leave that call out, and nothing this one
            first, stack, may = left_out, evidence.place[behind[0]], _if(one, passing)
        elif waiting and not passing:
            first, may = only, _if(two, waiting)
        elif loop:  # they do not stand in one loop
            first, may = fewer, _turns(two, loop)
        elif inside:
            first, may = only, inside
        elif always_made(two, one) and all(map(always_made, _users_below(stack, two))):
            only = ""  # who stands behind it has made it in this turn
            of_turn_before = evidence.place[behind[0]]
            asked = reversed([one, *_users_below(of_turn_before, one)])
            may = next(filter(None, (_decides(frame, two) for frame in asked)), "")
            stack = of_turn_before if may else stack
    groups, is_missing = evidence.in_two_groups(spots)
    if groups:
        first, may = groups, f"{is_missing}{may}"
    ways = [*filter(None, (only, groups, fewer, left_out if shared else "")), "the order differs"]
    told, checks = _stories(evidence, spots[in_sum[0]][0], in_sum, behind, ways, first)
    return Finding(
        (),
        "CollectiveMismatch",
        what,
        f"{may}{checks} {DETAIL}",
        stack,
        seen=(told, *evidence.own_lines()),
        weight=PLACES - 6,
    )


def _users_below(stack: Stack, caller: Frame) -> list[Frame]:
    """Return the user's frames that one of a stack's frames has called, the innermost last."""
    return [frame for frame in stack.frames[stack.frames.index(caller) + 1 :] if is_users(frame.file)]


def _decides(frame: Frame, other: Frame) -> str:
    """Ask for the ``if`` or the loop around a call that may leave it out, and does not leave out another."""
    is_beside = (frame.file, frame.function) == (other.file, other.function)
    if not is_beside and (line := helpers_branch(frame)):
        return _if(frame, line)
    loop = own_loop(frame, other.line if is_beside else None)
    return _turns(frame, loop) if loop else ""


def _turns(frame: Frame, loop: int) -> str:
    return f"does the loop at {Path(frame.file).name}:{loop} make as many turns on all ranks? "


def _if(frame: Frame, line: int) -> str:
    return f"the `if` at {Path(frame.file).name}:{line}: does it come out alike on these ranks? "


def _root_of(call: str) -> str:
    """Return the parameter that names the root of a collective, also of objects; empty: it has none."""
    return ROOTED.get(call.partition("_object")[0], "")


def _stories(
    evidence: JobEvidence,
    call: str,
    waiting: Sequence[int],
    behind: Sequence[int],
    ways: Sequence[str],
    first: str = "",
) -> tuple[str, str]:
    """Return how ranks may have passed a collective in which others wait, and what tells these ways apart.

    ``first``: the likeliest of these ways; sizes or roots that differ are added to them.
    """
    users, others = evidence.place[waiting[0]].users, named_ranks(behind)
    at = f" at {users.at}" if users is not None else ""
    root = _root_of(call)
    if root and users is not None and names_one_root(users.text, call, root):
        root = ""
    differ = [*(["sizes"] if call in SUMS else []), *([f"the roots (`{root}`)"] if root else [])]
    checks = [*([f"do sizes and types agree{at}?"] if call in SUMS else [])]
    checks += [f"is `{root}` the same on all ranks{at}? {_ROOTS};"] if root else []
    passed = [f"{' or '.join(differ)} differ in that {call}, and it let {others} through"] if differ else []
    stories = [*passed, *ways]
    stories.sort(key=lambda story: story != first)
    either = "either " if stories[1:] else ""
    return f"{either}{', or '.join(stories)}", " ".join(
        [*checks, "do all ranks make that call, and as many before it?"]
    )


def two_roots(evidence: JobEvidence) -> Finding | None:
    """All that waited for no peer were in one broadcast, and two of them sent, or all: the roots differ.

    Ranks between a root and others send, too; those at the end of its tree do not.
    """
    calls = evidence.in_call(but=evidence.following)
    places = {evidence.place[rank].users for rank in calls}
    late = [rank for rank in calls if rank in evidence.late and rank in evidence.error]
    senders = evidence.first_of(r for r in late if "for send operation" in evidence.error[r].message)
    others = tuple(sorted(set(calls) - set(senders)))
    known = evidence.job.ranks if evidence.job.complete else evidence.codes
    is_whole = sorted(known) == list(range(len(known))) == sorted(evidence.late) == sorted(evidence.in_call())
    if not is_whole or set(calls.values()) != {"broadcast"} or len(places) != 1 or not senders[1:]:
        return None
    if others and senders[2:]:
        return None
    both = tuple(sorted(senders))
    sides = f"{named_ranks(both)} sent, {named_ranks(others)} received" if others else "each of them sent"
    who = capital(tuple(sorted(calls))) if evidence.following else "All ranks"
    what = f"{who} were in broadcast, and it did not end: {sides}."
    check_first = f"do they agree on the root (`src`)? {_ROOTS}"
    unknown = (f"which of {named_ranks(both)} has the wrong root",)
    stack = evidence.place[senders[0]]
    ranks = senders if not senders[2:] else ()
    return Finding(ranks, "CollectiveMismatch", what, check_first, stack, unknown, weight=PLACES - 5)


def symptoms_only(evidence: JobEvidence) -> Finding | None:
    """All that the logs have is errors about peers, at the same line."""
    ranks = evidence.first_of((*evidence.lost, *evidence.late))
    ranks = tuple(sorted(ranks, key=lambda rank: rank in evidence.following))
    ranks = tuple(rank for rank in ranks if rank not in evidence.in_planes) or ranks
    return only_symptoms(evidence, ranks) if ranks else None


def only_symptoms(evidence: JobEvidence, ranks: tuple[int, ...]) -> Finding:
    """Say that these ranks had errors about peers, and with which words."""
    doing = f": {evidence.doing()}" if evidence.doing() else ""
    whose = "their" if ranks[1:] else "its"
    what = f"{capital(ranks)} had errors about {whose} peers, and no log shows a cause{doing}."
    first = "which rank was the first"
    if evidence.job.standing:
        what, first = (
            f"{capital(ranks)} stand{'' if ranks[1:] else 's'} in a call that does not end{doing}.",
            "which of them is the wrong one",
        )
    unknown = (first, *(() if evidence.job.complete else (MORE_RANKS,)))
    stack = evidence.place.get(ranks[0])
    error = evidence.error.get(ranks[0]) or next(iter(evidence.nobodys[-1:]), None)
    hints = (f"rank {ranks[0]} said: {said_of(error).splitlines()[0]}",) if error is not None else ()
    check_first = f"do group, root and sizes agree there? the network between the hosts? {DETAIL}"
    calls = evidence.in_call()
    together = [rank for rank, call in calls.items() if call in COLLECTIVES]
    if together[1:] and (others := [rank for rank in calls if evidence.half(rank)]):
        whose = f"{named_ranks(others)}, which {were(tuple(others))} in {calls[others[0]]},"
        check_first = (
            f"is {whose} in the group of that {calls[together[0]]}, as without `group=`? {check_first}"
        )
    if own_lines := evidence.own_lines():
        check_first = (
            f"did a rank that printed something else pass over an exception, and a call? {check_first}"
        )
    if in_threads := _in_threads(evidence):
        check_first = "do all ranks make the call of that thread, and none at the same time in another?"
        own_lines = in_threads
    return Finding((), "OnlySymptoms", what, check_first, stack, unknown, (*hints, *own_lines), SYMPTOMS)


def _in_threads(evidence: JobEvidence) -> tuple[str, ...]:
    """Return a line about each thread of a rank that died in a call, and the rank went on."""
    died = (
        (rank, error)
        for rank, log in evidence.job.ranks.items()
        for error in log.errors
        if error.aside and error.call and error.users is not None
    )
    return tuple(
        f"a thread of rank {rank} died in {error.call} at {error.users.at}: {said_of(error).splitlines()[0]}"
        for rank, error in died
        if error.users is not None
    )
