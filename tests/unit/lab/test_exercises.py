"""The checks of the exercises: right answers pass, and each usual mistake gets its own hint."""

from __future__ import annotations

import statistics

import pytest
from right_answers import (
    RIGHT,
    SYMPTOMS,
    cause,
    dropped,
    is_right,
    judge,
    two_verdicts,
)

from ppwork.errors import PlanError
from ppwork.lab.exercises.check import EXERCISES, check


def begins_alike(addresses, peer):
    network = peer.rpartition(".")[0]
    return next((name for name, address in addresses.items() if address.startswith(network)), None)


def both_ms(one, other):
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def in_time(times, normal):
    return "ends a healthy run" if any(t <= n for t, n in zip(times, normal, strict=True)) else ""


WRONG = "names the wrong rank"


def in_order(times):
    return "good" if max(times[:2]) < times[2] else WRONG


def rising(times):
    return in_order(times) if times[0] < times[1] else WRONG


def middle(one):
    return one[1] - (one[0] + one[2]) / 2


def test_every_exercise_has_a_right_answer_here():
    assert set(RIGHT) == set(EXERCISES)


@pytest.mark.parametrize("exercise", list(RIGHT))
def test_right_answer_is_right(exercise):
    verdict = check(exercise, RIGHT[exercise])
    assert verdict.right
    assert repr(verdict) == f"exercise {exercise}: right"


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("00.3", lambda summary, size: summary["max_abs_diff"] == 0.0, "in another order"),
        ("00.3", lambda summary, size: True, "far more"),
        ("00.3", lambda summary, size: (summary["max_abs_diff"] or 0.0) < 1e-4, "splits no sum"),
        (
            "00.3",
            lambda summary, size: is_right({**summary, "verified_chunks": 6}, size),
            "not compared",
        ),
        (
            "00.3",
            lambda summary, size: is_right({**summary, "max_abs_diff": summary["max_abs_diff"] or 0.0}, size),
            "nothing to subtract",
        ),
        (
            "00.3",
            lambda summary, size: is_right(summary, size) and summary["max_abs_diff"] != 1e-4,
            "the bound itself",
        ),
        ("04.3", lambda times: [], "hardly move"),
        ("04.3", lambda times: [0], "no chunk is slow"),
        (
            "04.3",
            lambda times: [k for k, ms in times.items() if ms > 3 * statistics.mean(times.values())],
            "moves your yardstick",
        ),
        ("04.2", lambda period, *stages: period / 2, "only transport gets shorter"),
        ("04.2", lambda period, *stages: (period - sum(stages)) / 2, "new transport"),
        ("04.2", lambda period, e, g, d: (period + g) / 2, "work of rank 0"),
        ("05.2", lambda a, b, t: 2, "One less"),
        ("05.2", lambda a, b, t: RIGHT["05.2"](a, b, t) + 1, "One more"),
        ("05.3", lambda first, then: sum(map(both_ms, first, then)), "compare each entry with all"),
        (
            "05.3",
            lambda first, then: sum(min(a[1], b[1]) - max(a[0], b[0]) for a in first for b in then),
            "not as less",
        ),
        ("08.2", lambda times, normal: in_order(times), "A step took 50 s"),
        ("08.2", lambda times, normal: in_time(times, normal) or "good", "gives up after 60 s"),
        (
            "08.2",
            lambda times, normal: in_time(times, normal) or rising(times),
            "is it ever the first to speak",
        ),
        ("08.2", lambda times, normal: in_time(times, normal) or "names the wrong rank", "the cause speaks"),
        (
            "08.2",
            lambda times, normal: in_time(times[:2], normal[:2]) or in_order(times),
            "A wait in a transfer",
        ),
        ("08.3", lambda records, codes: min(records, key=records.get), "who noticed first"),
        (
            "08.3",
            lambda records, codes: ([r for r, (_, e) in records.items() if e not in SYMPTOMS] or [0])[0],
            "could not speak",
        ),
        (
            "08.3",
            lambda records, codes: ([r for r in codes if r not in records] or [1])[0],
            "survivors of the first failure",
        ),
        (
            "08.3",
            lambda records, codes: cause(records, codes, symptoms=("PeerLostError", "TerminalNotice")),
            "another rank stands still",
        ),
        ("08.3", lambda records, codes: cause(records, codes, innocent=(0,)), "got torchrun's SIGTERM"),
        ("08.3", lambda records, codes: cause(records, codes, innocent=(-15,)), "left with code 0"),
        ("08.3", lambda records, codes: None, "gave None"),
        ("13.2", lambda addresses, peer: "lo", "for itself"),
        (
            "13.2",
            lambda addresses, peer: next(n for n in addresses if n != "lo"),
            "need not lead to the peer",
        ),
        ("13.2", begins_alike, "are two networks"),
        ("13.2", lambda addresses, peer: RIGHT["13.2"](addresses, peer) or "eth0", "none leads there"),
        ("13.3", lambda a, b: "host b" if a else "host a", "names the cause"),
        ("13.3", lambda a, b: "interface" if "refused" in a + b else "host b", "What is between them"),
        ("13.3", lambda a, b: RIGHT["13.3"](a, b) if b else "host a", "just stops"),
        ("13.3", lambda a, b: "host a" if "4 s" in a and "8 s" in b else RIGHT["13.3"](a, b), "own timeout"),
        ("13.3", lambda a, b: "cable" if "SIGKILL" in a + b else RIGHT["13.3"](a, b), "a killed process"),
        ("13.4", lambda rounds: rounds[0][1] - rounds[0][0], "question was on its way"),
        ("13.4", lambda rounds: rounds[0][1] - rounds[0][2], "answer was on its way"),
        ("13.4", lambda rounds: middle(rounds[0]), "first one pays"),
        ("13.4", lambda rounds: sum(map(middle, rounds)) / len(rounds), "a mean keeps it"),
        ("11.1", lambda n, size, s, a, b: n * (s + size / b), "Only the first message"),
        ("11.1", lambda n, size, s, a, b: n * (a + size / b), "comes after a rest"),
        ("11.1", lambda n, size, s, a, b: s + n * size / b, "a latency of its own"),
        ("11.1", lambda n, size, s, a, b: s + n * (a + size / b), "one latency, not both"),
        ("11.1", lambda n, size, s, a, b: s + (n - 1) * a + size / b, "that of each message"),
        ("11.1", lambda n, size, s, a, b: s + (n - 1) * a, "The bytes take time"),
        ("11.1", lambda n, size, s, a, b: s + (n - 1) * a + n * size / b / 1e6, "1 B for each microsecond"),
        ("10.2", lambda depth, cuts, flushes: dropped(depth + 1, cuts, flushes), "two chunks are in flight"),
        ("10.2", lambda depth, cuts, flushes: dropped(depth, cuts, cuts + flushes), "still wanted"),
        ("10.2", lambda depth, cuts, flushes: [] if cuts else [flushes[0] - 2, flushes[0] - 1], "depth 1"),
        (
            "10.2",
            lambda depth, cuts, flushes: [k for at in flushes for k in range(at - depth + 1, at)],
            "begins with chunk 0",
        ),
        (
            "10.2",
            lambda depth, cuts, flushes: [k for at in flushes for k in range(max(0, at - depth + 1), at)],
            "dropped once",
        ),
        ("15.1", lambda sender, receiver: "holds", "may have waited"),
        ("15.1", lambda sender, receiver: "does not hold here", "before there was a receiver"),
        (
            "15.1",
            lambda sender, receiver: (
                "holds" if sender["returned"] - sender["called"] < 0.3 else "does not hold here"
            ),
            "compare moments",
        ),
        (
            "15.1",
            lambda sender, receiver: judge({"returned": 99.0, **sender}, receiver),
            "nothing was shown",
        ),
        ("15.1", lambda sender, receiver: judge(sender, {"came": 99.0, **receiver}), "no moment to compare"),
        ("15.1", lambda sender, receiver: judge({**sender, "called": 0.0}, receiver), "nothing to wait for"),
        ("15.1", lambda sender, receiver: judge({"called": 0.0, **sender}, receiver), "Nobody can say"),
        ("15.2", lambda notes, code: ("holds", "holds"), "the other does not"),
        ("15.2", lambda notes, code: ("holds", "does not hold here"), "ended at once"),
        (
            "15.2",
            lambda notes, code: ("holds", "does not hold here" if "went_on" in notes else "holds"),
            "ended by a signal",
        ),
        (
            "15.2",
            lambda notes, code: (
                "holds" if "raised" in notes else "does not hold here",
                "does not hold here" if "went_on" in notes else "holds",
            ),
            "neither raised nor ended",
        ),
        ("15.2", lambda notes, code: two_verdicts({"called": 0, **notes}, code), "nothing was shown of"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    verdict = check(exercise, answer)
    assert not verdict.right
    assert hint in verdict.hint
    assert repr(verdict).startswith(f"exercise {exercise}: not yet. ")


def test_error_in_the_learners_function_is_a_hint():
    """It says on which case, too."""
    assert "your function raised TypeError" in check("05.2", lambda a: a).hint
    hint = check("06.4", lambda calls: calls[4]).hint
    assert hint.startswith("For [('fill', 'compute'), ('isend', 'compute'), ('wait', 'compute'), ")


def test_what_is_no_exercise_or_no_function_is_refused():
    with pytest.raises(PlanError, match=r"no exercise '99\.1'"):
        check("99.1", max)
    with pytest.raises(PlanError, match="not a function"):
        check("05.2", 52.0)
