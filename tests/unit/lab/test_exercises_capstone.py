"""What the capstone is judged by: the facts of a run, and faults that were named."""

from __future__ import annotations

import msgspec
import nbformat
import pytest
from checkout import ROOT

from ppwork.errors import PlanError, RunFailed
from ppwork.lab.exercises.check import check
from ppwork.plan import Plan
from ppwork.records.run import SUMMARY_FILE, Run

LESSON = next((ROOT / "notebooks").glob("14-*.ipynb"))
SOLUTIONS = ROOT / "notebooks" / "solutions" / LESSON.name
PLAN = Plan(
    stage0="my_live_camera:Wave",
    stage1="my_painter:Remembering",
    mesh_size=2,
    in_flight_depth=2,
    verify=True,
    options={"frames": 12, "predicted_ms": [130, 100]},
)
FACTS = {"chunks": 12, "verified_chunks": 12, "max_abs_diff": 0.0, "overlap_score": 0.9, "period_ms": 104.0}


def cell(notebook, name):
    """The text below the first line of a cell with stages."""
    cells = nbformat.read(notebook, as_version=4).cells
    return next(each.source for each in cells if each.id == name).partition("\n")[2]


@pytest.fixture(autouse=True)
def stages(tmp_path, monkeypatch):
    """The solution's classes and the lesson's, in files where ranks would import them."""
    for file, name in (("my_live_camera", "camera"), ("my_painter", "painter")):
        both = cell(SOLUTIONS, name) + "\n\n" + cell(LESSON, name)
        (tmp_path / f"{file}.py").write_text(both)
    monkeypatch.syspath_prepend(tmp_path)


def finished(folder, plan=PLAN, **facts):
    """A run's folder, as far as the check reads it."""
    plan.save(folder)
    (folder / SUMMARY_FILE).write_bytes(msgspec.json.encode({**FACTS, **facts}))
    return Run(folder, 0)


def both(folder, plan=PLAN, at_depth_1_ms=134.0, **facts):
    """The plan's run at depth 1, and the run itself."""
    (folder / "at-depth-1").mkdir()
    first = finished(folder / "at-depth-1", plan.replace(in_flight_depth=1), period_ms=at_depth_1_ms)
    return [first, finished(folder, plan, **facts)]


def test_a_finished_capstone_is_right(tmp_path):
    assert check("14.4", both(tmp_path)).right


@pytest.mark.parametrize(
    ("plan", "facts", "hint"),
    [
        (PLAN.replace(stage1="ppwork.workloads.synthetic:SyntheticStage1"), {}, "ships with the library"),
        (PLAN.replace(stage1="my_painter:Painter"), {}, "The generator is the lesson's"),
        (PLAN.replace(stage0="my_live_camera:Camera"), {}, "The source is the lesson's"),
        (PLAN.replace(chunks=12), {}, "leave `chunks` out"),
        (PLAN.replace(mesh_size=1), {}, "nothing to sum"),
        (PLAN, {"verified_chunks": None}, "compared it with one process"),
        (PLAN.replace(in_flight_depth=1), {}, "At depth 1"),
        (PLAN, {"overlap_score": 0.1}, "The overlap score is 0.10"),
        (PLAN, {"chunks": 0}, "did not finish"),
        (PLAN.replace(options={"frames": 12, "predicted_ms": 100}), {}, "The plan has no two predictions"),
        (PLAN, {"period_ms": 111.0}, "At depth 2 you predicted a period of 100 ms, and it was 111.0 ms"),
        (PLAN, {"at_depth_1_ms": 104.0}, "At depth 1 you predicted a period of 130 ms, and it was 104.0 ms"),
    ],
)
def test_what_is_missing_is_said(tmp_path, plan, facts, hint):
    verdict = check("14.4", both(tmp_path, plan, **facts))
    assert not verdict.right
    assert hint in verdict.hint


def test_a_run_alone_has_no_other_to_be_compared_with(tmp_path):
    assert "the same plan at depth 1" in check("14.4", finished(tmp_path)).hint


def test_one_number_does_not_hit_two_periods(tmp_path):
    """A generator beside which all else is nothing needs no law: it is refused."""
    plan = PLAN.replace(options={"frames": 12, "predicted_ms": [1000, 1000]})
    runs = both(tmp_path, plan, at_depth_1_ms=1040.0, period_ms=1010.0)
    assert "one stage is nearly all of it" in check("14.4", runs).hint


@pytest.mark.parametrize("change", [("self.last / 2", "0"), ("self.last = frame +", "last = frame +")])
def test_a_generator_that_keeps_nothing_is_told_so(tmp_path, change):
    """It never reads what it keeps, or never changes it; the name of its class is no matter."""
    text = cell(SOLUTIONS, "painter").replace(*change)
    (tmp_path / "my_painter.py").write_text(text)
    assert "keeps nothing" in check("14.4", finished(tmp_path)).hint


def test_a_run_that_failed_is_not_finished(tmp_path):
    run = finished(tmp_path)
    failed = Run(run.run_dir, 1, RunFailed("Rank 1 failed first."))
    assert "did not finish" in check("14.4", failed).hint


def test_a_function_is_no_run():
    with pytest.raises(PlanError, match="not runs"):
        check("14.4", len)


FOUND = {5: (1, "leaves a sum out", 1), 6: (2, "is killed", 1), 7: (2, "raises", 1), 9: (1, "loops", None)}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({}, ""),
        ({5: (2, "leaves a sum out", 1)}, "Which rank ended its step without one?"),
        ({6: (1, "is killed", 1)}, "Which mesh rank wrote none"),
        ({7: (1, "raises", 1)}, "which only heard of it"),
        ({9: (2, "loops", None)}, "Which of them wrote of its own step"),
        ({7: (2, "raises", 2)}, "rank and kind are right. Which rank does rank 0's record name"),
        ({9: (1, "loops", 1)}, "rank and kind are right. Which rank does rank 0's record name"),
        ({7: (2, "raises")}, "the guilty rank, one of raises"),
    ],
)
def test_each_wrong_finding_gets_its_hint(given, hint):
    verdict = check("14.3", {**FOUND, **given}.__getitem__)
    assert hint in verdict.hint
    assert verdict.right == (not hint)
