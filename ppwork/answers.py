"""A learner's answer beside the right one: what was given, what was expected, and the habit behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Answer = Callable[..., Any]
"""The learner's function."""


def compared(answer: Answer, case: tuple[Any, ...], right: float, habits: Mapping[float, str]) -> str:
    """Try an answer that is a number; return a hint, or nothing when it is right.

    Args:
        answer: The learner's function.
        case: Its arguments.
        right: What it should return.
        habits: What to think of, by the number that a usual mistake gives.
    """
    found = answer(*case)
    if isinstance(found, int | float) and math.isclose(found, right, rel_tol=1e-3):
        return ""
    thought = next(
        (
            hint
            for value, hint in habits.items()
            if isinstance(found, int | float) and math.isclose(found, value)
        ),
        "",
    )
    return f"For {case} you gave {found!r}, expected {right:g}. {thought}".rstrip()
