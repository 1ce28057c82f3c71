"""Where the ranks of anybody's program stand, who waits for whom, and which calls do not fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ppwork.diagnosis.causes import Cause, cause_of
from ppwork.diagnosis.findings import Wait
from ppwork.diagnosis.waits import roots
from ppwork.errors import named_ranks, ranks_by_value
from ppwork.records.calls import ANY, Call, RankCalls
from ppwork.timeline.meetings import REFUSED, End, Meeting, Meetings, Message

ALIKE = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "gather", "reduce",
         "reduce_scatter", "reduce_scatter_tensor", "scatter")  # fmt: skip
"""Collectives in which all ranks bring, or get, as many bytes of one type."""


@dataclass(frozen=True)
class Standing:
    """The end of a program that its ranks did not all reach.

    Attributes:
        waits: A line for each rank; one that waits for nobody left, was killed, or is in code of its own.
        cause: What its calls tell of why.
        mismatches: Calls that met and do not fit, or did not meet and should have, in sentences.
    """

    waits: tuple[Wait, ...]
    mismatches: tuple[str, ...]
    cause: Cause | None = None

    @property
    def sentence(self) -> str:
        """The mismatches, or who is waited for."""
        if self.mismatches:
            return " ".join(self.mismatches)
        if self.cause is not None:
            return self.cause.what
        if awaited := roots(self.waits):
            lines = [str(wait) for wait in self.waits if wait.rank in awaited and not wait.waits_for]
            never = [rank for rank in awaited if all(wait.rank != rank for wait in self.waits)]
            lines += [f"{named_ranks(never)} made no call"] if never else []
            return _sentence(lines)
        waiting = sorted(wait.rank for wait in self.waits if wait.waits_for)
        if waiting:
            return f"{named_ranks(waiting).capitalize()} wait for each other."
        return _sentence(map(str, self.waits))

    @property
    def lines(self) -> list[str]:
        """Everything, a line each."""
        return [*self.mismatches, *map(str, self.waits)]


def _sentence(lines: Iterable[str]) -> str:
    text = "; ".join(lines)
    return f"{text[:1].upper()}{text[1:]}."


def standing(met: Meetings) -> Standing | None:
    """Say where the ranks of a program stand; ``None``: all came to the end, and their calls fitted."""
    mismatches = (*_collectives(met), *_messages(met))
    all_left = all(of_rank.left is not None and not of_rank.left.error for of_rank in met.ranks.values())
    if all_left and not mismatches:
        return None
    waits = () if all_left else tuple(_wait(met, rank, of_rank) for rank, of_rank in met.ranks.items())
    stood = {rank: stood_in(of_rank) for rank, of_rank in met.ranks.items()}
    return Standing(waits, mismatches, None if all_left or mismatches else cause_of(met, stood))


def stood_in(of_rank: RankCalls) -> Call | None:
    """Return the call that a rank did not come out of, or its last one if that ended with an exception."""
    if of_rank.stands_in is not None or not of_rank.calls:
        return of_rank.stands_in
    last = of_rank.calls[-1]
    return last if last.error and not last.error.startswith(REFUSED) else None


def _wait(met: Meetings, rank: int, of_rank: RankCalls) -> Wait:
    call = stood_in(of_rank)
    if call is not None:
        return Wait(rank, _said(of_rank, call), _waits_for(met, of_rank, call))
    after = f"after {_said(of_rank, of_rank.calls[-1])}" if of_rank.calls else "before its first call"
    if of_rank.left is None:
        return Wait(rank, f"in code of its own, {after}", ())
    how = f"ended with {of_rank.left.error}" if of_rank.left.error else "came to its end"
    return Wait(rank, f"its program {how}, {after}", ())


def _said(of_rank: RankCalls, call: Call) -> str:
    return f"{of_rank.text(call)} at {call.line}"


def _waits_for(met: Meetings, of_rank: RankCalls, call: Call) -> tuple[int, ...]:
    origin = of_rank.origin(call)
    parts = [part for n, part in enumerate(origin.begun.parts) if call.begun.part in (ANY, n)]
    others = [rank for rank in range(of_rank.head.world_size) if rank != call.rank]
    if any(part.kind for part in parts):
        peers = {part.peer for part in parts}
        return tuple(others if ANY in peers else sorted(peers))
    key = origin.begun.number
    meeting = next(
        (m for m in met.meetings if call.rank in m.ends and m.ends[call.rank].call.begun.number == key), None
    )
    if meeting is None:  # calls were not kept, and what met this one is not known
        group = of_rank.groups.get(origin.begun.group)
        return tuple(rank for rank in group.ranks if rank != call.rank) if group is not None else ()
    elsewhere = [rank for rank, end in meeting.ends.items() if end.call.name != origin.name]
    return tuple(sorted({*meeting.missing, *elsewhere}))


def _collectives(met: Meetings) -> Iterator[str]:
    """Say of each group at which collective its ranks parted: what comes later follows from it."""
    told: set[tuple[str, tuple[int, ...]]] = set()
    for meeting in met.meetings:
        key = meeting.group, meeting.members
        if key not in told and (different := _different(meeting)):
            told.add(key)
            yield different


def _different(meeting: Meeting) -> str:
    names = {rank: end.call.name for rank, end in meeting.ends.items()}
    shown = {rank: f"{end.call.text} ({end.call.line})" for rank, end in meeting.ends.items()}
    agreed = {rank: _must_agree(end) for rank, end in meeting.ends.items()}
    if len(set(agreed.values())) < 2:
        return ""
    if len(set(names.values())) == 1:  # the same line says it better without its place
        shown = {rank: end.call.text for rank, end in meeting.ends.items()}
    each = ", ".join(f"{named_ranks(ranks)} {what}" for what, ranks in ranks_by_value(shown).items())
    return f"Collective {meeting.number} of {meeting.group}: {each}."


def _must_agree(end: End) -> tuple[object, ...]:
    call, part = end.call, end.part
    if call.name not in ALIKE:
        return (call.name,)
    # Who scatters has the parts in a list, and each rank's own in a tensor, as the others.
    return call.name, call.begun.op, part.peer, part.dtype, part.size


def _messages(met: Meetings) -> Iterator[str]:
    alone = [message for message in met.messages if message.sent is None or message.received is None]
    both = [(m.sent, m.received) for m in met.messages if m.sent is not None and m.received is not None]
    unlike = [(s, r) for s, r in both if (s.part.dtype, s.part.size) != (r.part.dtype, r.part.size)]
    for sent, received in unlike[:1]:
        yield (
            f"A send of {_what(sent)} (rank {sent.call.rank}, {sent.call.line}) met a receive of "
            f"{_what(received)} (rank {received.call.rank}, {received.call.line}){_more(unlike)}."
        )
    awaited = [message for message in alone if message.sent is None]
    told: set[int] = set()
    for message in alone:
        if message.sent is None:
            continue
        other = next((o for o in awaited if id(o) not in told and _almost(message, o)), None)
        if other is not None and other.received is not None:
            told |= {id(message), id(other)}
            yield _apart(message, message.sent, other, other.received)
    never = [message.sent.call for message in alone if message.sent is not None and id(message) not in told]
    for call in never[:1]:
        yield f"Nobody received what rank {call.rank} sent: {call.text} at {call.line}{_more(never)}."


def _almost(message: Message, other: Message) -> bool:
    return (message.sender, message.receiver) == (other.sender, other.receiver)


def _apart(message: Message, sent: End, other: Message, received: End) -> str:
    ways = [("tag", sent.part.tag, received.part.tag), ("on", message.group, other.group)]
    said = [(f"{word} {ours}", f"{word} {theirs}") for word, ours, theirs in ways if ours != theirs]
    ours, theirs = (", ".join(texts) for texts in zip(*said, strict=True)) if said else ("", "")
    return (
        f"Rank {message.sender} sent {ours} ({sent.call.line}), rank {message.receiver} awaited {theirs} "
        f"({received.call.line})."
    )


def _more(found: Sequence[object]) -> str:
    return f", and {len(found) - 1} more" if len(found) > 1 else ""


def _what(end: End) -> str:
    return end.part.text or "an object"
