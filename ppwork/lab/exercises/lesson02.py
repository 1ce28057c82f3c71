"""Exercises of the lesson on groups (02)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun
from ppwork.records.calls import Call

CASES: tuple[tuple[list[int], int, bool], ...] = (
    ([1, 2], 2, True),
    ([1, 2], 0, True),
    ([3, 1], 3, True),
    ([3, 1], 3, False),
    ([0, 1], 0, True),
)
"""Ranks that ``new_group`` is given, the one that asks for its number in that group, and ``sort_ranks``."""


@exercise
def _group_rank() -> Iterator[TriedCall]:
    for ranks, rank, sort_ranks in CASES:
        order = sorted(ranks) if sort_ranks else ranks
        right = order.index(rank) if rank in ranks else -1
        thought = partial(_group_rank_thought, ranks, rank, sort_ranks)
        text = f"For new_group({ranks}, sort_ranks={sort_ranks}) and rank {rank}"
        yield TriedCall(text, (ranks, rank, sort_ranks), right, thought)


def _group_rank_thought(ranks: list[int], rank: int, sort_ranks: bool, given: object) -> str:
    if rank not in ranks:
        return "A rank that is not in the group has the rank -1 in it."
    if sort_ranks and given == ranks.index(rank):
        return "With sort_ranks=True, the default, the first of your list need not be the first of the group."
    if not sort_ranks and given == sorted(ranks).index(rank):
        return "With sort_ranks=False the order of your list stays."
    return "The numbers within a group begin at 0."


ALL = ["mesh", "down", "up"]
CREATED: dict[str, tuple[dict[int, list[str]], tuple[int, list[int]] | None]] = {
    "Rank 0 left mesh out; the first rank is not always in the majority.": (
        {0: ALL[1:], 1: ALL, 2: ALL},
        (0, [0]),
    ),
    "All lists are the same.": ({0: ALL, 1: ALL, 2: ALL}, None),
    "Rank 2 left up out: its list has ended there; look beyond the end of the shortest.": (
        {0: ALL, 1: ALL, 2: ALL[:2]},
        (2, [2]),
    ),
    "Rank 1 swapped down and up: its list is as long as the others.": (
        {0: ALL, 1: ["mesh", "up", "down"], 2: ALL},
        (1, [1]),
    ),
    "Two ranks differ there, each in its own way.": (
        {0: ["down"], 1: ["mesh", "down"], 2: ["mesh", "down"], 3: ["mesh", "down"], 4: ["up", "down"]},
        (0, [0, 4]),
    ),
    "Rank 0 made one group more than the others, whose lists count as `None` there.": (
        {0: [*ALL, "test"], 1: ALL, 2: ALL},
        (3, [0]),
    ),
}
"""Names of the groups that each rank made, in order, and where they differ first, by what to think of."""


@exercise
def _first_difference() -> Iterator[TriedCall]:
    for thought, (created, right) in CREATED.items():
        yield TriedCall(f"For {created}", (created,), right, thought)


FUNCTIONS = {"02.1": _group_rank, "02.4": _first_difference}


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


@program(2)
def _mended(attempt: Attempt) -> Iterator[str]:
    for rank, line in ((1, "received 7"), (0, "result 7")):
        if line not in attempt.lines(rank):
            yield f"Rank {rank} should print `{line}`; it printed {attempt.lines(rank)}."
    if not attempt.calls(1, "all_reduce"):
        yield "Rank 1 has left out the sum in its mesh. Change only the lines that make the groups."


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


BOTH_THERE = "has [1.0, 2.0, 3.0] [2.0, 4.0, 6.0]"


@program(4)
def _fanned_out(attempt: Attempt) -> Iterator[str]:
    broadcasts = attempt.calls(1, "broadcast")
    if len(broadcasts) != 2:
        yield (
            f"Rank 1 made {len(broadcasts)} broadcasts. It should pass on each of the two tensors by one "
            "broadcast, not by one message per rank."
        )
    for rank in MESH:
        if BOTH_THERE not in attempt.lines(rank):
            yield (
                f"Rank {rank} printed {attempt.lines(rank)}. Whose numbers did the broadcasts bring? "
                "`src` is a rank of the world, `group_src` one of the group; the leader is 1 in the world."
            )
    by_group = [_names_group_root(call) for call in broadcasts]
    if len(set(by_group)) == 1:
        yield f"Both roots are named by `{'group_src' if by_group[0] else 'src'}`: name one by the other."


def _names_group_root(call: Call) -> bool:
    path, _, line = call.begun.site.rpartition(":")
    calls = [node for node in ast.walk(ast.parse(Path(path).read_bytes())) if isinstance(node, ast.Call)]
    here = [node for node in calls if node.lineno <= int(line) <= (node.end_lineno or node.lineno)]
    return any(word.arg == "group_src" for node in here for word in node.keywords)


PROGRAMS: Programs = {
    "02.2": first_of(_no_collective_of_all, _fanned_out),
    "02.3": first_of(_same_groups, _mended),
}
