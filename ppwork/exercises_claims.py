"""Exercises of the lesson on claims (13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ppwork.answers import Answer

OBSERVATIONS: tuple[tuple[Mapping[str, float], Mapping[str, float], str, str], ...] = (
    (
        {"called": 10.0, "returned": 10.41},
        {"came": 10.4},
        "does not hold here",
        "The send returned after its receiver had come: it may have waited for it.",
    ),
    (
        {"called": 10.0, "returned": 10.001},
        {"came": 10.4},
        "holds",
        "The send was back before there was a receiver.",
    ),
    (
        {"called": 10.0, "returned": 10.35},
        {"came": 10.4},
        "holds",
        "It took long on a slow machine, but it was back before there was a receiver: compare moments, not "
        "durations.",
    ),
    (
        {"called": 10.0},
        {"came": 10.4},
        "error",
        "There is no `returned` in these notes: the program did not get that far, and nothing was shown. "
        "Neither verdict may come of it.",
    ),
    (
        {"called": 10.0, "returned": 10.41},
        {},
        "error",
        "The receiver has noted nothing: there is no moment to compare with.",
    ),
)
"""What sender and receiver noted, the verdict on "`send` does not wait for its receiver", and why."""


def _judge(answer: Answer) -> str:
    for sender, receiver, right, thought in OBSERVATIONS:
        found = answer(dict(sender), dict(receiver))
        if found != right:
            case = f"For the sender's {sender} and the receiver's {receiver}"
            return f"{case} you gave {found!r}, expected {right!r}. {thought}"
    return ""


ORDERS: tuple[tuple[Mapping[int, list[str]], int | None, str], ...] = (
    (
        {0: ["down", "up"], 1: ["down", "up", "mesh"], 2: ["down", "up", "mesh"]},
        2,
        "Rank 0 is no member of the mesh, and has to call its `new_group` all the same.",
    ),
    (
        {0: ["down", "up"], 1: ["up", "down"]},
        0,
        "As many calls, and of the same groups, but in another order: the first call of one meets the "
        "first of the other.",
    ),
    (
        {0: ["down", "mesh"], 1: ["down", "up", "mesh"], 2: ["down", "mesh"]},
        1,
        "Where one rank has a call too many, all its later calls are one behind.",
    ),
    (
        {0: ["down", "up"], 1: ["down", "up"]},
        None,
        "The same calls in the same order: nothing is crossed.",
    ),
)
"""Groups in the order in which each rank creates them, the first call that goes wrong, and why."""


def _first_crossed(answer: Answer) -> str:
    for orders, right, thought in ORDERS:
        found = answer({rank: list(names) for rank, names in orders.items()})
        if found != right or isinstance(found, bool):
            return f"For {orders} you gave {found!r}, expected {right}. {thought}"
    return ""


GROUPS: tuple[list[int], ...] = ([1, 2], [3, 1], [2, 5, 4])
"""Ranks as they are given to ``new_group``, which sorts them."""


def _roots(answer: Answer) -> str:
    for members in GROUPS:
        found, right = answer(list(members)), (min(members), 0)
        if found != right:
            return f"For new_group({members}) you gave {found!r}, expected {right}. {_habit(found, members)}"
    return ""


def _habit(found: Any, members: list[int]) -> str:  # noqa: ANN401  whatever a learner's function returns
    if not (isinstance(found, tuple) and len(found) == 2):
        return "Return two numbers: `src` and `group_src`."
    src, group_src = found
    if group_src != 0:
        return "`group_src` counts within the group, and begins at 0."
    if src not in members:
        return "`src` counts in the world, and has to be a member of the group."
    return "`new_group` sorts the ranks: the first in your list need not be the first in the group."


CLAIMS = {"13.1": _judge, "13.2": _first_crossed, "13.3": _roots}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""
