"""Questions, sources and what is read off a run; against runs made by hand (made_runs.py)."""

from __future__ import annotations

import pytest
from made_runs import at, made

from ppwork.errors import PlanError
from ppwork.lesson import entries_of, left_early, predict, side_by_side, source_of, stopwatch_ms
from ppwork.plan import Plan
from ppwork.run import Run
from ppwork.timeline import Instant, Recorder, span_file

CHOICES = {"the longer stage": 30.0, "both, added up": 60.0}


def test_question_shows_its_choices_and_what_is_still_to_do():
    assert repr(predict("The period?", CHOICES)).splitlines() == [
        "The period?",
        "  a  the longer stage",
        "  b  both, added up",
        "write your letter into answer= before you run on",
    ]
    assert repr(predict("The period?", CHOICES, "b")).endswith("you say b")


@pytest.mark.parametrize(
    ("answer", "measured", "said"),
    [
        ("", 66.0, "the run says b: both, added up. You had not answered"),
        ("b", 66.0, "the run says b: both, added up. So did you"),
        ("a", 66.0, "the run says b: both, added up. You said a"),
        ("a", 31.0, "the run says a: the longer stage. So did you"),
    ],
)
def test_prediction_is_compared_with_the_nearest_choice(answer, measured, said):
    assert predict("?", CHOICES, answer).compare(measured) == said


def test_question_that_cannot_be_answered_is_refused():
    with pytest.raises(PlanError, match="1 choices"):
        predict("?", {"one": 1.0})
    for answer in ("c", "ab", "A"):
        with pytest.raises(PlanError, match="The answer was"):
            predict("?", CHOICES, answer)


def test_source_is_the_text_of_the_file_without_importing_it(tmp_path, monkeypatch):
    f = "@staticmethod\ndef f():\n    return 1"
    c = "class C:\n    def m(self):\n        pass"
    (tmp_path / "never_imported.py").write_text(f"raise SystemExit\n\n{f}\n\n{c}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert source_of("never_imported:f") == f
    assert source_of("never_imported:C") == c
    assert source_of("never_imported:C.m") == "def m(self):\n    pass"


@pytest.mark.parametrize(
    "path", ["ppwork.control", ":f", "ppwork.nothing:f", "no_such.module:f", "sys:exit", "ppwork.control:f"]
)
def test_source_that_is_not_there_is_refused(path):
    with pytest.raises(PlanError):
        source_of(path)


def test_sources_stand_beside_each_other_escaped():
    both = side_by_side("ppwork.control:sequential_loop", "ppwork.control:overlap_loop")
    shown = both._repr_html_()
    assert shown.count("<td") == shown.count("<th") == 2
    assert "&lt; d_in" in shown
    assert "def sequential_loop" in repr(both)
    assert "def overlap_loop" in repr(both)


def test_entries_of_a_run_are_those_of_the_chunks_asked_for(tmp_path):
    (tmp_path / Plan.FILE_NAME).write_bytes(Plan(chunks=6).to_json())
    for rank in range(3):
        with Recorder(span_file(tmp_path, rank)) as recorder:
            for k in range(6):
                recorder.add_span("generate", 1, end_ns=2, ids={"call_id": k, "chunk_index": k})
    run = Run(tmp_path, 0)

    def chunks(**which):
        return [[e.chunk_index for e in entries] for entries in entries_of(run, **which).values()]

    assert chunks() == [list(range(6))] * 3
    assert chunks(first=2, last=3) == [[2, 3]] * 3
    assert chunks(first=4) == [[4, 5]] * 3
    assert chunks(last=1) == [[0, 1]] * 3


def test_stopwatch_counts_the_first_chunk_and_the_median_does_not():
    """Eight chunks from 0 to 799 ms; with a late start of the others, 900 ms more."""
    assert stopwatch_ms(made()) == pytest.approx(799 / 8)
    assert stopwatch_ms(made(late_from=1, late_ms=900)) == pytest.approx(1699 / 8)


def test_chunk_is_early_when_it_leaves_before_the_decode_in_front_of_it():
    """Envelope k+1 leaves at 111 ms; decode k is at 83 sequentially, at 120 overlapped."""
    assert left_early(made(5)) == []
    overlapped = made(5, overlapped=True)
    overlapped[0].append(Instant("envelope.send", "main", at(600), 5, 4))  # SHUTDOWN
    assert left_early(overlapped) == [1, 2, 3, 4]
