"""The table that a run ends with."""

import io

import msgspec
import pytest
from rich.console import Console
from waiting import wait_for

from ppwork.cli.screen import Shown, launch_with_bar, table
from ppwork.plan import Plan
from ppwork.records.run import SUMMARY_FILE, Run


def shown(tmp_path, plan, **summary):
    (tmp_path / Plan.FILE_NAME).write_bytes(plan.to_json())
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 4, **summary}))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table(Run(tmp_path, 0)))
    return {line.split()[0]: " ".join(line.split()[1:]) for line in captured.get().splitlines()}


@pytest.mark.parametrize(
    ("dropped", "said"),
    [([3, 4], "at chunk 5, 7: dropped 3, 4"), ([], "at chunk 5, 7: nothing was in flight, nothing dropped")],
)
def test_a_flush_says_what_it_dropped_also_when_that_is_nothing(tmp_path, dropped, said):
    """R3."""
    assert shown(tmp_path, Plan(flushes=(7, 5)), dropped_chunks=dropped)["flushed"] == said


def test_a_bar_that_never_began_prints_nothing_where_output_is_no_terminal():
    """As of a plan that is refused: a file has its one message alone."""
    console = Console(file=io.StringIO())
    with Shown(Plan(), console):
        pass
    assert console.file.getvalue() == ""
    with Shown(Plan(), console) as begun:
        begun.begin(Plan())
    assert "starting ranks" in console.file.getvalue()


def test_a_bar_says_what_the_queue_says_and_then_that_ranks_start(monkeypatch):

    def launch(plan, *, queued, started, **_):
        queued("job 7: PENDING (Resources)")
        wait_for(lambda: "job 7: PENDING (Resources)" in console.file.getvalue())
        started(plan, None)

    monkeypatch.setattr("ppwork.cli.screen.launch", launch)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    launch_with_bar(Plan(), None, console, 1.0)
    said = console.file.getvalue()
    assert said.rindex("starting ranks") > said.rindex("job 7")


def test_a_run_without_a_flush_says_nothing_of_it(tmp_path):
    rows = shown(tmp_path, Plan(hard_cuts=(2,)), dropped_chunks=[])
    assert "flushed" not in rows
    assert rows["chunks"] == "4, depth 1"


def test_figures_and_metrics_of_own_stages_stand_in_the_table(tmp_path):
    plan = Plan(stage0="mine:Source", stage1="mine:Block")
    figures = {"words": 3, "rate": 0.512345, "name": "abc", "shape": [2, 3], "period_ms": "fast"}
    rows = shown(tmp_path, plan, figures=figures, metrics={"loss": 0.25})
    assert rows["figures"] == "words 3, rate 0.5123, name abc, shape [2,3], period_ms fast"
    assert rows["metrics"] == "loss 0.25"
    long = shown(tmp_path, plan, figures={"text": "x" * 500}, metrics={})
    assert len(long["figures"]) < 80
    assert "metrics" not in long


def test_a_score_that_was_not_taken_is_told(tmp_path):
    plan = Plan(in_flight_depth=2)
    period = {"period_ms": 20.0, "stage0_ms": 0.4, "stage1_ms": 19.0}
    rows = shown(tmp_path, plan, **period, overlap_score=None, efficiency=0.95, mesh_idle_ms=1.0)
    assert rows["overlap"] == (
        "a stage is too short for a score, efficiency 0.95 (longer stage of the period), mesh idle 1.0 ms"
    )


def test_a_split_depth_and_the_classic_mistake_are_named(tmp_path):
    plan = Plan(d_in=2, d_out=1, schedule="send-after-decode")
    assert shown(tmp_path, plan)["chunks"] == "4, depth 3 (d_in 2, d_out 1), send-after-decode"
