"""What is said of each call in the figure of a program's calls: its name, its number, which wait it is.

Where the ranks of a group parted, each of its collectives has its number, as the group counts: what meets is
equal numbers of one group. Elsewhere the bands say it, and a number would only be one more thing to read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ppwork.errors import duration
from ppwork.records.calls import ANY, RECV, SEND, WAIT, WAITS, Call, RankCalls
from ppwork.timeline.meetings import MAKES_GROUPS, START, Meeting, Meetings, nth

NUMBERED = 6
"""Handles of one function and one rank that get numbers, and waits."""
UNEQUAL = 20
"""How many times as long as another's a rank's call of a collective is, from where on both say how long."""
OUTSIDE = "not a member, does nothing"
ROOT = "root"
ROOTED = ("broadcast", "scatter", "gather", "reduce")
"""Begin the names of the collectives that have a root."""
Words = tuple[str, ...]
"""Of one call, the longest first."""


def words_of_calls(
    met: Meetings, shown: Sequence[Call], parted: Collection[str], lengths: Mapping[int, str]
) -> dict[int, Words]:
    """Return what is said of each call by its ``id``.

    Args:
        met: What met what in the program.
        shown: Its calls that are drawn.
        parted: Groups whose ranks were in different calls of one number.
        lengths: Of calls that say how long they took, as ``lengths_of`` returns them.
    """
    numbers = _numbers(met.meetings, parted, shown)
    words: dict[int, Words] = {}
    for rank, of_rank in met.ranks.items():
        calls = [call for call in shown if call.rank == rank]
        waits = [call for call in calls if call.name in WAITS]
        for call in calls:
            if call.name in WAITS:
                words[id(call)] = _of_wait(of_rank, call, waits, numbers)
            elif met.is_outside(call):
                words[id(call)] = f"{call.name}: {OUTSIDE}", OUTSIDE, "not a member"
            elif number := numbers.get(id(call)):
                words[id(call)] = f"{call.name} {number}", number
            else:
                words[id(call)] = _named(of_rank, call, lengths.get(id(call), ""))
    return words


def _numbers(meetings: Sequence[Meeting], parted: Collection[str], shown: Sequence[Call]) -> dict[int, str]:
    """Return the number in its group of each collective, by the call's ``id``, of the groups that parted.

    Where collectives of other groups are drawn, too, all of them have the name of their group besides: which
    calls meet is then not to be seen by a number alone.
    """
    drawn = {id(call) for call in shown}
    counted = [m for m in meetings if parted and m.name not in (START, *MAKES_GROUPS)]
    several = len({m.group for m in counted if any(id(e.call) in drawn for e in m.ends.values())}) > 1
    return {
        id(end.call): f"{m.group.removesuffix('_pg')} #{m.number}" if several else f"#{m.number}"
        for m in counted
        for end in m.ends.values()
    }


def lengths_of(meetings: Sequence[Meeting]) -> dict[int, str]:
    """Return how long each rank was in a collective that kept some much longer than others, by ``id``."""
    lengths: dict[int, str] = {}
    for meeting in meetings:
        took = {id(e.call): e.call.end_ns - e.call.start_ns for e in meeting.ends.values() if e.call.end_ns}
        if not meeting.is_start and took and max(took.values()) > UNEQUAL * min(took.values()):
            lengths |= {call: duration(ns / 1e9) for call, ns in took.items()}
    return lengths


def _of_wait(of_rank: RankCalls, call: Call, waits: Sequence[Call], numbers: dict[int, str]) -> Words:
    """Say which wait it is: of which of several handles, and if it is not the first of it."""
    origin = of_rank.origin(call)
    if number := numbers.get(id(origin)):
        return (f"{WAIT} for {number}", WAIT) if number.startswith("#") else (WAIT,)
    lent, count = handle(of_rank, origin, call.begun.part)
    if origin is call or (len(waits) < 2 and count < 2):
        return (WAIT,)
    same = [w for w in waits if (w.begun.of, w.begun.part) == (call.begun.of, call.begun.part)]
    which = f"{nth(same.index(call) + 1, words=False)} {WAIT}" if len(same) > 1 else WAIT
    if count > NUMBERED or len(waits) > 2 * NUMBERED:
        return (which,)
    return f"{which} of {lent}", f"{which} {lent}", which


def handle(of_rank: RankCalls, call: Call, part: int = ANY) -> tuple[str, int]:
    """Return the function that returned a handle, with its number where some are alike, and how many are."""
    parts = call.begun.parts
    if part in range(len(parts)) and len(parts) > 1:  # of a batch
        kinds = [n for n, one in enumerate(parts) if one.kind == parts[part].kind]
        name, place, count = f"i{parts[part].kind}", kinds.index(part) + 1, len(kinds)
    else:
        alike = [c.begun.number for c in of_rank.calls if c.name == call.name and c.lent]
        place = alike.index(call.begun.number) + 1 if call.begun.number in alike else 0
        name, count = call.name, len(alike)
    return (f"{name} {place}" if 1 < count <= NUMBERED else name), count


def _named(of_rank: RankCalls, call: Call, length: str) -> Words:
    name = f"{call.name} {call.begun.makes}".strip()
    if call.name in MAKES_GROUPS:
        which = f"{call.begun.makes}: {call.begun.op}" if call.begun.makes else ""
        listed = (f"{name}: {call.begun.op}", *([f"group {which}", which] if which else []))
        return (*listed, name) if call.begun.op else (name,)
    if call.lent and any(part.kind in (SEND, RECV) for part in call.begun.parts):
        name = handle(of_rank, call)[0]
    role = _role(call)
    said = [f"{name}, {role}"] if role else []
    said = [*([f"{word}, {length}" for word in (*said, name)] if length else []), *said]
    # The colour says the name, and nothing else says who is the root.
    return tuple(dict.fromkeys([*said, *([role] if role == ROOT else []), name, call.name]))


def _role(call: Call) -> str:
    """Say of a collective that has a root who that is."""
    parts = call.begun.parts
    if not call.name.startswith(ROOTED) or len(parts) != 1 or parts[0].kind or parts[0].peer == ANY:
        return ""
    return ROOT if parts[0].peer == call.rank else f"{ROOT} {parts[0].peer}"
