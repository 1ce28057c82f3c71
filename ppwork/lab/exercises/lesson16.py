"""Exercises of the lesson on versions (16): one program for every torch, versions, one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun

BUILDS = {
    "2.9.1": "2.9.1 is older than 2.14: `torch.__version__` compares numbers, and 9 is less than 14.",
    "2.14.0rc2": "2.14.0rc2 is a candidate, and comes before its release: the comparison is False.",
    "2.14.0+cpu": "2.14.0+cpu is the release: what follows the plus says how it was built, not when.",
    "2.15.0a0+gitff": "2.15.0a0 is a nightly: it comes before 2.15.0, and after every 2.14.",
}
"""Builds, and what to think of when one is wrongly in the answer, or wrongly not."""
NEW_ENOUGH = {"2.14.0+cpu", "2.15.0a0+gitff"}


def _builds(answer: Callable[[], Any]) -> str:
    given = answer()
    if not isinstance(given, list | tuple | set) or not set(given) <= BUILDS.keys():
        return f"You gave {given!r}; a list of builds is asked for, each as it stands in the text."
    return next((hint for build, hint in BUILDS.items() if (build in given) != (build in NEW_ENOUGH)), "")


RESULTS = ([[1.0, 2.0], 2.0], [[1.0, 2.0], 4.0])
"""Of the two calls, on each rank."""
NEITHER = ("scan_into_tensor", "scan_single")
"""Names that no torch has."""


def _fails(run: ScriptRun) -> str:
    """Answer a name that is not there, or one that warns; every other failure has its diagnosis."""
    failure = run.failure
    said = failure.what + failure.headline if failure is not None else ""
    if "FutureWarning" in said:
        return "Today's torch has both names, and the old one warns: ask for the new one first."
    if "AttributeError" in said:
        return (
            "A name that is not there was asked for. Python computes the third argument of `getattr` "
            "before the call: what happens on a torch without the old name?"
        )
    return ""


@program(ranks=2)
def _on_all(attempt: Attempt) -> Iterator[str]:
    for rank, results in enumerate(RESULTS):
        wanted = [f"today {results}", f"another torch {results}"]
        first, last = attempt.lines(rank)[:2], " ".join(attempt.lines(rank)[2:])
        if first != wanted:
            yield f"Rank {rank} printed {first}; expected {wanted}."
        elif not last.startswith("neither: "):
            yield (
                f"Both calls work. But on rank {rank} `either` raised nothing for names that no torch has: "
                "the error then comes at the call, far from the names."
            )
        elif not all(name in last for name in NEITHER):
            yield (
                f"Both calls work. But rank {rank} said {last!r}: on a torch with neither name, a reader of "
                "the log has to learn both."
            )


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


FUNCTIONS: dict[str, Callable[[Any], str]] = {"16.2": _builds}
PROGRAMS: Programs = {"16.1": first_of(_fails, _on_all), "16.3": _one_graph}
