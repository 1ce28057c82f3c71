"""Exercises of the lesson on versions (16): one program for two torches, a version, one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ppwork.lab.exercises.answers import Case, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun

VERSIONS = {
    "As text, '9' comes after '1': compare numbers.": ("2.9.1", (2, 13), False),
    "What follows a plus says how it was built, and nothing about its age.": ("2.13.0+cpu", (2, 13), True),
    "A pre-release has letters in its last number: the first two are enough.": (
        "2.13.0a0+git1b2c3d",
        (2, 13),
        True,
    ),
    "As a decimal number 2.9 is more than 2.13, and as a version less.": ("2.13.1", (2, 9), True),
    "A greater first number decides, whatever the second one is.": ("3.0.0", (2, 13), True),
    "2.11 is less than 2.13.": ("2.11.0+cu130", (2, 13), False),
}
"""A version, the one that is wanted, and whether it is new enough, by the thought."""


@exercise
def _new_enough() -> Iterator[Case]:
    for thought, (version, wanted, right) in VERSIONS.items():
        yield Case(f"For torch {version} and {wanted}", (version, wanted), right, thought)


OLD, NEW = "reduce_scatter_tensor", "reduce_scatter_single"
HALVES = ("my half [10.0, 12.0]", "my half [14.0, 16.0]")


def _fails(run: ScriptRun) -> str:
    """Answer a name that is not there; every other failure has its diagnosis."""
    failure = run.failure
    if failure is None or "AttributeError" not in failure.what + failure.headline:
        return ""
    return (
        "A rank has no function of the name that you call. Which name each has, only that rank's `dist` can "
        "tell: ask it with `getattr`, and not the version."
    )


@program(ranks=2)
def _on_both(attempt: Attempt) -> Iterator[str]:
    for rank, wanted in enumerate(HALVES):
        if attempt.lines(rank)[-1:] != [wanted]:
            yield f"Rank {rank} printed {attempt.lines(rank)}; expected {wanted!r}."
    if not (attempt.calls(0, OLD) and attempt.calls(1, NEW)):
        yield f"Rank 0 is to call `{OLD}`, and rank 1 `{NEW}`: each the name that its torch has."


@program(ranks=2)
def _one_graph(attempt: Attempt) -> Iterator[str]:
    for rank in range(2):
        lines = attempt.lines(rank)
        graphs = [line for line in lines if line.startswith("graphs ")]
        if not graphs:
            yield f"Rank {rank} printed no line that begins with 'graphs'; leave the last lines as they are."
        elif graphs[-1] != "graphs 1":
            yield f"Rank {rank} printed {graphs[-1]!r}. Which call has a handle, and what has none?"
        elif "result [9.0]" not in lines:
            said = [line for line in lines if line.startswith("result ")]
            yield (
                f"One graph, but rank {rank} printed {said}; expected 'result [9.0]'. A functional "
                "collective leaves its input as it is, and returns the sum."
            )


FUNCTIONS: dict[str, Callable[[Any], str]] = {"16.2": _new_enough}
PROGRAMS: Programs = {"16.1": first_of(_fails, _on_both), "16.3": _one_graph}
