"""A difference between the collectives of mesh ranks, in words; no rank is known to be right.

No I/O. If one rank makes an extra sum, its calls shift against the others': the comparison then finds an
innocent pair of calls further down. So this module aligns the chunk's calls of all ranks, and finds the place
where their lines part.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ppwork.errors import listed, named_ranks, ranks_by_value
from ppwork.records.ledger import COMPARE, ON_DEFAULT, CollectiveCall

Calls = Mapping[int, Sequence[CollectiveCall]]
"""By rank, the calls of one chunk, in order; the last is the call that the rank is about to make."""
_TENSOR = re.compile(r" \w+\[[\d, ]*\]")
_DTYPE = re.compile(r" (\w+)(?=\[[\d, ]*\])")
_ROOT = re.compile(r"(from|to) (group )?rank \d+")
BEFORE, BEHIND = 1, 4
"""Calls that are listed before that place and after it."""


class RankDifference(NamedTuple):
    """Ranks that differ, all of equal weight; ``what`` names a minority first, and has each rank's line."""

    what: str
    check_first: str
    ranks: tuple[int, ...]


def difference_of(calls: Calls) -> RankDifference | None:
    """Compare the calls that mesh ranks are about to make; ``None`` if they are the same.

    The answer is the same on every rank that has the same calls.
    """
    newest = {rank: each[-1] for rank, each in calls.items()}
    by_call = ranks_by_value({rank: call.anywhere for rank, call in newest.items()})
    if len(by_call) == 1:
        return None
    sides = sorted(by_call.values(), key=lambda ranks: (len(ranks), ranks))
    who = _who(sides)
    if (count := _parting(calls, sides)) is None:
        above = _above(newest.values())
        shown = "".join(lines_of({rank: newest[rank] for rank in side}, above) for side in sides)
        what = f"{who}{_sentence(newest, sides)}{shown}"
    else:
        there = {rank: next(call for call in each if call.count == count) for rank, each in calls.items()}
        above = _above(there.values())
        shown = "".join(_list(side, calls[side[0]], count, above) for side in sides)
        what = f"{who}{_sentence(there, sides)}{_one_more(calls, sides, count)}"
        what += f" It showed later{_sentence(newest, sides)}{shown}"
    ranks = tuple(rank for side in sides for rank in side)
    return RankDifference(what, _check_first(newest, sides), ranks)


def _who(sides: Sequence[Sequence[int]]) -> str:
    """Return subject and verb: two ranks that differ, or the minority first."""
    *odd, usual = sides
    if len(usual) == 1:
        return f"{named_ranks([rank for side in sides for rank in side]).capitalize()} differ"
    ranks = [rank for side in odd for rank in side]
    verb = "differs" if len(ranks) == 1 else "differ"
    return f"{named_ranks(ranks).capitalize()} {verb} from {named_ranks(usual)}"


def _parting(calls: Calls, sides: Sequence[Sequence[int]]) -> int | None:
    """Return the number of an earlier call of the chunk that one side made from other lines than the rest.

    If all ranks call the same helper, the callers' lines decide, if the ranks have any line in common; else
    they have reached the chunk by lines of their own.
    """
    by_count = {rank: {call.count: call for call in each[:-1]} for rank, each in calls.items()}
    if len({each[-1].chunk_index for each in calls.values()}) > 1:
        return None
    counts = sorted(set.intersection(*(set(each) for each in by_count.values())))
    for kind in ("line", "site"):
        of_ranks = [{getattr(call, kind) for call in each} for each in calls.values()]
        if kind == "site" and not set.intersection(*of_ranks):
            break
        for count in counts:
            *odd, usual = ({getattr(by_count[rank][count], kind) for rank in side} for side in sides)
            if "" not in usual.union(*odd) and any(not usual & sites for sites in odd):
                return count
    return None


