"""Exercises of the lessons: each looks at an answer and says what to think of next, or that it is right.

An answer is a function, tried on cases whose expected values come from the library's own formulas; or a
program of ranks, run, of which the facts are looked at: what was printed, which calls met. A notebook of
solutions answers every one, and a test runs it through the same check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from ppwork.errors import PlanError, text_of
from ppwork.lab.exercises.answers import Answer, Functions
from ppwork.lab.exercises.attempts import Programs
from ppwork.lab.exercises.lesson14 import RUNS as OF_RUNS
from ppwork.launcher.script import ScriptRun
from ppwork.records.run import Run

LESSONS = [import_module(f"ppwork.lab.exercises.lesson{number:02d}") for number in range(17)]
EXERCISES: Functions = {number: hint for lesson in LESSONS for number, hint in lesson.FUNCTIONS.items()}
ON_RANKS: Programs = {number: hint for lesson in LESSONS for number, hint in lesson.PROGRAMS.items()}


def known(exercise: str, *, on_ranks: bool = False) -> None:
    """Look an exercise up before anything runs.

    Raises:
        PlanError: There is none of this number, or none whose answer is a program of ranks.
    """
    names = ON_RANKS if on_ranks else {**EXERCISES, **ON_RANKS, **OF_RUNS}
    if exercise not in names:
        what = "exercise on ranks" if on_ranks else "exercise"
        raise PlanError(
            f"There is no {what} {exercise!r}.", check_first=f"one of {', '.join(sorted(names)) or 'none'}"
        )


@dataclass(frozen=True)
class CheckResult:
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


def check(exercise: str, answer: Answer | ScriptRun | Run | Sequence[Run]) -> CheckResult:
    """Look at an answer to an exercise, such as ``check("01.1", first_touch)``.

    Args:
        exercise: Lesson and number.
        answer: The learner's function; or, of an exercise on ranks, the finished program, as
            ``pp.launch_script(..., check=False)`` returns it and ``%%ranks N --check 01.2`` gives it;
            or, of an exercise on whole runs, what ``pp.launch`` returned, in a list.

    Raises:
        PlanError: There is no such exercise, or the answer is not what it asks for. An error inside the
            learner's function or program is a hint, no exception.
    """
    known(exercise)
    if exercise in ON_RANKS:
        if not isinstance(answer, ScriptRun):
            raise PlanError(
                f"The answer to exercise {exercise} was {answer!r}, not a finished program.",
                check_first=f"%%ranks with --check {exercise} as the first line of the program's cell",
            )
        return CheckResult(exercise, ON_RANKS[exercise](answer))
    if exercise in OF_RUNS:
        given = answer if isinstance(answer, Sequence) else [answer]
        runs = [run for run in given if isinstance(run, Run)]
        if not runs or len(runs) < len(given):
            raise PlanError(
                f"The answer to exercise {exercise} was {answer!r}, not runs.",
                check_first="a list of what pp.launch(plan) returned, or pp.open(its folder)",
            )
        return CheckResult(exercise, OF_RUNS[exercise](runs))
    if not callable(answer):
        raise PlanError(
            f"The answer to exercise {exercise} was {answer!r}, not a function.",
            check_first="give the function itself, without calling it",
        )
    try:
        hint = EXERCISES[exercise](answer)
    except Exception as error:  # noqa: BLE001  whatever a learner's function raises is news for the learner
        hint = f"Your function raised {text_of(error)}"
    return CheckResult(exercise, hint)
