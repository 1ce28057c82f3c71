"""Exercises of the lesson on the sequential pipeline (04)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ppwork.lab.exercises.answers import Case, exercise, number_case
from ppwork.lab.exercises.attempts import Programs
from ppwork.timeline.costs import law_period_ms

CASES_MS = ((20.0, 30.0, 2.0), (30.0, 30.0, 6.0), (60.0, 20.0, 1.0))
"""Stage 0, stage 1 and transport."""


@exercise
def _sequential_period() -> Iterator[Case]:
    for times in CASES_MS:
        stage0, stage1, _ = times
        habits = {
            max(stage0, stage1): "The longer stage alone is what overlap reaches; here they take turns.",
            stage0 + stage1: "Something of a chunk's way is in neither stage.",
        }
        yield number_case(times, law_period_ms(*times, depth=1), habits)


@exercise
def _mesh_share() -> Iterator[Case]:
    for times in CASES_MS:
        stage0, stage1, _ = times
        period, longer = law_period_ms(*times, depth=1), max(stage0, stage1)
        habits = {
            1 - stage1 / period: "That is the idle share; asked is the busy one.",
            stage1 / (stage0 + stage1): "The mesh also waits while a chunk travels.",
            stage1 / longer: "The denominator is the period of PP0, and that is not the longer stage.",
        }
        yield number_case(times, stage1 / period, habits)


@exercise
def _slow_chunks() -> Iterator[Case]:
    steady = dict.fromkeys(range(8), 30.0)
    runs = {
        "Compare each chunk with the median of all of them.": {**steady, 0: 500.0},
        "In a steady run no chunk is slow.": steady,
        "Chunk 0 pulls a mean up so far that chunk 5 hides; a median stays.": {**steady, 0: 2000.0, 5: 95.0},
    }
    for thought, times in runs.items():
        right = [k for k, ms in times.items() if ms > 3 * statistics.median(times.values())]
        yield Case(f"For {times}", (times,), right, thought)


FUNCTIONS = {"04.1": _sequential_period, "04.2": _mesh_share, "04.3": _slow_chunks}
PROGRAMS: Programs = {}
