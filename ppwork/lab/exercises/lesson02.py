"""Exercises of the lesson on groups (02)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ppwork.lab.exercises.answers import Answer, Case, exercise
from ppwork.lab.exercises.attempts import Programs
from ppwork.protocol.topology import GROUP_ORDER, STAGE0_RANK, Role, Topology

CASES: tuple[tuple[list[int], int], ...] = (([1, 2], 2), ([1, 2], 0), ([3, 1], 3), ([0, 1], 0))
"""Ranks that ``new_group`` is given, and the one that asks for its number in that group."""


@exercise
def _group_rank() -> Iterator[Case]:
    for members, rank in CASES:
        right = sorted(members).index(rank) if rank in members else -1
        thought = partial(_group_rank_thought, members, rank)
        yield Case(f"For new_group({members}) and rank {rank}", (members, rank), right, thought)


def _group_rank_thought(members: list[int], rank: int, given: object) -> str:
    if rank not in members:
        return "A rank that is not in the group has the rank -1 in it."
    if given == members.index(rank):
        return "`new_group` sorts the ranks: the first of your list need not be the first of the group."
    return "The numbers within a group begin at 0."


def _groups_of(answer: Answer) -> str:
    thoughts = {
        Role.STAGE0: "Rank 0 has its two links, and is in no group of the mesh.",
        Role.LEADER: "The leader is on both sides: it has the links to rank 0, and it is in the mesh.",
        Role.FOLLOWER: "A follower has no link to rank 0; what it gets comes from the leader.",
    }
    for mesh_size in (2, 4):
        of = Topology(mesh_size)
        for rank in (STAGE0_RANK, *of.mesh_ranks):
            right = [name for name in ("world_pg", *GROUP_ORDER) if rank in of.ranks(name)]
            given = answer(rank, mesh_size)
            if not isinstance(given, list | tuple | set) or set(given) != set(right):
                thought = _thought(given) or thoughts[of.role(rank)]
                return f"For rank {rank}, mesh_size={mesh_size} you gave {given!r}. {thought}"
    return ""


def _thought(given: object) -> str:
    if not isinstance(given, list | tuple | set):
        return "Return a list of the groups' names."
    unknown = sorted(set(given) - {"world_pg", *GROUP_ORDER})
    if unknown:
        return f"There is no {unknown[0]!r}: the groups are world_pg, {', '.join(GROUP_ORDER)}."
    return "" if "world_pg" in given else "Every rank is in world_pg."


LISTS: tuple[list[str], ...] = (list(GROUP_ORDER), ["down_pg", "up_pg"], ["tp_pg", "down_pg", "up_pg"])
"""Groups that a rank has created, in order, ``down_pg`` among them."""


@exercise
def _number() -> Iterator[Case]:
    for created in LISTS:
        right = created.index("down_pg") + 1
        yield Case(f"For {created}", (created,), right, partial(_numbering, created))


def _numbering(created: list[str], given: object) -> str:
    if given == created.index("down_pg"):
        return "Number 0 is the default group, which `init_process_group` makes."
    if given == len(created):
        return "What is created after it does not count."
    if given == GROUP_ORDER.index("down_pg") + 1:
        return "A rank counts its own calls; what the others have created does not come into it."
    return "Groups are numbered as this rank creates them."


BOTH = ["mesh_pg", "down_pg"]
CREATED = {
    "Rank 0 is no member of mesh_pg; it has to create it all the same.": {0: ["down_pg"], 1: BOTH, 2: BOTH},
    "Nobody is behind.": {0: BOTH, 1: BOTH, 2: BOTH},
    "Rank 2 is no member of down_pg; it has to create it all the same.": {0: BOTH, 1: BOTH, 2: ["mesh_pg"]},
    "Ranks 0 and 3 have left out a group each, and not the same one.": {
        0: ["mesh_pg"],
        1: ["mesh_pg", "tp_pg"],
        2: ["mesh_pg", "tp_pg"],
        3: ["tp_pg"],
    },
    "The order of rank 0 is wrong, too, but it has left nothing out.": {0: BOTH[::-1], 1: BOTH, 2: BOTH},
}
"""Names of the groups that each rank creates, in order, by what to think of."""


@exercise
def _behind() -> Iterator[Case]:
    for thought, created in CREATED.items():
        every = {name for names in created.values() for name in names}
        right = [rank for rank, names in created.items() if every - set(names)]
        yield Case(f"For {created}", (created,), right, thought)


FUNCTIONS = {"02.1": _group_rank, "02.2": _groups_of, "02.3": _number, "02.4": _behind}
PROGRAMS: Programs = {}
