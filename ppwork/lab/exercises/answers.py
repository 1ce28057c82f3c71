"""A learner's answer tried on the cases of an exercise: what was given, what is right, what to think of."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ppwork.errors import text_of

Answer = Callable[..., Any]
"""The learner's function."""
Functions = Mapping[str, Callable[[Answer], str]]
"""Exercises of a lesson by number: each returns a hint about an answer, or nothing when it is right."""


class TriedCall(NamedTuple):
    """One call of the learner's function."""

    text: str
    """The case in words, such as "For 3 ranks": a hint begins with it."""
    arguments: tuple[Any, ...]
    right: Any
    """A list stands for its members in any order, a float for a number that is close to it."""
    thought: str | Callable[[Any], str]
    """The end of a hint, or a function that returns it for what was given."""


def exercise(cases: Callable[[], Iterable[TriedCall]]) -> Callable[[Answer], str]:
    """Make the check of an exercise of a function that yields its cases: a hint about the first wrong one."""

    def hint_of(answer: Answer) -> str:
        for case in cases():
            try:
                given = answer(*copy.deepcopy(case.arguments))
            except Exception as error:  # noqa: BLE001  whatever it is, it is news for the learner
                return f"{case.text} your function raised {text_of(error)}"
            if not is_right(given, case.right):
                right = f"{case.right:g}" if isinstance(case.right, float) else repr(case.right)
                thought = case.thought if isinstance(case.thought, str) else case.thought(given)
                return f"{case.text} you gave {given!r}, expected {right}. {thought}".rstrip()
        return ""

    return hint_of


def is_right(given: Any, right: Any) -> bool:  # noqa: ANN401  whatever a learner's function returns
    """Compare what was given with what is right; ``True`` is not 1."""
    if isinstance(right, float):
        return isinstance(given, int | float) and math.isclose(given, right, rel_tol=1e-3)
    if isinstance(right, list):
        return isinstance(given, list | tuple) and sorted(given) == right
    return bool(given == right) and isinstance(given, bool) == isinstance(right, bool)


def number_case(arguments: tuple[Any, ...], right: float, habits: Mapping[float, str]) -> TriedCall:
    """Return the case of an answer that is a number.

    Args:
        arguments: Of the learner's function.
        right: What it should return.
        habits: What to think of, by the number that a usual mistake gives.
    """

    def thought(given: Any) -> str:  # noqa: ANN401  whatever a learner's function returns
        hints = (hint for number, hint in habits.items() if math.isclose(given, number))
        return next(hints, "") if isinstance(given, int | float) else ""

    return TriedCall(f"For {arguments}", arguments, float(right), thought)
