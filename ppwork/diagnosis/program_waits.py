"""Where the ranks of anybody's program stand, who waits for whom, and which calls do not fit each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ppwork.diagnosis.branches import own_loop
from ppwork.diagnosis.causes import Cause, cause_of, start_cut_off
from ppwork.diagnosis.findings import Wait
from ppwork.diagnosis.stacks import Frame, Stack
from ppwork.diagnosis.waits import roots
from ppwork.errors import listed, named_ranks, ranks_by_value
from ppwork.records.calls import ANY, AWAIT, RECV, WAITS, Call, RankCalls
from ppwork.timeline.meetings import (
    BACKWARD,
    MAKES_GROUPS,
    REFUSED,
    Endpoint,
    Meeting,
    Meetings,
    Message,
    kind_of,
    nth,
)

ALIKE = tuple(map(kind_of, (
    "all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "gather", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter",
)))  # fmt: skip
"""Collectives in which all ranks bring, or get, as many bytes of one type."""
MANY = 5
"""Handles of one function up to which it is said which of them was let go."""
NOBODY_RECEIVED = "Nobody received what"
OWN_CODE = "in code of its own"
"""Of a rank that is in no call."""
AT_IMPORT = "still at an import"


@dataclass(frozen=True)
class ProgramWaits:
    """The end of a program that its ranks did not all reach.

    Attributes:
        waits: A line for each rank; one that waits for nobody left, was killed, or is in code of its own.
        cause: What its calls tell of why.
        mismatches: Calls that met and do not fit, or did not meet and should have, in sentences.
        ranks: The calls that this is about: those up to the first exception that ended a rank.
        kinds: What each rank stood in: ``SEND``, ``RECV``, both in one word, or nothing: a collective.
        lost: The only mismatch is a message whose handle was not kept.
        turns: How often each rank had called the lines of the first collectives that do not fit, and what to
            ask of the loops around them; empty if not all had.
    """

    waits: tuple[Wait, ...]
    mismatches: tuple[str, ...]
    cause: Cause | None = None
    ranks: Mapping[int, RankCalls] = field(default_factory=dict)
    kinds: Mapping[int, str] = field(default_factory=dict)
    lost: bool = False
    turns: str = ""

    def at_lines(self, stacks: Mapping[int, Stack]) -> ProgramWaits:
        """Return the same, with the line of each rank that was in code of its own, by its last stack."""
        told = {}
        for wait in self.waits:
            stack = stacks.get(wait.rank)
            if wait.call.startswith(OWN_CODE) and stack is not None and stack.users is not None:
                where = AT_IMPORT if stack.imports else OWN_CODE
                call = wait.call.replace(OWN_CODE, f"{where} at {Path(stack.users.at).name}", 1)
                told[wait.rank] = wait._replace(call=call)
        return replace(self, waits=tuple(told.get(wait.rank, wait) for wait in self.waits))

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
        if circle := self.circle:
            calls = {wait.rank: wait.call for wait in self.waits if wait.rank in circle}
            each = (f"{named_ranks(ranks)} in {call}" for call, ranks in ranks_by_value(calls).items())
            return f"{named_ranks(circle).capitalize()} wait for each other: {', '.join(each)}."
        return _sentence(map(str, self.waits))

    @property
    def circle(self) -> tuple[int, ...]:
        """The ranks that wait, over others or at once, for themselves."""
        awaited = {wait.rank: wait.waits_for for wait in self.waits}
        return tuple(rank for rank in sorted(awaited) if rank in _reached(rank, awaited))

    @property
    def rank(self) -> int | None:
        """The rank that the others wait for, if it is one and nothing else is to be said."""
        if self.cause is not None:
            return self.cause.rank
        awaited = () if self.mismatches else roots(self.waits)
        return awaited[0] if len(awaited) == 1 else None

    @property
    def check_first(self) -> str:
        """Where to look, by what the sentence says."""
        if self.cause is not None:
            return self.cause.check_first
        if self.lost:
            return "keep the handle until its wait: gloo gives a message up whose handle is let go"
        if self.mismatches:
            meant = "which of the two calls is meant, and what made that rank differ just before it"
            return f"{self.turns} Else {meant}" if self.turns else meant
        at_import = [wait.rank for wait in self.waits if wait.call.startswith(AT_IMPORT)]
        awaited = roots(self.waits)
        if at_import and {*awaited} <= {*at_import}:
            its = "their" if at_import[1:] else "its"
            return f"a longer limit: {named_ranks(at_import)} had not come out of {its} imports"
        if awaited:
            # Of a wait in no call of torch, only the stack tells.
            inside = any(wait.rank in awaited and wait.call.startswith(OWN_CODE) for wait in self.waits)
            last = (
                "long work, or a lock, queue or file that it waits for"
                if inside
                else "or long work before it"
            )
            return f"why {named_ranks(awaited)} did not come: a branch, a count, an exit, {last}"
        if self.waits and not self.circle:  # nobody waits for another rank
            return "what each does there: long work, a loop, or, on a busy machine, still its start"
        kinds = {self.kinds.get(rank, "") for rank in self.circle}
        if AWAIT in kinds:
            return "does rank 0 await no more results than it sends, and does the mesh answer each chunk?"
        if kinds == {RECV}:
            return "which message was never sent, and by whom: all of these wait to receive"
        if "" in kinds and kinds != {""}:
            return "which message did a rank leave out, that went on to the collective call?"
        return "which of these ranks should go first: in another order, or with calls that return a handle"

    @property
    def lines(self) -> list[str]:
        """Everything, a line each."""
        return [*self.mismatches, *map(str, self.waits)]


def _reached(rank: int, awaited: Mapping[int, Sequence[int]]) -> set[int]:
    reached: set[int] = set()
    to_see = [*awaited[rank]]
    while to_see:
        if (other := to_see.pop()) not in reached:
            reached.add(other)
            to_see += awaited.get(other, ())
    return reached


def _sentence(lines: Iterable[str]) -> str:
    text = "; ".join(lines)
    return f"{text[:1].upper()}{text[1:]}."


def program_waits(met: Meetings) -> ProgramWaits | None:
    """Say where the ranks of a program stand; ``None``: all came to the end, and their calls fitted."""
    all_left = all(of_rank.left is not None and not of_rank.left.error for of_rank in met.ranks.values())
    met = met if all_left else _when_the_first_gave_up(met)
    waits = () if all_left else tuple(_wait(met, rank, of_rank) for rank, of_rank in met.ranks.items())
    stood = {rank: stood_in(of_rank) for rank, of_rank in met.ranks.items()}
    kinds = {rank: _kind(met.ranks[rank], call) for rank, call in stood.items() if call is not None}
    if not all_left and (cut_off := start_cut_off(met)) is not None:
        return ProgramWaits(waits, (), cut_off, met.ranks, kinds)  # what did not meet follows from it
    lost = () if all_left else tuple(_lost_handle(met))
    mismatches = (
        *_collectives(met, all_left=all_left),
        *_messages(met, _circle_of_messages(met, waits)),
        *lost,
    )
    if all_left and not mismatches:
        return None
    # Who stands in another call receives nothing: of a cause that is a symptom.
    only_unreceived = all(text.startswith(NOBODY_RECEIVED) for text in mismatches)
    cause = cause_of(met, stood) if only_unreceived and not all_left else None
    mismatches = mismatches if cause is None else ()
    is_lost = bool(lost) and mismatches == lost
    first = next(filter(parted, met.meetings), None)
    turns = _turns(met, first) if first is not None and mismatches and not is_lost else ""
    return ProgramWaits(waits, mismatches, cause, met.ranks, kinds, is_lost, turns)


def _kind(of_rank: RankCalls, call: Call) -> str:
    return "".join(sorted({part.kind for part in of_rank.origin(call).begun.parts}))


def _circle_of_messages(met: Meetings, waits: tuple[Wait, ...]) -> tuple[int, ...]:
    """Return the ranks that wait for themselves, if all of them stand in messages."""
    circle = ProgramWaits(waits, ()).circle
    for rank in circle:
        call = stood_in(met.ranks[rank])
        if call is None or not any(part.kind for part in met.ranks[rank].origin(call).begun.parts):
            return ()
    return circle


def _when_the_first_gave_up(met: Meetings) -> Meetings:
    """Return the calls up to the first exception that ended a rank: what came later was no cause of it.

    A rank that came late may call into a group whose other rank has just left; it stood elsewhere.
    """
    last = [call for of_rank in met.ranks.values() if (call := stood_in(of_rank)) is not None and call.error]
    if not last or len({of_rank.head.clock for of_rank in met.ranks.values()}) > 1:
        return met
    first_ns = min(call.end_ns or call.start_ns for call in last)
    ranks = {}
    for rank, of_rank in met.ranks.items():
        calls = tuple(call for call in of_rank.calls if call.start_ns <= first_ns)
        is_whole = len(calls) == len(of_rank.calls)
        ranks[rank] = of_rank if is_whole else replace(of_rank, calls=calls, left=None)
    return met if ranks == met.ranks else Meetings(ranks)


def stood_in(of_rank: RankCalls) -> Call | None:
    """Return the call that a rank did not come out of, or its last one if that ended with an exception."""
    if of_rank.stands_in is not None or not of_rank.programs:
        return of_rank.stands_in
    last = of_rank.programs[-1]
    return last if last.error and not last.error.startswith(REFUSED) else None


def _wait(met: Meetings, rank: int, of_rank: RankCalls) -> Wait:
    call = stood_in(of_rank)
    if call is not None:
        return Wait(rank, _said(of_rank, call, _number(met, of_rank, call)), _waits_for(met, of_rank, call))
    last = of_rank.programs[-1] if of_rank.programs else None
    after = "before its first call" if last is None else f"after {_said(of_rank, last)}"
    if of_rank.left is None:
        return Wait(rank, f"{OWN_CODE}, {after}", ())
    how = f"ended with {of_rank.left.error.rstrip('.')}" if of_rank.left.error else "came to its end"
    return Wait(rank, f"its program {how}, {after}", ())


def _said(of_rank: RankCalls, call: Call, number: str = "") -> str:
    group = of_rank.origin(call).begun.group
    on = f" on {group}" if group not in ("", "default_pg") else ""
    return f"{of_rank.text(call)}{number}{on} at {call.place}"


def _number(met: Meetings, of_rank: RankCalls, call: Call) -> str:
    """Return the number of the collective that a wait is for, if the ranks of its group parted.

    Two waits for calls of one name are else one call to the reader, and their numbers are not.
    """
    meeting = _meeting(met, of_rank, call) if call.name in WAITS else None
    if meeting is None or not any(m.group == meeting.group and parted(m) for m in met.meetings):
        return ""
    return f" #{meeting.number}"


def _meeting(met: Meetings, of_rank: RankCalls, call: Call) -> Meeting | None:
    """Return the collective that a call is, or that a wait is for; a message is none."""
    key = of_rank.origin(call).begun.number
    return next(
        (m for m in met.meetings if call.rank in m.ends and m.ends[call.rank].call.begun.number == key), None
    )


def _waits_for(met: Meetings, of_rank: RankCalls, call: Call) -> tuple[int, ...]:
    origin = of_rank.origin(call)
    parts = [part for n, part in enumerate(origin.begun.parts) if call.begun.part in (ANY, n)]
    others = [rank for rank in range(of_rank.head.world_size) if rank != call.rank]
    if any(part.kind for part in parts):
        peers = {part.peer for part in parts}
        return tuple(others if ANY in peers else sorted(peers))
    meeting = _meeting(met, of_rank, call)
    if meeting is None:  # calls were not kept, and what met this one is not known
        group = of_rank.groups.get(origin.begun.group)
        return tuple(rank for rank in group.ranks if rank != call.rank) if group is not None else ()
    own = meeting.ends[call.rank]
    elsewhere = [rank for rank, end in meeting.ends.items() if not agree(own, end)]
    return tuple(sorted({*meeting.missing, *elsewhere}))


def _turns(met: Meetings, meeting: Meeting) -> str:
    """Say how often each rank had come to the lines of a meeting, its own call counted; ask for the loops.

    Nothing if a rank never came to one of them: then it is no loop.
    """
    texts = []
    for call in {end.call.begun.site: end.call for end in meeting.ends.values()}.values():
        counts = {
            rank: sum(
                each.begun.site == call.begun.site and each.start_ns <= end.call.start_ns
                for each in met.ranks[rank].calls
            )
            for rank, end in meeting.ends.items()
        }
        if 0 in counts.values():
            return ""
        by_count = ranks_by_value(counts).items()
        times = (f"{named_ranks(ranks)} {'once' if n == 1 else f'{n} times'}" for n, ranks in by_count)
        texts.append(f"{call.name} at {call.line} was called by {listed(times)}")
    asked = f"does {_loops(meeting) or 'a loop around one of them'} make as many turns on each rank?"
    return f"{'; '.join(texts)}: {asked}" if texts[1:] else ""


def _loops(meeting: Meeting) -> str:
    """Return the innermost loops around the calls of a meeting that may end after some turns, in words."""
    found = []
    for site in dict.fromkeys(end.call.begun.site for end in meeting.ends.values()):
        file, _, line = site.rpartition(":")
        loop = own_loop(Frame(file, int(line), ""), None, for_ever=False) if line.isdecimal() else None
        found += [f"{Path(file).name}:{loop}"] if loop else []
    return f"the loop at {' or '.join(dict.fromkeys(found))}" if found else ""


def _collectives(met: Meetings, *, all_left: bool) -> Iterator[str]:
    """Say of each group at which collective its ranks parted: what comes later follows from it.

    What a backward of DDP calls is not known. If it came to its end, the order there is not the order here.
    """
    told: set[tuple[str, tuple[int, ...]]] = set()
    for meeting in met.meetings:
        key = meeting.group, meeting.members
        if meeting.group in met.of_planes:
            continue
        if all_left and any(end.call.name == BACKWARD for end in meeting.ends.values()):
            told |= {key} if len({end.call.name for end in meeting.ends.values()}) > 1 else set()
        elif key not in told and (different := _left_out(met, meeting) or _different(meeting)):
            told.add(key)
            yield different


def _left_out(met: Meetings, meeting: Meeting) -> str:
    """Say who makes a group without the others; nothing if it was made, or all came to it."""
    if not (meeting.makes_groups and meeting.missing and any(map(_stands, meeting.ends.values()))):
        return ""
    came = {rank: f"{end.call.text} ({end.call.place})" for rank, end in meeting.ends.items()}
    calls = {rank: stood_in(met.ranks[rank]) for rank in meeting.missing if rank in met.ranks}
    instead = {rank: f"{call.text} ({call.place})" for rank, call in calls.items() if call is not None}
    each = [f"{named_ranks(ranks)} in {what}" for what, ranks in ranks_by_value(came | instead).items()]
    return f"All ranks have to make a group, and {named_ranks(meeting.missing)} did not: {', '.join(each)}."


def parted(meeting: Meeting) -> bool:
    """Say whether the ranks were in different calls of one number; what DDP calls is not known."""
    return bool(_different(meeting)) and all(end.call.name != BACKWARD for end in meeting.ends.values())


def _different(meeting: Meeting) -> str:
    names = {rank: end.call.name for rank, end in meeting.ends.items()}
    if meeting.makes_groups and len(set(names.values())) == 1:
        made = {rank: end.call.begun.op for rank, end in meeting.ends.items()}
        if len(set(made.values())) < 2:
            return ""
        members = (
            f"{named_ranks(ranks)} make{'s' if len(ranks) == 1 else ''} {listing}"
            for listing, ranks in ranks_by_value(made).items()
        )
        return f"In their {nth(meeting.number)} {meeting.name} the ranks differ: {', '.join(members)}."
    shown = {rank: f"{end.call.text} ({end.call.place})" for rank, end in meeting.ends.items()}
    agreed = {rank: _must_agree(end) for rank, end in meeting.ends.items()}
    if len(set(names.values())) > 1:  # an operator and a function say the same in other words
        agreed = {rank: (kind_of(name),) for rank, name in names.items()}
    if len(set(agreed.values())) < 2:
        return ""
    if len(set(names.values())) == 1:  # the same line says it better without its place
        shown = {rank: end.call.text for rank, end in meeting.ends.items()}
    each = ", ".join(f"{named_ranks(ranks)} {what}" for what, ranks in ranks_by_value(shown).items())
    return f"Collective {meeting.number} of {meeting.group}: {each}."


def agree(one: Endpoint, other: Endpoint) -> bool:
    """Say whether two ranks' calls of a collective fit; an operator says the same in other words."""
    if one.call.name != other.call.name:
        return kind_of(one.call.name) == kind_of(other.call.name)
    return _must_agree(one) == _must_agree(other)


