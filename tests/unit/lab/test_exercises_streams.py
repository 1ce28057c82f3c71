"""Exercises of the lesson on streams: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest

from ppwork.errors import RunFailed
from ppwork.lab.exercises.check import check
from ppwork.launcher.script import ScriptRun
from ppwork.process import PAST_LIMIT


def waits(same_stream=True, same_buffer=True, writes=lambda a, b: "write" in (a, b)):
    """An answer that looks at streams and buffers, or does not."""

    def answer(first, second):
        apart = first[0] != second[0] or not same_stream
        return apart and (first[1] == second[1] or not same_buffer) and writes(first[2], second[2])

    return answer


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("06.1", waits(writes=lambda a, b: a == "write"), "writes over bytes that the first"),
        ("06.1", waits(writes=lambda a, b: b == "write"), "at least one of them writes"),
        ("06.1", waits(writes=lambda a, b: True), "Both only read"),
        ("06.1", waits(same_stream=False), "One stream runs its operations in order"),
        ("06.1", waits(same_buffer=False), "different memory"),
        ("06.1", lambda first, second: None, "gave None"),
        ("06.4", lambda calls: (True, True), "current when it is called"),
        ("06.4", lambda calls: (calls[1][1] == "compute", ("wait", "compute") in calls), "too late for it"),
        ("06.4", lambda calls: (calls[1][1] == "compute", len(calls) == 4), "holds back the stream"),
        ("06.4", lambda calls: (calls[1][1] == "compute", calls[2][1] == "compute"), "Without `wait`"),
        ("06.4", lambda calls: True, "gave True"),
        ("06.5", lambda edges, earlier, later: (earlier, later) in edges, "waits for the broadcast"),
        ("06.5", lambda edges, earlier, later: True, "An edge goes one way"),
        ("06.5", lambda edges, earlier, later: "receive 3" not in earlier, "does not order the two"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    verdict = check(exercise, answer)
    assert not verdict.right
    assert hint in verdict.hint


@pytest.mark.parametrize(("exercise", "event"), [("06.2", "sent"), ("06.3", "taken")])
def test_program_that_stands_hears_of_the_last_event_that_nobody_set(tmp_path, exercise, event):
    stood = ScriptRun(tmp_path, PAST_LIMIT, RunFailed("Rank 1 waits for rank 0."), nproc=2)
    assert f"`{event}[-1]`" in check(exercise, stood).hint
