"""Points of a sweep as processes: one that fails, one that hangs, one again; a short program is papermill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from waiting import wait_for

from ppwork.cli.sweep import write_tables
from ppwork.lab.sweep import sweep as sweeps
from ppwork.lab.sweep.sweep import (
    FAILED,
    NOT_RUN,
    OK,
    POINT_FILE,
    TOO_LONG,
    UNFINISHED,
    grid_of,
    run_sweep,
    sweep_folder,
)
from ppwork.lab.sweep.table import collect

pytestmark = pytest.mark.multiproc

PROGRAM = """\
import json, sys, time
from pathlib import Path
what, out = json.loads(sys.argv[1])["what"], Path(sys.argv[2])
(out / "begun").touch()
error = {"output_type": "error", "ename": "ValueError", "evalue": "no\\nmore"}
expected = {"metadata": {"tags": ["raises-exception"]}, "outputs": [{**error, "ename": "Expected"}]}
cells = [expected, {"metadata": {}, "outputs": [error]}]
if what == "hang":
    time.sleep(60)
if what == "fail":
    (out / "executed.ipynb").write_text(json.dumps({"cells": cells}))
sys.exit({"fail": 1, "crash": 3}.get(what, 0))
"""


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """Return a notebook and a function that sweeps it: the value of ``what`` says how a point goes."""

    def command(notebook, values, place):
        return [sys.executable, "-c", PROGRAM, json.dumps(values), str(place)]

    monkeypatch.setattr(sweeps, "papermill_command", command)
    lesson = tmp_path / "lesson.ipynb"
    cell = {"cell_type": "code", "source": 'what: str = "ok"  # to do', "metadata": {"tags": ["parameters"]}}
    lesson.write_text(json.dumps({"cells": [cell]}))

    def go(values, **options):
        grid = grid_of(lesson, [f"what={values}"])
        folder = sweep_folder(tmp_path / "sweep", grid)
        run_sweep(lesson, grid, folder, **options)
        return folder

    return go


def test_a_point_that_fails_stops_no_other_and_says_why(swept):
    told = []
    folder = swept("fail,hang,crash,ok", limit_s=3.0, progress=lambda point, outcome: told.append(outcome))
    outcomes = [point.outcome for point in collect(folder).points]
    assert [outcome.state for outcome in outcomes] == [FAILED, TOO_LONG, FAILED, OK]
    assert [outcome.why for outcome in outcomes[:3]] == [
        "ValueError: no",
        "it took more than 3 s",
        "papermill ended with code 3",
    ]
    assert told == outcomes


def test_again_keeps_what_ended_well_and_moves_the_rest_aside(swept):
    folder = swept("ok,fail")
    done, failed = (folder / f"{n}-what={what}" for n, what in (("01", "ok"), ("02", "fail")))
    written_ns = (done / POINT_FILE).stat().st_mtime_ns
    assert swept("ok,fail") == swept("ok,fail") == folder
    assert (done / POINT_FILE).stat().st_mtime_ns == written_ns
    assert {path.name for path in folder.iterdir()} == {
        "sweep.json",
        done.name,
        failed.name,
        f"{failed.name}.before-1",
        f"{failed.name}.before-2",
    }
    assert (folder / f"{failed.name}.before-1" / "executed.ipynb").exists()


def test_ctrl_c_keeps_what_is_done(swept, tmp_path):
    """The interrupted process is ended by us; the fixture of this folder sees that none is left."""
    sweep = tmp_path / "sweep"
    begun = sweep / "02-what=hang" / "begun"
    pressed = []

    def press() -> None:
        wait_for(begun.exists)
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        swept("ok,hang,crash")
    finger.join()
    assert time.monotonic() - pressed[0] < 20  # it sleeps 60 s
    table = write_tables(sweep)
    assert [point.outcome.state for point in table.points] == [OK, UNFINISHED, NOT_RUN]
    assert (sweep / "table.csv").read_text().count("\n") == 4


def test_papermill_dies_with_us(tmp_path):
    """What holds papermill is the lifeline of the ranks; here, that our program does hold it."""
    command = sweeps.papermill_command(tmp_path / "any.ipynb", {}, tmp_path)[:4]
    command[-1] = command[-1].replace(
        sweeps.PAPERMILL, "print('held', flush=True); import time; time.sleep(60)"
    )
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "held\n"
        process.stdin.close()
        assert process.wait(10) != 0
