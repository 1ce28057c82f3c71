"""Calls that met: a send and its receive, the ranks of a collective; also loans of buffers, and who waited.

A message is identified by group, sender, receiver, tag and order, a collective by its group and order: torch
matches them so. Nothing here asks whether the two ends agree on what they send (``diagnosis.program_waits``).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ppwork.records.calls import ABORT, ANY, LOCAL, SEND, WAITS, Call, CallPart, RankCalls

START, BACKWARD = "init_process_group", "backward of DDP"
MAKES_GROUPS = ("new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group", "shrink_group")
ALONE = (*WAITS, ABORT, "destroy_process_group")
"""Calls that no other rank has to make."""
ALSO_CALLED = {
    **dict.fromkeys(("allgatherbase", "allgatherintotensor", "allgathertensor"), "allgathersingle"),
    **dict.fromkeys(("reducescatterbase", "reducescattertensor"), "reducescattersingle"),
    "alltoallbase": "alltoallsingle",
    "allgatherintotensorcoalesced": "allgathersinglecoalesced",
    "reducescattertensorcoalesced": "reducescattersinglecoalesced",
}
"""Names before torch 2.13, and names of its operators, mapped to today's names."""
REFUSED = ("TypeError", "ValueError", "LocalProtocolError")
"""Errors by which torch refuses arguments, and a guard of ours a call: nothing of it reached another rank."""


@dataclass(frozen=True)
class BufferLoan:
    """A buffer lent to torch, from the call to the end of the wait; ``wait`` is ``None`` if nobody waited.

    Attributes:
        dropped_ns: When the program dropped the handle, if that ends the loan: gloo gives up a message when
            its handle is dropped.
    """

    call: Call
    part: int
    wait: Call | None
    dropped_ns: int | None = None

    @property
    def end_ns(self) -> int | None:
        """When the program got the buffer back; ``None``: not within the record."""
        return self.wait.end_ns if self.wait is not None else self.dropped_ns


@dataclass(frozen=True)
class Endpoint:
    """One end of a message, or one rank's call of a collective.

    Attributes:
        blocking: The call in which the rank stood until the end was done: its own, or the wait for its
            handle; ``None`` if nobody waited.
    """

    call: Call
    part: CallPart
    blocking: Call | None

    @property
    def done_ns(self) -> int | None:
        """When the rank knew that its end was done."""
        return self.blocking.end_ns if self.blocking is not None else None

    @property
    def raised(self) -> bool:
        """Whether the rank got an exception instead."""
        return self.blocking is not None and bool(self.blocking.error)


@dataclass(frozen=True)
class Message:
    """A message; an end that was never called is ``None``."""

    group: str
    sender: int
    receiver: int
    sent: Endpoint | None
    received: Endpoint | None


@dataclass(frozen=True)
class Meeting:
    """A collective.

    Attributes:
        number: Counts the group's collectives, from 1.
        members: All ranks that must come.
        ends: The ranks that came, each with its end.
    """

    group: str
    number: int
    members: tuple[int, ...]
    ends: Mapping[int, Endpoint]

    @property
    def missing(self) -> tuple[int, ...]:
        """Members that did not come."""
        return tuple(rank for rank in self.members if rank not in self.ends)

    @property
    def last(self) -> int:
        """The rank that came last."""
        return max(self.ends, key=lambda rank: self.ends[rank].call.start_ns)

    @property
    def name(self) -> str:
        """Name of the function, as the first rank called it."""
        return next(iter(self.ends.values())).call.name

    @property
    def makes_groups(self) -> bool:
        """Whether the collective makes groups besides the default group."""
        return self.name in MAKES_GROUPS

    @property
    def is_start(self) -> bool:
        """Whether the collective makes groups; ranks come to it as their processes start."""
        return self.name == START or self.makes_groups


@dataclass(frozen=True)
class Stall:
    """Time in which a rank stood in ``call`` because another had not made ``awaited`` yet."""

    call: Call
    awaited: Call
    ns: int


