"""What is said of each call in the figure of a program's calls: its name, its number, which wait it is.

Where the ranks of a group parted, each of its collectives has its number, as the group counts: what meets is
equal numbers. Elsewhere the bands say it, and a number would only be one more thing to read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ppwork.records.calls import WAIT, WAITS, Call
from ppwork.timeline.meetings import MAKES_GROUPS, START, Meeting, Meetings

NUMBERED = 4
"""Waits of one rank that get numbers."""
Words = tuple[str, ...]
"""Of one call, the longest first."""


def words_of_calls(met: Meetings, shown: Sequence[Call], parted: Collection[str]) -> dict[int, Words]:
    """Return what is said of each call by its ``id``.

    Args:
        met: What met what in the program.
        shown: Its calls that are drawn.
        parted: Groups whose ranks were in different calls of one number.
    """
    numbers = _numbers(met.meetings, parted)
    words: dict[int, Words] = {}
    for rank in met.ranks:
        calls = [call for call in shown if call.rank == rank]
        for call in calls:
            number = numbers.get(id(call))
            words[id(call)] = (f"{call.name} #{number}", f"#{number}") if number else _named(call)
        waits = [call for call in calls if call.name in WAITS]
        for count, call in enumerate(waits, 1):
            same = [w for w in waits if (w.begun.of, w.begun.part) == (call.begun.of, call.begun.part)]
            if number := numbers.get(id(met.ranks[rank].origin(call))):
                words[id(call)] = (f"{WAIT} for #{number}", WAIT)
            elif len(same) > 1 and call.begun.of >= 0:
                words[id(call)] = (f"{_nth(same.index(call) + 1)} wait",)
            elif 1 < len(waits) <= NUMBERED:
                words[id(call)] = (f"wait {count}",)
    return words


def _numbers(meetings: Sequence[Meeting], parted: Collection[str]) -> dict[int, int]:
    """Return the number in its group of each collective, by the call's ``id``, of the groups that parted."""
    counted = [m for m in meetings if m.group in parted and m.name not in (START, *MAKES_GROUPS)]
    return {id(end.call): meeting.number for meeting in counted for end in meeting.ends.values()}


def _named(call: Call) -> Words:
    short = f"{call.name} {call.begun.makes}".strip()
    ranks = call.begun.op if call.name in MAKES_GROUPS else ""
    return (f"{short}: {ranks}", short) if ranks else (short,)


def _nth(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
