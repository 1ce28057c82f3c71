"""Exercises of the lesson on claims (15)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ppwork.lab.exercises.answers import Case, exercise
from ppwork.lab.exercises.attempts import Programs

Notes = dict[str, float]
OBSERVATIONS: dict[str, tuple[Notes, Notes, str]] = {
    "The send returned after its receiver had come: it may have waited for it.": (
        {"called": 10.0, "returned": 10.41},
        {"came": 10.4},
        "does not hold here",
    ),
    "The send was back before there was a receiver.": (
        {"called": 10.0, "returned": 10.001},
        {"came": 10.4},
        "holds",
    ),
    "It took long on a slow machine, but it was back before there was a receiver: compare moments, not "
    "durations.": ({"called": 10.0, "returned": 10.35}, {"came": 10.4}, "holds"),
    "There is no `returned` in these notes: the program did not get that far, and nothing was shown. "
    "Neither verdict may come of it.": ({"called": 10.0}, {"came": 10.4}, "error"),
    "The receiver has noted nothing: there is no moment to compare with.": (
        {"called": 10.0, "returned": 10.41},
        {},
        "error",
    ),
}
"""Notes of sender and receiver, and the verdict on "`send` does not wait for its receiver", by the reason."""


@exercise
def _judge() -> Iterator[Case]:
    for thought, (sender, receiver, right) in OBSERVATIONS.items():
        text = f"For the sender's {sender} and the receiver's {receiver}"
        yield Case(text, (sender, receiver), right, thought)


ORDERS: dict[str, tuple[dict[int, list[str]], int | None]] = {
    "Rank 0 is no member of the mesh, and has to call its `new_group` all the same.": (
        {0: ["down", "up"], 1: ["down", "up", "mesh"], 2: ["down", "up", "mesh"]},
        2,
    ),
    "As many calls, and of the same groups, but in another order: the first call of one meets the first of "
    "the other.": ({0: ["down", "up"], 1: ["up", "down"]}, 0),
    "Where one rank has a call too many, all its later calls are one behind.": (
        {0: ["down", "mesh"], 1: ["down", "up", "mesh"], 2: ["down", "mesh"]},
        1,
    ),
    "The same calls in the same order: nothing is crossed.": ({0: ["down", "up"], 1: ["down", "up"]}, None),
}
"""Groups in the order in which each rank creates them, and the first call that goes wrong, by the reason."""


@exercise
def _first_crossed() -> Iterator[Case]:
    for thought, (orders, right) in ORDERS.items():
        yield Case(f"For {orders}", (orders,), right, thought)


GROUPS: tuple[list[int], ...] = ([1, 2], [3, 1], [2, 5, 4])
"""Ranks as they are given to ``new_group``, which sorts them."""


@exercise
def _roots() -> Iterator[Case]:
    for members in GROUPS:
        yield Case(f"For new_group({members})", (members,), (min(members), 0), partial(_habit, members))


def _habit(members: list[int], given: Any) -> str:  # noqa: ANN401  whatever a learner's function returns
    if not (isinstance(given, tuple) and len(given) == 2):
        return "Return two numbers: `src` and `group_src`."
    src, group_src = given
    if group_src != 0:
        return "`group_src` counts within the group, and begins at 0."
    if src not in members:
        return "`src` counts in the world, and has to be a member of the group."
    return "`new_group` sorts the ranks: the first in your list need not be the first in the group."


FUNCTIONS = {"15.1": _judge, "15.2": _first_crossed, "15.3": _roots}
PROGRAMS: Programs = {}
