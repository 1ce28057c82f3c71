"""Exercises of the lesson on overlap (05)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from ppwork.lab.exercises.answers import Answer, Case, exercise, number_case
from ppwork.lab.exercises.attempts import Programs
from ppwork.timeline.costs import law_period_ms

CASES_MS = ((20.0, 30.0, 2.0), (30.0, 30.0, 6.0), (60.0, 20.0, 1.0))
"""Stage 0, stage 1 and transport."""


@exercise
def _law() -> Iterator[Case]:
    for times, depth in product(CASES_MS, (1, 2, 3)):
        stage0, stage1, transport = times
        habits = {
            max(stage0, stage1): "A chunk needs both stages and the way; what if few may be under way?",
            (stage0 + stage1 + transport) / depth: "No depth makes a stage faster than its own work.",
            (stage0 + stage1) / depth: "Transport is part of a chunk's time under way.",
        }
        yield number_case((*times, depth), law_period_ms(*times, depth), habits)


@exercise
def _smallest_depth() -> Iterator[Case]:
    for stage0, stage1, transport in (*CASES_MS, (10.0, 10.0, 40.0), (5.0, 60.0, 0.0)):
        right = math.ceil((stage0 + stage1 + transport) / max(stage0, stage1))
        habits = {
            right - 1.0: "One less than needed: with that the law's third term is still the largest.",
            right + 1.0: "One more than needed: deeper only adds latency and stale work.",
        }
        yield number_case((stage0, stage1, transport), right, habits)


STEPS = ("encode", "send", "decode")
CHUNKS = 6


def _next_step(answer: Answer) -> str:
    for depth in (1, 2, 3):
        encoded = left = made = 0
        while made < CHUNKS or encoded or left:
            more = made < CHUNKS
            allowed = {"encode": more and encoded + left < depth, "send": encoded > 0, "decode": left > 0}
            step = answer(encoded, left, more, depth)
            state = f"With encoded={encoded}, left={left}, more={more}, depth={depth}"
            if step not in STEPS:
                return f"{state} you gave {step!r}; the steps are {', '.join(STEPS)}."
            if not allowed[step]:
                return f"{state} you gave {step!r}, which is not possible there. {_WHY_NOT[step]}"
            if step == "decode" and encoded:
                return f"{state} you decode while an encoded chunk waits: it leaves a whole decode too late."
            if step == "decode" and allowed["encode"]:
                hint = "although there is room for one more chunk; fill the pipeline first."
                return f"{state} you decode {hint}"
            made += step == "encode"
            encoded += (step == "encode") - (step == "send")
            left += (step == "send") - (step == "decode")
    return ""


_WHY_NOT = {
    "encode": "There is no chunk left, or as many are unfinished as the depth allows.",
    "send": "Nothing that is encoded waits.",
    "decode": "Nothing has left, so no result can come.",
}


@exercise
def _dropped() -> Iterator[Case]:
    for flush, depth in ((10, 3), (10, 1), (5, 2), (1, 3)):
        right = list(range(max(0, flush - depth + 1), flush))
        yield Case(f"For a flush at chunk {flush} and depth {depth}", (flush, depth), right, _why_dropped)


def _why_dropped(given: object) -> str:
    if isinstance(given, list) and any(k < 0 for k in given):
        return f"There is no chunk {min(given)}: they count from 0, and early there may be fewer."
    return "Of `depth` unfinished chunks one is the flush itself; the others were sent before it."


FUNCTIONS = {
    "05.1": _law,
    "05.2": _smallest_depth,
    "05.3": _next_step,
    "05.4": _dropped,
}
PROGRAMS: Programs = {}