def _one_more(calls: Calls, sides: Sequence[Sequence[int]], count: int) -> str:
    """Say which of two sides has made a call more, if from there on both made the same calls.

    A side that has ended its chunk has made all its calls. If neither has, it may be either: nothing is said.
    """
    if len(sides) != 2:
        return ""
    made = [
        {call.count: (call.operation, call.site) for call in calls[side[0]] if call.operation}
        for side in sides
    ]
    fewer = []
    for mine, other in ((0, 1), (1, 0)):
        behind = [number for number in made[other] if number > count and number - 1 in made[mine]]
        is_shifted = all(made[other][number] == made[mine][number - 1] for number in behind)
        if behind and is_shifted and calls[sides[other][0]][-1].operation:
            fewer.append(mine)
    if len(fewer) != 1:
        return ""
    less, more = named_ranks(sides[fewer[0]]), named_ranks(sides[1 - fewer[0]])
    return f" It seems that {more} made one there that {less} did not make."


def _above(calls: Iterable[CollectiveCall]) -> int:
    """Return how many callers are needed to tell calls of one line apart; 1 if no caller does that.

    It may be a helper's line: then the line that called it is the one to look at.
    """
    stacks = [call.places for call in calls]
    parting = [level for level, places in enumerate(zip(*stacks, strict=False)) if len({*places}) > 1]
    return min(parting, default=1)


def _called(call: CollectiveCall, above: int) -> str:
    return "".join(f", called at {place}" for place in call.places[1 : above + 1])


def _sentence(calls: Mapping[int, CollectiveCall], sides: Sequence[Sequence[int]]) -> str:
    """Return where the calls are, if that is one place, and each side's call, with its line."""
    every = [*calls.values()]
    at, in_one_chunk = "", len({call.chunk_index for call in every}) == 1
    above = _above(every)
    in_one_place = in_one_chunk and len({call.count for call in every if call.operation}) == 1
    in_one_place = in_one_place and all(call.operation for call in every)
    if in_one_chunk:
        place = f"at {_noun(every)} {every[0].count} of" if in_one_place else "in"
        at = f" {place} chunk {every[0].chunk_index}"
    parts = []
    for side in sides:
        call = calls[side[0]]
        said = str(call)
        if in_one_chunk and call.operation:
            said = f"called {call.operation}" + ("" if in_one_place else f" as collective {call.count}")
        elif in_one_chunk:
            said = f"ended it after {call.collectives}"
        known = [calls[rank] for rank in side if calls[rank].places]
        places = listed(dict.fromkeys(f"{call.places[0]}{_called(call, above)}" for call in known))
        last = "" if call.operation else "the last at "
        parts.append(f"{named_ranks(side)} {said}" + (f" ({last}{places})" if places and call.count else ""))
    return f"{at}: {', '.join(parts)}."


def _noun(calls: Iterable[CollectiveCall]) -> str:
    return "call" if any(call.operation.startswith(COMPARE) for call in calls) else "collective"


def _list(side: Sequence[int], calls: Sequence[CollectiveCall], place: int, above: int) -> str:
    """Return one side's calls of the chunk around a place, each as a line below a sentence."""
    shown = [call for call in calls if place - BEFORE <= call.count <= place + BEHIND and call.operation]
    if calls[-1] not in shown:
        shown.append(calls[-1])
    text, before = f"\n  {named_ranks(side)} in chunk {calls[-1].chunk_index}:", 0
    for call in shown:
        text += "\n    ..." if call.count - bool(call.operation) > before else ""
        if call.operation:
            at = f" at {call.line}{_called(call, above)}" if call.site else ""
            text += f"\n    {call.count} {call.operation}{at}"
        else:
            text += f"\n    ended after {call.collectives}"
        before = call.count
    return text


def lines_of(calls: Mapping[int, CollectiveCall], above: int = 0) -> str:
    """Return the user's lines of one call, by rank, with ``above`` callers, to stand below a sentence."""
    last = ", last" if any(call.count and not call.operation for call in calls.values()) else ""
    sites = ranks_by_value({rank: call.line + _called(call, above) for rank, call in calls.items()})
    return "".join(f"\n  {named_ranks(ranks)}{last} at {site}" for site, ranks in sites.items() if site)


