"""The picture of a run's start: every step of every process, and the sentence's numbers are the table's."""

from __future__ import annotations

import pytest

import ppwork as pp
from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.records.run import LaunchEnd
from ppwork.records.spans import Recorder, Span, span_file

S = 1_000_000_000


@pytest.fixture
def folder(tmp_path):
    """A run of two ranks: its times are whole seconds but for what is named in tenths."""
    Plan(mesh_size=1, backend="gloo", chunks=1).save(tmp_path)
    steps = (Span("check", "launcher", S, 2 * S), Span("torchrun", "launcher", 2 * S, 20 * S),
             Span("read", "launcher", 20 * S, 21 * S))  # fmt: skip
    LaunchEnd(exit_code=0, steps=steps).save(tmp_path)
    for rank in (0, 1):
        with Recorder(span_file(tmp_path, rank)) as recorder:
            for name, start, end in (("start Python", 5, 6), ("import torch", 6, 9), ("join", 9, 10)):
                recorder.write(Span(name, "main", start * S, end * S))
            recorder.write(Span("load", "main", 10 * S, 10 * S + S // 10))
            recorder.write(Span("generate", "main", 11 * S, 15 * S, chunk_index=0, call_id=0))
    return tmp_path


def test_every_step_of_every_process_is_in_the_table_and_the_longest_in_the_sentence(folder):
    picture = pp.pictures.startup(folder)
    rows = {row[0]: dict(zip(picture.table.head[1:], row[1:], strict=True)) for row in picture.table.rows}
    assert list(rows) == ["launcher", "torchrun", "rank 0", "rank 1"]
    assert (rows["launcher"]["check"], rows["launcher"]["read"]) == ("1.00", "1.00")
    assert (rows["torchrun"]["torchrun starts"], rows["torchrun"]["torchrun ends"]) == ("3.00", "5.00")
    assert [rows["rank 1"][name] for name in ("import torch", "join", "load", "chunks")] == [
        "3.00", "1.00", "0.10", "4.00",
    ]  # fmt: skip
    assert "first chunk 10.0 s after the launch" in picture.finding
    assert "torchrun starts 3.0 s" in picture.finding
    assert "chunks took 4.0 s of 20.0 s" in picture.finding


def test_bars_stand_where_the_table_says(folder):
    (axes,) = pp.pictures.startup(folder).figure.axes
    boxes = {(round(bar.get_x(), 2), round(bar.get_width(), 2)) for bar in axes.patches}
    assert {(0.0, 1.0), (1.0, 3.0), (4.0, 1.0), (5.0, 3.0), (8.0, 1.0), (10.0, 4.0), (19.0, 1.0)} <= boxes


def test_a_job_of_somebody_elses_torchrun_has_no_times_of_a_launcher(folder):
    LaunchEnd(exit_code=0).save(folder)
    with pytest.raises(PlanError, match="left no times of its start") as caught:
        pp.pictures.startup(folder)
    assert "pp.launch" in caught.value.check_first