def _must_agree(end: Endpoint) -> tuple[object, ...]:
    call, part, kind = end.call, end.part, kind_of(end.call.name)
    if kind not in ALIKE:
        return (kind, call.begun.op) if call.name in MAKES_GROUPS else (kind,)  # the members
    # Who scatters has the parts in a list, and each rank's own in a tensor, as the others.
    return kind, call.begun.op, part.peer, part.dtype, part.size


def _messages(met: Meetings, circle: Sequence[int]) -> Iterator[str]:
    """Say which messages did not meet, or not as they should: those of ranks in a circle would meet later."""
    programs = [message for message in met.messages if message.group not in met.of_planes]
    alone = [message for message in programs if message.sent is None or message.received is None]
    both = [(m.sent, m.received) for m in programs if m.sent is not None and m.received is not None]
    unlike = [(s, r) for s, r in both if (s.part.dtype, s.part.size) != (r.part.dtype, r.part.size)]
    for sent, received in unlike[:1]:
        more = _more(unlike, "that did not fit")
        yield (
            f"A send of {_what(sent)} (rank {sent.call.rank}, {sent.call.line}) met a receive of "
            f"{_what(received)} (rank {received.call.rank}, {received.call.line}){more}."
        )
    awaited = [message for message in alone if message.sent is None]
    told: set[int] = set()
    for message in alone:
        if message.sent is None:
            continue
        left = [o for o in awaited if id(o) not in told]
        in_circle = {message.sender, message.receiver} <= {*circle}
        ways = (_almost,) if in_circle else (_almost, _half)
        other = next((o for how in ways for o in left if how(message, o)), None)
        if other is not None and other.received is not None:
            told |= {id(message), id(other)}
            yield _apart(message, message.sent, other, other.received)
        elif in_circle:
            told.add(id(message))
    never = [message.sent.call for message in alone if message.sent is not None and id(message) not in told]
    for call in never[:1]:
        yield f"{NOBODY_RECEIVED} rank {call.rank} sent: {call.text} at {call.line}{_more(never)}."


