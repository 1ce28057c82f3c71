"""Exercises of the lesson on groups (02)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ppwork.lab.exercises.answers import Case, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun

CASES: tuple[tuple[list[int], int, bool], ...] = (
    ([1, 2], 2, True),
    ([1, 2], 0, True),
    ([3, 1], 3, True),
    ([3, 1], 3, False),
    ([0, 1], 0, True),
)
"""Ranks that ``new_group`` is given, the one that asks for its number in that group, and ``sort_ranks``."""


@exercise
def _group_rank() -> Iterator[Case]:
    for ranks, rank, sort_ranks in CASES:
        order = sorted(ranks) if sort_ranks else ranks
        right = order.index(rank) if rank in ranks else -1
        thought = partial(_group_rank_thought, ranks, rank, sort_ranks)
        text = f"For new_group({ranks}, sort_ranks={sort_ranks}) and rank {rank}"
        yield Case(text, (ranks, rank, sort_ranks), right, thought)


def _group_rank_thought(ranks: list[int], rank: int, sort_ranks: bool, given: object) -> str:
    if rank not in ranks:
        return "A rank that is not in the group has the rank -1 in it."
    if sort_ranks and given == ranks.index(rank):
        return "With sort_ranks=True, the default, the first of your list need not be the first of the group."
    if not sort_ranks and given == sorted(ranks).index(rank):
        return "With sort_ranks=False the order of your list stays."
    return "The numbers within a group begin at 0."


BOTH = ["mesh_pg", "down_pg"]
CREATED = {
    "Rank 0 is no member of mesh_pg; it has to make it all the same.": {0: ["down_pg"], 1: BOTH, 2: BOTH},
    "Nobody left one out.": {0: BOTH, 1: BOTH, 2: BOTH},
    "Each of them left one out, and both lists have the same length: look at names, not at lengths.": {
        0: ["down_pg"],
        1: ["mesh_pg"],
    },
    "Rank 2 is no member of down_pg; it has to make it all the same.": {0: BOTH, 1: BOTH, 2: ["mesh_pg"]},
    "Ranks 0 and 3 left out a group each, and not the same one.": {
        0: ["mesh_pg"],
        1: ["mesh_pg", "tp_pg"],
        2: ["mesh_pg", "tp_pg"],
        3: ["tp_pg"],
    },
    "The order of rank 0 is wrong, too, but it left nothing out.": {0: BOTH[::-1], 1: BOTH, 2: BOTH},
}
"""Names of the groups that each rank made, in order, by what to think of."""


@exercise
def _left_one_out() -> Iterator[Case]:
    for thought, created in CREATED.items():
        every = {name for names in created.values() for name in names}
        right = [rank for rank, names in created.items() if every - set(names)]
        yield Case(f"For {created}", (created,), right, thought)


FUNCTIONS = {"02.1": _group_rank, "02.4": _left_one_out}


def _same_groups(run: ScriptRun) -> str:
    """Compare where the ranks make their groups: of a program that hung, too, it is in the records."""
    if run.failure is None:
        return ""
    attempt = Attempt(run)
    made = {rank: [call.line for call in attempt.calls(rank, "new_group")] for rank in range(run.nproc)}
    for number in range(max(map(len, made.values()))):
        lines = {rank: of_rank[number] for rank, of_rank in made.items() if len(of_rank) > number}
        if len(set(lines.values())) > 1:
            places = ", ".join(f"rank {rank} at {line}" for rank, line in lines.items())
            return (
                f"The ranks do not make the same group as their number {number + 1}: {places}. Each rank "
                "counts the groups that it makes, so all ranks have to make all groups, in one order."
            )
    return ""


@program(3)
def _mended(attempt: Attempt) -> Iterator[str]:
    if "received 7" not in attempt.lines(1):
        yield f"Rank 1 should print `received 7`; it printed {attempt.lines(1)}."
    for rank in (1, 2):
        if "sum 2" not in attempt.lines(rank):
            yield (
                f"Rank {rank} should print `sum 2`; it printed {attempt.lines(rank)}. Is the sum in the mesh?"
            )
    if "result 2" not in attempt.lines(0):
        yield f"Rank 0 should print `result 2`; it printed {attempt.lines(0)}. What does rank 1 send in `up`?"


MESH = (1, 2, 3)


def _no_collective_of_all(run: ScriptRun) -> str:
    """Look at the group of each broadcast, also in a program that hung."""
    attempt = Attempt(run)
    if attempt.calls(0, "broadcast"):
        return (
            "Rank 0 called broadcast. It sends to rank 1, and is not in the mesh: leave it out of the call."
        )
    for rank in range(run.nproc):
        for call in attempt.calls(rank, "broadcast"):
            group = attempt.met.ranks[rank].groups.get(call.begun.group)
            if group is not None and 0 in group.ranks:
                return (
                    f"The broadcast at {call.line} is for ranks {list(group.ranks)}, so it waits for rank 0, "
                    "which does not come. Which group do you mean?"
                )
    return ""


@program(4)
def _fanned_out(attempt: Attempt) -> Iterator[str]:
    if not attempt.calls(1, "broadcast"):
        yield "Rank 1 should pass the numbers on by one broadcast, not by a message to each rank."
    for rank in MESH:
        if "has [1.0, 2.0, 3.0]" not in attempt.lines(rank):
            yield (
                f"Rank {rank} printed {attempt.lines(rank)}. Whose numbers did the broadcast bring? "
                "`src` is a rank of the world, `group_src` one of the group; the leader is 1 in the world."
            )


PROGRAMS: Programs = {
    "02.2": first_of(_no_collective_of_all, _fanned_out),
    "02.3": first_of(_same_groups, _mended),
}
