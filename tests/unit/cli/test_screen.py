"""The table that a run ends with."""

import io
import itertools

import msgspec
import pytest
from rich.console import Console
from waiting import wait_for

from ppwork.cli.runs import _in_words, _ranks
from ppwork.cli.screen import EVERY_S, Shown, Warnings, launch_on_terminal
from ppwork.lab.progress import RunProgress
from ppwork.pictures.run_table import table_of
from ppwork.plan import Plan
from ppwork.records.pulse import Pulse, PulseState
from ppwork.records.run import REFERENCE_LOG, SUMMARY_FILE, Run
from ppwork.records.spans import Instant
from ppwork.records.threads import DeadThread, threads_file


def shown(tmp_path, plan, **summary):
    (tmp_path / Plan.FILE_NAME).write_bytes(plan.to_json())
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 4, **summary}))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table_of(Run(tmp_path, 0)))
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
    with Shown(console):
        pass
    assert console.file.getvalue() == ""
    with Shown(console) as begun:
        begun.begin(Plan())
    assert "starting ranks" in console.file.getvalue()


def test_a_bar_says_what_the_queue_says_and_then_that_ranks_start(monkeypatch):

    def launch(plan, *, queued, started, **_):
        queued("job 7: PENDING (Resources)")
        wait_for(lambda: "job 7: PENDING (Resources)" in console.file.getvalue())
        started(plan, None)

    monkeypatch.setattr("ppwork.cli.screen.launch", launch)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    launch_on_terminal(Plan(), None, console, 1.0)
    said = console.file.getvalue()
    assert said.rindex("starting ranks") > said.rindex("job 7")


def test_where_output_is_no_terminal_lines_say_folder_and_chunks(monkeypatch, tmp_path):
    """An endless run is followed in a file; a short one has one line more than a bar's."""
    now_s = 100.0
    monkeypatch.setattr("ppwork.cli.screen.time.monotonic", lambda: now_s)
    file = Kept()
    with Shown(Console(file=file, width=300)) as shown:
        shown.begin(Plan(), tmp_path)
        assert file.flushed == f"folder {tmp_path}\n"
        for after_s, emitted in ((9.9, 0), (10.1, 0), (15.0, 69), (21.0, 70)):
            now_s = 100.0 + after_s
            if emitted:
                shown.entry(emit(emitted - 1, {"db": -8.0123}, at_ms=emitted * 20))
            shown.look()
        (tmp_path / REFERENCE_LOG).touch()
        now_s = 132.0
        shown.look()
    first, starting, chunks, verifies, *bar = file.flushed.splitlines()
    assert verifies == "32 s: 70 chunks came; one process computes them again, to verify them"
    assert starting == "10 s: starting ranks"
    assert chunks == "21 s: 70 chunks, last period 20 ms  db -8.012"
    assert len(bar) == 1
    for kind in ({"force_terminal": True}, {}):  # a terminal has a bar, and --json nothing
        console = Console(file=io.StringIO(), width=300, **kind)
        with Shown(console, bar="force_terminal" in kind) as shown:
            shown.begin(Plan(chunks=8), tmp_path)
            now_s += 50.0
            shown.look()
        assert first not in console.file.getvalue()
        assert " s: " not in console.file.getvalue()


class Kept(io.StringIO):
    """A file of which only what was flushed counts."""

    flushed = ""

    def flush(self):
        self.flushed = self.getvalue()


def emit(chunk_index, figures, *, at_ms):
    return Instant("emit", "main", int(at_ms * 1e6), chunk_index=chunk_index, figures=figures)


def test_encode_says_not_yet_only_while_it_says_so(tmp_path, monkeypatch):
    """While it hangs, the console says that instead: the run will be ended for it."""
    said, plan = [], Plan(mesh_size=1, timeout_s=10, stall_s=5)
    warnings = Warnings(plan, tmp_path, said.append)
    pulse, now_s = Pulse(tmp_path, 0), itertools.count(100.0, EVERY_S)
    monkeypatch.setattr("ppwork.cli.screen.time.monotonic", lambda: next(now_s))
    for state in (PulseState.BUSY, PulseState.SLOW, PulseState.SLOW):
        pulse.beat(state, "encode", {"chunk_index": 5}, paused_s=3.0)
        warnings.look()
    assert said == ["rank 0: encode has not returned for 2.5 s; after 5 s it ends the run"]


def test_what_a_run_goes_on_with_is_said_once_each_and_a_new_pause_again(tmp_path, monkeypatch):
    said, plan = [], Plan(mesh_size=1, timeout_s=10, stall_s=4)
    warnings = Warnings(plan, tmp_path, said.append)
    pulse, now_s = Pulse(tmp_path, 0), itertools.count(100.0, EVERY_S)
    monkeypatch.setattr("ppwork.cli.screen.time.monotonic", lambda: next(now_s))

    def look(paused_s):
        pulse.beat(PulseState.BUSY, paused_s=paused_s)
        warnings.look()

    for paused_s in (0.0, 3.9, 4.5, 9.0):
        look(paused_s)
    assert said == ["rank 0: nothing to encode for 4 s: encode says NOT_YET"]
    look(0.0)
    look(5.0)
    assert said[1:] == ["rank 0: nothing to encode for 5 s: encode says NOT_YET"]
    died = []
    for name in ("reader", "writer"):
        died.append(DeadThread(rank=1, name=name, error="OSError: gone", source="feed.py:7", at_ns=0))
        threads_file(tmp_path, 1).write_bytes(msgspec.json.encode(died))
        look(6.0)
    assert said[2:] == [
        f"rank 1: thread {name!r} died at feed.py:7 of OSError: gone; the run goes on without it"
        for name in ("reader", "writer")
    ]
    assert _in_words(_ranks_of(tmp_path, plan)[0]).endswith(", nothing to encode for 6 s)")
    assert "thread 'reader' died at feed.py:7 of OSError: gone" in _in_words(_ranks_of(tmp_path, plan)[1])
    (state, lost) = RunProgress(plan, tmp_path).look()
    assert state.doing == "nothing to encode for 6 s"
    assert lost.doing.startswith("thread 'reader' died at feed.py:7 of OSError: gone; thread 'writer'")
    assert shown(tmp_path, plan)["lost"].startswith("on rank 1 thread 'writer' died at feed.py:7")


def _ranks_of(run_dir, plan):
    (run_dir / Plan.FILE_NAME).write_bytes(plan.to_json())
    return _ranks(run_dir)


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