def _lost_handle(met: Meetings) -> Iterator[str]:
    """Say of a message that its sender went on without its handle, and its receiver got nothing."""
    given_up = {id(loan.call) for loan in met.loans if loan.dropped_ns is not None}
    for message in met.messages:
        sent, received = message.sent, message.received
        if message.group in met.of_planes:
            continue
        if sent is None or received is None or sent.blocking is not None or not _stands(received):
            continue
        if id(sent.call) in given_up and (some := _some_dropped(met, sent.call, given_up)):
            yield (
                f"Rank {sent.call.rank} let go of the {some}, and rank {received.call.rank} waited in vain "
                f"({received.call.line})."
            )
            return
        if stood_in(met.ranks[sent.call.rank]) is None or id(sent.call) in given_up:
            yield (
                f"Rank {sent.call.rank} never waited for its {sent.call.name} ({sent.call.line}), and rank "
                f"{received.call.rank} did not receive it ({received.call.line}): was the handle kept?"
            )
            return


def _some_dropped(met: Meetings, call: Call, given_up: Collection[int]) -> str:
    """Say which of several handles of one function a rank let go of, which it waits for, and what was lost.

    Nothing, if it waits for none of them, or if they are many.
    """
    alike = [c for c in met.ranks[call.rank].calls if c.name == call.name and c.lent]
    dropped = [nth(n) for n, c in enumerate(alike, 1) if id(c) in given_up]
    waits = {id(loan.call): loan.wait for loan in met.loans if loan.wait is not None}
    kept = [(nth(n), waits[id(c)].line) for n, c in enumerate(alike, 1) if id(c) in waits]
    if not kept or len(alike) > MANY:
        return ""
    s = "s" if len(dropped) > 1 else ""
    waited = f"waits for the {listed(n for n, _ in kept)} only ({kept[0][1]})"
    went = f"the message{s} went with the handle{s}"
    return f"handle{s} of the {listed(dropped)} {call.name} ({call.line}) and {waited}: {went}"