def _check_first(newest: Mapping[int, CollectiveCall], sides: Sequence[Sequence[int]]) -> str:
    calls = [*newest.values()]
    if len({(call.chunk_index, call.count, bool(call.operation)) for call in calls}) > 1:
        check = "is a collective behind a flag or a condition that only one rank knows?"
        if len({(call.chunk_index, call.places) for call in calls}) == 1 and (places := calls[0].places):
            check = f"does a loop around {' or '.join(places[:2])} make as many turns on all ranks? {check}"
        return check
    operations = {_TENSOR.sub("", call.operation) for call in calls}
    if all(operation.startswith(COMPARE) for operation in operations):
        return "is it loaded, reset and updated alike on these ranks? also before this chunk"
    if len({_ROOT.sub("", operation) for operation in operations}) == 1 < len(operations):
        return (
            "which rank gives, or takes? `src` and `dst` count in the job, `group_src` and `group_dst` in the"
            " group"
        )
    if len(operations) > 1:
        return "what makes these ranks call another function here, or in another order?"
    left_out = _left_out(newest, sides)
    if len({_DTYPE.sub("", call.operation) for call in calls}) == 1:
        kinds = {rank: " and ".join(_DTYPE.findall(call.operation)) for rank, call in newest.items()}
        each = listed(f"{kind} on {named_ranks(ranks)}" for kind, ranks in ranks_by_value(kinds).items())
        return f"the shapes are equal, and the dtype is not: what makes it {each}? {left_out}".rstrip()
    if left_out:
        return f"{left_out} else what makes the tensors, or the order of calls, differ between these ranks?"
    return (
        "what makes the tensors differ between these ranks? or does one make these calls in another order, "
        "or one more or one fewer before?"
    )


def _left_out(newest: Mapping[int, CollectiveCall], sides: Sequence[Sequence[int]]) -> str:
    """Ask for the call of an earlier line that who is at a later line of the same file may have left out."""
    if len(sides) != 2:
        return ""
    stacks = [newest[side[0]].places for side in sides]
    parted = next((pair for pair in zip(*stacks, strict=False) if pair[0] != pair[1]), None)
    if parted is None:
        return ""
    (file, _, line), (other_file, _, other_line) = (place.rpartition(":") for place in parted)
    if file != other_file or not (line.isdecimal() and other_line.isdecimal()):
        return ""
    ahead = 0 if int(line) > int(other_line) else 1
    who = named_ranks(sides[ahead])
    verb = "does" if len(sides[ahead]) == 1 else "do"
    return f"{verb} {who} leave out the call at {parted[1 - ahead]}, or make a turn of a loop less there?"


def first_difference(ledgers: Mapping[int, Mapping[int, CollectiveCall]]) -> RankDifference | None:
    """Return the first call that some ranks made differently from others.

    Args:
        ledgers: Results of ``read_ledger``, by rank. A call is compared among the ranks that reached it.
    """
    for number in sorted({number for calls in ledgers.values() for number in calls}):
        chunks = {rank: chunk_until(calls, number) for rank, calls in ledgers.items() if number in calls}
        if len(chunks) > 1 and (difference := difference_of(chunks)) is not None:
            return difference
    return None


def chunk_until(calls: Mapping[int, CollectiveCall], number: int) -> list[CollectiveCall]:
    """Return a rank's calls of one chunk, up to the call with this number, which must exist."""
    chunk_index = calls[number].chunk_index
    return [call for n, call in calls.items() if n <= number and call.chunk_index == chunk_index]


def beside_stage0(ledgers: Mapping[int, Mapping[int, CollectiveCall]]) -> tuple[str, str, int] | None:
    """Explain the case that the last call of all mesh ranks was on the job's own default group.

    Args:
        ledgers: Results of ``read_ledger``, by mesh rank.

    Returns:
        ``None`` if it was not; else a sentence on the call, what to check first, and the chunk.
    """
    newest = {rank: calls[max(calls)] for rank, calls in ledgers.items() if calls}
    if len(newest) < len(ledgers) or len({call.anywhere for call in newest.values()}) != 1:
        return None
    call = next(iter(newest.values()))
    if not call.operation.endswith(ON_DEFAULT):
        return None
    return (
        f"{named_ranks([*newest]).capitalize()} last called {call.operation}, the job's own, in chunk "
        f"{call.chunk_index}; rank 0, which is in that group, waited for the result of the chunk."
        f"{lines_of(newest)}",
        "group=plane.tp.group; a collective of all ranks of the job: before the loop, or after it",
        call.chunk_index,
    )