def kind_of(name: str) -> str:
    """Return what a function or an operator does, in one word; all ranks of a collective have the same word.

    >>> kind_of("c10d::_allgather_base_") == kind_of("all_gather_into_tensor") == kind_of("all_gather_single")
    True
    """
    word = name.rpartition("::")[2].replace("_", "")
    return ALSO_CALLED.get(word, word)


class Meetings:
    """All meetings of a program.

    Args:
        ranks: The ranks' records, by rank.
    """

    def __init__(self, ranks: Mapping[int, RankCalls]) -> None:
        self.ranks = ranks
        self.loans = tuple(loan for of_rank in ranks.values() for loan in _loans(of_rank))
        self._cut = any(of_rank.lost for of_rank in ranks.values())
        self._waits = {(loan.call.rank, loan.call.begun.number, loan.part): loan.wait for loan in self.loans}
        # Calls meet by order: after calls that were not kept, half of a meeting says nothing.
        self.messages = tuple(m for m in self._messages() if not self._cut or (m.sent and m.received))
        self.meetings = tuple(m for m in self._meetings() if not self._cut or not m.missing)

    def is_outside(self, call: Call) -> bool:
        """Say whether a call is a collective of a group without this rank: torch then does nothing."""
        begun = call.begun
        if begun.group or call.error or call.name in (START, *ALONE, *MAKES_GROUPS):
            return False
        has_tensor = any(part.dtype and not part.kind for part in begun.parts)
        return bool(self.ranks[call.rank].groups) and (has_tensor or call.name == "barrier")

    @cached_property
    def forgotten(self) -> set[int]:
        """The calls (by ``id``) that returned handles of which none was waited for."""
        waited = {id(loan.call) for loan in self.loans if loan.wait is not None}
        return {id(loan.call) for loan in self.loans} - waited

    @cached_property
    def of_planes(self) -> set[str]:
        """Names of the groups on which lanes of a plane call: what meets there is not the program's."""
        every = (call for of_rank in self.ranks.values() for call in of_rank.calls)
        return {call.begun.group for call in every if call.on_lane and call.begun.group}

    @cached_property
    def stalls(self) -> list[Stall]:
        """All stalls of the work, the longest first; waits while ranks start are left out."""
        stalls = [stall for message in self.messages for stall in _of_message(message)]
        stalls += [stall for m in self.meetings if not m.is_start for stall in _of_meeting(m)]
        return sorted(stalls, key=lambda stall: -stall.ns)

    def _end(self, call: Call, number: int, part: CallPart) -> Endpoint:
        if not call.lent:
            return Endpoint(call, part, call)
        key = call.rank, call.begun.number
        return Endpoint(call, part, self._waits.get((*key, number)) or self._waits.get((*key, ANY)))

    def _messages(self) -> Iterator[Message]:
        ends: dict[tuple[str, int, int, int], tuple[list[Endpoint], list[Endpoint]]] = defaultdict(
            lambda: ([], [])
        )
        from_any: list[Endpoint] = []
        for rank, of_rank in self.ranks.items():
            for call in _that_count(of_rank):
                group = of_rank.groups.get(call.begun.group)
                for number, part in enumerate(call.begun.parts):
                    if not part.kind:
                        continue
                    end = self._end(call, number, part)
                    # NCCL has no tags.
                    tag = 0 if group is not None and group.backend == "nccl" else part.tag
                    if part.kind == SEND:
                        ends[call.begun.group, rank, part.peer, tag][0].append(end)
                    elif part.peer != ANY:
                        ends[call.begun.group, part.peer, rank, tag][1].append(end)
                    else:
                        from_any.append(end)
        for (group_name, sender, receiver, _), (sent, received) in ends.items():
            for n in range(max(len(sent), len(received))):
                yield Message(
                    group_name, sender, receiver, *(e[n] if n < len(e) else None for e in (sent, received))
                )
        for end in from_any:
            yield Message(end.call.begun.group, ANY, end.call.rank, None, end)

    def _meetings(self) -> Iterator[Meeting]:
        ends: dict[tuple[str, tuple[int, ...]], dict[int, list[Endpoint]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for rank, of_rank in self.ranks.items():
            everybody = tuple(range(of_rank.head.world_size))
            for call in _that_count(of_rank):
                group = of_rank.groups.get(call.begun.group)
                if call.name.rpartition("::")[2] in ALONE or any(part.kind for part in call.begun.parts):
                    continue
                if call.begun.op.startswith(LOCAL):  # only members come, and no other rank waits for them
                    continue
                if call.name == START or call.name in MAKES_GROUPS:
                    key = call.name, group.ranks if group is not None else everybody
                elif group is not None:
                    key = group.name, group.ranks
                else:  # the call of a rank that is not in the group
                    continue
                part = call.begun.parts[0] if call.begun.parts else CallPart()
                ends[key][rank].append(self._end(call, ANY, part))
        for (name, members), of_group in ends.items():
            for n in range(max(map(len, of_group.values()))):
                came = {rank: calls[n] for rank, calls in of_group.items() if n < len(calls)}
                yield Meeting(name, n + 1, members, came)


def _that_count(of_rank: RankCalls) -> list[Call]:
    gap = next(n for n in itertools.count() if n not in of_rank.by_number)
    kept = (call for call in of_rank.calls if call.begun.number < gap)
    return [call for call in kept if not call.awaits and not call.error.startswith(REFUSED)]


def _loans(of_rank: RankCalls) -> Iterator[BufferLoan]:
    waits: dict[tuple[int, int], Call] = {}
    for call in of_rank.calls:
        if call.name in WAITS and call.begun.of >= 0:
            waits.setdefault((call.begun.of, call.begun.part), call)
    for call in of_rank.calls:
        if call.lent:
            number = call.begun.number
            parts = (
                [ANY] if (number, ANY) in waits or len(call.begun.parts) < 2 else range(len(call.begun.parts))
            )
            for part in parts:
                yield BufferLoan(call, part, waits.get((number, part)), _given_up_ns(of_rank, call, part))


def _given_up_ns(of_rank: RankCalls, call: Call, part: int) -> int | None:
    """Return when gloo gave a message up because its handle was dropped; ``None`` for all other calls."""
    group = of_rank.groups.get(call.begun.group)
    is_message = any(p.kind for p in call.begun.parts)
    if group is None or "gloo" not in group.backend or not is_message:
        return None
    return next((drop.at_ns for drop in call.dropped if drop.part == part), None)


def _of_message(message: Message) -> Iterator[Stall]:
    if message.sent is None or message.received is None:
        return
    for end, other in ((message.sent, message.received), (message.received, message.sent)):
        if (stall := _stall(end, other.call)) is not None:
            yield stall


def _of_meeting(meeting: Meeting) -> Iterator[Stall]:
    if meeting.missing:
        return
    last = meeting.ends[meeting.last].call
    for rank, end in meeting.ends.items():
        if rank != meeting.last and (stall := _stall(end, last)) is not None:
            yield stall


def _stall(end: Endpoint, awaited: Call) -> Stall | None:
    """Return how long one rank stood there before the other call began; ``None`` if it did not wait."""
    stood = end.blocking
    if stood is None or stood.end_ns is None or not stood.start_ns < awaited.start_ns <= stood.end_ns:
        return None
    return Stall(stood, awaited, awaited.start_ns - stood.start_ns)


def last_moment_ns(ranks: Mapping[int, RankCalls]) -> int:
    """Return the last moment in any rank's record."""
    every = [call for of_rank in ranks.values() for call in of_rank.calls]
    ends = [call.start_ns if call.end_ns is None else call.end_ns for call in every]
    return max(ends + [of_rank.left.at_ns for of_rank in ranks.values() if of_rank.left is not None])


def nth(number: int, *, words: bool = True) -> str:
    """Return an ordinal number: as a word up to the fifth, above that, or without ``words``, with digits.

    >>> nth(1), nth(3), nth(12), nth(21)
    ('first', 'third', '12th', '21st')
    """
    first = ("first", "second", "third", "fourth", "fifth")
    if words and number <= len(first):
        return first[number - 1]
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