def _stands(end: Endpoint) -> bool:
    """Whether its rank did not get what it waited for."""
    return end.raised or (end.blocking is not None and end.done_ns is None)


def _almost(message: Message, other: Message) -> bool:
    return (message.sender, message.receiver) == (other.sender, other.receiver)


def _half(message: Message, other: Message) -> bool:
    """Whether one rank names another peer than the one that named it."""
    return other.sender != ANY and (message.sender == other.sender) != (message.receiver == other.receiver)


def _apart(message: Message, sent: Endpoint, other: Message, received: Endpoint) -> str:
    if not _almost(message, other):
        ours = f"Rank {message.sender} sent to rank {message.receiver} ({sent.call.line})"
        return f"{ours}, rank {other.receiver} awaited rank {other.sender} ({received.call.line})."
    ways = [("tag", sent.part.tag, received.part.tag), ("on", message.group, other.group)]
    said = [(f"{word} {ours}", f"{word} {theirs}") for word, ours, theirs in ways if ours != theirs]
    ours, theirs = (", ".join(texts) for texts in zip(*said, strict=True)) if said else ("", "")
    return (
        f"Rank {message.sender} sent {ours} ({sent.call.line}), rank {message.receiver} awaited {theirs} "
        f"({received.call.line})."
    )


def _more(found: Sequence[object], of_what: str = "") -> str:
    return f", and {len(found) - 1} more {of_what}".rstrip() if len(found) > 1 else ""


def _what(end: Endpoint) -> str:
    return end.part.text or "an object"
