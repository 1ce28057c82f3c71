"""Exercises of the lesson on groups (02)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppwork.topology import GROUP_ORDER, STAGE0_RANK, Role, Topology

if TYPE_CHECKING:
    from ppwork.answers import Answer

CASES: tuple[tuple[list[int], int], ...] = (([1, 2], 2), ([1, 2], 0), ([3, 1], 3), ([0, 1], 0))
"""What ``new_group`` is given, and the rank that asks for its number in that group."""


def _group_rank(answer: Answer) -> str:
    for members, rank in CASES:
        right = sorted(members).index(rank) if rank in members else -1
        found = answer(list(members), rank)
        if found != right or isinstance(found, bool):
            thought = (
                "A rank that is not in the group has the rank -1 in it."
                if rank not in members
                else "`new_group` sorts the ranks: the first of your list need not be the first of the group."
                if found == members.index(rank)
                else "The numbers within a group begin at 0."
            )
            return f"For new_group({members}) and rank {rank} you gave {found!r}, expected {right}. {thought}"
    return ""


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
            found = answer(rank, mesh_size)
            if not isinstance(found, list | tuple | set) or set(found) != set(right):
                case = f"For rank {rank}, mesh_size={mesh_size}"
                return f"{case} you gave {found!r}. {_thought(found, of, rank, thoughts)}"
    return ""


def _thought(found: Any, of: Topology, rank: int, thoughts: dict[Role, str]) -> str:  # noqa: ANN401  an answer
    if not isinstance(found, list | tuple | set):
        return "Return a list of the groups' names."
    unknown = sorted(set(found) - {"world_pg", *GROUP_ORDER})
    if unknown:
        return f"There is no {unknown[0]!r}: the groups are world_pg, {', '.join(GROUP_ORDER)}."
    if "world_pg" not in found:
        return "Every rank is in world_pg."
    return thoughts[of.role(rank)]


LISTS: tuple[list[str], ...] = (
    list(GROUP_ORDER),
    ["down_pg", "up_pg"],
    ["tp_pg", "down_pg", "up_pg"],
)
"""What a rank has created, in order, ``down_pg`` among it."""


def _number(answer: Answer) -> str:
    for created in LISTS:
        place = created.index("down_pg")
        right, found = place + 1, answer(list(created))
        if found == right and not isinstance(found, bool):
            continue
        thought = (
            "Number 0 is the default group, which `init_process_group` makes."
            if found == place
            else "What is created after it does not count."
            if found == len(created)
            else "A rank counts its own calls; what the others have created does not come into it."
            if found == GROUP_ORDER.index("down_pg") + 1
            else "Groups are numbered as this rank creates them."
        )
        return f"For {created} you gave {found!r}, expected {right}. {thought}"
    return ""


CREATED: tuple[tuple[dict[int, list[str]], str], ...] = (
    (
        {0: ["down_pg"], 1: ["mesh_pg", "down_pg"], 2: ["mesh_pg", "down_pg"]},
        "Rank 0 is no member of mesh_pg; it has to create it all the same.",
    ),
    ({0: ["mesh_pg", "down_pg"], 1: ["mesh_pg", "down_pg"], 2: ["mesh_pg", "down_pg"]}, "Nobody is behind."),
    (
        {0: ["mesh_pg", "down_pg"], 1: ["mesh_pg", "down_pg"], 2: ["mesh_pg"]},
        "Rank 2 is no member of down_pg; it has to create it all the same.",
    ),
    (
        {0: ["mesh_pg"], 1: ["mesh_pg", "tp_pg"], 2: ["mesh_pg", "tp_pg"], 3: ["tp_pg"]},
        "Ranks 0 and 3 have left out a group each, and not the same one.",
    ),
    (
        {0: ["down_pg", "mesh_pg"], 1: ["mesh_pg", "down_pg"], 2: ["mesh_pg", "down_pg"]},
        "The order of rank 0 is wrong, too, but it has left nothing out.",
    ),
)
"""Names of the groups that each rank creates, in order, and what to think of."""


def _behind(answer: Answer) -> str:
    for created, thought in CREATED:
        every = {name for names in created.values() for name in names}
        right = [rank for rank, names in created.items() if every - set(names)]
        found = answer({rank: list(names) for rank, names in created.items()})
        if not isinstance(found, list) or sorted(found) != right:
            return f"For {created} you gave {found!r}, expected {right}. {thought}"
    return ""


GROUPS = {"02.1": _group_rank, "02.2": _groups_of, "02.3": _number, "02.4": _behind}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""
