"""Exercises of the lessons: each looks at an answer and says what to think of next, or that it is right.

Answers are functions or values that a learner wrote in a cell. They are tried on cases; the expected values
come from the library's own formulas. The lesson shows a solution, and a test runs it through the same check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ppwork.errors import PlanError, text_of
from ppwork.lab.exercises.answers import Answer
from ppwork.lab.exercises.lesson00 import START
from ppwork.lab.exercises.lesson01 import MESSAGES
from ppwork.lab.exercises.lesson02 import GROUPS
from ppwork.lab.exercises.lesson03 import ENVELOPE
from ppwork.lab.exercises.lesson04_05 import PIPELINE
from ppwork.lab.exercises.lesson06 import MESH
from ppwork.lab.exercises.lesson07 import FAILURE
from ppwork.lab.exercises.lesson13 import CLAIMS

LESSONS = (START, MESSAGES, GROUPS, ENVELOPE, PIPELINE, MESH, FAILURE, CLAIMS)
EXERCISES: dict[str, Callable[[Answer], str]] = {
    number: hint_of for of_lesson in LESSONS for number, hint_of in of_lesson.items()
}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""


@dataclass(frozen=True)
class Verdict:
    """Result of a check; the bare value at the end of a cell shows it."""

    exercise: str
    hint: str
    """The next thing to look at; empty when the answer is right."""

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
        names = ", ".join(EXERCISES)
        raise PlanError(f"There is no exercise {exercise!r}.", check_first=f"one of {names}")
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
