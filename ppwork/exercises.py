"""Exercises of the lessons: each looks at an answer and says what to think of next, or that it is right.

Answers are functions or values that a learner wrote in a cell. They are tried on cases; the expected values
come from the library's own formulas. The lesson shows a solution, and a test runs it through the same check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.errors import PlanError, text_of
from ppwork.exercises_claims import CLAIMS
from ppwork.exercises_envelope import ENVELOPE
from ppwork.exercises_failure import FAILURE
from ppwork.exercises_groups import GROUPS
from ppwork.exercises_mesh import MESH
from ppwork.exercises_messages import MESSAGES
from ppwork.exercises_pipeline import PIPELINE
from ppwork.exercises_start import START

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.answers import Answer

EXERCISES: dict[str, Callable[[Answer], str]] = {
    **START,
    **MESSAGES,
    **GROUPS,
    **ENVELOPE,
    **PIPELINE,
    **MESH,
    **FAILURE,
    **CLAIMS,
}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""


@dataclass(frozen=True)
class Verdict:
    """What a check found; the bare value at the end of a cell shows it."""

    exercise: str
    hint: str
    """What to look at next; empty when the answer is right."""

    @property
    def right(self) -> bool:
        """Whether nothing is left to do."""
        return not self.hint

    def __repr__(self) -> str:
        return f"exercise {self.exercise}: {'right' if self.right else f'not yet. {self.hint}'}"


def check(exercise: str, answer: Answer) -> Verdict:
    """Try an answer on the cases of an exercise, such as ``check("04.1", period_ms)``.

    Raises:
        PlanError: There is no such exercise, or the answer is not a function. An error inside the
            learner's function is a hint, no exception.
    """
    if exercise not in EXERCISES:
        known = ", ".join(EXERCISES)
        raise PlanError(f"There is no exercise {exercise!r}.", check_first=f"one of {known}")
    if not callable(answer):
        raise PlanError(
            f"The answer to exercise {exercise} was {answer!r}, not a function.",
            check_first="give the function itself, without calling it",
        )
    try:
        hint = EXERCISES[exercise](answer)
    except Exception as error:  # noqa: BLE001  whatever a learner's function raises is news for the learner
        hint = f"Your function raised {text_of(error)}"
    return Verdict(exercise, hint)
