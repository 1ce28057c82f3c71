"""Causes that a program's calls show, and its logs do not: who closed a connection, which group was meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ppwork.diagnosis.job_evidence import capital, were
from ppwork.errors import named_ranks
from ppwork.protocol.backend_errors import LOST_TEXTS
from ppwork.records.calls import RECV, SEND, Call
from ppwork.timeline.meetings import MAKES_GROUPS, START, Meeting, Meetings

DEFAULT, CLOSES = "default_pg", "destroy_process_group"


@dataclass(frozen=True)
class Cause:
    """What went wrong, as far as the calls of all ranks tell it.

    Attributes:
        rank: The rank to look at.
        what: A sentence.
        check_first: Where to look.
    """

    rank: int
    what: str
    check_first: str


def cause_of(met: Meetings, stood: Mapping[int, Call | None]) -> Cause | None:
    """Return the cause of the end that a program came to; ``None``: its calls do not tell it.

    Args:
        met: What met what in it.
        stood: The call that each rank did not come out of, or that raised at its end.
    """
    return _other_group(met, stood) or _closed(met, stood)


def start_cut_off(met: Meetings) -> Cause | None:
    """Return who ended while another rank still connected to it: what that one did not do follows from it.

    A rank has made its groups once its own connections stand, and gloo waits for nobody else.
    """
    for rank, of_rank in met.ranks.items():
        start = of_rank.calls[-1] if of_rank.calls else None
        if start is None or start.name not in (START, *MAKES_GROUPS) or start.end_ns is None:
            continue
        if not any(text in start.error for text in LOST_TEXTS):
            continue
        for other, ended in ((r, _ended(met, r, start.end_ns)) for r in met.ranks if r != rank):
            if ended:
                return Cause(
                    other,
                    f"Rank {other} {ended} while rank {rank} was still in {start.name} ({start.line}), "
                    f"connecting to it.",
                    f"may rank {other} leave so early? A `dist.barrier()` of all ranks after {start.name} "
                    "keeps each until all are connected",
                )
    return None


def _ended(met: Meetings, rank: int, by_ns: int) -> str:
    """Say how a rank had left by then, without an error of its own; nothing if it had not."""
    of_rank = met.ranks[rank]
    closes = next((call for call in of_rank.calls if call.name == CLOSES and call.start_ns <= by_ns), None)
    if closes is not None and not closes.error:
        return f"closed its connections in {CLOSES} ({closes.line})"
    left = of_rank.left
    return "came to its end" if left is not None and not left.error and left.at_ns <= by_ns else ""


def _other_group(met: Meetings, stood: Mapping[int, Call | None]) -> Cause | None:
    """Some are in a collective of all ranks, others in that of a group or in messages: was a group meant?"""
    for meeting in met.meetings:
        calls = [stood.get(rank) for rank in meeting.ends]
        is_all = meeting.group == DEFAULT and not meeting.is_start and meeting.missing
        if not is_all or any(
            end.call is not call for end, call in zip(meeting.ends.values(), calls, strict=True)
        ):
            continue
        makes = any(call.name in MAKES_GROUPS for rank in meeting.ends for call in met.ranks[rank].calls)
        instead = {rank: call for rank in meeting.missing if (call := stood.get(rank)) is not None}
        name = next(iter(meeting.ends.values())).call.name
        in_group = {
            r: call for r, call in instead.items() if call.name == name and call.begun.group != DEFAULT
        }
        messages = {rank: call for rank, call in instead.items() if rank not in in_group}
        if (
            makes
            and len(instead) == len(meeting.missing)
            and all(_with(call, {*meeting.ends, *in_group}) for call in messages.values())
        ):
            return _two_groups(meeting, in_group) if in_group else _no_group(meeting, instead)
    return None


def _with(call: Call, ranks: Collection[int]) -> bool:
    """Say whether a call is a message with one of some ranks."""
    return any(part.kind and part.peer in ranks for part in call.begun.parts)


def _two_groups(meeting: Meeting, in_group: Mapping[int, Call]) -> Cause:
    came, call = tuple(sorted(meeting.ends)), next(iter(meeting.ends.values())).call
    other = next(iter(in_group.values()))
    return Cause(
        came[0],
        f"{capital(came)} {were(came)} in {call.name} on the default group ({call.line}), and "
        f"{named_ranks(sorted(in_group))} in {other.name} on {other.begun.group} ({other.line}): they wait "
        "for each other.",
        f"is `group=` missing at {call.line}? else which of the two calls did a rank leave out?",
    )


def _no_group(meeting: Meeting, instead: Mapping[int, Call]) -> Cause:
    came = tuple(sorted(meeting.ends))
    call = meeting.ends[came[0]].call
    rank, other = next(iter(instead.items()))
    peers = named_ranks(sorted({part.peer for part in other.begun.parts if part.kind}))
    never = named_ranks(meeting.missing)
    return Cause(
        came[0],
        f"{capital(came)} {were(came)} in {call.name} on the default group ({call.line}), which {never} did "
        f"not call: {'it' if len(instead) == 1 else f'rank {rank}'} was in {other.name}, waiting for {peers} "
        f"({other.line}).",
        f"is `group=` missing at {call.line}?",
    )


def _closed(met: Meetings, stood: Mapping[int, Call | None]) -> Cause | None:
    """A peer had begun to destroy its groups when a call lost its connection."""
    for call, closes in closings(met, stood):
        if any(part.kind in (SEND, RECV) and part.peer == closes.rank for part in call.begun.parts):
            when = f"while rank {call.rank} was in {call.name} ({call.line}), waiting for it"
            if closes.start_ns <= call.start_ns:
                then = f"before rank {call.rank} called {call.name} ({call.line})"
                when = f"{then}, which waits for rank {closes.rank}"
            return Cause(
                closes.rank,
                f"Rank {closes.rank} closed its connections in {CLOSES} ({closes.line}) {when}.",
                f"does rank {closes.rank} make as many calls as rank {call.rank} before it leaves?",
            )
    return None


def closings(met: Meetings, stood: Mapping[int, Call | None]) -> Iterator[tuple[Call, Call]]:
    """Yield each call that lost its connection, and the call in which a peer of it had begun to close it.

    Args:
        met: What met what in the program.
        stood: The call that each rank did not come out of, or that raised at its end.
    """
    for rank, call in stood.items():
        if call is None or call.end_ns is None or not any(text in call.error for text in LOST_TEXTS):
            continue
        origin = met.ranks[rank].origin(call)
        group = met.ranks[rank].groups.get(origin.begun.group)
        peers = {part.peer for part in origin.begun.parts if part.kind in (SEND, RECV)}
        for peer in sorted(peers or {*(group.ranks if group is not None else ())} - {rank}):
            calls = met.ranks[peer].calls if peer in met.ranks else ()
            closes = next((c for c in calls if c.name == CLOSES and c.start_ns <= call.end_ns), None)
            if closes is not None and stood.get(peer) in (None, closes):
                yield call, closes
                break
